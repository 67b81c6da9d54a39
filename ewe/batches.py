"""Batches out of a tensors/ folder: memory-mapped files, and an order that depends on nothing but its seed.

The order of an epoch is a function of (seed, epoch), so a place in the data is (epoch, step) and needs no
other state. Only the files of the split that is asked for are opened: training reads no test row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ewe import store
from ewe.elements import PARTS
from ewe.errors import DataError, UsageError
from ewe.words import hash_rows


class Batch(NamedTuple):
    """B texts with their labels as coordinates: text rows[i] bears label columns[i]."""

    ids: Tensor
    """uint8 (B, u, v) letters, or integers (B, n): tokens, code points or hashed words"""
    rows: Tensor
    """int64 (P,), sorted"""
    columns: Tensor
    """int64 (P,)"""

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; to a card it travels from pinned memory while the host goes on."""
        if device.type != "cuda":
            return Batch(*(tensor.to(device) for tensor in self))
        return Batch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in self))


@dataclass(frozen=True)
class Meta:
    """What a tensors/ folder says of itself."""

    u: int
    v: int
    tokenizer: str
    vocabulary: int  # how many ids the tokenizer has
    max_claims: int | None  # that were joined into a text; None where texts came as they are
    label_names: list[str]
    labels_sha256: str
    splits: dict[str, dict[str, Any]]  # name -> {"rows": n, ...}
    made_up: bool
    manifest: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read meta.json of a finished folder; DataError or IncompleteError where there is none."""
        manifest = store.read_manifest(folder, "tensors")
        meta = store.read_recorded(folder, manifest, "meta.json")
        try:
            return cls(
                **{each.name: meta[each.name] for each in fields(cls) if each.name != "manifest"}, manifest=manifest
            )
        except KeyError as error:
            raise DataError(
                f"{folder / 'meta.json'} lacks {error}; make the folder again with ewe-data encode."
            ) from None

    def content_sha256(self, split: str) -> str:
        """A hash of what one split holds and of what its labels mean; files are told apart as its name has no dot."""
        files = self.manifest["files"]
        parts = {name: files[name]["sha256"] for name in sorted(files) if name.startswith(f"{split}.")}
        return store.sha256_json({"files": parts, "labels": self.labels_sha256})


@dataclass(frozen=True)
class Split:
    """One split of a tensors/ folder, mapped, not read."""

    name: str
    ids: NDArray[Any] | Words
    """(N, u, v) letters, or (N, n) tokens, code points or words; ids[rows] is an array"""
    indptr: NDArray[np.int64]
    """(N+1,) where each row's labels start in `indices`"""
    indices: NDArray[np.uint16]
    """(P,) labels, row after row"""
    numbers: NDArray[np.bytes_]
    """(N,) publication numbers"""

    @classmethod
    def open(cls, folder: Path, name: str, meta: Meta, reads: str | None = None) -> Self:
        """Map the files of one split.

        Args:
            folder: tensors/.
            name: which split.
            meta: of the folder.
            reads: "words" for the texts' words in the place of what the tokenizer made.

        Raises:
            UsageError: the folder has no such split.
            DataError: a file is no array, or not of the shape that meta.json tells.
        """
        if name not in meta.splits:
            raise UsageError(f"{folder} has no split {name}; it has {', '.join(sorted(meta.splits))}.")
        indptr, indices, numbers = (
            _map(folder / f"{name}.{part}.npy") for part in ("labels.indptr", "labels.indices", "ids")
        )
        stored = PARTS[meta.tokenizer]
        ids = Words(folder, name) if reads == "words" else _map(folder / f"{name}.{stored}.npy")
        split = cls(name, ids, indptr, indices, numbers)
        N = meta.splits[name]["rows"]
        shapes = (split.ids.shape, split.indptr.shape, split.indices.shape, split.numbers.shape)
        each = () if reads == "words" else (meta.u, meta.v) if stored == "bytes" else (meta.u,)
        wanted = ((N, *each), (N + 1,), (int(split.indptr[-1]),), (N,))
        if shapes != wanted:
            raise DataError(f"{folder}/{name}.*.npy have shapes {shapes}, not {wanted}; run ewe-data encode again.")
        return split

    def __len__(self) -> int:
        return len(self.ids)

    def labels(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The labels of rows (B,) as coordinates: (which of the B, which label), int64 (P,) each."""
        starts = np.asarray(self.indptr[rows])
        counts = np.asarray(self.indptr[rows + 1]) - starts
        ends = counts.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        where = np.arange(total) + np.repeat(starts - (ends - counts), counts)
        return np.repeat(np.arange(len(rows)), counts), self.indices[where].astype(np.int64)

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The batch of these rows (B,), on the host."""
        ids = np.asarray(self.ids[rows])
        if ids.dtype in (np.uint16, np.uint32):  # torch computes little on these
            ids = ids.astype(np.int64)
        return Batch(torch.from_numpy(ids), *map(torch.from_numpy, self.labels(rows)))

    def batches(self, rows: NDArray[np.int64], batch_size: int) -> Iterator[Batch]:
        """These rows in their order; the last batch may be smaller."""
        for start in range(0, len(rows), batch_size):
            yield self.batch(rows[start : start + batch_size])


class Words:
    """The words of a split's texts as hashed ids, int32 (N, n): made when rows are asked for, as wide as they need.

    See ewe/words.py.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._data = _map(folder / f"{name}.text.npy")
        self._indptr = _map(folder / f"{name}.text.indptr.npy")
        self.shape = (len(self._indptr) - 1,)
        self.dtype = np.dtype(np.int32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """The words of rows (B,): int32 (B, n), 0 where a text has no more."""
        return hash_rows(self._data, self._indptr[rows], self._indptr[rows + 1])


def _map(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        raise DataError(f"{path} is missing or is no whole .npy file; run ewe-data encode again.") from None
    return array


def held_out(numbers: NDArray[np.bytes_], share: float) -> NDArray[np.bool_]:
    """Which rows stay out of training: those whose hashed publication number falls below the share.

    The hash is BLAKE2b over the number's ASCII, 64 bits, so a patent is held out or not whatever else is in
    the data, on every machine.
    """
    if not share:
        return np.zeros(len(numbers), np.bool_)
    hashed = b"".join(blake2b(number, digest_size=8).digest() for number in numbers.tolist())
    return np.frombuffer(hashed, ">u8") < share * 2.0**64


class Plan:
    """Which rows each step of a training reads: a function of the step.

    Args:
        rows: (N,) the rows to train on.
        batch_size: rows a step; an epoch's last step may have fewer.
        epochs: passes over the rows.
        min_steps: more epochs, until there are so many steps.
        seed: of the order.
    """

    def __init__(self, rows: NDArray[np.int64], batch_size: int, epochs: int, min_steps: int, seed: int) -> None:
        self._rows, self._size, self._seed = rows, batch_size, seed
        self.steps_an_epoch = math.ceil(len(rows) / batch_size)
        self.epochs = max(epochs, math.ceil(min_steps / self.steps_an_epoch))
        self.steps = self.epochs * self.steps_an_epoch
        self._shuffled = (-1, rows)  # the epoch at hand and its order

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of step 0..steps-1."""
        epoch, at = divmod(step, self.steps_an_epoch)
        if epoch != self._shuffled[0]:
            self._shuffled = (epoch, epoch_order(self._rows, self._seed, epoch))
        return self._shuffled[1][at * self._size : (at + 1) * self._size]

    def examples(self, step: int) -> int:
        """How many rows the steps before this one read."""
        epochs, at = divmod(step, self.steps_an_epoch)
        return epochs * len(self._rows) + at * self._size


def epoch_order(rows: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """The rows (N,) in the order in which the epoch visits them: a function of the seed and the epoch."""
    return np.random.default_rng([seed, epoch]).permutation(rows)
