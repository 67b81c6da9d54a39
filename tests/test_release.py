import datetime as dt
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datasets_made import make_dataset, make_raw, some_patents
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="the report extra is not installed")

from ewe.errors import DataError, IncompleteError
from ewe.pipeline import card, schema
from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.relabel import relabel_folder
from ewe.pipeline.release import release_folder
from ewe.pipeline.stats import count_words
from ewe.store import json_text, read_json, read_manifest, verify

STAGES: dict[str, list[Callable[[Path], Any]]] = {
    "relabel": [],
    "dedup": [dedup_folder],
    "relabel-release": [release_folder],
    "dedup-release": [dedup_folder, release_folder],
}


@pytest.fixture(scope="module")
def relabeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("release"), some_patents())


@pytest.fixture(scope="module")
def stages(relabeled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The dataset after each step."""
    found = {}
    for stage, steps in STAGES.items():
        found[stage] = tmp_path_factory.mktemp(stage) / "dataset"
        shutil.copytree(relabeled, found[stage])
        for step in steps:
            step(found[stage])
    return found


@pytest.fixture
def dataset(stages: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the finished dataset, to be spoiled."""
    return shutil.copytree(stages["dedup-release"], tmp_path / "dataset")


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# -- opened by the tools that analysts have ---------------------------------------------------------------------------


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the loggers of datasets and huggingface_hub say, which do not pass it on."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).addHandler(listener)
    yield said
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).removeHandler(listener)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_load_dataset_opens_it_without_a_warning(
    stages: dict[str, Path], stage: str, tmp_path: Path, recwarn: pytest.WarningsRecorder, logged: list[str]
) -> None:
    import datasets

    folder = stages[stage]
    labels = read_json(folder / "labels.json")
    for config, column, kind in (("default", "labels", "position"), ("unordered", "unordered_labels", "unordered")):
        name = () if config == "default" else (config,)
        loaded = datasets.load_dataset(str(folder), *name, cache_dir=str(tmp_path / "cache"))
        assert list(loaded) == ["train", "test_2015a", "test_2015b"]
        assert loaded["train"].features[column].feature.names == labels[kind]["names"]
        # what the card says of sizes is what the library counts, but for the bitmaps of nulls
        said = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])["dataset_info"]
        (info,) = (each for each in said if each["config_name"] == {"default": "relabeled"}.get(config, config))
        for each in info["splits"]:
            counted = loaded[each["name"]].info.splits[each["name"]]
            assert each["num_examples"] == counted.num_examples
            assert each["num_bytes"] == pytest.approx(counted.num_bytes, rel=0.02)
    rows = loaded["train"]
    names = rows.features["unordered_labels"].feature.int2str
    parquet = pl.read_parquet([folder / f"{each}/train-*.parquet" for each in ("relabeled", "no_first")])
    assert rows["text"][:] == parquet["text"].to_list()
    assert names(rows["unordered_labels"][0]) == sorted({code["code"][:4] for code in rows["cpc"][0]})
    if stage == "dedup-release":
        groups = datasets.load_dataset(str(folder), "duplicates", cache_dir=str(tmp_path / "cache"))["groups"]
        pairs = datasets.load_dataset(str(folder), "duplicate_pairs", cache_dir=str(tmp_path / "cache"))["pairs"]
        assert (groups.num_rows, pairs.num_rows) == tuple(
            pq.read_metadata(folder / f"duplicates/{name}.parquet").num_rows for name in ("groups", "pairs")
        )
    assert [str(warning.message) for warning in recwarn] == []
    assert logged == []


def test_sizes_hold_over_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("ewe.pipeline.relabel.ROW_GROUP", 13)
    monkeypatch.setattr("ewe.pipeline.relabel.SHARD_ROWS", 50)
    folder = make_dataset(tmp_path, some_patents())
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    said = card.rows(read_manifest(folder, "dataset"), "arrow_bytes")["relabeled"]

    assert said == pytest.approx({split: each.info.splits[split].num_bytes for split, each in loaded.items()}, rel=0.05)


@pytest.mark.parametrize("stage", STAGES)
def test_polars_pandas_and_duckdb_open_it(stages: dict[str, Path], stage: str) -> None:
    folder = stages[stage]
    frame = pl.read_parquet(f"{folder}/relabeled/*.parquet")

    assert pd.read_parquet(f"{folder}/relabeled").shape == frame.shape
    counted = duckdb.sql(f"FROM '{folder}/relabeled/*.parquet' SELECT first, count(*) GROUP BY first").fetchall()
    assert dict(counted) == dict(frame.group_by("first").len().rows())


def test_the_cards_lines_run(stages: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    text = (stages["dedup-release"] / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    exec(found[1].replace("DIR", str(stages["dedup-release"])), {})  # noqa: S102  # our own card


# rdflib and pandas deprecate what mlcroissant uses of them
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The inplace keyword")
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["relabel-release", "dedup-release"])
def test_mlcroissant_validates_and_loads_it(stages: dict[str, Path], stage: str) -> None:
    mlc = pytest.importorskip("mlcroissant")
    folder = stages[stage]
    described = mlc.Dataset(str(folder / "croissant.json"))

    assert (described.metadata.issues.errors, described.metadata.issues.warnings) == (set(), set())
    records = {each.id: list(described.records(each.id)) for each in described.metadata.record_sets}
    frame = pl.read_parquet(folder / "relabeled/*.parquet").sort("publication_number")
    found = sorted(records["relabeled"], key=lambda row: row["relabeled/publication_number"])
    assert [row["relabeled/text"].decode() for row in found] == frame["text"].to_list()
    assert [list(map(int, row["relabeled/labels"])) for row in found] == frame["labels"].to_list()
    codes = [[(code["code"].encode(), code["first"]) for code in row] for row in frame["cpc"]]
    parts = ("relabeled/cpc/code", "relabeled/cpc/first")
    assert [[tuple(code[part] for part in parts) for code in row["relabeled/cpc"]] for row in found] == codes
    assert len(records["unordered"]) == frame.height + pl.read_parquet(folder / "no_first/*.parquet").height
    names = read_json(folder / "labels.json")["position"]["names"]
    assert [row["position_names/name"] for row in records["position_names"]] == names
    for config, name, _ in card.DUPLICATES if stage == "dedup-release" else ():
        assert len(records[config]) == pq.read_metadata(folder / "duplicates" / name).num_rows


@pytest.mark.slow
def test_mlcroissants_own_command_finds_no_fault(stages: dict[str, Path]) -> None:
    pytest.importorskip("mlcroissant")
    command = Path(sys.executable).parent / "mlcroissant"
    file = stages["dedup-release"] / "croissant.json"
    done = subprocess.run([command, "validate", "--jsonld", file], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Found the following" not in done.stderr
    assert "Done" in done.stderr


def test_croissant_names_every_parquet_file_with_its_hash(stages: dict[str, Path]) -> None:
    folder = stages["dedup-release"]
    described = read_json(folder / "croissant.json")["distribution"]
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())

    files = {each["contentUrl"]: each["sha256"] for each in described if each["@type"] == "cr:FileObject"}
    assert files == {name: sha256 for name, sha256 in sums.items() if name.endswith(".parquet")}


def test_the_dictionary_describes_every_column_of_every_file(stages: dict[str, Path]) -> None:
    folder = stages["dedup-release"]
    described = read_json(folder / "datadict.json")
    seen = set()
    for pattern, columns in described.items():
        paths = list(folder.glob(pattern))
        assert paths, pattern
        for path in paths:
            seen.add(path)
            types = [(field.name, str(field.type).replace("element:", "item:")) for field in pq.read_schema(path)]
            assert dict(types) == {name: each["type"] for name, each in columns.items()}
            assert all(each["description"] for each in columns.values())
    assert seen == set(folder.rglob("*.parquet"))


# -- proves itself ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="no sha256sum here")
def test_sha256sum_finds_all_of_it_whole(stages: dict[str, Path]) -> None:
    folder = stages["dedup-release"]
    done = subprocess.run(
        ["sha256sum", "--strict", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=True
    )

    named = [line.removesuffix(": OK") for line in done.stdout.splitlines()]
    assert named == sorted(bytes_of(folder).keys() - {"SHA256SUMS"})
    verify(folder)


def test_a_flipped_byte_anywhere_is_found_and_named(dataset: Path) -> None:
    for name, whole in bytes_of(dataset).items():
        path = dataset / name
        places = {0, len(whole) // 3, len(whole) // 2, len(whole) - 1}
        if name in ("SHA256SUMS", "manifest.json"):
            places |= set(range(0, len(whole), 101))
        for place in sorted(places):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(DataError) as found:
                verify(dataset)
            assert re.search(rf"(^|[ /]){re.escape(name)}( |,|$)", str(found.value)), (name, place, str(found.value))
        path.write_bytes(whole)
    verify(dataset)


def test_a_missing_file_is_named(dataset: Path) -> None:
    for name in sorted(bytes_of(dataset).keys() - {"SHA256SUMS", "manifest.json", "duplicates/manifest.json"}):
        (dataset / name).rename(dataset / "away")
        with pytest.raises(DataError, match=re.escape(name)):
            verify(dataset)
        (dataset / "away").rename(dataset / name)


def test_unfinished_duplicates_are_said_to_be(stages: dict[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    folder = shutil.copytree(stages["relabel-release"], tmp_path / "dataset")
    with monkeypatch.context() as patch:
        patch.setattr("ewe.pipeline.dedup._write", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            dedup_folder(folder)
    with pytest.raises(IncompleteError, match="ewe-data dedup"):
        verify(folder)
    with pytest.raises(IncompleteError, match="ewe-data dedup"):
        release_folder(folder)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# -- once more --------------------------------------------------------------------------------------------------------


def test_parquet_is_never_rewritten(relabeled: Path, stages: dict[str, Path]) -> None:
    before, after = bytes_of(relabeled), bytes_of(stages["dedup-release"])

    for name in [name for name in before if name.endswith((".parquet", "labels.json", "stats.json"))]:
        assert before[name] == after[name]


def test_the_same_command_again_changes_nothing(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*") if path.name != ".lock"}
    first = release_folder(dataset)

    assert "finished already" in capsys.readouterr().err
    assert release_folder(dataset) == first
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*") if path.name != ".lock"} == before


def test_after_dedup_it_is_brought_up_to_date(stages: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(stages["relabel-release"], tmp_path / "dataset")
    assert "Not looked for yet" in (folder / "README.md").read_text()
    dedup_folder(folder)
    assert not (folder / "SHA256SUMS").exists()  # it would leave duplicates/ out
    verify(folder)
    release_folder(folder)

    assert bytes_of(folder) == bytes_of(stages["dedup-release"])


def test_train_alone_has_no_leaks_to_tell_of(tmp_path: Path) -> None:
    """And no config of near-copies where none is found: the card does not promise one."""
    window = {"train": (dt.date(2006, 1, 1), dt.date(2015, 12, 31))}
    dataset = tmp_path / "dataset"
    relabel_folder(make_raw(tmp_path, some_patents()[:1]), dataset, splits=window)
    dedup_folder(dataset)
    release_folder(dataset)
    assert "Test patents that leak" not in (dataset / "report.html").read_text()
    words = (dataset / "README.md").read_text()
    assert "0 rows have one. Test rows with a near-copy in train: none.\n" in words
    assert "config_name: duplicates" not in words


def test_labels_that_are_not_as_they_were_written_are_refused(dataset: Path, tmp_path: Path) -> None:
    from ewe.pipeline.encode import encode_folder

    for name in ("labels.json", "stats.json", "duplicates/leakage.json"):
        whole = (dataset / name).read_text()
        (dataset / name).write_text(whole.replace("1", "2", 1))
        with pytest.raises(DataError, match=rf"{Path(name).name} missing or changed; remove what is left"):
            release_folder(dataset)
        if name == "labels.json":
            with pytest.raises(DataError, match=r"labels\.json missing or changed"):
                encode_folder(dataset, tmp_path / "tensors")
        (dataset / name).write_text(whole)
    release_folder(dataset)


def test_duplicates_made_again_leave_no_stale_checksums(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(dataset / "duplicates")
    with pytest.raises(
        DataError, match=r"SHA256SUMS, .*duplicates/pairs\.parquet missing or changed; run ewe-data release again"
    ):
        verify(dataset)
    dedup_folder(dataset, jaccard=0.9)
    capsys.readouterr()
    verify(dataset)
    assert "changed since its card and report were written; run ewe-data release again" in capsys.readouterr().err
    release_folder(dataset)
    verify(dataset)
    assert not capsys.readouterr().err

    assert verify(dataset)["files"] == len((dataset / "SHA256SUMS").read_text().splitlines()) - 2  # manifests
    assert "0.9" in (dataset / "README.md").read_text()


def test_a_manifest_that_is_not_sealed_is_named(dataset: Path) -> None:
    path = dataset / "manifest.json"
    manifest = read_json(path)
    del manifest["manifest_sha256"], manifest["made_with"]
    path.write_text(json_text(manifest))
    for command in (verify, release_folder):
        with pytest.raises(DataError, match=r"manifest\.json missing or changed; make it again"):
            command(dataset)


def test_a_released_dataset_is_still_one(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ewe.pipeline.encode import encode_folder

    before = bytes_of(dataset)
    raw = make_raw(tmp_path, some_patents())
    relabel_folder(raw, dataset)
    dedup_folder(dataset)
    assert capsys.readouterr().err.count("finished already") == 2
    assert bytes_of(dataset) == before
    assert encode_folder(dataset, tmp_path / "tensors")["rows"]["train"] > 0


def test_duplicates_of_another_dataset_are_refused(stages: dict[str, Path], tmp_path: Path) -> None:
    other = make_dataset(tmp_path, some_patents(100))
    shutil.copytree(stages["dedup"] / "duplicates", other / "duplicates")

    with pytest.raises(DataError, match="is of another dataset"):
        release_folder(other)
    with pytest.raises(DataError, match="is not a dataset folder"):
        release_folder(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


PROGRAM = """
import sys
from pathlib import Path
from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.relabel import relabel_folder
from ewe.pipeline.release import release_folder
raw, out = map(Path, sys.argv[1:])
relabel_folder(raw, out)
dedup_folder(out)
release_folder(out)
"""


@pytest.mark.slow
def test_the_same_raw_gives_the_same_bytes_in_any_surroundings(stages: dict[str, Path], tmp_path: Path) -> None:
    raw = make_raw(tmp_path, some_patents())
    surroundings = [("0", "UTC", "C"), ("1", "Asia/Kathmandu", "de_DE.UTF-8"), ("4242", "America/St_Johns", "C.UTF-8")]
    for name, (seed, zone, language) in zip(("a", "another", "c-3"), surroundings, strict=True):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LANG": language, "LC_ALL": language}
        subprocess.run(
            [sys.executable, "-c", PROGRAM, raw, tmp_path / name], env=environment, capture_output=True, check=True
        )
        assert bytes_of(tmp_path / name) == bytes_of(stages["dedup-release"])


# -- the card ---------------------------------------------------------------------------------------------------------


def manifest_of(folder: Path, **source: Any) -> dict[str, Any]:
    manifest = read_manifest(folder, "dataset")
    return manifest | {"source": manifest["source"] | source}


def card_of(folder: Path, manifest: dict[str, Any]) -> str:
    labels = read_json(folder / "labels.json")
    names = {kind: labels[kind]["names"] for kind in ("position", "unordered")}
    return card.write_full_card(manifest, names, None, {})


@pytest.mark.parametrize("source", ["parquet", "uspto", "patentsview"])
def test_the_card_says_what_stands_for_the_input(relabeled: Path, source: str) -> None:
    """Parquet's footers, and the checksums of zips and of plain files' ends."""
    text = card_of(relabeled, manifest_of(relabeled, source=source, labels="current", input_sha256="0a1b"))

    assert "| SHA-256 of the input's names, sizes and footers or checksums | 0a1b |" in text


def test_the_card_counts_each_leaking_row_once(stages: dict[str, Path]) -> None:
    folder = stages["dedup-release"]
    groups = pl.read_parquet(folder / "duplicates/groups.parquet")
    counts = dict(groups.filter(pl.col("leak").is_not_null()).group_by("split").len().rows())
    (said,) = re.findall(r"Test rows with a near-copy in train: (.*?)\. ", (folder / "README.md").read_text())

    assert dict(reversed(each.split(" of ")) for each in said.split(", ")) == {
        split: str(n) for split, n in counts.items()
    }
    assert counts


def test_the_card_says_how_it_was_made(relabeled: Path) -> None:
    manifest = manifest_of(
        relabeled, source="bigquery", table="p.d.t", snapshot="2026-02-01T00:00:00", billed_bytes=10**11
    )
    text = card_of(relabeled, manifest)

    assert "project" not in manifest["source"]
    for said in (
        manifest["source"]["sql_sha256"],
        manifest["config"]["raw_sha256"],
        "2026-02-01T00:00:00",
        "100,000,000,000",
        f"polars {pl.__version__}",
        "--source bigquery --project PROJECT --table p.d.t",
        "IFI CLAIMS Patent Services and Google",
        "CPC began in 2013",
        "--split test_2015b=2015-07-01:2015-12-31",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("source", "made_up", "licence", "said"),
    [
        ("parquet", False, "cc-by-4.0", "IFI CLAIMS"),
        ("bigquery", False, "cc-by-4.0", "IFI CLAIMS"),
        ("patentsview", False, "cc-by-4.0", "PatentsView"),
        ("uspto", False, "other", "full-text files of the United States"),
        ("parquet", True, "apache-2.0", "no real patent is in it"),
    ],
)
def test_the_licence_is_the_sources(relabeled: Path, source: str, made_up: bool, licence: str, said: str) -> None:
    manifest = manifest_of(relabeled, source=source, labels="current", table="t") | {"made_up": made_up}
    text = card_of(relabeled, manifest)

    assert yaml.safe_load(text.split("---\n")[1])["license"] == licence
    assert said in text
    assert ("IFI CLAIMS" in text) == (said == "IFI CLAIMS")


def test_the_hubs_yaml(stages: dict[str, Path]) -> None:
    head = yaml.safe_load((stages["dedup-release"] / "README.md").read_text().split("---\n")[1])

    assert [config["config_name"] for config in head["configs"]] == [
        "relabeled",
        "unordered",
        "duplicates",
        "duplicate_pairs",
    ]
    assert [config["config_name"] for config in head["configs"] if config.get("default")] == ["relabeled"]
    assert head["size_categories"] == ["n<1K"]
    (info, *_) = head["dataset_info"]
    folder = stages["dedup-release"] / "relabeled"
    assert info["download_size"] == sum(path.stat().st_size for path in folder.iterdir())


def test_the_citation_is_valid_yaml_with_what_the_format_asks_for(stages: dict[str, Path]) -> None:
    cited = yaml.safe_load((stages["dedup-release"] / "CITATION.cff").read_text())

    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["type"], cited["license"]) == ("dataset", "CC-BY-4.0")
    assert {reference["type"] for reference in cited["references"]} == {"software", "article"}


# -- real patents, and counting ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_patents_are_released_and_opened(real: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    import datetime as dt

    import datasets

    from ewe.pipeline.fetch import fetch_grants
    from ewe.pipeline.local import ParquetEngine
    from ewe.pipeline.split import parse_splits

    window = {"start": dt.date(2005, 1, 1), "end": dt.date(2015, 12, 31)}
    fetch_grants(ParquetEngine(real / "publications.parquet"), tmp_path / "raw", **window)
    splits = parse_splits(["train=2005-01-01:2010-12-31", "test=2011-01-01:2015-12-31"])
    relabel_folder(tmp_path / "raw", tmp_path / "dataset", scheme="ipc", splits=splits)
    dedup_folder(tmp_path / "dataset")
    summary = release_folder(tmp_path / "dataset")

    assert "94% of the fetched patents were dropped." in summary["alerts"]
    loaded = datasets.load_dataset(str(tmp_path / "dataset"), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in loaded.items()} == {"train": 94, "test": 27}
    assert verify(tmp_path / "dataset")["files"] == summary["files"]
    assert [str(warning.message) for warning in recwarn] == []


words = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=20)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.lists(words, max_size=6).map(" ".join), max_size=6), st.integers(0, 2))
def test_words_and_their_bytes_equal_pythons(texts: list[str], skipped: int) -> None:
    array = pa.array(texts, pa.string())[skipped:]
    counted, letters = count_words(array)
    found = [text.split() for text in texts[skipped:]]

    assert counted.tolist() == [len(each) for each in found]
    lengths = np.bincount([len(word.encode()) for each in found for word in each], minlength=len(letters))
    assert letters.tolist() == lengths.tolist()


def test_every_schema_has_a_place_in_the_dictionary() -> None:
    from ewe.pipeline.release import describe_files

    assert list(describe_files(duplicates=True)["relabeled/*.parquet"]) == schema.DATASET.names
