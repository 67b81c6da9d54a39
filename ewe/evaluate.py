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
from ewe.metrics import POSITIONS, Counts, count, most_frequent
from ewe.run import Run, load


def evaluate_run(
    run: Path,
    tensors: Path,
    *,
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
    opened = load(run, device, precision, threshold=threshold)
    meta = Meta.read(tensors)
    opened.check(tensors, meta)
    opened.check_labels(tensors, meta)
    names = [split] if split else [name for name in meta.splits if name != "train"]
    if not names:
        raise UsageError(f"{tensors} has no split besides train; name one with --split.")
    summary: dict[str, Any] = {"run": str(run), "made_up": meta.made_up or opened.config["made_up"]}
    for name in names:
        report, _ = evaluate_split(opened, tensors, meta, name)
        summary[name] = _main_figures(report)
    return summary


def evaluate_split(run: Run, tensors: Path, meta: Meta, name: str) -> tuple[dict[str, Any], Counts]:
    """Evaluate a run on one split, or "holdout", of tensors that fit it; writes as `evaluate_run` does.

    Returns:
        What evaluation-SPLIT.json holds, and the counts of each label that it is made of.

    Raises:
        UsageError: there is no such split, or the run held no rows out.
    """
    chosen, rows = select(run, tensors, meta, name)
    with progress.bar(f"evaluate {name}", len(rows), "texts") as advance:
        counts = count(run.model, run.compute, chosen, rows, run.names, run.rule, run.batch_size, advance)
    guess = most_frequent(run.names, np.array(run.labels["counts"]), run.labels["rows"], counts)
    report = {"split": name, **counts.report(), "most_frequent": guess, "data": meta.splits.get(name, {})}
    report |= {"compute": str(run.compute), "made_up": meta.made_up or run.config["made_up"]}
    if not len(rows):
        progress.warn(f"{name} of {tensors} has no row, so all its figures are 0; name another split with --split.")
    elif not report["predicted_positives"]:
        progress.warn(f"{run.folder} predicts no label on {name}; train it longer or lower --threshold.")
    suffix = "" if run.rule.name == str(run.threshold) else f".{run.rule.name}"
    store.publish_json(run.folder / f"evaluation-{name}{suffix}.json", report)
    store.publish_text(run.folder / f"labels-{name}{suffix}.tsv", counts.table())
    return report, counts


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
