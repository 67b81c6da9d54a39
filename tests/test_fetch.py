import datetime as dt
import hashlib
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import publication, write_publications

from ewe.errors import DataError, UsageError
from ewe.pipeline import schema
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import ParquetEngine
from ewe.store import read_manifest, sha256_json


def day(number: int) -> dt.date | None:
    """yyyymmdd -> date; None where the calendar has no such day."""
    try:
        return dt.datetime.strptime(str(number), "%Y%m%d").replace(tzinfo=dt.UTC).date()
    except ValueError:
        return None


def slow_grant(row: dict[str, Any]) -> dict[str, Any]:
    """One row of the publications table as raw/ has it, in plain Python."""

    def english(texts: list[dict[str, Any]]) -> str | None:
        ordered = sorted(texts or [], key=lambda each: each["language"] != "en")
        return (ordered[0]["text"] or None) if ordered else None

    def codes(published: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: each[name] for name in ("code", "first", "inventive")} for each in published or []]

    return {
        "publication_number": row["publication_number"],
        "patent_id": row["publication_number"].split("-")[1],
        "application_number": row["application_number"] or None,
        "family_id": row["family_id"] or None,
        "kind_code": row["kind_code"],
        "filing_date": day(row["filing_date"]),
        "grant_date": day(row["grant_date"]),
        "title": english(row["title_localized"]),
        "claims": english(row["claims_localized"]),
        "assignees": [each["name"] for each in row["assignee_harmonized"] or [] if each["name"]],
        "cpc": codes(row["cpc"]),
        "ipc": codes(row["ipc"]),
    }


def read_raw(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("grants-*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_real_grants_equal_an_independent_reading(real: Path, tmp_path: Path) -> None:
    window = {"start": dt.date(2005, 1, 1), "end": dt.date(2015, 12, 31)}
    summary = fetch_grants(ParquetEngine(real / "publications.parquet"), tmp_path / "raw", **window)
    expected = [
        slow_grant(row)
        for row in pq.read_table(real / "publications.parquet").to_pylist()
        if row["country_code"] == "US" and row["kind_code"] in ("B1", "B2") and row["application_kind"] == "A"
        if 20050101 <= row["grant_date"] <= 20151231
    ]

    expected.sort(key=lambda row: (f"{row['grant_date']:%Y-%m}", row["publication_number"]))
    assert read_raw(tmp_path / "raw") == expected
    assert summary["rows"] == len(expected) == 2191


def test_what_the_query_leaves_out_and_lets_in(tmp_path: Path, window: dict[str, dt.date]) -> None:
    two_languages = [{"text": "Ein Ding.", "language": "de"}, {"text": "1. A thing.", "language": "en"}]
    rows = [
        publication("US-0000001-B1", filing_date=20080101, application_number="US-1-A"),
        publication("US-0000002-B2", grant_date=20060101, title_localized=[{"text": "", "language": "en"}]),
        publication("US-0000003-B2", grant_date=20151231, filing_date=20080230),  # a day no calendar has
        publication("US-0000004-B2", grant_date=20051231),
        publication("US-0000005-B2", grant_date=20160101),
        publication("US-0000006-B2", grant_date=0),
        publication("US-0000007-B2", grant_date=20101301),
        publication("US-D000008-S1", application_kind="F"),
        publication("US-PP00009-P2", application_kind="V"),
        publication("US-RE00010-E1", application_kind="A"),
        publication("US-2010001-A1"),
        publication("JP-0000012-B2", country_code="JP"),
        publication("US-0000013-B2", claims_localized=two_languages),
    ]  # fmt: skip
    fetch_grants(ParquetEngine(write_publications(tmp_path / "t.parquet", rows)), tmp_path / "raw", **window)
    found = {row["publication_number"]: row for row in read_raw(tmp_path / "raw")}

    assert sorted(found) == ["US-0000001-B1", "US-0000002-B2", "US-0000003-B2", "US-0000013-B2"]
    assert found["US-0000001-B1"] == slow_grant(rows[0])
    assert found["US-0000002-B2"]["title"] is None
    assert found["US-0000003-B2"]["filing_date"] is None
    assert found["US-0000013-B2"]["claims"] == "1. A thing."


def test_shards_are_sorted_months_in_the_schema(tmp_path: Path, window: dict[str, dt.date]) -> None:
    rows = [publication(f"US-{9 - n}-B2", grant_date=20100100 + 100 * (n % 2) + 5) for n in range(6)]
    fetch_grants(ParquetEngine(write_publications(tmp_path / "t.parquet", rows)), tmp_path / "raw", **window)
    shards = sorted((tmp_path / "raw").glob("*.parquet"))

    assert [path.name for path in shards] == ["grants-2010-01.parquet", "grants-2010-02.parquet"]
    for path in shards:
        assert pq.read_schema(path).equals(schema.RAW)
        assert schema.describe(pq.read_schema(path)) == schema.describe(schema.RAW)
        numbers = pq.read_table(path)["publication_number"].to_pylist()
        assert numbers == sorted(numbers)
    assert read_manifest(tmp_path / "raw", "raw")["rows"] == 6


def test_many_files_and_small_batches_give_the_same(
    tmp_path: Path, window: dict[str, dt.date], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [publication(f"US-{1000 + n}-B2", grant_date=20100101 + 100 * (n % 12)) for n in range(700)]
    fetch_grants(ParquetEngine(write_publications(tmp_path / "t.parquet", rows)), tmp_path / "one", **window)
    (tmp_path / "many" / "deep").mkdir(parents=True)
    for part in range(7):
        table = pa.Table.from_pylist(rows[part::7], schema.PUBLICATIONS)
        pq.write_table(table, tmp_path / "many" / "deep" / f"{part}.parquet", row_group_size=30)
    monkeypatch.setattr("ewe.pipeline.local.UNIT_ROWS", 60)
    monkeypatch.setattr("ewe.pipeline.local.BATCH_BYTES", 1)
    fetch_grants(ParquetEngine(tmp_path / "many"), tmp_path / "raw", **window)

    for path in sorted((tmp_path / "one").glob("*.parquet")):
        assert path.read_bytes() == (tmp_path / "raw" / path.name).read_bytes()


def test_a_killed_fetch_goes_on(tmp_path: Path, window: dict[str, dt.date], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [publication(f"US-{1000 + n}-B2", grant_date=20100101 + 100 * (n % 12)) for n in range(60)]
    table = pa.Table.from_pylist(rows, schema.PUBLICATIONS)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    monkeypatch.setattr("ewe.pipeline.local.UNIT_ROWS", 10)
    fetch_grants(ParquetEngine(tmp_path / "t.parquet"), tmp_path / "whole", **window)

    scanned: list[list[int]] = []
    query = ParquetEngine._query
    for stop in (3, 5):  # dies while it scans the fourth unit, then while it scans the sixth

        def dying(self: ParquetEngine, *arguments: Any, stop: int = stop) -> Any:
            if arguments[-1] == [stop]:
                raise KeyboardInterrupt
            scanned.append(arguments[-1])
            return query(self, *arguments)

        monkeypatch.setattr(ParquetEngine, "_query", dying)
        with pytest.raises(KeyboardInterrupt):
            fetch_grants(ParquetEngine(tmp_path / "t.parquet"), tmp_path / "raw", **window)
    monkeypatch.setattr(ParquetEngine, "_query", query)
    fetch_grants(ParquetEngine(tmp_path / "t.parquet"), tmp_path / "raw", **window)

    assert scanned == [[0], [1], [2], [3], [4]]  # no unit twice
    for path in sorted(path for path in (tmp_path / "whole").iterdir() if path.name != ".lock"):
        assert path.read_bytes() == (tmp_path / "raw" / path.name).read_bytes()
    assert not (tmp_path / "raw" / ".scan").exists()


def test_wide_types_are_welcome(tmp_path: Path, window: dict[str, dt.date]) -> None:
    frame = pl.DataFrame(pa.Table.from_pylist([publication()], schema.PUBLICATIONS))
    frame.with_columns(pl.col("grant_date").cast(pl.Int32), extra=1).write_parquet(tmp_path / "polars.parquet")
    summary = fetch_grants(ParquetEngine(tmp_path / "polars.parquet"), tmp_path / "raw", **window)

    assert summary["rows"] == 1


def write_broken(folder: Path, how: str) -> Path:
    path = folder / "table.parquet"
    table = pa.Table.from_pylist([publication()] * 2000, schema.PUBLICATIONS)
    match how:
        case "missing column":
            pq.write_table(table.drop_columns(["cpc"]), path)
        case "mistyped column":
            pq.write_table(table.drop_columns(["grant_date"]).append_column("grant_date", [["2010"] * 2000]), path)
        case "mistyped inner column":
            codes = pa.array([[{"code": 1, "first": True, "inventive": True}]] * 2000)
            pq.write_table(table.drop_columns(["ipc"]).append_column("ipc", codes), path)
        case "truncated":
            pq.write_table(table, path)
            path.write_bytes(path.read_bytes()[:-100])
        case "damaged page":
            pq.write_table(table, path, compression="none", use_dictionary=False)
            data = bytearray(path.read_bytes())
            data[4:2000] = b"\xff" * 1996
            path.write_bytes(data)
        case "text":
            path.write_text("publication_number,grant_date\n")
        case "empty":
            path.write_bytes(b"")
        case "twice":
            pq.write_table(table, path)
        case "no number":
            pq.write_table(
                pa.Table.from_pylist([publication() | {"publication_number": None}], schema.PUBLICATIONS), path
            )
    return path


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing column", "has no column cpc"),
        ("mistyped column", "column grant_date is string, not int64"),
        ("mistyped inner column", "column ipc is"),
        ("truncated", "cannot be read as Parquet .*; export or copy it again"),
        ("damaged page", "cannot be read as Parquet .*; export or copy it again"),
        ("text", "cannot be read as Parquet .*; export or copy it again"),
        ("empty", "cannot be read as Parquet .*; export or copy it again"),
        ("twice", "US-7654321-B2 stands more than once"),
        ("no number", "has no publication_number"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, window: dict[str, dt.date], how: str, message: str
) -> None:
    path = write_broken(tmp_path, how)

    with pytest.raises(DataError, match=message) as refused:
        fetch_grants(ParquetEngine(path), tmp_path / "raw", **window)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "raw").glob("[!.]*.parquet"))


def test_another_input_of_equal_sizes_is_another_input(tmp_path: Path, window: dict[str, dt.date]) -> None:
    path = tmp_path / "t.parquet"
    sizes, configs = set(), []
    for family in ("1", "2"):
        write_publications(path, [publication(family_id=family)])
        sizes.add((path.stat().st_size, pq.read_metadata(path).row_group(0).total_byte_size))
        configs.append(ParquetEngine(path).config())
        if len(configs) == 1:
            fetch_grants(ParquetEngine(path), tmp_path / "raw", **window)

    assert len(sizes) == 1
    assert configs[0] != configs[1]
    with pytest.raises(DataError, match="raw"):
        fetch_grants(ParquetEngine(path), tmp_path / "raw", **window)
    write_publications(path, [publication(family_id="1")])
    assert ParquetEngine(path).config() == configs[0]
    assert fetch_grants(ParquetEngine(path), tmp_path / "raw", **window)["rows"] == 1


def test_the_input_is_known_by_its_footers_bytes(tmp_path: Path) -> None:
    """Against Parquet's own account of where the footer lies."""
    path = write_publications(tmp_path / "t.parquet", [publication()])
    length = pq.read_metadata(path).serialized_size
    footer = path.read_bytes()[-8 - length : -8]
    files = [["t.parquet", path.stat().st_size, hashlib.sha256(footer).hexdigest()]]

    assert ParquetEngine(path).config()["input_sha256"] == sha256_json(files)


def test_windows_and_inputs_that_cannot_be(tmp_path: Path, window: dict[str, dt.date]) -> None:
    table = write_publications(tmp_path / "t.parquet", [publication()])
    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError, match=r"ends .* before it starts"):
        fetch_grants(ParquetEngine(table), tmp_path / "raw", start=window["end"], end=window["start"])
    with pytest.raises(DataError, match="No US utility grant from 1999-01-01"):
        fetch_grants(ParquetEngine(table), tmp_path / "raw", start=dt.date(1999, 1, 1), end=dt.date(1999, 2, 1))
    with pytest.raises(UsageError, match="does not exist"):
        ParquetEngine(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no \.parquet file"):
        ParquetEngine(tmp_path / "empty")
    assert not list((tmp_path / "raw").glob("[!.]*.parquet"))
