"""The scores of a trained run on the splits that it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ewe import progress, store
from ewe.batches import Meta, Split, held_out
from ewe.errors import UsageError
from ewe.metrics import POSITIONS, Counts, count, most_frequent
from ewe.predict import BATCH_SIZE, Run, load

HOLDOUT = "holdout"  # the training rows that --holdout kept out of training


def evaluate_run(
    run: Path,
    tensors: Path,
    split: str | None = None,
    threshold: float | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, Any]:
    """Evaluate a run; writes evaluation-SPLIT.json and labels-SPLIT.tsv into it.

    Args:
        run: folder that train made.
        tensors: folder that encode made, with the run's u, v, tokenizer and labels.
        split: one of its splits, or "holdout"; None for all but train.
        threshold: of a predicted label's probability; None for the run's own.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.

    Returns:
        The main figures of each split.

    Raises:
        UsageError: there is no such split.
        DataError: the tensors were encoded otherwise than the run's, or have other labels.
    """
    if threshold is not None and not 0 < threshold < 1:
        raise UsageError(f"--threshold must be between 0 and 1, not {threshold}.")
    opened = load(run, device, precision)
    meta = Meta.read(tensors)
    opened.check(tensors, meta)
    opened.check_labels(tensors, meta)
    names = [split] if split else [name for name in meta.splits if name != "train"]
    if not names:
        raise UsageError(f"{tensors} has no split besides train; name one with --split.")
    made_up = meta.made_up or opened.config["made_up"]
    summary: dict[str, Any] = {"run": str(run), "made_up": made_up}
    for name in names:
        counts = _count(opened, tensors, meta, name, opened.threshold if threshold is None else threshold)
        labels = opened.labels
        guess = most_frequent(opened.names, np.array(labels["counts"]), labels["rows"], counts)
        report = {"split": name, **counts.report(), "most_frequent": guess}
        report |= {"data": meta.splits.get(name, {}), "compute": str(opened.compute), "made_up": made_up}
        if not report["predicted_positives"]:
            progress.warn(f"{run} predicts no label on {name}; train it longer or lower --threshold.")
        store.publish_json(run / f"evaluation-{name}.json", report)
        store.publish_text(run / f"labels-{name}.tsv", counts.table())
        summary[name] = _main_figures(report)
    return summary


def _count(run: Run, tensors: Path, meta: Meta, name: str, threshold: float) -> Counts:
    """Read a split of the tensors, or the rows of train that were held out."""
    share = run.config["training"]["holdout"]
    if name == HOLDOUT and not share:
        raise UsageError(f"{run.folder} held no rows out; train with --holdout, or name a split of {tensors}.")
    split = Split.open(tensors, "train" if name == HOLDOUT else name, meta, run.reads)
    rows = np.flatnonzero(held_out(split.numbers, share)) if name == HOLDOUT else np.arange(len(split))
    with progress.bar(f"evaluate {name}", len(rows), "texts") as advance:
        return count(run.model, run.compute, split, rows, run.names, threshold, BATCH_SIZE, advance)


def _main_figures(report: dict[str, Any]) -> dict[str, Any]:
    figures = {"rows": report["rows"], **report["micro"]}
    figures |= {f"{position}_f1": report[position]["micro"]["f1"] for position in POSITIONS if position in report}
    return figures | {"most_frequent_f1": report["most_frequent"]["micro"]["f1"]}
