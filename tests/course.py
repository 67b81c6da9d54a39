"""A made-up task for the baselines: texts whose words, or whose words' order, tell their labels."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ewe import words
from ewe.batches import Batch
from ewe.compute import Compute
from ewe.metrics import Counts, most_frequent

CPU = Compute.choose("cpu", "fp32")


@dataclass
class Rows:
    """What of ewe.batches.Split a model sees, over texts in memory."""

    texts: list[str]
    truth: np.ndarray
    """bool (N, L)"""

    def __len__(self) -> int:
        return len(self.texts)

    def labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.truth[rows].nonzero()

    def batch(self, rows: np.ndarray) -> Batch:
        ids = words.encode([self.texts[row] for row in rows])
        return Batch(torch.from_numpy(ids), *map(torch.from_numpy, self.labels(rows)))

    def batches(self, rows: np.ndarray, batch_size: int) -> Iterator[Batch]:
        for start in range(0, len(rows), batch_size):
            yield self.batch(rows[start : start + batch_size])


def topics(N: int, seed: int) -> Rows:
    """A text speaks of one or two of six topics, each by some of its own ten words, among words that tell nothing."""
    random = np.random.default_rng(seed)
    truth = np.zeros((N, 6), np.bool_)
    truth[np.arange(N), random.choice(6, N, p=[0.3, 0.2, 0.2, 0.15, 0.1, 0.05])] = True
    truth[np.arange(N), random.integers(0, 6, N)] |= random.random(N) < 0.5
    texts = []
    for row in truth:
        said = [f"t{topic}x{word}" for topic in row.nonzero()[0] for word in random.integers(0, 10, 4)]
        said += [f"noise{word}" for word in random.integers(0, 60, random.integers(5, 15))]
        texts.append(" ".join(random.permutation(said)))
    return Rows(texts, truth)


def orders(N: int, seed: int) -> Rows:
    """Label 0 where `lever` stands right before `spring`, label 1 where right after: the same words, other order."""
    random = np.random.default_rng(seed)
    truth = np.eye(2, dtype=np.bool_)[random.integers(0, 2, N)]
    texts = []
    for first, _ in truth:
        said = [f"noise{word}" for word in random.integers(0, 20, 6)]
        at = random.integers(0, 6)
        said[at:at] = ["lever", "spring"] if first else ["spring", "lever"]
        texts.append(" ".join(said))
    return Rows(texts, truth)


@torch.inference_mode()
def f1(model: nn.Module, rows: Rows, threshold: float = 0.3) -> float:
    """Micro-F1 as `ewe evaluate` counts it."""
    return _counts(model, rows, threshold).report()["micro"]["f1"]


@torch.inference_mode()
def _counts(model: nn.Module, rows: Rows, threshold: float) -> Counts:
    model.eval()
    counts = Counts([str(label) for label in range(rows.truth.shape[1])], threshold, CPU.device)
    for batch in rows.batches(np.arange(len(rows)), 64):
        counts.update(model(batch.ids), batch)
    return counts


def guess(model: nn.Module, train: Rows, rows: Rows) -> float:
    """Micro-F1 of always guessing the most frequent labels."""
    found = _counts(model, rows, 0.3)
    return most_frequent(found.names, train.truth.sum(0), len(train), found)["micro"]["f1"]
