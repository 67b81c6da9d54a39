"""What fetched shards must hold (else it stops), and what they should (else it warns)."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ewe.errors import DataError
from ewe.parquet import read_batches
from ewe.pipeline import codes
from ewe.pipeline.runs import merge, refuse_twice
from ewe.pipeline.shards import open_shard
from ewe.progress import warn

# Utility patents granted in a calendar year (the office's statistics chart, 1963-2020).
GRANTED = {
    2005: 143_806,
    2006: 173_772,
    2007: 157_282,
    2008: 157_772,
    2009: 167_349,
    2010: 219_614,
    2011: 224_505,
    2012: 253_155,
    2013: 277_835,
    2014: 300_677,
    2015: 298_407,
}
SAMPLE = 10_000  # grants a year; fewer are somebody's selection, not the office's year
ROWS = 65_536  # read at a time
TOLERANCE = 0.02  # withdrawn patents and late corrections stay far below


def check_shards(paths: list[Path], columns: pa.Schema, start: dt.date, end: dt.date) -> dict[str, Any]:
    """Check month shards as a whole, in flat memory.

    Args:
        paths: the shards, each sorted by publication_number.
        columns: the schema each must have.
        start: first day of the window, inclusive.
        end: its last day, inclusive.

    Returns:
        For the manifest: years (grants by year), and several_first (rows with more than one code
        flagged first) where there are codes.

    Raises:
        DataError: a shard with other columns, a date outside the window, a publication number twice.
    """
    for path in paths:
        if not pq.read_schema(path).equals(columns):
            raise DataError(f"{path} has other columns than this version writes; remove its folder and fetch again.")
    last = None
    for table in merge([_numbers(path, columns) for path in paths]):
        last = refuse_twice(table["publication_number"], last)
    years: Counter[int] = Counter()
    outside = several = 0
    with_codes = "cpc" in columns.names
    for path in paths:
        with open_shard(path, columns) as file:
            for batch in read_batches(file, ROWS, ["grant_date", *(["cpc"] if with_codes else [])]):
                days = batch["grant_date"]
                for year in pc.value_counts(pc.year(days)).to_pylist():
                    years[year["values"]] += year["counts"]
                outside += pc.sum(pc.or_(pc.less(days, start), pc.greater(days, end))).as_py() or 0
                if with_codes:
                    several += codes.label(batch["cpc"])["several_first"].true_count
    if outside:
        raise DataError(f"{outside:,} grants lie outside of {start} to {end}; remove the folder and fetch again.")
    _warn_of_years(years, start, end)
    facts: dict[str, Any] = {"years": {str(year): years[year] for year in sorted(years)}}
    if with_codes:
        facts["several_first"] = several
        if several:
            warn(f"Grants with several CPC codes flagged first: {several:,}; relabel chooses by its rule.")
    return facts


def _numbers(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    with open_shard(path, columns) as file:
        for batch in read_batches(file, ROWS, ["publication_number"]):
            yield pa.Table.from_batches([batch])


def _warn_of_years(rows: dict[int, int], start: dt.date, end: dt.date) -> None:
    for year, granted in GRANTED.items():
        whole = start <= dt.date(year, 1, 1) and dt.date(year, 12, 31) <= end
        found = rows.get(year, 0)
        if whole and found >= SAMPLE and abs(found - granted) > TOLERANCE * granted:
            warn(f"{year} holds {found:,} grants where the office counts {granted:,}; is the table a whole snapshot?")
