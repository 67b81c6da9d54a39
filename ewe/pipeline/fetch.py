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
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ewe.errors import DataError, UsageError
from ewe.pipeline import schema
from ewe.progress import bar, say
from ewe.store import Store, sha256_json

ROW_GROUP = 4096  # rows; small groups keep every later step's memory flat
RUN_BYTES = 64 << 20  # of grants sorted in memory at once; a larger month goes through sorted runs on disk


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

        Where it says `result_rows`, the shards must hold so many.
        """
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
    if end < start:
        raise UsageError(f"The window ends ({end}) before it starts ({start}); swap --start and --end.")
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
        if facts.get("result_rows", rows) != rows:
            raise DataError(f"{out} holds {rows:,} of the result's {facts['result_rows']:,} rows; use another --out.")
        return _summary(out, store.finish(rows=rows, **facts))


def _write_shard(store: Store, name: str, columns: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a month's rows by publication_number, ROW_GROUP at a time; nothing where there is no row."""
    with tempfile.TemporaryDirectory(prefix=".sort-", suffix=".tmp", dir=store.folder) as runs:
        groups = _row_groups(_merge(_sorted_runs(tables, Path(runs))))
        first = next(groups, None)
        if first is None:
            return
        facts = {"rows": 0}
        with (
            store.write(name, facts) as temporary,
            pq.ParquetWriter(
                temporary,
                columns,
                compression="zstd",
                compression_level=1,
                write_page_index=True,
                sorting_columns=[pq.SortingColumn(columns.get_field_index("publication_number"))],
            ) as writer,
        ):
            last = None
            for table in itertools.chain([first], groups):
                last = _refuse_twice(table["publication_number"], last)
                writer.write_table(table, row_group_size=ROW_GROUP)
                facts["rows"] += table.num_rows


def _refuse_twice(numbers: pa.ChunkedArray, last: pa.Scalar | None) -> pa.Scalar:
    """The last of these sorted numbers, once none is found to equal the one before it."""
    numbers = numbers.combine_chunks()
    twice = numbers[1:].filter(pc.equal(numbers[1:], numbers[:-1])).to_pylist()
    if numbers[0] == last or twice:
        raise DataError(f"{twice[0] if twice else last} stands more than once in the source; export each once.")
    return numbers[-1]


# -- sorting in flat memory: runs sorted in memory, spilled where there are several, and merged -----------------------


def _sorted_runs(tables: Iterable[pa.Table], folder: Path) -> list[Iterator[pa.Table]]:
    """Runs of about RUN_BYTES, each sorted by publication_number; all but the last are read back from `folder`."""
    runs: list[Iterator[pa.Table]] = []
    pending: list[pa.Table] = []
    for table in tables:
        if pending and sum(each.nbytes for each in pending) + table.nbytes > RUN_BYTES:
            runs.append(_spill(_sorted(pending), folder / f"{len(runs)}.arrow"))
            pending = []
        if table.num_rows:
            pending.append(table)
    return [*runs, iter([_sorted(pending)])] if pending else runs


def _sorted(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).sort_by("publication_number")


def _spill(table: pa.Table, path: Path) -> Iterator[pa.Table]:
    """Write a sorted run; give back its reader, which holds one small batch at a time."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=ROW_GROUP // 16)
    return _read_run(path)


def _read_run(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _merge(runs: list[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Sorted runs -> sorted tables: all rows up to the smallest of the heads' last numbers are final."""
    heads = {run: head for run in runs if (head := next(run, None))}
    while heads:
        bound = min(head["publication_number"][-1].as_py() for head in heads.values())
        final = []
        for run, head in list(heads.items()):
            below = pc.sum(pc.less_equal(head["publication_number"], bound)).as_py()
            final.append(head.slice(0, below))
            rest = head.slice(below) if below < head.num_rows else next(run, None)
            if rest is None:
                del heads[run]
            else:
                heads[run] = rest
        yield _sorted(final)


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, ROW_GROUP at a time, so that a shard's bytes do not depend on how its rows came."""
    pending: list[pa.Table] = []
    for table in tables:
        pending.append(table)
        rows = sum(each.num_rows for each in pending)
        if rows >= ROW_GROUP:
            whole = pa.concat_tables(pending)
            for start in range(0, rows - rows % ROW_GROUP, ROW_GROUP):
                yield whole.slice(start, ROW_GROUP).combine_chunks()
            pending = [whole.slice(rows - rows % ROW_GROUP)] if rows % ROW_GROUP else []
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def _months(start: dt.date, end: dt.date) -> Iterator[str]:
    year, month = start.year, start.month
    while (year, month) <= (end.year, end.month):
        yield f"{year}-{month:02d}"
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
    """What `fetch_grants` would read, without writing anything."""
    return {**engine.config(), "start": start.isoformat(), "end": end.isoformat(), **engine.facts()}
