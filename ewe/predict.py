"""Labels for new texts from a trained run: a file of them, made part by part, so that a killed one goes on.

On a card, the host names a batch's labels while the card computes the next one's, and where many texts are to be
read, BERT is compiled for batches of one size, to which the last is padded.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ewe import progress, store
from ewe.batches import Meta, Split
from ewe.errors import DataError, UsageError
from ewe.inputs import STDIN, read_texts, sha256_texts
from ewe.run import Run, check_top_k, load

MAX_CLAIMS = 20  # where the run's texts did not come from claims
PART = 16_384  # texts that a killed run does again at most; rows of a row group in the predictions' Parquet

Encoded = Iterator[tuple[Tensor | NDArray[Any], list[str]]]  # ids as the model reads them, and the texts' names
Item = TypeVar("Item")
Write = Callable[[list[str], list[list[str]], list[list[float]]], None]  # names, labels, probabilities


def predict_file(
    run: Path,
    source: Path,
    out: Path,
    *,
    top_k: int | None = None,
    split: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    threshold: str | float | None = None,
) -> dict[str, Any]:
    """Predict the labels of every text of a file or folder, and write id, label_names and probabilities.

    The same call again goes on where a killed one stopped, but for standard input.

    Args:
        run: folder that train made.
        source: a tensors/ folder; a Parquet file, or a folder of some, with a column text or claims; JSON lines
            (.jsonl) with text or claims; any other file but a .csv or .tsv: a text a line; `-`: lines on standard
            input, JSON where the first starts with a brace. Claims are one string as published: cleaned, split, 20
            joined.
        out: a .parquet or .jsonl file.
        top_k: the k most probable labels; None for those that the threshold lets through.
        split: of a tensors/ folder; None for all but train, or for the only one.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.
        threshold: see `load`.

    Returns:
        A summary: rows, labels a row.

    Raises:
        UsageError: `out` has another ending, is the source, or lies in the run or in a folder that is or holds the
            source; there is no such split, or a split of texts is asked for; or both top_k and threshold are given.
        DataError: the source does not hold what it must.
    """
    if out.suffix not in FORMATS:
        raise UsageError(f"--out {out} must end in {' or '.join(FORMATS)}.")
    check_top_k(top_k)
    if top_k is not None and threshold is not None:
        raise UsageError("--top-k takes the best labels whatever their --threshold; give one of the two.")
    _refuse_overwriting(run, source, out)
    is_tensors = (source / "meta.json").is_file()
    if split is not None and not is_tensors:
        raise UsageError(f"--split belongs to tensors, which {source} is not; leave it out or name a tensors folder.")
    opened = load(run, device, precision, threshold=threshold)
    texts = _from_tensors(opened, source, split) if is_tensors else _from_texts(opened, source)
    config = {**opened.identity(), "top_k": top_k, "source": texts.sha256}
    folder = out.with_name(f".{out.name}.parts")
    with store.Store(folder, "predictions", config, replaces=True) as parts:
        if done := _rows_done(parts, out.suffix):
            progress.say(f"{out}: going on after {done:,} texts.")
        opened.expect((texts.total or 0) - done)
        try:
            with progress.bar("predict", texts.total, "texts", done=done) as advance:
                _write_parts(parts, out.suffix, opened, texts.batches(done), top_k, advance)
        except BaseException as error:
            if source == STDIN or isinstance(error, DataError):  # nothing could go on from here
                parts.discard()
            raise
        files = parts.manifest["files"]
        with store.publish(out) as path:
            FORMATS[out.suffix].join([folder / name for name in sorted(files)], path)
        rows, labels = (sum(record[what] for record in files.values()) for what in ("rows", "labels"))
        parts.discard()
    if rows and not labels:
        progress.warn("No label's probability is above its threshold; ask for the best ones with --top-k.")
    return {"out": str(out), "rows": rows, "labels_a_row": labels / max(rows, 1), "made_up": opened.config["made_up"]}


def _part(number: int, suffix: str) -> str:
    return f"{number:06d}{suffix}"


def _rows_done(parts: store.Store, suffix: str) -> int:
    """Of the parts before the first one that is not there; what is after it is forgotten."""
    names = (_part(number, suffix) for number in itertools.count())
    whole = set(itertools.takewhile(parts.has, names))
    for name in set(parts.manifest["files"]) - whole:
        parts.forget(name)
    return sum(map(parts.rows, whole))


def _write_parts(
    parts: store.Store, suffix: str, run: Run, batches: Encoded, top_k: int | None, advance: Callable[[int], None]
) -> None:
    """Predict what is left, PART texts a file or, where splits meet, some fewer."""
    predicted = _one_ahead((numbers, run.begin(run.logits(ids), top_k)) for ids, numbers in batches)
    files, per_part = parts.manifest["files"], PART // run.batch_size
    while not any(record["last"] for record in files.values()):
        facts = {"rows": 0, "labels": 0, "last": True}
        with parts.write(_part(len(files), suffix), facts) as path, FORMATS[suffix].write(path) as write:
            for number, (numbers, chosen_rows) in enumerate(itertools.islice(predicted, per_part), 1):
                chosen = list(chosen_rows())
                write(numbers, [names for names, _ in chosen], [p for _, p in chosen])
                facts["rows"] += len(numbers)
                facts["labels"] += sum(len(names) for names, _ in chosen)
                facts["last"] = number < per_part
                advance(len(numbers))


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items, each when the next has been made."""
    held = list(itertools.islice(items, 1))
    for item in items:
        yield held.pop()
        held.append(item)
    yield from held


# -- what is read ------------------------------------------------------------------------------------------------------


class Texts(NamedTuple):
    """What is to be predicted."""

    total: int | None
    """None where nobody knows"""
    sha256: str
    batches: Callable[[int], Encoded]
    """all but the first so many texts, which a killed run has done"""


def _from_tensors(run: Run, folder: Path, split: str | None) -> Texts:
    meta = Meta.read(folder)
    run.check(folder, meta)
    names = [split] if split else [name for name in meta.splits if name != "train"] or list(meta.splits)
    splits = [Split.open(folder, name, meta, run.reads) for name in names]

    def batches(done: int) -> Encoded:
        for each in splits:
            for start in range(min(done, len(each)), len(each), run.batch_size):
                rows = np.arange(start, min(start + run.batch_size, len(each)))
                yield each.batch(rows).ids, [number.decode() for number in each.numbers[rows].tolist()]
            done = max(done - len(each), 0)

    return Texts(sum(map(len, splits)), store.sha256_json([meta.content_sha256(name) for name in names]), batches)


def _from_texts(run: Run, source: Path) -> Texts:
    total, texts = read_texts(source, run.input["max_claims"] or MAX_CLAIMS)

    def batches(done: int) -> Encoded:
        left = itertools.islice(texts, done, None)
        while chunk := list(itertools.islice(left, run.batch_size)):
            yield run.encode([text for _, text in chunk]), [name for name, _ in chunk]

    return Texts(total, sha256_texts(source), batches)


def _refuse_overwriting(run: Path, source: Path, out: Path) -> None:
    """UsageError where `out` would replace the input, be read as input the next time, or break what a command made."""
    store.refuse_inside(out, run)
    if source == STDIN:
        return
    if out.exists() and source.exists() and out.samefile(source):
        raise UsageError(f"--out {out} is the input itself; name another file.")
    if out.suffix == ".parquet" and out.resolve().parent == source.resolve():  # of a folder every Parquet is read
        raise UsageError(f"--out {out} lies in the input {source}; name a file beside it.")
    for folder in (source, *source.resolve().parents[:2]):  # a dataset's files lie in relabeled/
        if _is_made(folder):
            store.refuse_inside(out, folder)


def _is_made(folder: Path) -> bool:
    """Whether one of the commands made a folder; another program's manifest.json counts for nothing."""
    try:
        return store.kind_of(folder) is not None
    except (DataError, OSError):
        return False


# -- what is written ---------------------------------------------------------------------------------------------------


@contextmanager
def _json_writer(path: Path) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="\n") as file:

        def write(ids: list[str], names: list[list[str]], probabilities: list[list[float]]) -> None:
            for each, labels, values in zip(ids, names, probabilities, strict=True):
                record = {"id": each, "label_names": labels, "probabilities": [round(p, 6) for p in values]}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

        yield write


def _join_json(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, file)


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels, values = pa.list_(pa.string()), pa.list_(pa.float32())
    schema = pa.schema([("id", pa.string()), ("label_names", labels), ("probabilities", values)])
    batches: list[pa.RecordBatch] = []
    yield lambda *columns: batches.append(pa.record_batch(list(columns), schema))
    pq.write_table(pa.Table.from_batches(batches, schema), path, compression="zstd")


def _join_parquet(parts: Sequence[Path], path: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, pq.read_schema(parts[0]), compression="zstd") as file:
        for part in parts:
            table = pq.read_table(part)
            if table.num_rows or len(parts) == 1:
                file.write_table(table)


class Format(NamedTuple):
    """A kind of file of predictions."""

    write: Callable[[Path], AbstractContextManager[Write]]
    join: Callable[[Sequence[Path], Path], None]
    """parts into one"""


FORMATS = {".jsonl": Format(_json_writer, _join_json), ".parquet": Format(_parquet_writer, _join_parquet)}
