import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from conftest import publication, write_publications
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ewe.errors import DataError, IncompleteError
from ewe.pipeline import schema
from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import ParquetEngine
from ewe.pipeline.relabel import first_claims, first_later, relabel_folder
from ewe.pipeline.split import parse_splits
from ewe.store import read_manifest
from ewe.text import join_claims

Code = dict[str, Any]
CODES = pl.List(pl.Struct({"code": pl.String, "first": pl.Boolean, "inventive": pl.Boolean}))


def slow_first_later(codes: Sequence[Code] | None) -> tuple[str | None, list[str] | None, list[str]]:
    """ewe-spec section 4 in plain Python: first, later, subclasses."""
    merged: dict[str, tuple[bool, bool]] = {}
    for each in codes or []:
        code = "".join((each["code"] or "").split())
        if code:
            first, inventive = merged.get(code, (False, False))
            merged[code] = (first or each["first"] is True, inventive or each["inventive"] is True)
    subclasses = sorted({code[:4] for code in merged})
    flagged = sorted((not inventive, code) for code, (first, inventive) in merged.items() if first)
    if not flagged:
        return None, None, subclasses
    listed = flagged[0][1]
    return listed[:4], sorted({code[:4] for code in merged if code != listed}), subclasses


def frame_of(rows: Sequence[Sequence[Code] | None], scheme: str = "cpc") -> pl.DataFrame:
    return pl.DataFrame({scheme: pl.Series(rows, dtype=CODES)})


def code(symbol: str, first: bool | None = None, inventive: bool | None = None) -> Code:
    return {"code": symbol, "first": first, "inventive": inventive}


# The paper's three patents (section 5.3), its codes read as full ones.
PAPER = [
    [code("G06Q10/00", first=True), code("G06Q20/00"), code("A01B1/00")],
    [code("A01B1/00", first=True), code("G06Q10/00"), code("A01B3/00")],
    [code("G06Q10/00", first=True), code("A01B1/00")],
]


def test_codes_need_not_say_whether_they_are_inventive() -> None:
    codes = [
        [{"code": "A01B1/00", "first": True}, {"code": "G06Q10/00", "first": False}],
        [{"code": "H04L1/00", "first": None}],
    ]
    labelled = first_later(pl.DataFrame({"cpc": codes}))

    assert labelled["label_names"].to_list() == [["First-A01B", "Later-G06Q"], None]


def test_the_papers_example() -> None:
    frame = first_later(frame_of(PAPER))

    assert frame["label_names"].to_list() == [
        ["First-G06Q", "Later-A01B", "Later-G06Q"],
        ["First-A01B", "Later-A01B", "Later-G06Q"],
        ["First-G06Q", "Later-A01B"],
    ]
    order = ["First-A01B", "First-G06Q", "Later-A01B", "Later-G06Q"]
    one_hot = [[int(label in names) for label in order] for names in frame["label_names"]]
    assert one_hot == [[0, 1, 1, 1], [1, 0, 1, 1], [0, 1, 1, 0]]
    assert frame["subclasses"].to_list() == [["A01B", "G06Q"]] * 3  # what earlier literature could not tell apart


@pytest.mark.parametrize(
    ("codes", "first", "later"),
    [
        ([code("A01N 53/12", first=True)], "A01N", []),
        ([code("B1/1"), code("A01B1/00", first=True)], "A01B", ["B1/1"]),  # first need not stand at index 0
        ([code("C07D1/00", first=True), code("A01B1/00", first=True)], "A01B", ["C07D"]),  # the smaller of two
        ([code("C07D1/00", first=True, inventive=True), code("A01B1/00", first=True)], "C07D", ["A01B"]),
        ([code("A01B1/00", first=True), code("A01B1/00"), code("A01B 1/00", inventive=True)], "A01B", []),
        ([code("A01B1/00", first=True), code("A01B2/00")], "A01B", ["A01B"]),  # Later may repeat First
        ([code("A01B1/00", first=False), code("C07D1/00")], None, None),
        ([code("", first=True), code("A01B1/00")], None, None),
        ([], None, None),
        (None, None, None),
    ],
)
def test_the_rule_case_by_case(codes: list[Code] | None, first: str | None, later: list[str] | None) -> None:
    row = first_later(frame_of([codes])).row(0, named=True)

    assert (row["first"], row["later"]) == (first, later)


symbols = st.sampled_from(
    [
        "A01B1/00",
        "A01B 1/00",
        "Ä€🙂B1",
        "Ä€🙂",
        "A01B3/12",
        "G06Q10/00",
        "G06Q\u00a010/00",
        "A0\x1c1B1/00",
        "C07D",
        "",
        "H10K",
    ]
)
flags = st.sampled_from([None, False, True])
codes = st.none() | st.lists(st.builds(code, symbols | st.none(), flags, flags), max_size=8)


@given(st.lists(codes, max_size=20))
@settings(deadline=None)  # the first call compiles
def test_the_rule_equals_plain_python(rows: list[list[Code] | None]) -> None:
    frame = first_later(frame_of(rows, "ipc"), scheme="ipc")

    assert list(zip(frame["first"], frame["later"].to_list(), frame["subclasses"].to_list(), strict=True)) == [
        slow_first_later(row) for row in rows
    ]
    assert frame.columns == ["ipc", "first", "later", "subclasses", "several_first", "label_names"]
    assert first_later(frame[["ipc"]][1:], scheme="ipc").equals(frame[1:])


def test_lazy_frames_are_as_welcome() -> None:
    assert first_later(frame_of(PAPER).lazy()).collect().equals(first_later(frame_of(PAPER)))


def test_first_claims_equal_join_claims_row_by_row() -> None:
    texts = ["What is claimed is:\n1. A café. 2. The café of claim 1 , warm.", None, "", "A thing.", "\x00"]
    frame = first_claims(pl.DataFrame({"n": range(5), "claims": texts}), max_claims=1)

    for row, source in zip(frame.rows(named=True), texts, strict=True):
        expected = join_claims(source or "", 1)
        assert (row["text"], row["claim_offsets"], row["n_claims"]) == tuple(expected)
    sliced = first_claims(pl.DataFrame({"claims": texts})[3:], max_claims=20)
    assert sliced["text"].to_list() == ["A thing.", ""]


# -- the whole folder ------------------------------------------------------------------------------------------------


def make_raw(folder: Path, rows: list[dict[str, object]], start: str = "2006-01-01", end: str = "2015-12-31") -> Path:
    folder.mkdir(exist_ok=True)
    table = write_publications(folder / "table.parquet", rows)
    window = {"start": dt.date.fromisoformat(start), "end": dt.date.fromisoformat(end)}
    fetch_grants(ParquetEngine(table), folder / "raw", **window)
    return folder / "raw"


def some_rows() -> list[dict[str, object]]:
    def later(symbol: str) -> dict[str, object]:
        return {"code": symbol, "first": False, "inventive": True, "tree": []}

    def listed(symbol: str) -> dict[str, object]:
        return later(symbol) | {"first": True}

    both = [later("A01B1/00"), listed("G06Q10/00")]
    return [
        publication("US-0000001-B2", grant_date=20100112, cpc=both),
        publication("US-0000002-B1", grant_date=20100105, cpc=[listed("A01B1/00")]),
        publication("US-0000003-B2", grant_date=20141230, cpc=[later("H04L9/00")]),  # none flagged first
        publication("US-0000004-B2", grant_date=20150106, cpc=[*both, later("Z99Z1/00")]),  # unknown to train
        publication("US-0000005-B2", grant_date=20150707, cpc=[]),
        publication("US-0000006-B2", grant_date=20150707, claims_localized=[]),
        publication("US-0000007-B2", grant_date=20150707, claims_localized=[{"text": "\x00\x00"}], cpc=[]),
    ]


def test_a_dataset_in_full(tmp_path: Path) -> None:
    raw = make_raw(tmp_path, some_rows())
    summary = relabel_folder(raw, tmp_path / "dataset")

    assert summary["relabeled"] == {"train": 2, "test_2015a": 1, "test_2015b": 0}
    assert summary["no_first"] == {"train": 1, "test_2015a": 0, "test_2015b": 0}
    assert summary["dropped"] == {"no_claims": 2, "no_codes": 1}
    train = pl.read_parquet(tmp_path / "dataset/relabeled/train-00000-of-00001.parquet")
    assert train["publication_number"].to_list() == ["US-0000002-B1", "US-0000001-B2"]  # by grant date first
    assert train["label_names"].to_list() == [["First-A01B"], ["First-G06Q", "Later-A01B"]]
    assert train["labels"].to_list() == [[0], [1, 2]]
    assert train["unordered_labels"].to_list() == [[0], [0, 1]]
    labels = json.loads((tmp_path / "dataset/labels.json").read_text())
    assert labels["position"]["names"] == ["First-A01B", "First-G06Q", "Later-A01B", "Later-G06Q"]
    assert labels["position"]["counts"] == {
        "train": [1, 1, 1, 0], "test_2015a": [0, 1, 1, 0], "test_2015b": [0, 0, 0, 0]
    }  # fmt: skip
    assert labels["unordered"]["names"] == ["A01B", "G06Q", "H04L"]
    assert labels["unordered"]["counts"]["train"] == [2, 1, 1]
    test = pl.read_parquet(tmp_path / "dataset/relabeled/test_2015a-00000-of-00001.parquet")
    assert test["label_names"].to_list() == [["First-G06Q", "Later-A01B", "Later-Z99Z"]]
    assert test["labels"].to_list() == [[1, 2]]
    dropped = pl.read_parquet(tmp_path / "dataset/dropped.parquet")
    assert dropped.rows() == [
        ("US-0000005-B2", "no_codes"), ("US-0000006-B2", "no_claims"), ("US-0000007-B2", "no_claims")
    ]  # fmt: skip
    stats = json.loads((tmp_path / "dataset/stats.json").read_text())
    assert stats["rows"] == {"relabeled": 3, "no_first": 1, "dropped": {"no_claims": 2, "no_codes": 1}}
    assert stats["splits"]["test_2015a"]["labels_outside_train"] == 1


def test_every_file_has_the_columns_of_the_schema(tmp_path: Path) -> None:
    relabel_folder(make_raw(tmp_path, some_rows()), tmp_path / "dataset")

    for path in sorted((tmp_path / "dataset").glob("*/*.parquet")):
        assert pq.read_schema(path).equals(schema.DATASET, check_metadata=False), path
        footer = pq.read_metadata(path)
        assert all(footer.row_group(index).column(0).has_offset_index for index in range(footer.num_row_groups))
    assert len(list((tmp_path / "dataset").glob("*/*.parquet"))) == 6  # an empty split has a shard too


def test_small_row_groups_and_shards_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        publication(f"US-{7000000 + n}-B2", grant_date=20100101 + 100 * (n // 15) + n * 7 % 27) for n in range(1, 50)
    ]
    raw = make_raw(tmp_path, rows)
    relabel_folder(raw, tmp_path / "whole")
    monkeypatch.setattr("ewe.pipeline.relabel.SHARD_ROWS", 20)
    monkeypatch.setattr("ewe.pipeline.relabel.ROW_GROUP", 7)
    monkeypatch.setattr("ewe.pipeline.relabel.CHUNK", 4)  # batches whose days overlap
    relabel_folder(raw, tmp_path / "cut")

    assert len(list((tmp_path / "cut/relabeled").glob("train-*-of-00003.parquet"))) == 3  # of whole months
    whole, cut = (pl.read_parquet(tmp_path / name / "relabeled/train-*.parquet") for name in ("whole", "cut"))
    assert whole.equals(cut)
    keys = ["grant_date", "publication_number"]
    assert whole.select(keys).equals(whole.select(keys).sort(keys))


@given(
    st.lists(st.integers(1, 28), max_size=40),
    st.integers(1, 9),
    st.integers(1, 9),
    st.tuples(st.integers(1, 28), st.integers(1, 28)).map(sorted),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_days_within_a_month_is_sorted(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    days: list[int],
    group: int,
    chunk: int,
    train: list[int],
) -> None:
    """Reissues and withdrawn numbers come out of their time; the paper's windows end with a month, others need not."""
    folder = tmp_path_factory.mktemp("days")
    day_of = {f"US-{7000000 + n}-B2": dt.date(2010, 1, day) for n, day in enumerate([train[0], *days])}
    with monkeypatch.context() as patch:
        patch.setattr("ewe.pipeline.fetch.ROW_GROUP", group)
        raw = make_raw(folder, [publication(n, grant_date=int(f"{day:%Y%m%d}")) for n, day in day_of.items()])
        patch.setattr("ewe.pipeline.relabel.CHUNK", chunk)
        window = f"2010-01-{train[0]:02}:2010-01-{train[1]:02}"
        relabel_folder(raw, folder / "dataset", splits=parse_splits([f"train={window}"]))

    found = pl.read_parquet(folder / "dataset/relabeled/train-*.parquet")
    inside = {n: day for n, day in day_of.items() if train[0] <= day.day <= train[1]}
    assert found["publication_number"].to_list() == sorted(inside, key=lambda n: (inside[n], n))
    dropped = pl.read_parquet(folder / "dataset/dropped.parquet")
    assert dropped.rows() == [(n, "outside_split") for n in sorted(day_of) if n not in inside]


def test_labels_are_those_of_rows_with_claims(tmp_path: Path) -> None:
    """A subclass that stands only in rows without claims is none; one row with claims is enough, wherever it is."""

    def row(n: int, symbol: str, claims: str | None = "1. A lamp.", *, first: bool = True) -> dict[str, object]:
        cpc = [{"code": symbol, "first": first, "inventive": True, "tree": []}]
        given = [{"text": claims, "language": "en", "truncated": False}] if claims is not None else []
        return publication(f"US-{n}-B2", cpc=cpc, claims_localized=given)

    rows = [
        row(1, "A01B1/00", None),
        row(2, "B01B1/00", " \x00 "),
        row(3, "C01B1/00", None),
        row(4, "C01B1/00"),
        row(5, "D01B1/00", first=False),
        row(6, "E01B1/00", None, first=False),
        row(7, "F01B1/00", "1. 2. A lamp."),
    ]
    for most in (1, 20):
        relabel_folder(make_raw(tmp_path / str(most), rows), tmp_path / f"dataset-{most}", max_claims=most)
    once, twenty = (json.loads((tmp_path / f"dataset-{most}/labels.json").read_text()) for most in (1, 20))

    assert once["unordered"]["names"] == ["C01B", "D01B"]  # the first claim of row 7 is empty
    assert twenty["position"]["names"] == ["First-C01B", "First-F01B", "Later-C01B", "Later-F01B"]
    assert twenty["unordered"]["names"] == ["C01B", "D01B", "F01B"]


def test_a_window_may_start_before_any_patent(tmp_path: Path) -> None:
    raw = make_raw(tmp_path, some_rows())

    relabel_folder(raw, tmp_path / "dataset", splits=parse_splits(["train=0300-01-01:2015-12-31"]))

    assert pq.read_metadata(tmp_path / "dataset/relabeled/train-00000-of-00001.parquet").num_rows == 3


def test_a_flipped_bit_is_never_another_text(tmp_path: Path) -> None:
    """A damaged page that decompresses is another text, under a hash that says it is the right one."""
    raw = make_raw(tmp_path, some_rows())
    relabel_folder(raw, tmp_path / "whole")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").rglob("*.parquet")}
    month = raw / "grants-2010-01.parquet"
    good, random = month.read_bytes(), np.random.default_rng(0)
    sentences = []
    for number, bit in enumerate(random.integers(0, 8 * len(good), 60)):
        month.write_bytes(good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :])
        try:
            relabel_folder(raw, tmp_path / f"{number}")
        except DataError as error:
            sentences.append(str(error))
        else:
            found = {path.name: path.read_bytes() for path in (tmp_path / f"{number}").rglob("*.parquet")}
            assert found == whole
    assert len(sentences) > 30
    assert all(str(month) in sentence for sentence in sentences)


def test_shards_are_read_in_flat_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default pyarrow keeps every row group that it has passed until the file is closed."""
    opened = []
    open_file = pq.ParquetFile

    def recorded(path: Any, **options: Any) -> pq.ParquetFile:
        opened.append((Path(path).relative_to(tmp_path).parts[0], options.get("pre_buffer")))
        return open_file(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", recorded)
    relabel_folder(make_raw(tmp_path, some_rows()), tmp_path / "dataset")
    dedup_folder(tmp_path / "dataset")

    assert set(opened) == {("table.parquet", False), ("raw", False), ("dataset", False)}


def test_a_resumed_run_is_byte_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe.pipeline.relabel.SHARD_ROWS", 1)  # a shard a month
    raw = make_raw(tmp_path, some_rows())
    relabel_folder(raw, tmp_path / "whole")
    for stop in ("_write_shard", "_write_dropped", "_assert_nothing_lost"):
        with monkeypatch.context() as patch:
            patch.setattr(f"ewe.pipeline.relabel.{stop}", _interrupt_second(stop))
            with pytest.raises(KeyboardInterrupt):
                relabel_folder(raw, tmp_path / "resumed")
            with pytest.raises(IncompleteError):
                read_manifest(tmp_path / "resumed", "dataset")
    relabel_folder(raw, tmp_path / "resumed")

    for path in sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file() and path.name != ".lock"):
        other = tmp_path / "resumed" / path.relative_to(tmp_path / "whole")
        assert path.read_bytes() == other.read_bytes(), path
    assert not (tmp_path / "resumed/.dropped").exists()


def _interrupt_second(name: str) -> Any:
    from ewe.pipeline import relabel

    function, calls = getattr(relabel, name), []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == (1 if name in ("_write_dropped", "_assert_nothing_lost") else 2):
            raise KeyboardInterrupt
        return function(*arguments)

    return interrupted


def test_the_same_command_again_says_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = make_raw(tmp_path, some_rows())
    first = relabel_folder(raw, tmp_path / "dataset")

    assert relabel_folder(raw, tmp_path / "dataset") == first
    assert "finished already" in capsys.readouterr().err
    with pytest.raises(DataError, match="max_claims was 20 and is now 5"):
        relabel_folder(raw, tmp_path / "dataset", max_claims=5)


def test_an_empty_train_split_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    raw = make_raw(tmp_path, some_rows())

    with pytest.raises(DataError, match="No row of the train split"):
        relabel_folder(raw, tmp_path / "dataset", splits=parse_splits(["train=2006-01-01:2006-12-31"]))
    assert not (tmp_path / "dataset").exists()


# -- real patents ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def real_raw(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("real") / "raw"
    window = {"start": dt.date(2005, 1, 1), "end": dt.date(2015, 12, 31)}
    fetch_grants(ParquetEngine(real / "publications.parquet"), raw, **window)
    return raw


@pytest.mark.parametrize(
    ("scheme", "arguments", "rows"),
    [
        ("ipc", ["train=2005-01-01:2010-12-31", "test=2011-01-01:2015-12-31"], {"train": 94, "test": 27}),
        ("cpc", ["train=2005-01-01:2005-12-31", "test=2006-01-01:2006-12-31"], {"train": 475, "test": 48}),
        ("ipc", [], {"train": 91, "test_2015a": 3, "test_2015b": 0}),
    ],
)
def test_real_patents_equal_an_independent_reading(
    real: Path, real_raw: Path, tmp_path: Path, scheme: Any, arguments: list[str], rows: dict[str, int]
) -> None:
    summary = relabel_folder(real_raw, tmp_path / "dataset", scheme=scheme, splits=parse_splits(arguments))
    found = pl.read_parquet(tmp_path / "dataset/relabeled/*.parquet")
    source = {row["publication_number"]: row for row in pq.read_table(real / "publications.parquet").to_pylist()}

    assert summary["relabeled"] == rows
    for row in found.rows(named=True):
        patent = source[row["publication_number"]]
        assert (row["first"], row["later"]) == slow_first_later(patent[scheme])[:2]
        assert row["text"] == join_claims(patent["claims_localized"][0]["text"]).text


def test_load_dataset_is_right_at_once(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    datasets = pytest.importorskip("datasets")
    relabel_folder(make_raw(tmp_path, some_rows()), tmp_path / "dataset")

    loaded = datasets.load_dataset(str(tmp_path / "dataset"), cache_dir=str(tmp_path / "cache"))
    # the library cannot read a split without rows, so the empty test_2015b is not offered to it
    assert {name: split.num_rows for name, split in loaded.items()} == {"train": 2, "test_2015a": 1}
    assert loaded["train"].features["labels"].feature.names[:2] == ["First-A01B", "First-G06Q"]
    unordered = datasets.load_dataset(str(tmp_path / "dataset"), "unordered", cache_dir=str(tmp_path / "cache"))
    assert unordered["train"].num_rows == 3
    names = unordered["train"].features["unordered_labels"].feature.names
    assert [[names[label] for label in row] for row in unordered["train"]["unordered_labels"]][-1] == ["H04L"]
    assert [str(warning.message) for warning in recwarn] == []


def test_pandas_and_duckdb_read_the_shards(tmp_path: Path) -> None:
    import duckdb

    relabel_folder(make_raw(tmp_path, some_rows()), tmp_path / "dataset")
    shards = str(tmp_path / "dataset/relabeled/*.parquet")

    found = duckdb.read_parquet(shards).order("publication_number").project("first, later").fetchall()
    assert found[0] == ("G06Q", ["A01B"])
    assert len(pq.read_table(tmp_path / "dataset/relabeled/train-00000-of-00001.parquet").to_pandas()) == 2
