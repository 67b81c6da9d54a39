"""Labelled texts, a batch at a time: of a dataset folder, of anyone's Parquet, or of JSON lines.

    source = open_source(path)         a Dataset or a Table; cheap
    vocabulary, splits = source.survey()
    for batch in source.read("train", rows=1024): ...

Texts stay in Arrow's buffers and labels become indices without a Python object a row.
"""

from __future__ import annotations

import copy
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ewe.elements import utf8
from ewe.errors import DataError, UsageError
from ewe.parquet import open_parquet, read_batches
from ewe.pipeline import schema
from ewe.pipeline.split import wrong_name
from ewe.store import MANIFEST, read_manifest, read_recorded, sha256_file, sha256_json

Labels = Literal["position", "unordered"]

MOST_LABELS = 65_535  # label indices are stored as uint16
SURVEY_ROWS = 16_384  # rows a batch where no text is read


class Batch(NamedTuple):
    """n texts with their ids and their labels as coordinates: text rows[i] bears label columns[i]."""

    texts: pa.LargeStringArray
    """(n,), without nulls, valid UTF-8"""
    ids: pa.LargeStringArray
    """(n,), without nulls"""
    rows: NDArray[np.int64]
    """(P,), sorted"""
    columns: NDArray[np.uint16]
    """(P,), sorted and distinct within a row"""
    left_out: int
    """labels that the vocabulary does not hold"""


class Split(NamedTuple):
    """What must be known of a split before its first row is written."""

    rows: int
    id_bytes: int  # of the longest id
    leaks_dropped: int = 0  # rows that `rows` does not count, near-copies of train's


class Vocabulary(NamedTuple):
    """Label names in the order of their indices, and the hash that stands for them."""

    names: list[str]
    sha256: str


class Source(Protocol):
    """Labelled texts in splits."""

    config: dict[str, str]
    """what and which: the kind and a hash of the content"""
    duplicates: str | None
    """hash of the near-copies of train that are left out of the other splits; None where they stay"""
    max_claims: int | None
    """claims joined in each text, where that is known"""
    made_up: bool

    def survey(self) -> tuple[Vocabulary, dict[str, Split]]:
        """Labels and splits, found without reading texts where the format lets that be."""

    def read(self, split: str, rows: int) -> Iterator[Batch]:
        """The rows of a split in order, at most `rows` a batch; after `survey`."""

    def parts(self, split: str) -> Sequence[Source]:
        """Sources of the split alone that hold its rows, one after another, and can be read apart; after `survey`."""


def open_source(path: Path, labels: Labels = "position", *, drop_leaks: bool = False) -> Source:
    """A dataset folder, a Parquet file, a folder of Parquet files or a file of JSON lines.

    Args:
        path: where it is.
        labels: of a dataset, "position" or "unordered".
        drop_leaks: leave out a dataset's rows, of other splits than train, that have a near-copy in train.

    Raises:
        DataError: it is none of these, or leaks are to be dropped and dedup has not run.
        UsageError: "unordered" labels of anything but a dataset folder, or leaks of it to be dropped.
        IncompleteError: the dataset or its duplicates/ is unfinished.
    """
    if (path / MANIFEST).is_file():
        return Dataset(path, labels, drop_leaks=drop_leaks)
    if labels != "position":
        raise UsageError(f"{path} is no dataset folder: its labels are what label_names says; leave --labels out.")
    if drop_leaks:
        raise UsageError(f"{path} is no dataset folder, so its near-copies are unknown; leave --drop-leaks out.")
    if path.is_dir():
        files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
        if not files:
            raise DataError(f"{path} is no dataset folder and holds no *.parquet; make one with ewe-data relabel.")
        return ParquetTable(files)
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a dataset folder, Parquet or JSON lines.")
    if path.suffix == ".parquet":
        return ParquetTable([path])
    if path.suffix in (".jsonl", ".ndjson", ".json"):
        return JsonTable([path])
    raise DataError(f"{path} is neither .parquet nor .jsonl; give a dataset folder, Parquet or JSON lines.")


class Dataset:
    """dataset/ as relabel writes it: `relabeled/` by position, or `relabeled/` and `no_first/` unordered."""

    def __init__(self, folder: Path, labels: Labels = "position", *, drop_leaks: bool = False) -> None:
        manifest = read_manifest(folder, "dataset")
        self.made_up = bool(manifest.get("made_up", False))
        self.max_claims: int | None = manifest["config"].get("max_claims")
        configs = ("relabeled",) if labels == "position" else ("relabeled", "no_first")
        self._files = {
            split: [
                folder / name
                for config in configs
                for name in sorted(manifest["files"])
                if re.fullmatch(rf"{config}/{re.escape(split)}-\d+-of-\d+\.parquet", name)
            ]
            for split in manifest["config"]["splits"]
        }
        known = read_recorded(folder, manifest, "labels.json")
        # the column of indices, and the one that names those too that the vocabulary does not hold
        self._columns = ("labels", "label_names") if labels == "position" else ("unordered_labels", known["scheme"])
        self._vocabulary = Vocabulary(known[labels]["names"], known[labels]["sha256"])
        _check_size(self._vocabulary, folder)
        used = [file.relative_to(folder).as_posix() for files in self._files.values() for file in files]
        hashes = {name: manifest["files"][name]["sha256"] for name in [*used, "labels.json"]}
        self.config = {"kind": "dataset", "sha256": sha256_json(hashes)}
        self.duplicates: str | None = None
        self._leaking: pa.Array | None = None
        if drop_leaks:
            self.duplicates, self._leaking = _leaking(folder)

    def survey(self) -> tuple[Vocabulary, dict[str, Split]]:
        """The frozen labels, and the splits in the order they were given to relabel."""
        splits = {}
        for split in self._files:
            rows = id_bytes = dropped = 0
            for _, batch, left_out in self._batches(split, ["publication_number"], SURVEY_ROWS):
                rows += batch.num_rows
                id_bytes = max(id_bytes, _longest(batch.column(0)))
                dropped += left_out
            splits[split] = Split(rows, id_bytes, dropped)
        return self._vocabulary, splits

    def read(self, split: str, rows: int) -> Iterator[Batch]:
        """The rows of a split: relabeled/ first, then no_first/ where it belongs."""
        columns = ["text", *self._columns, "publication_number"]
        for file, batch, _ in self._batches(split, columns, rows):
            if not batch.num_rows:
                continue
            texts, labels, names, ids = batch.columns
            if any(column.null_count for column in batch.columns):
                raise DataError(f"{file} has nulls in {', '.join(columns)}; make the dataset again.")
            where, found = _coordinates(labels)
            indices = found.drop_null().to_numpy().astype(np.int64)
            if found.null_count or not ((indices >= 0) & (indices < len(self._vocabulary.names))).all():
                raise DataError(f"{file} has labels that labels.json does not know; make the dataset again.")
            yield Batch(texts, ids, *_distinct(where, indices), _count_names(names) - len(indices))

    def parts(self, split: str) -> Sequence[Dataset]:
        """One a shard."""
        alone = [copy.copy(self) for _ in self._files[split]]
        for part, file in zip(alone, self._files[split], strict=True):
            part._files = {split: [file]}
        return alone

    def _batches(self, split: str, columns: list[str], rows: int) -> Iterator[tuple[Path, pa.RecordBatch, int]]:
        """(file, rows of it, how many beside them leak and are left out), the columns in this order."""
        for file in self._files[split]:
            for read in _read_parquet(file, columns, rows, "make the dataset again"):
                batch = read.select(columns)
                if self._leaking is not None:
                    batch = batch.filter(pc.invert(pc.is_in(batch.column("publication_number"), self._leaking)))
                yield file, batch, read.num_rows - batch.num_rows


def _leaking(dataset: Path) -> tuple[str, pa.Array]:
    """The hash of a dataset's near-copies, and the publication numbers of its rows that leak."""
    from ewe.pipeline import dedup  # its libraries take a second to load

    if not (dataset / dedup.FOLDER).is_dir():
        raise DataError(f"{dataset} has no {dedup.FOLDER}/; run ewe-data dedup {dataset} first.")
    files = dedup.read_duplicates(dataset)["files"]
    return files["groups.parquet"]["sha256"], pa.array(sorted(dedup.leaking(dataset)), pa.large_string())


def _count_names(names: pa.Array) -> int:
    """How many labels rows have, known or not: of label names, or of codes, whose subclass counts once a row."""
    if pa.types.is_struct(names.type.value_type):
        from ewe.pipeline import codes  # which loads Polars

        names = codes.label(names)["subclasses"]
    return len(names.flatten())


COLUMNS = pa.schema([("text", pa.string()), ("label_names", pa.list_(pa.string()))])  # what a table must have
_IDS = ("publication_number", "id")  # the column that names a row: the first there is, else the row's number
_NORMAL = pa.schema(
    [
        ("text", pa.large_string()),
        ("label_names", pa.large_list(pa.large_string())),
        ("split", pa.large_string()),
        ("id", pa.large_string()),
    ]
)
_THEN = "give text (string) and label_names (list of strings), or a dataset folder"


@dataclass
class Table(ABC):
    """Texts with label names, and perhaps a split and an id: anyone's own files.

    Rows without a split column are all train; labels are the names of train's rows, sorted.
    """

    files: list[Path]
    kind = ""
    made_up = False

    def __post_init__(self) -> None:
        hashes = {file.name: sha256_file(file) for file in self.files}
        self.config = {"kind": self.kind, "sha256": sha256_json(hashes)}
        self.duplicates: str | None = None
        self.max_claims: int | None = None
        self._vocabulary = Vocabulary([], "")

    def survey(self) -> tuple[Vocabulary, dict[str, Split]]:
        """One pass over labels, splits and ids; train comes first, the others as they appear.

        Raises:
            DataError: a column or value is wrong, no row is train, or train has no label or too many.
        """
        names: set[str] = set()
        splits = {"train": Split(0, 0)}
        for batch in self._tables(SURVEY_ROWS, texts=False):
            for split in batch.column("split").unique().to_pylist():
                part = _of_split(batch, split)
                before = splits.get(split, Split(0, 0))
                id_bytes = max(before.id_bytes, _longest(part.column("id")))
                splits[split] = Split(before.rows + part.num_rows, id_bytes)
                if split == "train":
                    names.update(part.column("label_names").flatten().unique().to_pylist())
        where = self.files[0].parent if len(self.files) > 1 else self.files[0]
        if not splits["train"].rows:
            raise DataError(f"{where} has no row of the split train, which labels come from; give it some.")
        if not names:
            raise DataError(f"{where}: no row of the split train has a label; fill label_names.")
        for place, split in enumerate(splits):
            if why := wrong_name(split, [*splits][:place]):
                raise DataError(f"{where}: split {split!r} {why}; rename that split.")
        self._vocabulary = Vocabulary(sorted(names), sha256_json(sorted(names)))
        _check_size(self._vocabulary, where)
        return self._vocabulary, splits

    def read(self, split: str, rows: int) -> Iterator[Batch]:
        """The rows of a split in the files' order. All files are read for each split."""
        value_set = pa.array(self._vocabulary.names, pa.large_string())
        for batch in self._tables(rows, texts=True):
            part = _of_split(batch, split)
            if part.num_rows:
                where, names = _coordinates(part.column("label_names"))
                indices = pc.index_in(names, value_set)
                known = indices.is_valid().to_numpy(zero_copy_only=False)
                columns = indices.drop_null().to_numpy().astype(np.int64)
                left_out = indices.null_count
                yield Batch(part.column("text"), part.column("id"), *_distinct(where[known], columns), left_out)

    def parts(self, split: str) -> Sequence[Table]:  # noqa: ARG002
        """It alone: rows without a name are numbered through all files."""
        return [self]

    @abstractmethod
    def _tables(self, rows: int, *, texts: bool) -> Iterator[pa.RecordBatch]:
        """All rows as _NORMAL has them (without text where that saves reading it), checked."""


class ParquetTable(Table):
    """A table in one or more Parquet files."""

    kind = "parquet"

    def _tables(self, rows: int, *, texts: bool) -> Iterator[pa.RecordBatch]:
        number = 0
        optional: list[str] | None = None
        for file in self.files:
            with open_parquet(file) as parquet:
                found = parquet.schema_arrow
            schema.check(found, COLUMNS, str(file), _THEN)
            extra = _optional(found.names)
            optional = extra if optional is None else optional
            if extra != optional:
                odd = ", ".join(sorted({*extra} ^ {*optional}))
                raise DataError(f"{file} and {self.files[0]} do not both have {odd}; give it in every file or in none.")
            key = next((name for name in extra if name in _IDS), None)
            for name in extra:
                _check_text(file, found.field(name), integers=name == key)
            columns = [*(["text"] if texts else []), "label_names", *extra]
            for batch in _read_parquet(file, columns, rows, _THEN):
                _check_nulls(file, batch, number)
                count = batch.num_rows
                arrays = {name: batch.column(name) for name in columns}
                arrays.setdefault("split", pa.repeat("train", count))
                arrays["id"] = arrays[key] if key else pa.array(np.arange(number, number + count))
                fields = [field for field in _NORMAL if field.name in arrays]
                yield pa.RecordBatch.from_arrays(
                    [arrays[field.name].cast(field.type) for field in fields], schema=pa.schema(fields)
                )
                number += count


class JsonTable(Table):
    """A table as JSON lines: one object a line."""

    kind = "json"

    def _tables(self, rows: int, *, texts: bool) -> Iterator[pa.RecordBatch]:
        number = 0
        for file in self.files:
            batch: list[tuple[bytes, list[bytes], bytes, bytes]] = []
            optional: list[str] | None = None
            with file.open("rb") as lines:
                for at, line in enumerate(lines, 1):
                    if line.isspace():
                        continue
                    where = f"{file}, line {at}"
                    row = _json_object(line, where)
                    extra = _optional(row)
                    optional = extra if optional is None else optional
                    if extra != optional:
                        odd = ", ".join(sorted({*extra} ^ {*optional}))
                        raise DataError(f"{where} and the lines before it do not all have {odd}; give it on every one.")
                    key = next((name for name in extra if name in _IDS), None)
                    text, names, split, identity = _json_row(row, where, row[key] if key else number)
                    batch.append((text if texts else b"", names, split, identity))
                    number += 1
                    if len(batch) == rows:
                        yield _json_batch(batch)
                        batch = []
            if batch:
                yield _json_batch(batch)


def _optional(names: Container[str]) -> list[str]:
    """Which of split and the first column that names rows there are."""
    key = next((name for name in _IDS if name in names), None)
    return [name for name in ("split", key) if name and name in names]


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not valid JSON ({error}); write one object a line.") from None
    if not isinstance(row, dict):
        raise DataError(f"{where} is not a JSON object; write one object a line.")
    return row


def _json_row(row: dict[str, Any], where: str, identity: Any) -> tuple[bytes, list[bytes], bytes, bytes]:
    text, names, split = row.get("text"), row.get("label_names"), row.get("split", "train")
    if not isinstance(text, str):
        raise DataError(f"{where} has no string text; {_THEN}.")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: label_names is not a list of strings; {_THEN}.")
    if not isinstance(split, str):
        raise DataError(f"{where}: split is not a string; leave it out or name one.")
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise DataError(f"{where}: {' or '.join(_IDS)} is neither string nor integer; leave it out or give one.")
    return utf8(text), [utf8(name) for name in names], utf8(split), utf8(str(identity))


def _json_batch(rows: list[tuple[bytes, list[bytes], bytes, bytes]]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), _NORMAL, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(values, field.type) for values, field in columns], schema=_NORMAL)


def _read_parquet(file: Path, columns: list[str], rows: int, then: str) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` rows, large strings in them; DataError where the file is broken."""
    with open_parquet(file) as parquet:
        missing = [name for name in columns if name not in parquet.schema_arrow.names]
        if missing:
            raise DataError(f"{file} has no column {missing[0]}; {then}.")
        for batch in read_batches(parquet, rows, columns, threads=True):
            if not batch.num_rows:
                continue
            batch.validate(full=True)  # Parquet does not promise valid UTF-8, and the kernels read it as it is
            for index, field in enumerate(batch.schema):
                if _is_text(field.type):
                    wide = batch.column(index).cast(pa.large_string())
                    batch = batch.set_column(index, field.name, wide)
            yield batch


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _check_text(file: Path, field: pa.Field, *, integers: bool) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not (_is_text(kind) or (integers and pa.types.is_integer(kind))):
        wanted = "string or integer" if integers else "string"
        raise DataError(f"{file}: column {field.name} is {field.type}, not {wanted}; cast it or leave it out.")


def _check_nulls(file: Path, batch: pa.RecordBatch, number: int) -> None:
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if array.null_count:
            row = number + pc.index(array.is_null(), value=True).as_py()
            raise DataError(f"{file}: row {row} (from 0) has no {name}; fill it or leave the row out.")
    names = batch.column("label_names").flatten()
    if names.null_count:
        raise DataError(f"{file}: a list in label_names holds a null near row {number} (from 0); leave it out.")


def _check_size(vocabulary: Vocabulary, where: Path) -> None:
    if len(vocabulary.names) > MOST_LABELS:
        raise DataError(
            f"{where} has {len(vocabulary.names):,} labels, more than the {MOST_LABELS:,} that fit; merge some."
        )


def _longest(array: pa.Array) -> int:
    """Bytes of the longest string."""
    return int(pc.max(pc.binary_length(array)).as_py() or 0)


def _of_split(batch: pa.RecordBatch, split: str) -> pa.RecordBatch:
    wanted = pc.equal(batch.column("split"), split)
    return batch if pc.all(wanted).as_py() else batch.filter(wanted)


def _coordinates(lists: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """(row of each value, values) of a list array without null lists, sliced or not."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths), lists.flatten()


def _distinct(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """The same coordinates, sorted, each once."""
    keys = np.unique(rows << 16 | columns)
    return keys >> 16, (keys & 0xFFFF).astype(np.uint16)
