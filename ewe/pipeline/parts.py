"""Hidden parts: Arrow files whose every batch belongs to one key, read back key by key.

This is how rows change their order in flat memory: written as they come, a bounded batch at a time,
and gathered later by month or day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

KEY = "part_key"  # the column that holds a batch's key, constant in it


def write_parts(path: Path, schema: pa.Schema, tables: Iterable[tuple[pa.Table, pa.Array]]) -> None:
    """Write tables to one file, each cut into batches by its rows' keys; rows keep their order.

    Args:
        path: the file (a temporary name of the store's).
        schema: what every table is cast to.
        tables: each with a string array of its rows' keys.
    """
    keyed = schema.append(pa.field(KEY, pa.string()))
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, keyed, options=options) as writer:
        for table, keys in tables:
            if not pc.all(pc.less_equal(keys[:-1], keys[1:])).as_py():
                order = pc.sort_indices(keys)  # stable
                table, keys = table.take(order), keys.take(order)
            by_key = table.cast(schema).append_column(KEY, keys).combine_chunks()
            counts = Counter(keys.to_pylist())
            begin = 0
            for key in sorted(counts):
                writer.write_table(by_key.slice(begin, counts[key]))
                begin += counts[key]


def read_keys(path: Path) -> list[str]:
    """The key of each batch of a part, in the file's order; reads nothing else of it."""
    with pa.memory_map(str(path)) as file:
        fields = pa.ipc.open_file(file).schema
        options = pa.ipc.IpcReadOptions(included_fields=[fields.get_field_index(KEY)])
        reader = pa.ipc.open_file(file, options=options)
        return [reader.get_batch(index).column(0)[0].as_py() for index in range(reader.num_record_batches)]


def read_parts(path: Path, keys: list[str], key: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The batches of one key, in the order they were written.

    Args:
        path: the part.
        keys: what `read_keys(path)` gave.
        key: whose batches.
        columns: which columns to decode, in the file's order; all where None.
    """
    if key in keys:
        with _open(path, columns) as reader:
            for index, each in enumerate(keys):
                if each == key:
                    yield reader.get_batch(index)


@contextmanager
def _open(path: Path, columns: list[str] | None) -> Iterator[pa.ipc.RecordBatchFileReader]:
    with pa.memory_map(str(path)) as file:
        names = pa.ipc.open_file(file).schema.names
        chosen = [index for index, name in enumerate(names) if name != KEY and (columns is None or name in columns)]
        yield pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=chosen))
