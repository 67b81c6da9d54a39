"""Thresholds that suit a run better than 0.3, found on the rows it held out, and what they gain on the test splits.

Every probability of those rows falls into one of some 2,000 bins of its label, and the histograms tell the true and
the predicted positives above each cut between bins: memory does not grow with the rows, and a sweep is a cumulative
sum. All three rules seek the highest micro-F1, 2 tp / (predicted + support):

- global: one threshold for all labels.
- labels: one a label. The F* of the best combination is a ratio of sums over labels, so that at F* every label's cut is
  the one with the highest 2 tp - F* predicted, independently of the others; from any start, choosing cuts for F and
  computing F of these cuts climbs to F* in a few rounds (Dinkelbach, Management Science 13, 1967). A rare label's few
  held-out texts would be learnt by heart: below MINIMUM of them it keeps the global threshold.
- first: a text has exactly one First label, the most probable; Later labels are those above one threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ewe import progress, rule, store
from ewe.batches import Batch, Meta
from ewe.config import HOLDOUT
from ewe.errors import DataError, UsageError
from ewe.evaluate import select
from ewe.metrics import Counter, Counts, read
from ewe.run import Run, load

MINIMUM = 50  # held-out texts that bear a label, for a threshold of its own; with 20, noise ate the gain
LOGITS = np.linspace(-8, 8, 2049)  # where bins meet, before the sigmoid: 1/128 apart
NEVER = 1.0  # no probability is above it


def tune_run(run: Path, tensors: Path, *, device: str = "auto", precision: str = "auto") -> dict[str, Any]:
    """Find thresholds on the rows that a run held out, store them in it, and say what they gain on the test splits.

    The thresholds are in thresholds.json before the first test row is read. Found once, they stand: the same call
    again says the same, and evaluates only splits that it has not seen.

    Args:
        run: folder that train made with --holdout.
        tensors: the folder that it was trained on.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.

    Returns:
        Of the held-out rows and of each split but train: micro-F1 at the run's threshold (f1) and by each rule, and
        the differences (gain). On the held-out rows, where the thresholds come from, they flatter.

    Raises:
        UsageError: the run held no rows out.
        DataError: the run was trained on other tensors.
    """
    opened, meta = load(run, device, precision), Meta.read(tensors)
    opened.check(tensors, meta)
    opened.check_labels(tensors, meta)
    if not opened.config["training"]["holdout"]:
        raise UsageError(f"{run} held no rows out to tune on; train into another --out with --holdout 0.02.")
    if meta.content_sha256("train") != opened.config["tensors_sha256"]:
        raise DataError(f"{run} was trained on other rows than {tensors} has; tune it on the folder of its training.")
    found = rule.read(run)
    if found is None:
        found = _find(opened, tensors, meta)
        store.publish_json(run / rule.FILE, found)
    rules = rule.tuned(found, opened.names)
    for name in meta.splits:
        sha256 = meta.content_sha256(name)
        if name == "train" or found["tests"].get(name, {}).get("sha256") == sha256:
            continue
        counts = [Counts(opened.names, each, opened.compute.device) for each in (opened.rule, *rules.values())]
        rows = _count(opened, tensors, meta, name, counts)
        found["tests"][name] = {"sha256": sha256, "rows": rows, "f1": _f1(counts)}
        store.publish_json(run / rule.FILE, found)
    tests = {name: found["tests"][name] for name in meta.splits if name != "train"}
    return {
        "run": str(run),
        "thresholds": {name: facts["threshold"] for name in ("global", "first") if (facts := found[name])},
        "of_their_own": f"{len(found['labels']['own']):,} of {len(opened.names):,} labels",
        **{name: _gains(each, opened.rule.name) for name, each in {HOLDOUT: found[HOLDOUT], **tests}.items()},
        "made_up": meta.made_up or opened.config["made_up"],
    }


class Histogram:
    """How many probabilities of each label lie between neighbouring cuts, of all texts and of those that bear it.

    Args:
        cuts: (K,) rising.
        L: labels.
        device: where the logits will be.
    """

    def __init__(self, cuts: NDArray[np.float64], L: int, device: torch.device) -> None:
        self._cuts = torch.tensor(cuts, dtype=torch.float32, device=device)
        self._bins = torch.zeros(2, L, len(cuts) + 1, dtype=torch.int32, device=device)
        self._starts = torch.arange(L, device=device) * (len(cuts) + 1)

    def update(self, logits: Tensor, batch: Batch) -> None:
        """Count a batch: logits (B, L) and the labels they should have given."""
        # bin k holds what is above cut k-1 and not above cut k, by the very comparison that a rule makes
        bins = torch.bucketize(logits.float().sigmoid(), self._cuts) + self._starts
        for counts, where in zip(self._bins, (bins, bins[batch.rows, batch.columns]), strict=True):
            counts.view(-1).scatter_add_(0, where.flatten(), torch.ones_like(where.flatten(), dtype=torch.int32))

    def above(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Of each label: true and predicted positives above each cut, int64 (L, K), and its support (L,)."""
        bins = self._bins.cpu().numpy().astype(np.int64)
        tails = bins[..., ::-1].cumsum(-1)[..., ::-1]
        predicted, tp = tails[..., 1:]
        return tp, predicted, tails[1, :, 0]


def cuts(own: float) -> NDArray[np.float64]:
    """The thresholds to choose from, rising: even in the logit, with the run's own, and one above all."""
    even = (1 / (1 + np.exp(-LOGITS))).round(6)  # so many digits as a person reads
    return np.unique([*even, own, NEVER])


def best_global(
    tp: NDArray[np.int64], predicted: NDArray[np.int64], support: NDArray[np.int64], near: int
) -> tuple[int, float]:
    """The one cut with the highest micro-F1, of equals the nearest to `near`, and that F1; counts as of `above`."""
    f1 = 2 * tp.sum(0) / np.maximum(predicted.sum(0) + support.sum(), 1)
    cut = _highest(f1, near)
    return int(cut), float(f1[cut])


def best_labels(
    tp: NDArray[np.int64], predicted: NDArray[np.int64], support: NDArray[np.int64], near: int, minimum: int = MINIMUM
) -> tuple[NDArray[np.int64], float]:
    """Cuts (L,) with the highest micro-F1 together, `near` where the support is below the minimum, and that F1."""
    L = np.arange(len(support))
    chosen, f1, free = np.full(len(support), near), -1.0, support >= minimum
    while True:
        found = float(2 * tp[L, chosen].sum() / max(predicted[L, chosen].sum() + support.sum(), 1))
        if found <= f1:
            return chosen, f1
        f1 = found
        chosen = np.where(free, _highest(2 * tp - f1 * predicted, near), near)


def best_later(
    tp: NDArray[np.int64], predicted: NDArray[np.int64], positives: int, first: tuple[int, int], near: int
) -> tuple[int, float]:
    """The one cut of Later labels with the highest micro-F1 of all labels, and that F1.

    Args:
        tp: (L', K) of Later labels alone, as predicted.
        predicted: (L', K).
        positives: of all labels, First ones too.
        first: true and predicted positives among First labels.
        near: of equals the nearest to this cut.
    """
    f1 = 2 * (first[0] + tp.sum(0)) / np.maximum(first[1] + predicted.sum(0) + positives, 1)
    cut = _highest(f1, near)
    return int(cut), float(f1[cut])


def _highest(scores: NDArray[np.float64], near: int) -> NDArray[np.int64]:
    """Index of the highest score along the last axis; of equals the nearest to `near`."""
    K = scores.shape[-1]
    distances = np.where(scores == scores.max(-1, keepdims=True), np.abs(np.arange(K) - near), K)
    nearest: NDArray[np.int64] = distances.argmin(-1)
    return nearest


def _find(run: Run, tensors: Path, meta: Meta) -> dict[str, Any]:
    """What thresholds.json holds, from the held-out rows alone."""
    device, names = run.compute.device, run.names
    choices = cuts(run.threshold)
    histogram, counts = Histogram(choices, len(names), device), Counts(names, run.rule, device)
    rows = _count(run, tensors, meta, HOLDOUT, [histogram, counts])
    if not rows:
        raise UsageError(f"{run.folder} held no rows out to tune on; train into another --out with a larger --holdout.")
    tp, predicted, support = histogram.above()
    shared, global_f1 = best_global(tp, predicted, support, int(choices.searchsorted(run.threshold)))
    own, labels_f1 = best_labels(tp, predicted, support, shared)
    found: dict[str, Any] = {
        "model_sha256": rule.model_sha256(run.folder),
        "compute": str(run.compute),
        "global": {"threshold": choices[shared]},
        "labels": {
            "minimum": MINIMUM,
            "own": {names[i]: choices[own[i]] for i in np.flatnonzero(support >= MINIMUM)},
        },
        "first": None,
        HOLDOUT: {"rows": rows, "f1": _f1([counts]) | {"global": global_f1, "labels": labels_f1}},
        "tests": {},
    }
    later = ~counts.first.cpu().numpy()
    if not later.all():
        first = int(counts.first_hits), rows
        cut, f1 = best_later(tp[later], predicted[later], int(support.sum()), first, shared)
        found["first"] = {"threshold": choices[cut]}
        found[HOLDOUT]["f1"]["first"] = f1
    return found


def _count(run: Run, tensors: Path, meta: Meta, name: str, counters: Sequence[Counter]) -> int:
    """Let the counters see a split, or the held-out rows; returns how many rows."""
    split, rows = select(run, tensors, meta, name)
    with progress.bar(f"tune: {name}", len(rows), "texts") as advance:
        read(run.model, run.compute, split, rows, counters, run.batch_size, advance)
    return len(rows)


def _f1(counts: list[Counts]) -> dict[str, float]:
    return {each.rule.name: each.report()["micro"]["f1"] for each in counts}


def _gains(found: dict[str, Any], own: str) -> dict[str, Any]:
    """Figures of a split for the summary: micro-F1 at the run's threshold and by each rule, and the differences."""
    f1 = dict(found["f1"])
    figures = {"rows": found["rows"], "f1": f1.pop(own)}
    for name, value in f1.items():
        figures |= {f"{name}_f1": value, f"{name}_gain": value - figures["f1"]}
    return figures
