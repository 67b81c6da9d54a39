"""Batches against a slow reading of the same files; order and holdout are functions of their arguments."""

from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tensors import write_tensors

from ewe.batches import Meta, Plan, Split, epoch_order, held_out
from ewe.errors import DataError, IncompleteError, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tensors(tmp_path_factory.mktemp("tensors") / "t", {"train": 50, "test_2015a": 7, "test_2015b": 0})


def test_a_batch_equals_a_slow_reading(folder: Path):
    split = Split.open(folder, "train", Meta.read(folder))
    ids, indptr, indices = (
        np.load(folder / f"train.{part}.npy") for part in ("bytes", "labels.indptr", "labels.indices")
    )
    rows = np.array([49, 3, 3, 0])
    batch = split.batch(rows)
    assert batch.ids.dtype == torch.uint8
    assert batch.ids.tolist() == ids[rows].tolist()
    pairs = [(i, int(label)) for i, row in enumerate(rows) for label in indices[indptr[row] : indptr[row + 1]]]
    assert list(zip(batch.rows.tolist(), batch.columns.tolist(), strict=True)) == pairs


def test_batches_cover_the_rows_in_order(folder: Path):
    split = Split.open(folder, "train", Meta.read(folder))
    order = epoch_order(np.arange(50), seed=3, epoch=1)
    batches = list(split.batches(order, 16))
    assert [len(batch.ids) for batch in batches] == [16, 16, 16, 2]
    assert torch.equal(torch.cat([batch.ids for batch in batches]), split.batch(order).ids)


def test_a_row_without_labels(tmp_path: Path):
    split = Split(
        "x", np.zeros((3, 2, 2), np.uint8), np.array([0, 0, 2, 2]), np.array([5, 6], np.uint16), np.array([b""] * 3)
    )
    batch = split.batch(np.array([0, 1, 2]))
    assert (batch.rows.tolist(), batch.columns.tolist()) == ([1, 1], [5, 6])
    assert [len(tensor) for tensor in split.batch(np.array([], np.int64))] == [0, 0, 0]


def test_an_empty_split_is_no_error(folder: Path):
    split = Split.open(folder, "test_2015b", Meta.read(folder))
    assert len(split) == 0
    assert list(split.batches(np.arange(0), 4)) == []


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 2**32), st.integers(0, 50))
def test_an_epochs_order_is_a_permutation_from_seed_and_epoch(n: int, seed: int, epoch: int):
    rows = np.arange(n) * 3
    order = epoch_order(rows, seed, epoch)
    assert sorted(order.tolist()) == rows.tolist()
    assert order.tolist() == epoch_order(rows, seed, epoch).tolist()
    if n > 20:
        assert order.tolist() != epoch_order(rows, seed, epoch + 1).tolist()
        assert order.tolist() != epoch_order(rows, seed + 1, epoch).tolist()


def test_holdout_is_a_stable_share():
    numbers = np.array([f"US-{n}-B2" for n in range(20_000)], "S16")
    out = held_out(numbers, 0.02)
    assert 300 < out.sum() < 500
    slow = [
        int.from_bytes(blake2b(f"US-{n}-B2".encode(), digest_size=8).digest(), "big") < 0.02 * 2**64
        for n in range(20_000)
    ]
    assert out.tolist() == slow
    assert (out <= held_out(numbers, 0.1)).all()  # a larger share holds the smaller one
    assert not held_out(numbers, 0).any()
    assert np.array_equal(held_out(numbers[100:200], 0.02), out[100:200])


def test_what_is_wrong_is_said(folder: Path, tmp_path: Path):
    meta = Meta.read(folder)
    with pytest.raises(UsageError, match="has no split dev; it has test_2015a, test_2015b, train"):
        Split.open(folder, "dev", meta)
    with pytest.raises(DataError, match="not a tensors folder"):
        Meta.read(tmp_path)
    other = write_tensors(tmp_path / "t", {"train": 5})
    np.save(other / "train.labels.indptr.npy", np.arange(3))
    with pytest.raises(DataError, match="missing or cut short"):
        Meta.read(other)
    with pytest.raises(DataError, match="have shapes"):
        Split.open(other, "train", Meta(**vars(meta) | {"splits": {"train": {"rows": 5}}}))
    (other / "train.bytes.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"train\.bytes\.npy is missing or is no whole"):
        Split.open(other, "train", Meta(**vars(meta) | {"splits": {"train": {"rows": 5}}}))
    (other / "manifest.json").write_text('{"kind": "tensors", "complete": false, "config": {}, "files": {}}')
    with pytest.raises(IncompleteError, match="ewe-data encode"):
        Meta.read(other)


def test_training_data_needs_the_training_files_alone(folder: Path, tmp_path: Path):
    copy = write_tensors(tmp_path / "t", {"train": 50, "test_2015a": 7, "test_2015b": 0})
    meta = Meta.read(copy)
    for path in copy.glob("test_*.npy"):
        path.unlink()
    assert len(Split.open(copy, "train", meta)) == 50


def test_content_hash_follows_content(folder: Path, tmp_path: Path):
    meta = Meta.read(folder)
    same = Meta.read(write_tensors(tmp_path / "same", {"train": 50, "test_2015a": 9}))
    assert same.content_sha256("train") == meta.content_sha256("train")
    assert same.content_sha256("test_2015a") != meta.content_sha256("test_2015a")
    other = Meta.read(write_tensors(tmp_path / "other", {"train": 50}, seed=1))
    assert other.content_sha256("train") != meta.content_sha256("train")


def test_a_plan_reads_every_row_once_an_epoch():
    plan = Plan(np.arange(10, 60), batch_size=16, epochs=3, min_steps=0, seed=1)
    assert (plan.steps_an_epoch, plan.epochs, plan.steps) == (4, 3, 12)
    for epoch in range(3):
        read = np.concatenate([plan.rows(step) for step in range(4 * epoch, 4 * epoch + 4)])
        assert read.tolist() == epoch_order(np.arange(10, 60), 1, epoch).tolist()
    assert [plan.examples(step) for step in (0, 1, 4, 11, 12)] == [0, 16, 50, 148, 150]
    again = Plan(np.arange(10, 60), batch_size=16, epochs=3, min_steps=0, seed=1)
    assert again.rows(9).tolist() == plan.rows(9).tolist()  # from the middle, without what came before


def test_a_plan_takes_more_epochs_where_rows_are_few():
    assert Plan(np.arange(50), 16, epochs=3, min_steps=13, seed=1).epochs == 4
    assert Plan(np.arange(50), 16, epochs=3, min_steps=12, seed=1).epochs == 3
