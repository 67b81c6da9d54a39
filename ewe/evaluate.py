"""The scores of a trained run on the splits that it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ewe import progress, store
from ewe.batches import Meta, Split, held_out
from ewe.config import HOLDOUT
from ewe.errors import UsageError
from ewe.metrics import POSITIONS, count, most_frequent
from ewe.predict import Run, load


def evaluate_run(
    run: Path,
    tensors: Path,
    split: str | None = None,
    threshold: str | float | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, Any]:
    """Evaluate a run; writes evaluation-SPLIT.json and labels-SPLIT.tsv into it.

    Another threshold than the run's own is part of the names, as in evaluation-SPLIT.labels.json: the published
    metric stays beside it.

    Args:
        run: folder that train made.
        tensors: folder that encode made, with the run's u, v, tokenizer and labels.
        split: one of its splits, or "holdout"; None for all but train.
        threshold: of a predicted label's probability, or a rule that `ewe tune` found: global, labels or first;
            None for the run's own.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.

    Returns:
        The main figures of each split.

    Raises:
        UsageError: there is no such split or threshold, or the run has not been tuned.
        DataError: the tensors were encoded otherwise than the run's, or have other labels.
    """
    opened = load(run, device, precision, threshold)
    meta = Meta.read(tensors)
    opened.check(tensors, meta)
    opened.check_labels(tensors, meta)
    names = [split] if split else [name for name in meta.splits if name != "train"]
    if not names:
        raise UsageError(f"{tensors} has no split besides train; name one with --split.")
    made_up = meta.made_up or opened.config["made_up"]
    suffix = "" if opened.rule.name == str(opened.threshold) else f".{opened.rule.name}"
    summary: dict[str, Any] = {"run": str(run), "made_up": made_up}
    for name in names:
        chosen, rows = select(opened, tensors, meta, name)
        with progress.bar(f"evaluate {name}", len(rows), "texts") as advance:
            counts = count(
                opened.model, opened.compute, chosen, rows, opened.names, opened.rule, opened.batch_size, advance
            )
        labels = opened.labels
        guess = most_frequent(opened.names, np.array(labels["counts"]), labels["rows"], counts)
        report = {"split": name, **counts.report(), "most_frequent": guess}
        report |= {"data": meta.splits.get(name, {}), "compute": str(opened.compute), "made_up": made_up}
        if not report["predicted_positives"]:
            progress.warn(f"{run} predicts no label on {name}; train it longer or lower --threshold.")
        store.publish_json(run / f"evaluation-{name}{suffix}.json", report)
        store.publish_text(run / f"labels-{name}{suffix}.tsv", counts.table())
        summary[name] = _main_figures(report)
    return summary


def select(run: Run, tensors: Path, meta: Meta, name: str) -> tuple[Split, NDArray[np.int64]]:
    """A split of the tensors and its rows, or, of train, the rows that were held out.

    Raises:
        UsageError: there is no such split, or the run held no rows out.
    """
    share = run.config["training"]["holdout"]
    if name == HOLDOUT and not share:
        raise UsageError(f"{run.folder} held no rows out; train with --holdout, or name a split of {tensors}.")
    split = Split.open(tensors, "train" if name == HOLDOUT else name, meta, run.reads)
    return split, np.flatnonzero(held_out(split.numbers, share)) if name == HOLDOUT else np.arange(len(split))


def _main_figures(report: dict[str, Any]) -> dict[str, Any]:
    figures = {"rows": report["rows"], **report["micro"]}
    figures |= {f"{position}_f1": report[position]["micro"]["f1"] for position in POSITIONS if position in report}
    return figures | {"most_frequent_f1": report["most_frequent"]["micro"]["f1"]}
