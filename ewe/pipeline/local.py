"""The embedded engine: DuckDB runs sql/grants.sql, the very text BigQuery runs, over local Parquet."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlglot
from sqlglot import exp

from ewe.errors import DataError, UsageError
from ewe.parquet import open_parquet, read_batches
from ewe.pipeline import schema
from ewe.pipeline.parts import read_keys, read_parts, write_parts
from ewe.progress import bar
from ewe.store import Store, sha256_json

TABLE = "_publications"  # the name the table has inside DuckDB
BATCH_BYTES = 16 << 20  # of publications a query sees at once: keeps memory flat whatever the size; 64 takes twice it
GATHERED_BYTES = 64 << 20  # of grants that are cut into months at once: a month's batch is some dozens of rows
UNIT_ROWS = 20_000  # rows of input one finished part covers, so that a killed run repeats no more
MADE_UP = b"ewe.made_up"  # Parquet key that marks `ewe-data sample`'s files
SEED = b"ewe.seed"  # and the one that holds their seed
THEN = "export or copy it again"  # what to do about a broken file


def read_sql(name: str) -> str:
    """The GoogleSQL text of sql/NAME.sql."""
    return resources.files("ewe.sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")


def to_duckdb(sql: str) -> str:
    """GoogleSQL over the publications table -> DuckDB's dialect over TABLE, parameters kept ($name).

    Raises:
        sqlglot.errors.UnsupportedError: a construct that DuckDB cannot express.
    """
    tree = sqlglot.parse_one(sql, read="bigquery")
    for table in list(tree.find_all(exp.Table)):
        if table.name == "publications":
            table.replace(exp.to_table(TABLE))
    return tree.sql(dialect="duckdb", comments=False, unsupported_level=sqlglot.ErrorLevel.RAISE)


class ParquetEngine:
    """Grants from Parquet in the publications table's own schema (or the columns of it the query reads).

    Args:
        source: a Parquet file, or a folder of them.
    """

    columns = schema.RAW

    def __init__(self, source: Path) -> None:
        self.files = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
        if not source.exists():
            raise UsageError(f"{source} does not exist; give --input a Parquet file or a folder of them.")
        if not self.files:
            raise DataError(f"{source} holds no .parquet file; give --input the folder of your export.")
        self.footers = [_footer(path) for path in self.files]
        self.sql = read_sql("grants")
        self._keys: dict[Path, list[str]] = {}  # of each scanned part, the month of each of its batches

    def config(self) -> dict[str, Any]:
        """What decides the result: the query, and the input files by name, size and footer.

        A footer holds each column's sizes, offsets and statistics, row group by row group. It stands for the content,
        so that gigabytes are not read for it: a change that keeps all of these is not seen.
        """
        files = [[path.name, path.stat().st_size, _sha256_of_footer(path)] for path in self.files]
        return {"source": "parquet", "sql_sha256": sha256_json(self.sql), "input_sha256": sha256_json(files)}

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the source; `seed` where it is one sample."""
        notes = [footer.metadata or {} for footer in self.footers]
        seeds = {note.get(SEED) for note in notes}
        return {
            "input_rows": sum(footer.num_rows for footer in self.footers),
            "made_up": any(MADE_UP in note for note in notes),
            **({"seed": int(seed)} if len(seeds) == 1 and (seed := seeds.pop()) else {}),
        }

    def scan(self, store: Store, start: dt.date, end: dt.date) -> None:
        """Run the query once over the input, a few row groups at a time, into hidden parts of RAW."""
        window = {"start_date": start, "end_date": end}
        units = self._units()
        with bar("scan", self.facts()["input_rows"], "rows") as advance, duckdb.connect() as connection:
            query = to_duckdb(self.sql)
            for part, (path, groups, rows) in enumerate(units):
                name = f".scan/{part:05d}.arrow"
                if not store.has(name):
                    with store.write(name) as temporary:
                        grants = _gathered(self._query(connection, query, window, path, groups))
                        write_parts(temporary, schema.RAW, grants)
                advance(rows)

    def read(self, store: Store, month: str) -> Iterator[pa.Table]:
        """The scanned grants of one month ("2006-01"), in no order, a bounded table at a time."""
        if not self._keys:
            names = sorted(name for name in store.manifest["files"] if name.startswith(".scan/"))
            self._keys = {store.folder / name: read_keys(store.folder / name) for name in names}
        for path, keys in self._keys.items():
            for batch in read_parts(path, keys, month):
                yield pa.Table.from_batches([batch]).cast(self.columns)

    def _units(self) -> list[tuple[Path, list[int], int]]:
        """Consecutive row groups of one file, about UNIT_ROWS rows each."""
        units = []
        for path, footer in zip(self.files, self.footers, strict=True):
            groups: list[int] = []
            rows = 0
            for index in range(footer.num_row_groups):
                groups.append(index)
                rows += footer.row_group(index).num_rows
                if rows >= UNIT_ROWS or index == footer.num_row_groups - 1:
                    units.append((path, groups, rows))
                    groups, rows = [], 0
        return units

    def _query(
        self, connection: duckdb.DuckDBPyConnection, query: str, window: dict[str, Any], path: Path, groups: list[int]
    ) -> Iterator[pa.Table]:
        """The query's rows over these row groups, a table for each bounded batch of input."""
        columns = schema.PUBLICATIONS.names
        with open_parquet(path, THEN) as file:
            footer = file.metadata
            size = sum(footer.row_group(group).total_byte_size for group in groups)
            rows = sum(footer.row_group(group).num_rows for group in groups)
            batch_rows = min(max(BATCH_BYTES * rows // max(size, 1), 256), UNIT_ROWS)
            for batch in read_batches(file, batch_rows, columns, groups, threads=True):
                connection.register(TABLE, pa.Table.from_batches([batch]))
                grants = connection.sql(query, params=window).to_arrow_table()
                if grants["publication_number"].null_count:
                    raise DataError(f"{path}: a US grant has no publication_number; export the table again.")
                yield grants


def _gathered(tables: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, pa.Array]]:
    """The same rows, about GATHERED_BYTES at a time, and their months."""
    pending: list[pa.Table] = []
    size = 0
    for table in itertools.chain(tables, [None]):
        if table is not None:
            pending.append(table)
            size += table.nbytes
        if pending and (table is None or size >= GATHERED_BYTES):
            whole = pa.concat_tables(pending).combine_chunks()
            yield whole, pc.strftime(whole["grant_date"], format="%Y-%m").combine_chunks()
            pending, size = [], 0


def _footer(path: Path) -> pq.FileMetaData:
    """The file's footer, once its columns are found to be those of the publications table."""
    with open_parquet(path, THEN) as file:
        schema.check(file.schema_arrow, schema.PUBLICATIONS, str(path), "export the publications table's own columns")
        return file.metadata


def _sha256_of_footer(path: Path) -> str:
    """Of a file that has been opened: it ends with the footer, the footer's length in 4 bytes, and PAR1."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return hashlib.sha256(file.read(length)).hexdigest()
