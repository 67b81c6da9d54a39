"""Shards: the Parquet files that a step leaves and the next one reads, written and read by one set of options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ewe.errors import DataError
from ewe.pipeline import schema

WRITTEN: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "write_page_index": True,
    "write_page_checksum": True,  # else a flipped bit may be decompressed to other words
}
FLAT: dict[str, Any] = {  # of pq.ParquetFile
    "pre_buffer": False,  # else it keeps every row group that it has passed
    "buffer_size": 1 << 20,
    "page_checksum_verification": True,
}


@contextmanager
def open_shard(path: Path, columns: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open a shard to read a bounded batch at a time.

    Raises:
        DataError: the file is broken, now or while it is read, or lacks one of the columns.
    """
    try:
        with pq.ParquetFile(path, **FLAT) as file:
            schema.check(file.schema_arrow, columns, str(path), "make it again")
            yield file
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: BaseException) -> DataError:
    """What is said of a Parquet file that is broken."""
    return DataError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}); copy it or make it again.")
