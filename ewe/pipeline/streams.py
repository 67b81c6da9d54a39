"""A result table by the Storage Read API: read sessions, their streams in parallel, an Arrow file each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.api_core import exceptions
from google.cloud.bigquery_storage_v1.types import ArrowSerializationOptions, DataFormat, ReadSession

from ewe.pipeline.cloud import TIMEOUT, Cloud
from ewe.progress import say

STREAMS = 4  # at a time: what a few cores decode
SESSIONS = 5  # for one set of rows; a session lives for hours, a month takes minutes
OVER = (exceptions.NotFound, exceptions.FailedPrecondition, exceptions.InvalidArgument)  # a stream of a past session


def open_session(cloud: Cloud, table: str, fields: Sequence[str], restriction: str = "", streams: int = 1) -> Any:
    """Open a read session (which costs nothing until it is read).

    Args:
        cloud: the clients.
        table: project.dataset.table.
        fields: columns to read.
        restriction: SQL that holds for the rows to read; '' for all.
        streams: at most so many.

    Raises:
        google.api_core.exceptions.NotFound: there is no such table, or no longer.
    """
    project, dataset, name = table.rsplit(".", 2)
    compressed = ArrowSerializationOptions(buffer_compression=ArrowSerializationOptions.CompressionCodec.ZSTD)
    session = ReadSession(
        table=f"projects/{project}/datasets/{dataset}/tables/{name}",
        data_format=DataFormat.ARROW,
        read_options=ReadSession.TableReadOptions(
            selected_fields=fields, row_restriction=restriction, arrow_serialization_options=compressed
        ),
    )
    request = {"parent": f"projects/{cloud.project}", "read_session": session, "max_stream_count": streams}
    return cloud.call(lambda: cloud.reader.create_read_session(request=request, retry=None, timeout=TIMEOUT))


def download(cloud: Cloud, table: str, fields: Sequence[str], restriction: str, folder: Path) -> list[Path]:
    """Write rows of a table to Arrow stream files in `folder`, one for each stream that has any.

    A cut stream goes on at its next row; where the session itself is over, a new one starts anew. Memory
    holds a few messages a stream.

    Raises:
        google.api_core.exceptions.NotFound: there is no such table, or no longer.
    """
    for sessions in itertools.count(1):
        session = open_session(cloud, table, fields, restriction, STREAMS)
        try:
            return _read_streams(cloud, session, folder)
        except OVER:
            if sessions == SESSIONS:
                raise
            say("A read session is over; opening another.")
    raise AssertionError("sessions are counted without end")


def _read_streams(cloud: Cloud, session: Any, folder: Path) -> list[Path]:
    stop = threading.Event()
    with ThreadPoolExecutor(STREAMS) as pool:
        try:
            work = [
                pool.submit(_read_stream, cloud, cloud.reader, session, stream.name, folder / f"{index}.arrow", stop)
                for index, stream in enumerate(session.streams)
            ]
            for done in as_completed(work):
                done.result()
        except BaseException:
            stop.set()
            cloud.hang_up()  # else the pool waits for streams that nobody wants
            raise
    return [path for each in work if (path := each.result())]


def _read_stream(
    cloud: Cloud, reader: Any, session: Any, stream: str, path: Path, stop: threading.Event
) -> Path | None:
    """Write a stream's batches to a file; None where it has none."""
    serialized = session.arrow_schema.serialized_schema
    writer = None
    offset = tries = 0
    with ExitStack() as files:
        while not stop.is_set():
            try:
                request = {"read_stream": stream, "offset": offset}
                for message in reader.read_rows(request=request, retry=None, timeout=None):
                    serialized = serialized or message.arrow_schema.serialized_schema
                    rows = message.arrow_record_batch.serialized_record_batch
                    if not rows:
                        continue
                    fields = pa.ipc.read_schema(pa.py_buffer(serialized))
                    batch = pa.ipc.read_record_batch(pa.py_buffer(rows), fields)
                    if writer is None:
                        sink = files.enter_context(pa.OSFile(str(path), "wb"))
                        lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
                        writer = files.enter_context(pa.ipc.new_stream(sink, fields, options=lz4))
                    writer.write_batch(batch)
                    offset += batch.num_rows
                    tries = 0
                break
            except exceptions.OutOfRange:
                if not offset:
                    raise
                break  # it was cut after its last row
            except exceptions.GoogleAPICallError as error:
                cloud.pause(error, tries)
                tries += 1
    return path if writer else None
