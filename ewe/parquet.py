"""Parquet files, opened to be read in memory that does not grow: one set of options, one sentence for broken ones.

pyarrow is imported where a file is opened, and nowhere else: what reads no Parquet does without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ewe.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FLAT: dict[str, Any] = {  # of pq.ParquetFile
    "pre_buffer": False,  # else it keeps every row group that it has passed
    "buffer_size": 1 << 20,  # bytes of a column that are read ahead
    "page_checksum_verification": True,  # where a file has them
}


@contextmanager
def open_parquet(path: Path, then: str = "copy it or make it again") -> Iterator[pq.ParquetFile]:
    """Open a file to read a bounded batch at a time.

    Args:
        path: where it is.
        then: what to do about a broken one, the sentence's end.

    Raises:
        DataError: the file is broken, now or while it is read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, **FLAT) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as Parquet ({why}); {then}.") from None


def read_batches(
    file: pq.ParquetFile,
    rows: int,
    columns: list[str] | None = None,
    groups: Sequence[int] | None = None,
    *,
    threads: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Rows of a file that `open_parquet` opened, at most so many a batch.

    Args:
        file: the file.
        rows: of a batch.
        columns: which; all where None.
        groups: row groups, which; all where None.
        threads: whether columns are decoded side by side; where several files are read at once, they need not be.

    Raises:
        OSError: there are fewer than the footer says; `open_parquet` makes a sentence of it.
    """
    chosen = range(file.num_row_groups) if groups is None else groups
    left = sum(file.metadata.row_group(group).num_rows for group in chosen)
    for batch in file.iter_batches(rows, columns=columns, row_groups=chosen, use_threads=threads):
        left -= batch.num_rows
        yield batch
    if left:  # no checksum covers a page's header, which says how many values it holds
        raise OSError(f"{left:,} rows of it cannot be found")
