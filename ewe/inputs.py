"""Texts to predict: from lines, JSON lines, Parquet or standard input, one (id, text) after another.

Text is taken as it is; claims are one string as published and become text as relabel makes it.
pyarrow is imported where Parquet is read, and nowhere else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ewe.elements import utf8
from ewe.errors import DataError
from ewe.text import join_claims

STDIN = Path("-")
JSON_LINES = (".jsonl", ".ndjson", ".json")
IDS = ("id", "publication_number")  # the fields that name a text; else its number in the source does
READ_AHEAD = 1 << 20  # bytes of a column; Parquet's reader would else keep every row group that it has passed
TEXTS = ("text", "claims")


def read_texts(source: Path, max_claims: int = 20) -> tuple[int | None, Iterator[tuple[str, str]]]:
    """How many texts there are, where that is known, and an iterator over (id, text).

    Args:
        source: a Parquet file, or a folder of some, with a column text or claims; JSON lines with a field text
            or claims; any other file: a text a line; `-`: standard input, JSON lines if the first starts with `{`.
        max_claims: how many claims become text.

    Raises:
        DataError: the source is missing, broken or without texts; JSON lines say so when they are reached.
    """
    if source == STDIN:
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace")  # type: ignore[union-attr]
        first = sys.stdin.readline()
        lines = _chain(first, sys.stdin)
        return None, _json_lines(source, lines, max_claims) if first.lstrip().startswith("{") else _lines(lines)
    if source.is_dir():
        files = sorted(source.glob("*.parquet"))
        if not files:
            raise DataError(f"{source} is no tensors folder and holds no Parquet; name a file or such a folder.")
        return _parquet(files, max_claims)
    if not source.is_file():
        raise DataError(f"{source} does not exist; name a file, a folder, or - for standard input.")
    if source.suffix == ".parquet":
        return _parquet([source], max_claims)
    lines = _open(source)
    return None, _json_lines(source, lines, max_claims) if source.suffix in JSON_LINES else _lines(lines)


def _chain(first: str, rest: Iterable[str]) -> Iterator[str]:
    if first:
        yield first
        yield from rest


def _open(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        yield from file


def _lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        yield str(number), line.rstrip("\n")


def _json_lines(source: Path, lines: Iterable[str], max_claims: int) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{source}, line {number} is not JSON ({error}); mend it or take it out.") from None
        field = next((name for name in TEXTS if name in record), None) if isinstance(record, dict) else None
        if field is None or not isinstance(record[field], str | None):
            raise DataError(f"{source}, line {number} has no string text or claims; give it one or take it out.")
        name = next((record[name] for name in IDS if record.get(name) is not None), number)
        yield utf8(str(name)).decode(), _as_text(field, record[field], max_claims)


def _parquet(files: list[Path], max_claims: int) -> tuple[int, Iterator[tuple[str, str]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for path in files:
        try:
            schema, metadata = pq.read_schema(path), pq.read_metadata(path)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} is no whole Parquet file ({error}); make or copy it again.") from None
        if not _text_columns(schema):
            raise DataError(f"{path} has no string column text or claims; add one.")
        rows += metadata.num_rows
    return rows, _parquet_rows(files, max_claims)


def _text_columns(schema: Any) -> list[str]:
    """Which of TEXTS an Arrow schema has, as strings."""
    kinds = {name: str(schema.field(name).type) for name in TEXTS if name in schema.names}
    return [name for name, kind in kinds.items() if kind in ("string", "large_string", "string_view")]


def _parquet_rows(files: list[Path], max_claims: int) -> Iterator[tuple[str, str]]:
    import pyarrow.parquet as pq

    row = 0
    for path in files:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_AHEAD) as file:
            names = file.schema_arrow.names
            field = _text_columns(file.schema_arrow)[0]
            chosen = [name for name in IDS if name in names][:1]
            for batch in file.iter_batches(batch_size=1024, columns=[*chosen, field]):
                texts: list[str | None] = batch.column(field).to_pylist()
                ids: list[Any] = batch.column(chosen[0]).to_pylist() if chosen else [None] * len(texts)
                for name, text in zip(ids, texts, strict=True):
                    row += 1
                    yield str(row if name is None else name), _as_text(field, text, max_claims)


def _as_text(field: str, value: str | None, max_claims: int) -> str:
    """A missing text is an empty one, so that every row of the source has its row in the predictions."""
    return (value or "") if field == "text" else join_claims(value or "", max_claims).text
