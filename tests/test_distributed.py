"""Two processes train as one: the same losses and weights, resumable, written by the first alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_tensors import write_tensors

from ewe.distributed import World
from ewe.run import load
from ewe.train import train_model

LAUNCHER = "torch.distributed.run --standalone --nproc-per-node 2"
FLAGS = "--preset tiny --layers 1 --width 8 --heads 2 --epochs 3 --min-steps 0 --batch-size 16 --checkpoint-every 4"


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_row_is_dealt_out_once(N: int, size: int):
    rows = np.arange(N) * 3
    shares = [World(rank, size).share(rows) for rank in range(size)]

    assert sorted(row for mine, share in shares if share for row in mine) == rows.tolist()
    assert sum(share for _, share in shares) == pytest.approx(1)
    assert all(len(mine) for mine, _ in shares)


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *f"-m {LAUNCHER} -m ewe train".split(), *arguments, *FLAGS.split(), "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_equal_one(tmp_path: Path):
    tensors = write_tensors(tmp_path / "tensors", {"train": 65})  # an epoch's last step has one row for two
    how = {"layers": 1, "width": 8, "heads": 2, "epochs": 3, "min_steps": 0, "batch_size": 16, "checkpoint_every": 4}
    train_model(tensors, tmp_path / "one", preset="tiny", device="cpu", **how)

    done = torchrun(str(tensors), "--out", str(tmp_path / "two"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 65  # one document, not one a process

    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("one", "two")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    one, two = ((load(tmp_path / run, device="cpu").predict(["a spring", "of steel"], 6)) for run in ("one", "two"))
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in zip(one, two, strict=True))
    assert json.loads((tmp_path / "two" / "config.json").read_text())["processes"] == 2
    again = torchrun(str(tensors), "--out", str(tmp_path / "two"))
    assert again.returncode == 0, again.stderr
    assert "is finished" in again.stderr
