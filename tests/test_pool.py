"""Past one process: in a pool of processes, and on a local Ray cluster, the steps make the same folders to the byte."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from datasets_made import make_raw, some_patents

from ewe.pipeline import dedup, encode, relabel
from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.encode import encode_folder
from ewe.pipeline.relabel import relabel_folder
from ewe.store import LOCK, read_manifest

EXAMPLE = Path(__file__).parents[1] / "examples" / "ray_parts.py"
SMALL = (  # several parts and shards of few rows
    "from ewe.pipeline import dedup, relabel; relabel.SHARD_ROWS, dedup.PART_ROWS = 40, 16; "
)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Month shards that make several parts of each step."""
    monkeypatch.setattr(relabel, "SHARD_ROWS", 40)
    monkeypatch.setattr(dedup, "PART_ROWS", 16)
    return make_raw(tmp_path, some_patents())


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def assert_same(ours: Path, theirs: Path) -> None:
    one, other = contents(ours), contents(theirs)
    assert sorted(one) == sorted(other)
    assert [file for file in one if one[file] != other[file]] == []


def make(raw: Path, out: Path, **how: Any) -> None:
    """All folders of the three steps, in OUT."""
    relabel_folder(raw, out / "dataset", **how)
    dedup_folder(out / "dataset", **how)
    encode_folder(out / "dataset", out / "words", **how)
    encode_folder(out / "dataset", out / "pieces", tokenizer="wordpiece", vocabulary=300, drop_leaks=True, **how)


def test_a_pool_of_processes_makes_what_one_process_makes(raw: Path, tmp_path: Path):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        make(raw, tmp_path / "pool", pool=pool)
    make(raw, tmp_path / "alone")

    assert_same(tmp_path / "alone", tmp_path / "pool")
    dataset = read_manifest(tmp_path / "pool/dataset", "dataset")
    assert sum(name.startswith("relabeled/train") for name in dataset["files"]) > 2
    pieces = read_manifest(tmp_path / "pool/pieces", "tensors")["files"]
    assert any(record.get("leaks_dropped") for record in pieces.values())


def test_a_pool_goes_on_where_it_stopped(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    relabel_folder(raw, tmp_path / "dataset")
    encode_folder(tmp_path / "dataset", tmp_path / "alone")
    read = encode._encode_ahead
    begun: list[int] = []

    def fails(*arguments: Any) -> Any:
        begun.append(1)
        if len(begun) == 3:
            raise OSError("No space left on device")
        return read(*arguments)

    monkeypatch.setattr(encode, "_encode_ahead", fails)
    with encode.ThreadPoolExecutor(1) as pool:
        with pytest.raises(OSError, match="space"):
            encode_folder(tmp_path / "dataset", tmp_path / "tensors", pool=pool)
        encode_folder(tmp_path / "dataset", tmp_path / "tensors", pool=pool)

    shards = sum(name.startswith("relabeled/") for name in read_manifest(tmp_path / "dataset", "dataset")["files"])
    assert len(begun) == shards + 1  # the one that failed was begun twice
    assert_same(tmp_path / "alone", tmp_path / "tensors")
    assert not (tmp_path / "tensors/.parts").exists()


@pytest.mark.slow
def test_two_ray_workers_make_what_one_process_makes(raw: Path, tmp_path: Path):
    pytest.importorskip("ray", reason="Ray is not installed (the dependency group bench has it)")
    relabel_folder(raw, tmp_path / "dataset")
    dedup_folder(tmp_path / "dataset")
    encode_folder(tmp_path / "dataset", tmp_path / "tensors")

    script = f"{SMALL}import runpy; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    folders = [str(raw), str(tmp_path / "ray-dataset"), str(tmp_path / "ray-tensors")]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ADDRESS": ""}
    done = subprocess.run(
        [sys.executable, "-c", script, *folders, "--workers", "2"],
        env={**os.environ, **quiet},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout

    for name in ("dataset", "tensors"):
        assert_same(tmp_path / name, tmp_path / f"ray-{name}")
