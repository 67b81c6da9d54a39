"""Sorting in flat memory: runs sorted in memory, spilled to disk where there are several, and merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ewe.errors import DataError

KEY = "publication_number"  # what rows are sorted by
RUN_BYTES = 128 << 20  # of rows sorted in memory at once: most months; a spilled row takes five times as long
RUN_BATCH = 64  # rows; what merging holds of each spilled run


def sorted_runs(tables: Iterable[pa.Table], folder: Path) -> list[Iterator[pa.Table]]:
    """Runs of about RUN_BYTES, each sorted by KEY; all but the last are read back from `folder`."""
    runs: list[Iterator[pa.Table]] = []
    pending: list[pa.Table] = []
    size = 0
    for table in tables:
        if not table.num_rows:
            continue
        if pending and size + table.nbytes > RUN_BYTES:
            runs.append(_spill(_sorted(pending), folder / f"{len(runs)}.arrow"))
            pending, size = [], 0
        pending.append(table)
        size += table.nbytes
    return [*runs, iter([_sorted(pending)])] if pending else runs


def merge(runs: list[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Sorted runs -> sorted tables: all rows up to the smallest of the heads' last keys are final."""
    heads = {run: head for run in runs if (head := next(run, None)) is not None}
    while heads:
        bound = min(head[KEY][-1].as_py() for head in heads.values())
        final = []
        for run, head in list(heads.items()):
            below = pc.sum(pc.less_equal(head[KEY], bound)).as_py()
            final.append(head.slice(0, below))
            rest = head.slice(below) if below < head.num_rows else next(run, None)
            if rest is None:
                del heads[run]
            else:
                heads[run] = rest
        yield _sorted(final)


class RowGroups:
    """Tables in, the same rows out, `rows` at a time, so that a shard's bytes do not depend on how they came."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pending: list[pa.Table] = []

    def add(self, table: pa.Table) -> Iterator[pa.Table]:
        """What has become whole."""
        self._pending.append(table)
        held = sum(each.num_rows for each in self._pending)
        if held >= self._rows:
            whole = pa.concat_tables(self._pending)
            full = held - held % self._rows
            for start in range(0, full, self._rows):
                yield whole.slice(start, self._rows).combine_chunks()
            self._pending = [whole.slice(full)] if full < held else []

    def rest(self) -> Iterator[pa.Table]:
        """What is left at the end, if anything was."""
        if self._pending:
            yield pa.concat_tables(self._pending).combine_chunks()


def row_groups(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows, `rows` at a time."""
    groups = RowGroups(rows)
    for table in tables:
        yield from groups.add(table)
    yield from groups.rest()


def refuse_twice(numbers: pa.ChunkedArray, last: pa.Scalar | None) -> pa.Scalar:
    """The last of these sorted publication numbers, once none is found to equal the one before it.

    Args:
        numbers: at least one.
        last: the number that came before them, if any did.

    Raises:
        DataError: names the number.
    """
    numbers = numbers.combine_chunks()
    twice = numbers[1:].filter(pc.equal(numbers[1:], numbers[:-1])).to_pylist()
    if twice or numbers[0] == last:
        raise DataError(f"{twice[0] if twice else last} stands more than once in the source; export each once.")
    return numbers[-1]


def _sorted(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).sort_by(KEY)


def _spill(table: pa.Table, path: Path) -> Iterator[pa.Table]:
    """Write a sorted run; give back its reader, which holds one small batch at a time."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=RUN_BATCH)
    return _read_run(path)


def _read_run(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])
