"""Shards: the Parquet files that a step leaves and the next one reads, written and read by one set of options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ewe.parquet import open_parquet
from ewe.pipeline import schema

WRITTEN: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "write_page_index": True,
    "write_page_checksum": True,  # else a flipped bit may be decompressed to other words
}


@contextmanager
def open_shard(path: Path, columns: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open a shard to read a bounded batch at a time.

    Raises:
        DataError: the file is broken, now or while it is read, or lacks one of the columns.
    """
    with open_parquet(path) as file:
        schema.check(file.schema_arrow, columns, str(path), "make it again")
        yield file
