"""Bags of hashed words: scipy's sparse rows to fit on, and the same numbers in torch to predict with.

A bag counts each word ("count"), notes it ("binary"), or weighs its count by the inverse document frequency
("tfidf", scikit-learn's smooth idf = ln((1 + N) / (1 + df)) + 1). At 8 bytes a distinct word of a text, two million
patents of some 150 take 2.4 GB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from ewe import progress, words
from ewe.batches import Split

BAGS = ("binary", "count", "tfidf")
ROWS = 1024  # texts that become sparse rows at a time
CALIBRATION = 2048  # at most so many rows are held out for it


class Bags(nn.Module):
    """Hashed words as a bag: ids int (B, n) -> (buckets int64 (B, n), weights float32 (B, n)), each bucket once.

    Args:
        buckets: size of a bag; words that share a bucket are one word.
        bag: one of BAGS.
        unit: scale each bag to length 1.
    """

    idf: Tensor

    def __init__(self, buckets: int, bag: str, unit: bool) -> None:
        super().__init__()
        self.buckets, self.bag, self.unit = buckets, bag, unit
        self.register_buffer("idf", torch.ones(buckets))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weights are 0 where a bucket stands again, and for padding."""
        index = words.buckets(ids, self.buckets).long().sort(1).values
        first = torch.ones_like(index, dtype=torch.bool)
        first[:, 1:] = index[:, 1:] != index[:, :-1]
        run = first.cumsum(1) - 1  # which distinct bucket of its text
        weights = torch.zeros_like(index, dtype=torch.float32).scatter_add_(1, run, torch.ones_like(index).float())
        weights = weights.gather(1, run) * (first & (index > 0))
        if self.bag == "binary":
            weights = weights.sign()
        weights = weights * self.idf[index]
        if self.unit:
            weights = weights / weights.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return index, weights

    def rows(self, ids: Tensor) -> sparse.csr_matrix:
        """The bags as sparse rows: float32 (B, buckets)."""
        index, weights = (each.cpu() for each in self(ids))
        kept = weights > 0
        indptr = np.cumsum([0, *kept.sum(1).tolist()])
        return sparse.csr_matrix((weights[kept].numpy(), index[kept].int().numpy(), indptr), (len(ids), self.buckets))

    def fit(self, split: Split, rows: NDArray[np.int64]) -> sparse.csr_matrix:
        """Learn the inverse document frequencies of these rows, and return their bags: float32 (N, buckets)."""
        plain, parts = Bags(self.buckets, self.bag, unit=False), []
        with progress.bar("read words", len(rows), "texts") as advance:
            for batch in split.batches(rows, ROWS):
                parts.append(plain.rows(batch.ids))
                advance(len(batch.ids))
        weigh = TfidfTransformer(norm="l2" if self.unit else None, use_idf=self.bag == "tfidf")
        bags = weigh.fit_transform(sparse.vstack(parts, "csr"))
        if self.bag == "tfidf":
            self.idf.copy_(torch.from_numpy(weigh.idf_))
        return bags


def label_columns(split: Split, rows: NDArray[np.int64], L: int) -> sparse.csc_matrix:
    """Which of the rows (N,) bear which label: 1.0 in a sparse (N, L), label after label."""
    where, labels = split.labels(rows)
    return sparse.csc_matrix((np.ones(len(labels)), (where, labels)), (len(rows), L))


def log_odds(columns: sparse.csc_matrix) -> NDArray[np.float64]:
    """Of each label (L,) among N rows, half a row added to either side."""
    counts, N = np.asarray(columns.sum(0)).ravel(), columns.shape[0]
    return np.log((counts + 0.5) / (N - counts + 0.5))  # type: ignore[no-any-return]


def hold_out(rows: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows to fit on, rows to calibrate on): a tenth of them and at most CALIBRATION, drawn by the seed."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    cut = min(len(rows) // 10, CALIBRATION)
    return np.sort(shuffled[cut:]), np.sort(shuffled[:cut])


def calibrate(scores: NDArray[Any], truth: NDArray[Any], prior: NDArray[Any]) -> tuple[float, float, float]:
    """Platt's scaling with the labels' frequency beside it: (a, b, c) such that a x score + b x prior + c are log odds.

    One triple for all labels, as a rare one has too few positives for its own; the prior tells it from a frequent one.

    Args:
        scores: (n, L), higher where a label is likelier, on rows that were not fitted on.
        truth: (n, L), 1 where a row bears a label.
        prior: (L,) log odds of the labels among the rows fitted on.

    Returns:
        (1, 0, 0), scores as they are, where the rows bear no label, or all.
    """
    if truth.size == 0 or truth.min() == truth.max():
        return 1.0, 0.0, 0.0
    features = np.stack([scores, np.broadcast_to(prior, scores.shape)], 2).reshape(-1, 2)
    platt = LogisticRegression(C=np.inf).fit(features, truth.reshape(-1))
    return float(platt.coef_[0, 0]), float(platt.coef_[0, 1]), float(platt.intercept_[0])
