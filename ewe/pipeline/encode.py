"""dataset/, or any labelled text -> tensors/: plain .npy files that a reader maps and does not parse.

    SPLIT.bytes.npy            uint8 (N, u, v)   ids of letters, as ewe/elements.py makes them; or
    SPLIT.tokens.npy           uint16 (N, u)     WordPiece tokens; or
    SPLIT.codepoints.npy       uint32 (N, u)     code points, both as ewe/tokens.py makes them
    SPLIT.labels.indptr.npy    int64 (N+1)       where each row's labels start
    SPLIT.labels.indices.npy   uint16 (P)        label indices, row after row, sorted within one
    SPLIT.ids.npy              S (N)             publication numbers, or other names of rows
    SPLIT.text.npy             uint8             UTF-8, each text cut after 512 words, one after another
    SPLIT.text.indptr.npy      int64 (N+1)       where each text starts
    tokenizer.json             the WordPiece vocabulary, where there is one

Files grow a batch at a time, so memory does not depend on the number of rows. They are written, not
mapped: pages of a mapping count as this process's memory, and faulting them in takes longer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from ewe.elements import PARTS, Bytes, Counts, Places, check, encode_buffers, measure, pack
from ewe.errors import UsageError
from ewe.pipeline.buffers import text_buffers
from ewe.pipeline.labelled import Batch, Labels, Source, Split, Vocabulary, open_source
from ewe.progress import bar, say, warn
from ewe.store import Files, Store, refuse_inside, sha256_file
from ewe.tokens import CODE_POINTS, VOCABULARY_FILE, WordPiece, check_size, encode_codepoints, slices

Tokenizer = Literal["whitespace", "bytes", "wordpiece", "codepoints"]
LETTERS = 16
ELEMENTS = 256  # ids of letters
VOCABULARY = 30_522  # BERT's
SAMPLE = 50_000  # texts of train, cut after 512 words, that a vocabulary is learned from

WORKERS = 2  # batches in work at a time
BLOCK = 4 << 20  # bytes of ids a batch: fits a core's cache, hides the cost of a call
MOST_ROWS = 4096  # rows a batch, however small a row


def encode_folder(
    source: Path,
    out: Path,
    *,
    words: int = 128,
    letters: int | None = None,
    tokenizer: Tokenizer = "whitespace",
    labels: Labels = "position",
    vocabulary: int | Path | None = None,
    drop_leaks: bool = False,
    pool: Executor | None = None,
) -> dict[str, Any]:
    """Make tensors/ of a dataset folder, Parquet or JSON lines; the same call again goes on where it stopped.

    Args:
        source: dataset/, or Parquet or JSON lines with text (string), label_names (list of strings) and, where
            there are any, split (else all is train) and publication_number or id (else the row's number).
        out: the folder to make.
        words: u, materials a text (tokens, code points), [CLS] and [SEP] included.
        letters: v, ids a material, of "whitespace" and "bytes" alone; None for 16.
        tokenizer: "whitespace" (words), "bytes" (the UTF-8 stream cut every v bytes), "wordpiece" (BERT's tokens,
            uncased) or "codepoints" (CANINE's).
        labels: of a dataset: "position" (First-/Later-, relabeled/ alone) or "unordered" (no_first/ too).
        vocabulary: of "wordpiece" alone: how many ids to learn from train, of 50,000 of its texts, evenly spread,
            where there are more, each cut after 512 words; or a tokenizer.json or vocab.txt to take; None for 30,522.
        drop_leaks: leave out a dataset's test rows that have a near-copy in train, as dedup found them.
        pool: what encodes a dataset's shards, each apart, to be joined here; None for threads and no detour.

    Returns:
        A summary: rows by split, rows dropped as leaks by split, labels, ids of a learned vocabulary, the share of
        words cut by v (of tokens that are [UNK]) and of texts cut by u, labels that are not in train and were left
        out, bytes written, made_up.

    Raises:
        DataError: the source does not hold what it must, or `out` was made differently.
        UsageError: words, letters, tokenizer, labels or vocabulary that cannot be, or `out` lies in the source.
        IncompleteError: the dataset or its duplicates/ is unfinished.
    """
    letters = _check(words, letters, tokenizer, vocabulary)
    refuse_inside(out, source)
    vocabulary = vocabulary or VOCABULARY
    opened = open_source(source, labels, drop_leaks=drop_leaks)
    config = {
        "source": opened.config,
        "words": words,
        "letters": letters,
        "tokenizer": tokenizer,
        "labels": labels,
        "vocabulary": _name(vocabulary) if tokenizer == "wordpiece" else None,
        "drop_leaks": opened.duplicates,
    }
    with Store(out, "tensors", config) as store:
        if store.finished:
            say(f"{out} is finished already.")
            return _summary(store)
        known, splits = opened.survey()
        form = _form(store, opened, splits["train"], vocabulary)
        for name, split in splits.items():
            with bar(f"encode {name}", split.rows, "texts") as advance:
                if pool:
                    _encode_parts(store, pool, opened, name, split, form, advance)
                else:
                    store.parts(1, _encode_split, [(opened, name, split, form)], advance)
        store.write_json("meta.json", _meta(store, opened, known, splits, form))
        facts = {name: _facts(store, name) for name in splits}
        left_out = {name: fact["labels_left_out"] for name, fact in facts.items() if fact["labels_left_out"]}
        if left_out:
            counts = ", ".join(f"{count:,} in {name}" for name, count in left_out.items())
            warn(f"labels that train's vocabulary does not hold were left out: {counts}.")
        rows = {name: split.rows for name, split in splits.items()}
        store.finish(rows=rows, labels=len(known.names), vocabulary=form.vocabulary, made_up=opened.made_up)
        return _summary(store)


def _check(u: int, letters: int | None, tokenizer: str, vocabulary: int | Path | None) -> int | None:
    """The letters v a material has; None where materials have none.

    Raises:
        UsageError: something cannot be, or does not belong to the tokenizer.
    """
    if tokenizer not in PARTS:
        raise UsageError(f"There is no tokenizer {tokenizer!r}; choose one of {', '.join(PARTS)}.")
    if vocabulary is not None and tokenizer != "wordpiece":
        raise UsageError(f"--vocabulary is for --tokenizer wordpiece; leave it out with {tokenizer}.")
    if isinstance(vocabulary, Path) and not vocabulary.is_file():
        raise UsageError(f"{vocabulary} does not exist; give --vocabulary a number, a tokenizer.json or a vocab.txt.")
    if isinstance(vocabulary, int):
        check_size(vocabulary)
    if PARTS[tokenizer] == "bytes":
        v = LETTERS if letters is None else letters
        check(u, v, tokenizer)
        return v
    if letters is not None:
        raise UsageError(f"--letters is for --tokenizer whitespace and bytes; leave it out with {tokenizer}.")
    check(u)
    return None


def _name(vocabulary: int | Path) -> int | str:
    """What tells a vocabulary from others."""
    return vocabulary if isinstance(vocabulary, int) else f"sha256 {sha256_file(vocabulary)}"


class Form(NamedTuple):
    """How a tokenizer's ids are stored and what makes them."""

    part: str
    """of the file's name"""
    dtype: DTypeLike
    shape: tuple[int, ...]
    """of a row"""
    vocabulary: int
    """how many ids there are"""
    encode: Callable[[Bytes, Places, NDArray[Any], Places], Counts]
    """fills (n, *shape) and the texts' lengths up to word 512, as elements.encode_buffers does"""


def _form(store: Store, source: Source, train: Split, vocabulary: int | Path) -> Form:
    """The tokenizer ready to encode; a WordPiece vocabulary is learned, or taken, unless an earlier run has."""
    config = store.manifest["config"]
    tokenizer, u, v = config["tokenizer"], config["words"], config["letters"]
    part = PARTS[tokenizer]
    if part == "bytes":
        return Form(part, np.uint8, (u, v), ELEMENTS, partial(encode_buffers, tokenizer=tokenizer, threads=1))
    if part == "codepoints":
        return Form(part, np.uint32, (u,), CODE_POINTS, encode_codepoints)
    if not store.has(VOCABULARY_FILE):
        if isinstance(vocabulary, Path):
            made = WordPiece.load(vocabulary)
        else:
            texts = _sample(source, train.rows)
            say(f"Learning a vocabulary of {vocabulary:,} ids from {len(texts):,} texts of train.")
            made = WordPiece.train(texts, vocabulary)
        store.write_text(VOCABULARY_FILE, made.to_json())
    pieces = WordPiece.load(store.folder / VOCABULARY_FILE)
    return Form(part, np.uint16, (u,), pieces.size, pieces.encode_buffers)


def _sample(source: Source, N: int) -> list[str]:
    """SAMPLE of train's N texts, evenly spread, or all of them; each cut after its first words."""
    texts: list[str] = []
    n = 0
    wanted = min(SAMPLE, N)
    with bar("sample", N, "texts") as advance:
        for batch in source.read("train", MOST_ROWS):
            rows = np.arange(n, n + len(batch.texts))
            chosen = batch.texts.filter(pa.array((rows + 1) * wanted // N > rows * wanted // N))
            data, offsets = text_buffers(chosen)
            texts += slices(data, offsets[:-1], offsets[:-1] + measure(data, offsets))
            n += len(batch.texts)
            advance(len(batch.texts))
    return texts


def _layout(split: Split, form: Form) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
    """Each file's name, type and shape of a row."""
    return {
        form.part: (form.dtype, form.shape),
        "labels.indptr": (np.int64, ()),
        "labels.indices": (np.uint16, ()),
        "ids": (f"S{max(split.id_bytes, 1)}", ()),
        "text": (np.uint8, ()),
        "text.indptr": (np.int64, ()),
    }


def _encode_split(out: Files, source: Source, name: str, split: Split, form: Form, folder: str = "") -> None:
    """Write a split's files in one pass, unless an earlier run has written them all."""
    layout = _layout(split, form)
    names = {part: f"{folder}{name}.{part}.npy" for part in layout}
    if all(map(out.has, names.values())):
        return
    facts: dict[str, dict[str, int]] = {part: {} for part in layout}
    with ExitStack() as stack:
        arrays = Arrays(*(stack.enter_context(_grow(out, names[part], *layout[part], facts[part])) for part in layout))
        arrays.labels_indptr.append(np.zeros(1, np.int64))
        arrays.text_indptr.append(np.zeros(1, np.int64))
        counts = np.zeros(len(Counts._fields), np.int64)
        left_out = 0
        size = max(1, min(MOST_ROWS, BLOCK // (math.prod(form.shape) * np.dtype(form.dtype).itemsize)))
        for batch, encoded in _encode_ahead(source.read(name, size), size, form):
            arrays.append(batch, encoded)
            counts += encoded.counts
            left_out += batch.left_out
            out.advance(len(batch.texts))
        for each in facts.values():
            each["rows"] = arrays.encoded.rows
        facts[form.part] |= {
            **dict(zip(Counts._fields, counts.tolist(), strict=True)),
            "labels": arrays.labels_indices.rows,
            "labels_left_out": left_out,
            "leaks_dropped": split.leaks_dropped,
        }


def _encode_parts(
    store: Store,
    pool: Executor,
    source: Source,
    name: str,
    split: Split,
    form: Form,
    advance: Callable[[int], object],
) -> None:
    """As _encode_split, but a split's shards are encoded in a pool, each into hidden files, and then joined."""
    layout = {f"{name}.{part}.npy": kind for part, kind in _layout(split, form).items()}
    if all(map(store.has, layout)):
        return
    shards = source.parts(name)
    folders = [f".parts/{name}-{number}/" for number in range(len(shards))]
    work = [(shard, name, split, form, folder) for shard, folder in zip(shards, folders, strict=True)]
    store.parts(pool, _encode_split, work, advance)
    for file, kind in layout.items():
        records = [store.manifest["files"][folder + file] for folder in folders]
        facts = {key: sum(record[key] for record in records) for key in records[0] if key not in ("size", "sha256")}
        if "leaks_dropped" in facts:
            facts["leaks_dropped"] = split.leaks_dropped
        with _grow(store, file, *kind, facts) as array:
            end = 0
            for rows in (np.load(store.folder / folder / file, mmap_mode="r") for folder in folders):
                starts = file.endswith("indptr.npy")  # each shard's begin at 0
                array.append(rows[bool(array.rows) :] + end if starts else rows)
                end += rows[-1] if starts else 0


class Encoded(NamedTuple):
    """A batch of n texts as it is written."""

    ids: NDArray[Any]
    """(n, *form.shape)"""
    text: Bytes
    """(t,) each text's first words"""
    lengths: Places
    """(n,) of the texts in `text`"""
    counts: Counts


def _encode_ahead(batches: Iterator[Batch], size: int, form: Form) -> Iterator[tuple[Batch, Encoded]]:
    """Encode batches in threads while the next are read and the last are written; in order.

    A block of ids is good until the next one is asked for.
    """
    blocks = np.empty((WORKERS + 1, size, *form.shape), form.dtype)
    waiting: deque[tuple[Batch, Future[Encoded]]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for number, batch in enumerate(batches):
            if len(waiting) == len(blocks):
                done, future = waiting.popleft()
                yield done, future.result()
            block = blocks[number % len(blocks)][: len(batch.texts)]
            waiting.append((batch, pool.submit(_encode_batch, batch, block, form)))
        for done, future in waiting:
            yield done, future.result()


def _encode_batch(batch: Batch, out: NDArray[Any], form: Form) -> Encoded:
    data, offsets = text_buffers(batch.texts)
    lengths = np.empty(len(out), np.int64)
    counts = form.encode(data, offsets, out, lengths)
    return Encoded(out, pack(data, offsets, lengths), lengths, counts)


class Arrays(NamedTuple):
    """The growing files of one split, in the order of _layout."""

    encoded: GrowingArray
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
        self.encoded.append(encoded.ids)


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
    out: Files | Store, name: str, dtype: DTypeLike, tail: tuple[int, ...], facts: Mapping[str, int]
) -> Iterator[GrowingArray]:
    with out.write(name, facts) as path, path.open("wb") as file:
        array = GrowingArray(file, dtype, tail)
        yield array
        array.finish()


def _facts(store: Store, split: str) -> dict[str, Any]:
    part = PARTS[store.manifest["config"]["tokenizer"]]
    facts: dict[str, Any] = store.manifest["files"][f"{split}.{part}.npy"]
    return facts


def _meta(store: Store, source: Source, known: Vocabulary, splits: Mapping[str, Split], form: Form) -> dict[str, Any]:
    config = store.manifest["config"]
    facts = {name: _facts(store, name) for name in splits}
    return {
        "u": config["words"],
        "v": config["letters"] or 1,
        "tokenizer": config["tokenizer"],
        "vocabulary": form.vocabulary,
        "labels": config["labels"],
        "label_names": known.names,
        "labels_sha256": known.sha256,
        "splits": {
            name: {key: fact[key] for key in ("rows", "labels", "labels_left_out", "leaks_dropped")}
            for name, fact in facts.items()
        },
        "max_claims": source.max_claims,
        "made_up": source.made_up,
        "source": source.config,
    }


def _summary(store: Store) -> dict[str, Any]:
    manifest, config = store.manifest, store.manifest["config"]
    facts = {split: _facts(store, split) for split in manifest["rows"]}
    total = {key: sum(fact[key] for fact in facts.values()) for key in ("rows", "labels_left_out", *Counts._fields)}
    lost = _share(total["materials_cut"], total["materials"])
    pieces = config["tokenizer"] == "wordpiece"
    dropped = {split: fact["leaks_dropped"] for split, fact in facts.items() if split != "train"}
    summary = {
        "out": str(store.folder),
        "rows": manifest["rows"],
        "leaks_dropped": dropped if config["drop_leaks"] else None,
        "labels": manifest["labels"],
        "labels_left_out": total["labels_left_out"],
        "vocabulary": manifest["vocabulary"] if pieces else None,
        "words_cut": lost if config["letters"] else None,
        "unknown_tokens": lost if pieces else None,
        "texts_cut": _share(total["rows_cut"], total["rows"]),
        "bytes": sum(record["size"] for record in manifest["files"].values()),
        "made_up": manifest["made_up"],
    }
    return {name: value for name, value in summary.items() if value is not None}


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
