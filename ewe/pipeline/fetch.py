"""An engine and a window of grant dates -> raw/, a Parquet shard a month.

An engine is where grants come from: local Parquet (`local.ParquetEngine`), BigQuery
(`bigquery.BigQueryEngine`), the office's own files. Whatever the source, raw/ looks the same, so
everything after it is one way.
"""

from __future__ import annotations

import datetime as dt
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from ewe.errors import DataError, UsageError
from ewe.pipeline.checks import check_shards
from ewe.pipeline.runs import merge, refuse_twice, row_groups, sorted_runs
from ewe.pipeline.shards import WRITTEN
from ewe.progress import bar, say
from ewe.store import Store, sha256_json

ROW_GROUP = 4096  # rows; small groups keep every later step's memory flat


class Engine(Protocol):
    """A source of grants."""

    columns: pa.Schema  # of what `read` yields: schema.RAW (with an abstract, if asked for), or schema.LABELS

    def config(self) -> dict[str, Any]:
        """What decides its result, for the manifest: another value means another raw/."""
        ...

    def scan(self, store: Store, start: dt.date, end: dt.date) -> None:
        """Do the work that comes before the first month, resumably (hidden parts in the store)."""
        ...

    def read(self, store: Store, month: str) -> Iterator[pa.Table]:
        """The window's grants of one month ("2006-01"), in `columns`, in any order, a bounded table at a time."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the source: made_up, rows read, left out, billed, ...

        Where it says `result_rows`, the shards must hold as many.
        """
        ...


@runtime_checkable
class Priced(Protocol):
    """An engine whose scan costs money."""

    def plan(self, start: dt.date, end: dt.date) -> dict[str, Any]:
        """What a scan would read and cost."""
        ...


def fetch_grants(engine: Engine, out: Path, *, start: dt.date, end: dt.date) -> dict[str, Any]:
    """Write the grants of [start, end], both inclusive, to OUT/grants-YYYY-MM.parquet.

    Each shard is sorted by publication_number. Memory does not grow with the result. The same call
    again goes on where it stopped.

    Returns:
        A summary: out, rows, shards, first and last month, made_up.

    Raises:
        UsageError: the window ends before it starts.
        DataError: no grant in the window, a publication number twice, or the source is not what it must be.
    """
    return _fetch(engine, out, "raw", "grants", start, end)


def fetch_labels(engine: Engine, out: Path, *, start: dt.date, end: dt.date) -> dict[str, Any]:
    """Write the First/Later labels alone of [start, end] to OUT/labels-YYYY-MM.parquet, as `fetch_grants` does."""
    return _fetch(engine, out, "labels", "labels", start, end)


def _fetch(engine: Engine, out: Path, kind: str, prefix: str, start: dt.date, end: dt.date) -> dict[str, Any]:
    _check_window(start, end)
    columns = sha256_json([[field.name, str(field.type)] for field in engine.columns])
    config = {**engine.config(), "columns_sha256": columns, "start": start.isoformat(), "end": end.isoformat()}
    with Store(out, kind, config) as store:
        if store.finished:
            say(f"{out} is finished already.")
            return _summary(out, store.manifest)
        engine.scan(store, start, end)
        months = list(_months(start, end))
        with bar("write", len(months), "months") as advance:
            for month in months:
                name = f"{prefix}-{month}.parquet"
                if not store.has(name):
                    _write_shard(store, name, engine.columns, engine.read(store, month))
                advance()
        shards = _shards(store.manifest)
        if not shards:
            raise DataError(f"No US utility grant from {start} to {end} in the source; widen --start and --end.")
        rows, facts = sum(shards.values()), engine.facts()
        if rows < facts.get("result_rows", 0):
            raise DataError(f"{out} holds {rows:,} of the result's {facts['result_rows']:,} rows; use another --out.")
        facts |= check_shards([out / name for name in shards], engine.columns, start, end)
        return _summary(out, store.finish(rows=rows, **facts))


def _write_shard(store: Store, name: str, columns: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a month's rows by publication_number, ROW_GROUP at a time; nothing where there is no row."""
    with tempfile.TemporaryDirectory(prefix=".sort-", suffix=".tmp", dir=store.folder) as runs:
        groups = row_groups(merge(sorted_runs(tables, Path(runs))), ROW_GROUP)
        first = next(groups, None)
        if first is None:
            return
        facts = {"rows": 0}
        with (
            store.write(name, facts) as temporary,
            pq.ParquetWriter(
                temporary,
                columns,
                **WRITTEN,
                sorting_columns=[pq.SortingColumn(columns.get_field_index("publication_number"))],
            ) as writer,
        ):
            last = None
            for table in itertools.chain([first], groups):
                last = refuse_twice(table["publication_number"], last)
                writer.write_table(table, row_group_size=ROW_GROUP)
                facts["rows"] += table.num_rows


def _check_window(start: dt.date, end: dt.date) -> None:
    if end < start:
        raise UsageError(f"The window ends ({end}) before it starts ({start}); swap --start and --end.")


def _months(start: dt.date, end: dt.date) -> Iterator[str]:
    year, month = start.year, start.month
    while (year, month) <= (end.year, end.month):
        yield f"{year:04d}-{month:02d}"
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)


def _shards(manifest: dict[str, Any]) -> dict[str, int]:
    """Rows by shard; other files (BigQuery's job.json, hidden parts) stand beside them."""
    files = sorted(manifest["files"].items())
    return {name: each["rows"] for name, each in files if name.endswith(".parquet") and not name.startswith(".")}


def _summary(out: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    months = [name.removesuffix(".parquet").partition("-")[2] for name in _shards(manifest)]
    return {
        "out": str(out),
        "rows": manifest["rows"],
        "shards": len(months),
        "from": months[0],
        "to": months[-1],
        "made_up": manifest["made_up"],
    }


def plan(engine: Engine, *, start: dt.date, end: dt.date) -> dict[str, Any]:
    """What `fetch_grants` would read and, where it costs money, its price; writes nothing."""
    _check_window(start, end)
    found = engine.plan(start, end) if isinstance(engine, Priced) else engine.facts()
    return {**engine.config(), "start": start.isoformat(), "end": end.isoformat(), **found}
