"""dataset/, or any labelled text -> tensors/: plain .npy files that a reader maps and does not parse.

    SPLIT.bytes.npy            uint8 (N, u, v)   ids, as ewe/elements.py makes them
    SPLIT.labels.indptr.npy    int64 (N+1)       where each row's labels start
    SPLIT.labels.indices.npy   uint16 (P)        label indices, row after row, sorted within one
    SPLIT.ids.npy              S (N)             publication numbers, or other names of rows
    SPLIT.text.npy             uint8             UTF-8, each text cut after 512 words, one after another
    SPLIT.text.indptr.npy      int64 (N+1)       where each text starts

Files grow a batch at a time, so memory does not depend on the number of rows. They are written, not
mapped: pages of a mapping count as this process's memory, and faulting them in takes longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from ewe.elements import Bytes, Counts, Places, check, encode_buffers, pack
from ewe.pipeline.labelled import Batch, Labels, Source, Split, Vocabulary, open_source
from ewe.progress import bar, say, warn
from ewe.store import Store

Tokenizer = Literal["whitespace", "bytes"]

WORKERS = 2  # batches in work at a time
BLOCK = 4 << 20  # bytes of ids a batch: fits a core's cache, hides the cost of a call
MOST_ROWS = 4096  # rows a batch, however small a row


def encode_folder(
    source: Path,
    out: Path,
    *,
    words: int = 128,
    letters: int = 16,
    tokenizer: Tokenizer = "whitespace",
    labels: Labels = "position",
) -> dict[str, Any]:
    """Make tensors/ of a dataset folder, Parquet or JSON lines; the same call again goes on where it stopped.

    Args:
        source: dataset/, or Parquet or JSON lines with text (string), label_names (list of strings) and, where
            there are any, split (else all is train) and publication_number or id (else the row's number).
        out: the folder to make.
        words: u, materials a text, [CLS] and [SEP] included.
        letters: v, ids a material.
        tokenizer: "whitespace" (words) or "bytes" (the UTF-8 stream cut every v bytes).
        labels: of a dataset: "position" (First-/Later-, relabeled/ alone) or "unordered" (no_first/ too).

    Returns:
        A summary: rows by split, labels, the share of words cut by v and of texts cut by u, labels that are
        not in train and were left out, bytes written, made_up.

    Raises:
        DataError: the source does not hold what it must, or `out` was made differently.
        UsageError: words, letters, tokenizer or labels that cannot be.
        IncompleteError: the dataset is unfinished.
    """
    check(words, letters, tokenizer)
    opened = open_source(source, labels)
    config = {"source": opened.config, "words": words, "letters": letters, "tokenizer": tokenizer, "labels": labels}
    with Store(out, "tensors", config) as store:
        if store.finished:
            say(f"{out} is finished already.")
            return _summary(store)
        vocabulary, splits = opened.survey()
        for name, split in splits.items():
            _encode_split(store, opened, name, split, words, letters, tokenizer)
        store.write_json("meta.json", _meta(store, opened, vocabulary, splits))
        facts = {name: _facts(store, name) for name in splits}
        left_out = {name: fact["labels_left_out"] for name, fact in facts.items() if fact["labels_left_out"]}
        if left_out:
            counts = ", ".join(f"{count:,} in {name}" for name, count in left_out.items())
            warn(f"labels that no row of train has were left out: {counts}.")
        rows = {name: split.rows for name, split in splits.items()}
        store.finish(rows=rows, labels=len(vocabulary.names), made_up=opened.made_up)
        return _summary(store)


def _layout(split: Split, u: int, v: int) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
    """Each file's name, type and shape of a row."""
    return {
        "bytes": (np.uint8, (u, v)),
        "labels.indptr": (np.int64, ()),
        "labels.indices": (np.uint16, ()),
        "ids": (f"S{max(split.id_bytes, 1)}", ()),
        "text": (np.uint8, ()),
        "text.indptr": (np.int64, ()),
    }


def _encode_split(store: Store, source: Source, name: str, split: Split, u: int, v: int, tokenizer: Tokenizer) -> None:
    """Write a split's files in one pass, unless an earlier run has written them all."""
    layout = _layout(split, u, v)
    if all(store.has(f"{name}.{part}.npy") for part in layout):
        return
    facts = {part: {"rows": split.rows} for part in layout}
    with ExitStack() as stack:
        files = Files(
            *(stack.enter_context(_grow(store, f"{name}.{part}.npy", *layout[part], facts[part])) for part in layout)
        )
        advance = stack.enter_context(bar(f"encode {name}", split.rows, "texts"))
        files.labels_indptr.append(np.zeros(1, np.int64))
        files.text_indptr.append(np.zeros(1, np.int64))
        counts = np.zeros(len(Counts._fields), np.int64)
        left_out = 0
        size = max(1, min(MOST_ROWS, BLOCK // (u * v)))
        for batch, encoded in _encode_ahead(source.read(name, size), (size, u, v), tokenizer):
            files.append(batch, encoded)
            counts += encoded.counts
            left_out += batch.left_out
            advance(len(batch.texts))
        facts["bytes"] |= {
            **dict(zip(Counts._fields, counts.tolist(), strict=True)),
            "labels": files.labels_indices.rows,
            "labels_left_out": left_out,
        }


class Encoded(NamedTuple):
    """A batch of n texts as it is written."""

    ids: Bytes
    """(n, u, v)"""
    text: Bytes
    """(t,) each text's first words"""
    lengths: Places
    """(n,) of the texts in `text`"""
    counts: Counts


def _encode_ahead(
    batches: Iterator[Batch], shape: tuple[int, int, int], tokenizer: Tokenizer
) -> Iterator[tuple[Batch, Encoded]]:
    """Encode batches in threads while the next are read and the last are written; in order.

    A block of ids is good until the next one is asked for.
    """
    blocks = np.empty((WORKERS + 1, *shape), np.uint8)
    waiting: deque[tuple[Batch, Future[Encoded]]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for number, batch in enumerate(batches):
            if len(waiting) == len(blocks):
                done, future = waiting.popleft()
                yield done, future.result()
            block = blocks[number % len(blocks)][: len(batch.texts)]
            waiting.append((batch, pool.submit(_encode_batch, batch, block, tokenizer)))
        for done, future in waiting:
            yield done, future.result()


def _encode_batch(batch: Batch, out: Bytes, tokenizer: Tokenizer) -> Encoded:
    start, n = batch.texts.offset, len(batch.texts)
    _, offsets, data = batch.texts.buffers()
    data = np.frombuffer(data or b"", np.uint8)
    offsets = np.frombuffer(offsets, np.int64)[start : start + n + 1]
    lengths = np.empty(n, np.int64)
    counts = encode_buffers(data, offsets, out, lengths, tokenizer, threads=1)
    return Encoded(out, pack(data, offsets, lengths), lengths, counts)


class Files(NamedTuple):
    """The growing files of one split, in the order of _layout."""

    bytes: GrowingArray
    labels_indptr: GrowingArray
    labels_indices: GrowingArray
    ids: GrowingArray
    text: GrowingArray
    text_indptr: GrowingArray

    def append(self, batch: Batch, encoded: Encoded) -> None:
        """Add the rows of one batch."""
        labels = np.bincount(batch.rows, minlength=len(batch.texts))
        self.labels_indptr.append(self.labels_indices.rows + labels.cumsum())
        self.labels_indices.append(batch.columns)
        self.ids.append(np.array(batch.ids.cast(pa.large_binary()).to_pylist(), self.ids.dtype))
        self.text_indptr.append(self.text.rows + encoded.lengths.cumsum())
        self.text.append(encoded.text)
        self.bytes.append(encoded.ids)


class GrowingArray:
    """An .npy file of unknown length: rows are appended, and `finish` writes the header that counts them.

    NumPy pads a header so that the first axis may grow to 21 digits in place (`numpy.lib.format`), so
    the file is byte for byte what `np.save` would have written.
    """

    def __init__(self, file: BinaryIO, dtype: DTypeLike, tail: tuple[int, ...] = ()) -> None:
        self.rows = 0
        self.dtype = np.dtype(dtype)
        self._file, self._tail = file, tail
        self._write_header()

    def _write_header(self) -> None:
        self._file.seek(0)
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.rows, *self._tail),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows (n, *tail)."""
        self._file.write(np.ascontiguousarray(rows, self.dtype).data.cast("B") if rows.size else b"")
        self.rows += len(rows)

    def finish(self) -> None:
        """Write the true number of rows; nothing is appended after."""
        self._write_header()


@contextmanager
def _grow(
    store: Store, name: str, dtype: DTypeLike, tail: tuple[int, ...], facts: Mapping[str, int]
) -> Iterator[GrowingArray]:
    with store.write(name, facts) as path, path.open("wb") as file:
        array = GrowingArray(file, dtype, tail)
        yield array
        array.finish()


def _facts(store: Store, split: str) -> dict[str, Any]:
    facts: dict[str, Any] = store.manifest["files"][f"{split}.bytes.npy"]
    return facts


def _meta(store: Store, source: Source, vocabulary: Vocabulary, splits: Mapping[str, Split]) -> dict[str, Any]:
    config = store.manifest["config"]
    return {
        "u": config["words"],
        "v": config["letters"],
        "tokenizer": config["tokenizer"],
        "labels": config["labels"],
        "label_names": vocabulary.names,
        "labels_sha256": vocabulary.sha256,
        "splits": {
            name: {"rows": split.rows, "labels": _facts(store, name)["labels"]} for name, split in splits.items()
        },
        "made_up": source.made_up,
        "source": source.config,
    }


def _summary(store: Store) -> dict[str, Any]:
    manifest = store.manifest
    facts = [_facts(store, split) for split in manifest["rows"]]
    total = {key: sum(fact[key] for fact in facts) for key in ("rows", "labels_left_out", *Counts._fields)}
    summary = {
        "out": str(store.folder),
        "rows": manifest["rows"],
        "labels": manifest["labels"],
        "words_cut": _share(total["materials_cut"], total["materials"]),
        "texts_cut": _share(total["rows_cut"], total["rows"]),
        "labels_left_out": total["labels_left_out"],
        "bytes": sum(record["size"] for record in manifest["files"].values()),
        "made_up": manifest["made_up"],
    }
    if manifest["config"]["source"]["kind"] == "dataset":
        del summary["labels_left_out"]  # relabel has left them out, and its stats.json counts them
    return summary


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
