"""Nearest neighbours and class centroids in the vector space of tf-idf bags.

k nearest neighbours fits at once and pays when it predicts: scikit-learn compares each text with all N training
texts, whose bags the run keeps (8 bytes a distinct word). Rocchio keeps two centroids a label and is linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch import Tensor, nn

from ewe.baselines.bags import Bags, label_columns
from ewe.baselines.linear import Learn, Weighted
from ewe.batches import Split
from ewe.config import Sizes
from ewe.errors import DataError, UsageError

VOTES = ("majority", "probabilistic", "weighted")


@dataclass(frozen=True)
class NeighboursConfig:
    """How many neighbours, and how they vote."""

    labels: int
    vote: str = "weighted"
    """one of VOTES"""
    k: int = 15
    """neighbours; odd, so that a majority is one"""
    buckets: int = 2**16
    """of the bag; words that share one are one word"""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.vote not in VOTES:
            raise UsageError(f"There is no vote {self.vote!r}; choose from {', '.join(VOTES)}.")
        if self.k < 1 or self.buckets < 2:
            raise UsageError("knn needs a neighbour (k) and 2 buckets or more.")

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The configuration for these labels; `options` are other fields."""
        return cls(labels=sizes.labels, **options)


class Neighbours(nn.Module):
    """The k training texts of the highest cosine vote on each label: ids int (B, n) -> log odds (B, L).

    Probabilistic: the share of them that bear it, |N_C,k| / k. Weighted: the same share with each counting by its
    cosine. Majority: predicted where more than half bear it. [decided: then the probability is (1 + share) / 2, else
    share / 2, so that any threshold from 1/4 to 3/4 asks for a majority and the ranking is the share's]
    """

    config_class = NeighboursConfig
    reads = "words"
    STATE = ("data", "indices", "indptr", "label_indices", "label_indptr")  # two sparse matrices, (N, F) and (N, L)

    def __init__(self, config: NeighboursConfig) -> None:
        super().__init__()
        self.config = config
        self.bags = Bags(config.buckets, "tfidf", unit=True)
        for name in self.STATE:
            self.register_buffer(name, torch.zeros(0, dtype=torch.float32 if name == "data" else torch.int64))

    @torch.no_grad()
    def fit(self, split: Split, rows: NDArray[np.int64], seed: int) -> None:  # noqa: ARG002  nothing is drawn
        """Keep the bags and labels of rows (N,) of a split; DataError where there are fewer than k."""
        if len(rows) < self.config.k:
            raise DataError(f"{len(rows)} training rows have no {self.config.k} neighbours; lower --option k.")
        bags, labels = self.bags.fit(split, rows), label_columns(split, rows, self.config.labels).tocsr()
        kept = (bags.data, bags.indices, bags.indptr, labels.indices, labels.indptr)
        for name, array in zip(self.STATE, kept, strict=True):
            setattr(self, name, torch.from_numpy(array))
        self.__dict__.pop("texts", None)

    @cached_property
    def texts(self) -> tuple[NearestNeighbors, sparse.csr_matrix]:
        """The training texts, ready to be searched, and their labels (N, L)."""
        data, indices, indptr, *labels = (getattr(self, name).cpu().numpy() for name in self.STATE)
        bags = sparse.csr_matrix((data, indices, indptr), (len(indptr) - 1, self.config.buckets))
        bears = sparse.csr_matrix((np.ones(len(labels[0])), *labels), (len(indptr) - 1, self.config.labels))
        return NearestNeighbors(n_neighbors=self.config.k, metric="cosine", algorithm="brute").fit(bags), bears

    def forward(self, ids: Tensor) -> Tensor:  # noqa: D102  the class says it
        search, bears = self.texts
        distances, nearest = search.kneighbors(self.bags.rows(ids))
        cosines = np.ones_like(distances) if self.config.vote != "weighted" else (1 - distances).clip(1e-9)
        votes = normalize(cosines, "l1").ravel()
        starts = np.arange(0, len(votes) + 1, self.config.k)
        share = (sparse.csr_matrix((votes, nearest.ravel(), starts), (len(ids), bears.shape[0])) @ bears).toarray()
        if self.config.vote == "majority":
            share = (share + (share > 0.5)) / 2
        return torch.from_numpy(share).float().logit(eps=1e-6).to(ids.device)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Take over sparse matrices of whatever size they are."""
        for name in self.STATE:
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        self.__dict__.pop("texts", None)
        super()._load_from_state_dict(state_dict, prefix, *args)


@dataclass(frozen=True)
class RocchioConfig:
    """How large a bag."""

    labels: int
    buckets: int = 2**16
    """of the bag; words that share one are one word"""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.buckets < 2:
            raise UsageError("rocchio needs 2 buckets or more.")

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The configuration for these labels; `options` are other fields."""
        return cls(labels=sizes.labels, **options)


class Rocchio(Weighted):
    """Whether a text is nearer to the mean of a label's texts than to that of the rest.

    The score is the text's distance from the plane halfway between the two centroids: linear, and, unlike the bare
    distance to a centroid, comparable between frequent and rare labels, whose centroids are longer. A distance is no
    probability, so a tenth of the rows is held out to calibrate it.
    """

    config_class = RocchioConfig

    def __init__(self, config: RocchioConfig) -> None:
        super().__init__(Bags(config.buckets, "tfidf", unit=True), config.labels, calibrated=True)
        self.config = config

    def learner(self, bags: sparse.csr_matrix, columns: sparse.csc_matrix, seed: int) -> Learn:  # noqa: ARG002
        """See Weighted."""
        N, counts = bags.shape[0], np.diff(columns.indptr)
        sums, total = (columns.T @ bags).tocsr(), np.asarray(bags.sum(0, dtype=np.float64)).ravel()

        def learn(label: int) -> tuple[NDArray[np.float64], float]:
            own = sums[[label]].toarray()[0]
            centroid, rest = own / counts[label], (total - own) / (N - counts[label])
            apart = float(np.linalg.norm(centroid - rest)) or 1.0
            return (centroid - rest) / apart, float(rest @ rest - centroid @ centroid) / (2 * apart)

        return learn
