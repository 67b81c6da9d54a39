"""Precision, recall and F1 of label sets, counted batch by batch on whatever device the logits are on.

All figures are equal to scikit-learn's with zero_division=0: micro over all labels, macro the mean over labels.
First and Later are the same figures over the labels of that prefix alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from ewe.batches import Batch, Split
from ewe.compute import Compute
from ewe.rule import FIRST, Rule

POSITIONS = {"first": FIRST, "later": "Later-"}
CUTS = (1, 3, 5)  # of precision at k


def cross_entropy(logits: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Binary cross-entropy averaged over batch and labels, from the positives' coordinates alone.

    -log s(z) at a positive is softplus(z) - z, elsewhere softplus(z): no dense target (B, L) is ever made.
    """
    z = logits.float()
    return (softplus(z).sum() - z[rows, columns].sum()) / z.numel()


class Counts:
    """What the figures are made of: true, predicted and actual positives of each label, and hits of the ranking.

    Args:
        names: the labels, in order.
        rule: which labels are predicted; a number for those whose probability is above it.
        device: where the logits will be.
    """

    def __init__(self, names: Sequence[str], rule: Rule | float, device: torch.device) -> None:
        L = len(names)
        self.names, self.rows = list(names), 0
        self.rule = (rule if isinstance(rule, Rule) else Rule.above(rule)).to(device)
        self.tp, self.predicted, self.support = torch.zeros(3, L, dtype=torch.int64, device=device)
        self.hits = torch.zeros(len(CUTS), dtype=torch.int64, device=device)
        first = [name.startswith(POSITIONS["first"]) for name in names]
        self.first = torch.tensor(first, device=device)
        self._firsts = self.first.nonzero().flatten()  # by index: a mask would be waited for at each batch
        self.first_hits, self.first_rows = torch.zeros(2, dtype=torch.int64, device=device)

    def update(self, logits: Tensor, batch: Batch) -> None:
        """Count a batch: logits (B, L) and the labels they should have given."""
        truth = torch.zeros_like(logits, dtype=torch.bool)
        truth[batch.rows, batch.columns] = True
        predicted = self.rule(logits)
        self.rows += len(truth)
        self.tp += (truth & predicted).sum(0)
        self.predicted += predicted.sum(0)
        self.support += truth.sum(0)
        # ranked by logits, which differ where probabilities are all 1.0
        ranked = truth.gather(1, logits.topk(min(CUTS[-1], truth.shape[1])).indices)
        self.hits += torch.stack([ranked[:, :k].sum() for k in CUTS])
        if len(self._firsts):
            first = truth[:, self._firsts]
            best = logits[:, self._firsts].argmax(1, keepdim=True)
            self.first_hits += first.gather(1, best).sum()
            self.first_rows += first.any(1).sum()

    def report(self) -> dict[str, Any]:
        """All figures as JSON values.

        `precision_at` k is hits among the k most probable labels over k; `top1_first` is the share of rows,
        of those that have a First label, whose most probable First label is right.
        """
        tp, predicted, support = (t.cpu().numpy() for t in (self.tp, self.predicted, self.support))
        report: dict[str, Any] = {"rows": self.rows, **self.rule.facts()}
        report |= grouped(self.names, tp, predicted, support)
        report["precision_at"] = {
            str(k): _ratio(int(hits), k * self.rows) for k, hits in zip(CUTS, self.hits, strict=True)
        }
        if len(self._firsts):
            report["top1_first"] = _ratio(int(self.first_hits), int(self.first_rows))
        return report | {"positives": int(support.sum()), "predicted_positives": int(predicted.sum())}

    def table(self) -> str:
        """Support, predictions, precision, recall and F1 a label, as tab-separated text that the csv module reads."""
        lines = ["label\tsupport\tpredicted\tprecision\trecall\tf1"]
        counts = (t.tolist() for t in (self.tp, self.predicted, self.support))
        for name, tp, predicted, support in zip(self.names, *counts, strict=True):
            figures = scores(*(np.array([n]) for n in (tp, predicted, support)))["micro"]
            lines.append(
                "\t".join([_quoted(name), str(support), str(predicted), *(f"{x:.6f}" for x in figures.values())])
            )
        return "\n".join(lines) + "\n"


class Counter(Protocol):
    """What counts something over batches of logits."""

    def update(self, logits: Tensor, batch: Batch) -> None:
        """Count a batch: logits (B, L) and the labels they should have given."""
        ...


def count(
    model: nn.Module,
    compute: Compute,
    split: Split,
    rows: NDArray[np.int64],
    names: Sequence[str],
    rule: Rule | float,
    batch_size: int = 128,
    advance: Callable[[int], None] = lambda _: None,
) -> Counts:
    """Let a model, put into evaluation mode, read these rows of a split, and count.

    Args:
        model: ids -> logits, on the device of `compute`.
        compute: device and precision.
        split: where the rows are.
        rows: (N,) which rows.
        names: the labels, in order.
        rule: which labels are predicted, or the threshold of their probability.
        batch_size: rows at a time.
        advance: told how many rows have been read.
    """
    counts = Counts(names, rule, compute.device)
    read(model, compute, split, rows, [counts], batch_size, advance)
    return counts


@torch.inference_mode()
def read(
    model: nn.Module,
    compute: Compute,
    split: Split,
    rows: NDArray[np.int64],
    counters: Sequence[Counter],
    batch_size: int = 128,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """As `count`, into several counters at once."""
    model.eval()
    for batch in split.batches(rows, batch_size):
        here = batch.to(compute.device)
        with compute.autocast():
            logits = model(here.ids)
        for counter in counters:
            counter.update(logits, here)
        advance(len(logits))


def most_frequent(names: Sequence[str], counts: NDArray[np.int64], rows: int, found: Counts) -> dict[str, Any]:
    """The score of always guessing the k most frequent labels, on the rows that `found` has counted.

    Args:
        names: the labels, in order.
        counts: (L,) how many training rows bear each.
        rows: training rows; k is the rounded mean of labels a row.
        found: the counts of the split that is being evaluated.
    """
    k = max(1, int(counts.sum() / rows + 0.5))
    guess = np.argsort(-counts, kind="stable")[:k]
    support = found.support.cpu().numpy()
    guessed = np.isin(np.arange(len(names)), guess)
    return {"k": k, "labels": [names[i] for i in guess]} | grouped(
        names, support * guessed, guessed * found.rows, support
    )


def grouped(
    names: Sequence[str], tp: NDArray[np.int64], predicted: NDArray[np.int64], support: NDArray[np.int64]
) -> dict[str, Any]:
    """Micro and macro figures over all labels and, where labels have positions, over First and Later alone."""
    report = scores(tp, predicted, support)
    for position, prefix in POSITIONS.items():
        chosen = np.array([name.startswith(prefix) for name in names], np.bool_)
        if chosen.any():
            report[position] = scores(tp[chosen], predicted[chosen], support[chosen])
    return report


def scores(tp: NDArray[np.int64], predicted: NDArray[np.int64], support: NDArray[np.int64]) -> dict[str, Any]:
    """Micro and macro precision, recall and F1 from counts (L,) of true, predicted and actual positives."""
    micro = {
        "precision": _ratio(tp.sum(), predicted.sum()),
        "recall": _ratio(tp.sum(), support.sum()),
        "f1": _ratio(2 * tp.sum(), predicted.sum() + support.sum()),
    }
    macro = {
        "precision": float(_ratios(tp, predicted).mean()),
        "recall": float(_ratios(tp, support).mean()),
        "f1": float(_ratios(2 * tp, predicted + support).mean()),
    }
    return {"micro": micro, "macro": macro}


def _quoted(name: str) -> str:
    """A name as a field of the table; the csv module itself, before Python 3.13, leaves a lone carriage return bare."""
    return '"' + name.replace('"', '""') + '"' if any(each in name for each in '\t\r\n"') else name


def _ratio(part: int | np.int64, whole: int | np.int64) -> float:
    return float(part / whole) if whole else 0.0


def _ratios(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
