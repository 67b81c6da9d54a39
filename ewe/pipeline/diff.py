"""Two raw folders or datasets, compared by label: what reclassification, or another source, changes.

CPC codes of a patent move after its grant, so the labels of the same grants differ between snapshots, and between
those printed on the grant and today's. This is the measure of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from ewe.errors import DataError
from ewe.parquet import read_batches
from ewe.pipeline import schema
from ewe.pipeline.relabel import LABELS, Scheme, first_later
from ewe.pipeline.shards import open_shard
from ewe.store import MADE_BY, kind_of, read_manifest

ROWS = 16_384  # whose codes are in memory at once
TOP = 20  # moves that the report lists
EXAMPLES = 5  # publication numbers that the report gives of rows in one alone


def diff_labels(a: Path, b: Path, scheme: Scheme = "cpc") -> dict[str, Any]:
    """Compare the labels of the grants that stand in both folders.

    Args:
        a: a raw folder or a dataset.
        b: another one.
        scheme: which codes label the rows of a raw folder; a dataset has its labels already.

    Returns:
        rows_a, rows_b, in_both, only_in_a, only_in_b (with examples); of the rows in both: first_in_both, first_kept
        and its share, all_kept (First and the set of Later) and its share, first_only_in_a, first_only_in_b;
        moves, the commonest changes of First ("G06F > G06N": grants), and subclasses: of those that moved most,
        grants with that First in a and in b, how many left it and how many came.

    Raises:
        DataError: a folder is neither, or a shard of it is broken.
        IncompleteError: a folder is unfinished.
    """
    labels_a, labels_b = _labels(a, scheme), _labels(b, scheme)
    both = labels_a.join(labels_b, on="publication_number", how="inner", suffix="_b")
    placed = both.filter(pl.col("first").is_not_null() & pl.col("first_b").is_not_null())
    moved = placed.filter(pl.col("first") != pl.col("first_b"))
    all_kept = placed.filter((pl.col("first") == pl.col("first_b")) & (pl.col("later") == pl.col("later_b")))
    only_a = labels_a.join(labels_b, on="publication_number", how="anti")["publication_number"].sort()
    only_b = labels_b.join(labels_a, on="publication_number", how="anti")["publication_number"].sort()
    return {
        "a": str(a),
        "b": str(b),
        "rows_a": labels_a.height,
        "rows_b": labels_b.height,
        "in_both": both.height,
        "only_in_a": len(only_a),
        "only_in_b": len(only_b),
        "only_in_a_examples": only_a.head(EXAMPLES).to_list(),
        "only_in_b_examples": only_b.head(EXAMPLES).to_list(),
        "first_in_both": placed.height,
        "first_only_in_a": both.filter(pl.col("first").is_not_null() & pl.col("first_b").is_null()).height,
        "first_only_in_b": both.filter(pl.col("first").is_null() & pl.col("first_b").is_not_null()).height,
        "first_kept": placed.height - moved.height,
        "first_kept_share": _share(placed.height - moved.height, placed.height),
        "all_kept": all_kept.height,
        "all_kept_share": _share(all_kept.height, placed.height),
        "moves": _moves(moved),
        "subclasses": _subclasses(placed, moved),
    }


def render_moves(report: dict[str, Any]) -> str:
    """The report's subclasses as a short table for a person."""
    lines = [f"{'First':6} {'in a':>9} {'in b':>9} {'left':>9} {'came':>9}"]
    for subclass, row in report["subclasses"].items():
        lines.append(f"{subclass:6} {row['a']:>9,} {row['b']:>9,} {row['left']:>9,} {row['came']:>9,}")
    return "\n".join(lines)


def _labels(folder: Path, scheme: Scheme) -> pl.DataFrame:
    """publication_number | first | later of a folder's rows, of those without a first-listed code too."""
    kind = kind_of(folder) or "raw"
    if kind not in ("raw", "dataset"):
        raise DataError(f"{folder} is a {kind} folder; give a folder of {MADE_BY['raw']} or {MADE_BY['dataset']}.")
    named = [name for name in read_manifest(folder, kind)["files"] if name.endswith(".parquet")]
    if kind == "dataset":
        named = [name for name in named if name.startswith(("relabeled/", "no_first/"))]
    read = ["publication_number", *([scheme] if kind == "raw" else ["first", "later"])]
    kept = {"publication_number": pl.String(), **{name: LABELS[name] for name in ("first", "later")}}
    written = schema.RAW if kind == "raw" else schema.DATASET
    columns = pa.schema([(name, written.field(name).type) for name in read])
    parts = [pl.DataFrame(schema=kept)]
    for name in named:
        with open_shard(folder / name, columns) as file:
            for batch in read_batches(file, ROWS, read, threads=True):
                rows = pl.DataFrame(batch.cast(columns))  # Polars panics at a broken footer's inner names
                parts.append((first_later(rows, scheme) if kind == "raw" else rows).select(list(kept)))
    return pl.concat(parts)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _moves(moved: pl.DataFrame) -> dict[str, int]:
    counts = moved.group_by("first", "first_b").len().sort("len", "first", "first_b", descending=[True, False, False])
    return {f"{old} > {new}": n for old, new, n in counts.head(TOP).iter_rows()}


def _subclasses(placed: pl.DataFrame, moved: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Of each subclass that moved most: First in a and in b, how many grants left it and how many came to it."""
    columns = {"a": placed["first"], "b": placed["first_b"], "left": moved["first"], "came": moved["first_b"]}
    counts = {
        name: column.alias("subclass").to_frame().group_by("subclass").agg(pl.len().alias(name))
        for name, column in columns.items()
    }
    table = pl.concat([each.select("subclass") for each in counts.values()]).unique()
    for each in counts.values():
        table = table.join(each, on="subclass", how="left")
    table = table.fill_null(0).filter(pl.col("left") + pl.col("came") > 0)
    ranked = table.sort(-(pl.col("left").cast(pl.Int64) + pl.col("came")), "subclass").head(TOP)
    return {row.pop("subclass"): row for row in ranked.iter_rows(named=True)}
