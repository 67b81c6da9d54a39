"""Texts to predict: from lines, JSON lines, Parquet or standard input, one (id, text) after another.

Text is taken as it is; claims are one string as published and become text as relabel makes it.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ewe.elements import utf8
from ewe.errors import DataError
from ewe.parquet import open_parquet, read_batches
from ewe.progress import warn
from ewe.store import kind_of, sha256_file, sha256_json
from ewe.text import join_claims

Rows = Iterator[tuple[str, str | None]]  # (id, text, None where it is missing)

STDIN = Path("-")
JSON_LINES = (".jsonl", ".ndjson", ".json")
IDS = ("id", "publication_number")  # the fields that name a text; else its number in the source does
TEXTS = ("text", "claims")
HEAD = 1 << 16  # bytes that tell whether a file is text
PACKED = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, zstd; what else is packed holds NUL bytes


def read_texts(source: Path, max_claims: int = 20) -> tuple[int | None, Iterator[tuple[str, str]]]:
    """How many texts there are, where that is known, and an iterator over (id, text).

    Args:
        source: a Parquet file, or a folder of some, with a column text or claims; JSON lines with a field text
            or claims; any other file of text but a .csv or .tsv: a text a line; `-`: standard input, JSON lines if
            the first starts with `{`.
        max_claims: how many claims become text.

    Raises:
        DataError: the source is missing, broken or without texts; JSON lines say so when they are reached.
    """
    total, rows = _read(source, max_claims)
    return total, _filled(source, rows)


def _read(source: Path, max_claims: int) -> tuple[int | None, Rows]:
    if source == STDIN:
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace")  # type: ignore[union-attr]
        first = sys.stdin.readline()
        _refuse_binary("standard input", first.encode(errors="replace"))
        lines = _chain(first, sys.stdin)
        return None, _json_lines(source, lines, max_claims) if first.lstrip().startswith("{") else _lines(lines)
    if source.is_dir():
        if kind_of(source) == "dataset":
            raise DataError(
                f"{source} is a dataset folder; name {source / 'relabeled'} or {source / 'no_first'}, which hold its "
                "texts, or a folder that ewe-data encode made of it."
            )
        files = _files(source)
        if not files:
            raise DataError(f"{source} is no tensors folder and holds no Parquet; name a file or such a folder.")
        return _parquet(files, max_claims)
    if not source.is_file():
        raise DataError(f"{source} does not exist; name a file, a folder, or - for standard input.")
    suffix = source.suffix.lower()
    if suffix == ".parquet":
        return _parquet([source], max_claims)
    if suffix in (".csv", ".tsv"):
        raise DataError(f"{source} is a table, not lines of text; give it as .jsonl or .parquet.")
    with source.open("rb") as file:
        _refuse_binary(source, file.read(HEAD))
    lines = _open(source)
    return None, _json_lines(source, lines, max_claims) if suffix in JSON_LINES else _lines(lines)


def sha256_texts(source: Path) -> str:
    """A hash of what `read_texts` reads; of standard input, which cannot be read again, another each time."""
    if source == STDIN:
        return secrets.token_hex(32)
    return sha256_json({path.name: sha256_file(path) for path in (_files(source) if source.is_dir() else [source])})


def _files(folder: Path) -> list[Path]:
    """The Parquet files of a folder."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() == ".parquet" and not path.name.startswith(".")
    )


def _refuse_binary(source: Path | str, head: bytes) -> None:
    if b"\0" in head or head.startswith(PACKED):
        raise DataError(f"{source} is no UTF-8 text but packed or binary; unpack it, or name .parquet what is Parquet.")


def _chain(first: str, rest: Iterable[str]) -> Iterator[str]:
    if first:
        yield first
        yield from rest


def _open(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        yield from file


def _lines(lines: Iterable[str]) -> Rows:
    for number, line in enumerate(lines, 1):
        yield str(number), line.rstrip("\n")


def _json_lines(source: Path, lines: Iterable[str], max_claims: int) -> Rows:
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


def _parquet(files: list[Path], max_claims: int) -> tuple[int, Rows]:
    rows = 0
    for path in files:
        with open_parquet(path) as file:
            if not _text_columns(file.schema_arrow):
                raise DataError(f"{path} has no string column text or claims; add one.")
            rows += file.metadata.num_rows
    return rows, _parquet_rows(files, max_claims)


def _text_columns(schema: Any) -> list[str]:
    """Which of TEXTS an Arrow schema has, as strings."""
    kinds = {name: str(schema.field(name).type) for name in TEXTS if name in schema.names}
    return [name for name, kind in kinds.items() if kind in ("string", "large_string", "string_view")]


def _parquet_rows(files: list[Path], max_claims: int) -> Rows:
    row = 0
    for path in files:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            field = _text_columns(file.schema_arrow)[0]
            chosen = [name for name in IDS if name in names][:1]
            for batch in read_batches(file, 1024, [*chosen, field], threads=True):
                batch.validate(full=True)  # Parquet does not promise valid UTF-8
                texts: list[str | None] = batch.column(field).to_pylist()
                ids: list[Any] = batch.column(chosen[0]).to_pylist() if chosen else [None] * len(texts)
                for name, text in zip(ids, texts, strict=True):
                    row += 1
                    yield str(row if name is None else name), _as_text(field, text, max_claims)


def _as_text(field: str, value: str | None, max_claims: int) -> str | None:
    return value if field == "text" or value is None else join_claims(value, max_claims).text


def _filled(source: Path, rows: Rows) -> Iterator[tuple[str, str]]:
    """A missing text is an empty one, so that every row of the source has its row in the predictions; says so."""
    missing = broken = 0
    for name, text in rows:
        missing += text is None
        broken += "\ufffd" in (text or "")
        yield name, text or ""
    if missing:
        warn(f"{source}: {missing:,} texts are missing, and read as empty.")
    if broken:
        warn(f"{source}: {broken:,} texts hold U+FFFD, which stands for what is no UTF-8.")
