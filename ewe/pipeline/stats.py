"""Table 2 of the paper, and the dataset's other figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from ewe.store import Store

Counts = dict[tuple[str, str], np.ndarray]  # (kind of labels, split) -> documents with each label, int64 (L,)
# kind of counts -> its column, and the configs whose rows it counts
KINDS = {
    "position": ("labels", ("relabeled",)),
    "raw": ("unordered_labels", ("relabeled",)),
    "unordered": ("unordered_labels", ("relabeled", "no_first")),
}
MAJORS = 0.9  # share of all labels that the "Majors" hold, in training


def count_labels(store: Store, labels: dict[str, list[str]], splits: list[str]) -> Counts:
    """n_l, the documents with label l, of each kind and split, from the finished shards.

    The kind "raw" counts unordered labels over relabeled/'s rows alone, as Table 2's first line does.
    """
    counts: Counts = {}
    for kind, (column, configs) in KINDS.items():
        size = len(labels["position" if kind == "position" else "unordered"])
        for split in splits:
            counts[kind, split] = np.zeros(size, np.int64)
            for config in configs:
                for path in sorted(store.folder.glob(f"{config}/{split}-*.parquet")):
                    with pq.ParquetFile(path) as file:
                        for batch in file.iter_batches(columns=[column]):
                            flat = batch.column(0).flatten().to_numpy()
                            counts[kind, split] += np.bincount(flat, minlength=size)
    return counts


def majors(train: np.ndarray) -> np.ndarray:
    """Indices of the shortest descending prefix of labels that holds MAJORS of all (spec, section 4)."""
    order = np.argsort(-train, kind="stable")
    return order[: int(np.searchsorted(np.cumsum(train[order]), MAJORS * train.sum())) + 1]


def table_2(counts: Counts, splits: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Standard deviation (ddof 0) of n_l over all labels and over the majors, and both over their mean.

    The coefficients of variation stand beside them because part of the fall after relabeling is
    arithmetic: each label is split in two, and the mean halves.

    Returns:
        {split: {"raw" | "relabeled" | "unordered": {"total", "majors", "total_cv", "majors_cv", "labels"}}}
    """
    lines = {"raw": "raw", "relabeled": "position", "unordered": "unordered"}
    table: dict[str, dict[str, dict[str, float]]] = {split: {} for split in splits}
    for line, kind in lines.items():
        chosen = majors(counts[kind, "train"])
        for split in splits:
            total, most = counts[kind, split], counts[kind, split][chosen]
            table[split][line] = {
                "total": float(total.std()),
                "majors": float(most.std()),
                "total_cv": _variation(total),
                "majors_cv": _variation(most),
                "labels": len(total),
            }
    return table


def _variation(counts: np.ndarray) -> float:
    return float(counts.std() / counts.mean()) if counts.any() else 0.0


def summarize(store: Store, counts: Counts, splits: list[str], *, several_first: int) -> dict[str, Any]:
    """What stats.json holds.

    Args:
        store: the dataset, its Parquet files finished.
        counts: from `count_labels`.
        splits: their names.
        several_first: rows where several codes were flagged first, so that the rule chose one.
    """
    files = {name: record["rows"] for name, record in store.manifest["files"].items() if name.endswith(".parquet")}
    reasons = pl.read_parquet(store.folder / "dropped.parquet")["reason"].value_counts(sort=True).rows()
    return {
        "rows": {
            "relabeled": sum(rows for name, rows in files.items() if name.startswith("relabeled/")),
            "no_first": sum(rows for name, rows in files.items() if name.startswith("no_first/")),
            "dropped": dict(sorted(reasons)),
        },
        "several_first": several_first,
        "splits": {split: _describe_split(store, split) for split in splits},
        "table_2": table_2(counts, splits),
    }


def _describe_split(store: Store, split: str) -> dict[str, Any]:
    """Figures of relabeled/'s rows of one split."""
    frame = pl.scan_parquet(store.folder / f"relabeled/{split}-*.parquet").select(
        rows=pl.len(),
        labels_a_row=pl.col("labels").list.len().mean(),
        labels_outside_train=(pl.col("label_names").list.len() - pl.col("labels").list.len()).sum(),
        claims_median=pl.col("n_claims").median(),
        claims_p90=pl.col("n_claims").quantile(0.9),
        characters_median=pl.col("text").str.len_chars().median(),
        characters_p90=pl.col("text").str.len_chars().quantile(0.9),
    )
    return frame.collect(engine="streaming").row(0, named=True)
