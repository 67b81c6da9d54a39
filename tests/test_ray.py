"""The Ray example: on a local cluster of two workers it makes the folders of one process, byte for byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets_made import make_raw, some_patents

from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.encode import encode_folder
from ewe.pipeline.relabel import relabel_folder
from ewe.store import LOCK

EXAMPLE = Path(__file__).parents[1] / "examples" / "ray_parts.py"
SMALL = (  # several parts and shards of few rows
    "from ewe.pipeline import dedup, relabel; relabel.SHARD_ROWS, dedup.PART_ROWS = 40, 16; "
)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_two_ray_workers_make_what_one_process_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray", reason="Ray is not installed (the dependency group bench has it)")
    raw = make_raw(tmp_path, some_patents())
    for module, name, value in (
        ("relabel", "SHARD_ROWS", 40),
        ("dedup", "PART_ROWS", 16),
    ):
        monkeypatch.setattr(f"ewe.pipeline.{module}.{name}", value)
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

    shards = [name for name in contents(tmp_path / "dataset") if name.startswith("relabeled/train")]
    assert len(shards) > 2
    for name in ("dataset", "tensors"):
        ours, theirs = contents(tmp_path / name), contents(tmp_path / f"ray-{name}")
        assert sorted(ours) == sorted(theirs)
        assert [file for file in ours if ours[file] != theirs[file]] == []
