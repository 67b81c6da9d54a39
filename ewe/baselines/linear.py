"""Linear classifiers over bags of hashed words: naive Bayes, logistic regression, support vector machine.

Each label against the rest, as scikit-learn fits it; what is kept is a weight a bucket and label and a bias a
label, so that predicting is one weighted sum of rows in torch. With the default 2**16 buckets and 1,328 labels
these are 87M weights, as many as BERT_EWE has, and 348 MB.

Cost of fitting N texts of d distinct words on L labels. Naive Bayes: one sparse product, a minute at most.
Logistic regression and SVM: scikit-learn's averaged stochastic gradient descent, `passes(N)` x N x d x L updates,
labels side by side in threads, at some 8 ns each: two million patents of 150 words and 1,328 labels are 4.4 hours of
one core. It reads the one matrix where it lies; liblinear, a little better where rows are few, would copy it for each
label (10 GB there).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import MultinomialNB
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from ewe import progress
from ewe.baselines.bags import BAGS, Bags, calibrate, hold_out, label_columns, log_odds
from ewe.batches import Split
from ewe.config import Sizes
from ewe.errors import UsageError

METHODS = ("naive-bayes", "logistic", "svm")
Learn = Callable[[int], tuple[NDArray[np.float64], float]]  # a label -> its weights (buckets,) and bias


@dataclass(frozen=True)
class LinearConfig:
    """Which classifier over which bag."""

    labels: int
    method: str = "logistic"
    """one of METHODS"""
    bag: str = ""
    """binary, count or tfidf; of naive Bayes count by default, of the others tfidf"""
    buckets: int = 2**16
    """of the bag; words that share one are one word"""
    penalty: float = 10.0
    """C of scikit-learn's logistic regression and SVM: the larger, the closer to the training rows"""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.method not in METHODS or self.bag not in BAGS:
            raise UsageError(f"There is no {self.method} over a bag {self.bag!r}; bags are {', '.join(BAGS)}.")
        if self.buckets < 2 or not self.penalty > 0:
            raise UsageError(f"{self.method} needs 2 buckets or more and a penalty above 0.")

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The configuration for these labels; `options` are other fields."""
        default = "count" if options.get("method") == "naive-bayes" else "tfidf"
        return cls(**{"labels": sizes.labels, **options, "bag": options.get("bag") or default})


def passes(N: int) -> int:
    """Passes over N rows: a million rows in all, as scikit-learn advises, but 5 passes at least and 50 at most."""
    return min(max(5, ceil(1e6 / N)), 50)


class Weighted(nn.Module, ABC):
    """Logits (B, L) from hashed words int (B, n): weights of the buckets, summed over a text's bag, and a bias.

    A subclass finds weights and biases in `learn`; `fit` makes log odds of what they give.
    """

    reads = "words"

    def __init__(self, bags: Bags, labels: int, calibrated: bool) -> None:
        super().__init__()
        self.bags, self.calibrated = bags, calibrated
        self.weight = nn.Parameter(torch.zeros(bags.buckets, labels))
        self.bias = nn.Parameter(torch.zeros(labels))

    def forward(self, ids: Tensor) -> Tensor:  # noqa: D102  the class says it
        index, weights = self.bags(ids)
        return embedding_bag(index, self.weight, mode="sum", per_sample_weights=weights) + self.bias

    @torch.no_grad()
    def fit(self, split: Split, rows: NDArray[np.int64], seed: int) -> None:
        """Fit on rows (N,) of a split; where it calibrates, on nine tenths of them (see bags.calibrate)."""
        L = len(self.bias)
        rows, apart = hold_out(rows, seed) if self.calibrated else (rows, rows[:0])
        bags, columns = self.bags.fit(split, rows), label_columns(split, rows, L)
        learn = self.learner(bags, columns, seed)
        counts, prior = np.diff(columns.indptr), log_odds(columns)
        known = np.flatnonzero((counts > 0) & (counts < len(rows)))
        with ThreadPoolExecutor(os.cpu_count()) as pool, progress.bar("fit", len(known), "labels") as advance:
            for label, (weights, bias) in zip(known, pool.map(learn, known), strict=True):
                self.weight[:, label], self.bias[label] = torch.from_numpy(weights), bias
                advance()
        if len(apart):
            scores = np.concatenate([self(batch.ids).numpy() for batch in split.batches(apart, 128)])[:, known]
            a, b, c = calibrate(scores, label_columns(split, apart, L).toarray()[:, known], prior[known])
            self.weight.mul_(a)
            self.bias.copy_(a * self.bias + torch.from_numpy(b * prior + c))
        constant = np.setdiff1d(np.arange(L), known)  # what no row bears, or every row: there is nothing to learn
        self.bias[constant] = torch.from_numpy(prior[constant]).float()

    @abstractmethod
    def learner(self, bags: sparse.csr_matrix, columns: sparse.csc_matrix, seed: int) -> Learn:
        """What finds a label's weights and bias, from bags (N, buckets) and labels (N, L)."""


class Linear(Weighted):
    """Naive Bayes (Laplace), logistic regression or linear SVM; each label against the rest.

    Naive Bayes counts evidence, so its bags stay as they are, and gives its own probabilities. The others' bags are
    scaled to length 1 and their margins calibrated: an SVM's are no log odds, a regularised regression's too cautious.
    """

    config_class = LinearConfig

    def __init__(self, config: LinearConfig) -> None:
        self.config, bayes = config, config.method == "naive-bayes"
        super().__init__(Bags(config.buckets, config.bag, unit=not bayes), config.labels, calibrated=not bayes)

    def learner(self, bags: sparse.csr_matrix, columns: sparse.csc_matrix, seed: int) -> Learn:
        """See Weighted."""
        if self.config.method == "naive-bayes":
            return _naive_bayes(bags, columns)
        N = bags.shape[0]
        loss = {"logistic": "log_loss", "svm": "hinge"}[self.config.method]
        descent = SGDClassifier(
            loss=loss,
            alpha=1 / (self.config.penalty * N),
            max_iter=passes(N),
            tol=None,
            average=True,
            random_state=seed,
        )

        def learn(label: int) -> tuple[NDArray[np.float64], float]:
            fitted = clone(descent).fit(bags, columns[:, [label]].toarray().ravel())
            return fitted.coef_[0], float(fitted.intercept_[0])

        return learn


def _naive_bayes(bags: sparse.csr_matrix, columns: sparse.csc_matrix) -> Learn:
    """Multinomial naive Bayes with Laplace smoothing, a label against the rest, over the buckets that occur.

    It looks at nothing but each side's sum of bags and share of the rows: two rows for scikit-learn, in the place of
    a pass over all of them for each label.
    """
    N, counts = bags.shape[0], np.diff(columns.indptr)
    total = np.asarray(bags.sum(0, dtype=np.float64)).ravel()
    seen = np.flatnonzero(total)  # smoothing buckets that no text has would drown the rare labels
    sums = (columns.T @ bags).tocsr()

    def learn(label: int) -> tuple[NDArray[np.float64], float]:
        own, prior = sums[[label]].toarray()[0, seen], np.array([N - counts[label], counts[label]]) / N
        rest = (total[seen] - own).clip(0)  # rounding apart, it is no less
        bayes = MultinomialNB(class_prior=prior).fit(np.stack([rest, own]), [0, 1])
        weights = np.zeros(bags.shape[1])
        weights[seen] = np.diff(bayes.feature_log_prob_, axis=0)[0]
        return weights, float(np.log(prior[1] / prior[0]))

    return learn
