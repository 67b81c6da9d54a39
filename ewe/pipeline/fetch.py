"""An engine and a window of grant dates -> raw/, a Parquet shard a month.

An engine is where grants come from: local Parquet (`local.ParquetEngine`) today. Whatever the source,
raw/ looks the same, so everything after it is one way.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
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


class Engine(Protocol):
    """A source of grants."""

    def config(self) -> dict[str, Any]:
        """What decides its result, for the manifest: another value means another raw/."""
        ...

    def scan(self, store: Store, start: dt.date, end: dt.date) -> None:
        """Do the work that comes before the first month, resumably (hidden parts in the store)."""
        ...

    def read(self, store: Store, month: str) -> pa.Table:
        """The window's grants of one month ("2006-01"), in schema.RAW, in any order; empty where there are none."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the source: made_up, rows read, left out, billed, ..."""
        ...


def fetch_grants(engine: Engine, out: Path, *, start: dt.date, end: dt.date) -> dict[str, Any]:
    """Write the grants of [start, end], both inclusive, to OUT/grants-YYYY-MM.parquet.

    Each shard is sorted by publication_number. The same call again goes on where it stopped.

    Returns:
        A summary: out, rows, shards, first and last month, made_up.

    Raises:
        UsageError: the window ends before it starts.
        DataError: no grant in the window, a publication number twice, or the source is not what it must be.
    """
    if end < start:
        raise UsageError(f"The window ends ({end}) before it starts ({start}); swap --start and --end.")
    columns = sha256_json(schema.describe(schema.RAW))
    config = {**engine.config(), "columns_sha256": columns, "start": start.isoformat(), "end": end.isoformat()}
    with Store(out, "raw", config) as store:
        if store.finished:
            say(f"{out} is finished already.")
            return _summary(out, store.manifest)
        engine.scan(store, start, end)
        months = list(_months(start, end))
        with bar("write", len(months), "months") as advance:
            for month in months:
                _write_month(store, month, engine)
                advance()
        shards = {name: each["rows"] for name, each in store.manifest["files"].items() if not name.startswith(".")}
        if not shards:
            raise DataError(f"No US utility grant from {start} to {end} in the source; widen --start and --end.")
        return _summary(out, store.finish(rows=sum(shards.values()), **engine.facts()))


def _write_month(store: Store, month: str, engine: Engine) -> None:
    name = f"grants-{month}.parquet"
    if store.has(name):
        return
    table = engine.read(store, month)
    if not table.num_rows:
        return
    table = table.sort_by("publication_number")
    numbers = table["publication_number"].combine_chunks()
    twice = numbers[1:].filter(pc.equal(numbers[1:], numbers[:-1]))
    if len(twice):
        raise DataError(f"{twice[0]} stands more than once in the source; export each publication once.")
    with store.write(name, {"rows": table.num_rows}) as temporary:
        pq.write_table(
            table,
            temporary,
            row_group_size=ROW_GROUP,
            compression="zstd",
            compression_level=1,
            write_page_index=True,
            sorting_columns=[pq.SortingColumn(schema.RAW.get_field_index("publication_number"))],
        )


def _months(start: dt.date, end: dt.date) -> Iterator[str]:
    year, month = start.year, start.month
    while (year, month) <= (end.year, end.month):
        yield f"{year}-{month:02d}"
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)


def _summary(out: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    months = [name.removeprefix("grants-").removesuffix(".parquet") for name in sorted(manifest["files"])]
    return {
        "out": str(out),
        "rows": manifest["rows"],
        "shards": len(months),
        "from": months[0],
        "to": months[-1],
        "made_up": manifest["made_up"],
    }
