"""Labels for new texts from a trained run.

On a card, the host names a batch's labels while the card computes the next one's, and where many texts are to be
read, BERT is compiled for batches of one size, to which the last is padded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import pad

from ewe import fast, models, progress, rule, store, words
from ewe.batches import Meta, Split
from ewe.bert import Bert
from ewe.compute import Compute
from ewe.elements import encode
from ewe.embedding import ElementwiseEmbedding
from ewe.errors import DataError, UsageError
from ewe.inputs import STDIN, read_texts
from ewe.tokens import WordPiece, codepoints

BATCH_SIZE = 128
ON_CARD = 512  # texts at a time on a card
MANY = 2_000_000  # texts whose time compiling pays for, on a card: an estimate (benchmarks/README.md)
MAX_CLAIMS = 20  # where the run's texts did not come from claims
ROW_GROUP = 16_384  # rows of a row group in the predictions' Parquet
VOCABULARY = "tokenizer.json"  # of WordPiece, in tensors and run

Chosen = Iterator[tuple[list[str], list[float]]]  # of each row label names and probabilities, most probable first
Encoded = Iterator[tuple[Tensor | NDArray[Any], list[str]]]  # ids as the model reads them, and the texts' names
Item = TypeVar("Item")
Write = Callable[[list[str], list[list[str]], list[list[float]]], None]  # names, labels, probabilities


class Run:
    """A trained run, ready to predict; `load` opens one.

    Attributes:
        names: the L labels, in the order of the logits.
        threshold: the run's own, of a predicted label's probability.
        rule: which labels are predicted, from logits (B, L).
        model: in evaluation mode, its positions folded.
        encode: texts -> ids as the model reads them.
    """

    def __init__(self, folder: Path, compute: Compute, threshold: str | float | None = None) -> None:
        store.read_manifest(folder, "run")
        self.folder, self.compute = folder, compute
        self.config = store.read_json(folder / "config.json")
        self.labels = store.read_json(folder / "labels.json")
        self.names: list[str] = self.labels["names"]
        self.threshold: float = self.config["training"]["threshold"]
        wanted = self.threshold if threshold is None else threshold
        self.rule = rule.choose(folder, self.names, wanted).to(compute.device)
        self.input = self.config["input"]
        self.reads = models.find(self.config["model"]).network().reads
        with torch.device("meta"):  # draw no weights that are to be replaced
            self.model = models.build(self.config["model"], self.config["shape"])
        self.model.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
        for module in self.model.modules():
            if isinstance(module, ElementwiseEmbedding):
                module.fold()
        self.model.to(compute.device).eval()
        self.encode = self._encoder()
        self.batch_size = ON_CARD if compute.device.type == "cuda" else BATCH_SIZE
        self.one_size = False  # whether `logits` pads every batch to batch_size
        self._forward: Any = self.model

    def expect(self, texts: int) -> None:
        """Make ready for so many texts: on a card, many are worth compiling BERT for batches of one size."""
        if (
            self.compute.device.type == "cuda"
            and texts >= MANY
            and isinstance(self.model, Bert)
            and fast.compiles(self.compute.device)
        ):
            self._forward, self.one_size = torch.compile(self.model, dynamic=False), True

    def check(self, tensors: Path, meta: Meta) -> None:
        """Raise DataError unless the tensors were encoded as this run's training tensors were."""
        if why := misfit(self.folder, self.config, tensors, meta):
            raise DataError(why)

    def check_labels(self, tensors: Path, meta: Meta) -> None:
        """Raise DataError unless the tensors have this run's labels."""
        check_labels(self.folder, self.labels, tensors, meta)

    def _encoder(self) -> Callable[[Sequence[str]], NDArray[Any]]:
        """What makes ids of new texts, as encode made those of the tensors."""
        u, v, tokenizer = self.input["u"], self.input["v"], self.input["tokenizer"]
        if self.reads == "words":
            return words.encode
        if tokenizer == "wordpiece":
            pieces = WordPiece.load(self.folder / VOCABULARY)
            return lambda texts: pieces.encode(texts, u).astype(np.int64)
        if tokenizer == "codepoints":
            return lambda texts: codepoints(texts, u).astype(np.int64)
        return partial(encode, u=u, v=v, tokenizer=tokenizer)

    @torch.inference_mode()
    def logits(self, ids: Tensor | NDArray[Any]) -> Tensor:
        """Logits float32 (B, L), on the run's device, from ids as the model reads them."""
        x = torch.as_tensor(ids)
        B = len(x)
        if self.one_size and (short := self.batch_size - B) > 0:
            x = pad(x, (0, 0) * (x.ndim - 1) + (0, short))
        if self.compute.device.type == "cuda" and not x.is_cuda:
            x = x.pin_memory()
        with self.compute.autocast():
            z: Tensor = self._forward(x.to(self.compute.device, non_blocking=True))
        return z[:B].float()

    def predict(self, texts: Sequence[str], top_k: int | None = 5) -> list[dict[str, float]]:
        """The labels of each text with their probabilities, most probable first.

        Args:
            texts: the first claims of a patent joined by a space, as training's were (text.join_claims).
            top_k: how many; None for those that the run's rule predicts.

        Raises:
            UsageError: top_k is less than 1.
        """
        _check_top_k(top_k)
        found: list[dict[str, float]] = []
        for start in range(0, len(texts), self.batch_size):
            z = self.logits(self.encode(texts[start : start + self.batch_size]))
            found += [dict(zip(names, p, strict=True)) for names, p in self.choose(z, top_k)]
        return found

    def choose(self, logits: Tensor, top_k: int | None) -> Chosen:
        """Label names and probabilities of each row of logits (B, L), most probable first."""
        return self.begin(logits, top_k)()

    def begin(self, logits: Tensor, top_k: int | None) -> Callable[[], Chosen]:
        """As `choose`, but the device's part alone; what is returned waits for it and gives the rows."""
        if top_k is not None:
            counts = torch.full((len(logits),), min(top_k, len(self.names)))
        else:
            predicted = self.rule(logits)
            counts = predicted.sum(1)
            logits = logits.where(predicted, -math.inf)
        # ranked by logits, which differ where probabilities are all 1.0
        z, order = (t[:, :top_k] for t in logits.sort(descending=True, stable=True))
        counts, p, order = (t.to("cpu", non_blocking=True) for t in (counts[:, None], z.sigmoid(), order))
        done = torch.cuda.Event() if logits.is_cuda else None  # type: ignore[no-untyped-call]
        if done:
            done.record()

        def rows() -> Chosen:
            if done:
                done.synchronize()
            longest = int(counts.max()) if len(counts) else 0
            values, indices = p[:, :longest].tolist(), order[:, :longest].tolist()
            for count, row, columns in zip(counts[:, 0].tolist(), values, indices, strict=True):
                yield [self.names[i] for i in columns[:count]], row[:count]

        return rows


def misfit(run: Path, config: Mapping[str, Any], tensors: Path, meta: Meta) -> str:
    """In one sentence, why the tensors were not encoded as a run's training tensors were; "" where they were.

    Args:
        run: folder that train made.
        config: the content of its config.json.
        tensors: folder that encode made.
        meta: of the tensors.

    Raises:
        DataError: a tokenizer.json is missing or broken.
    """
    if not models.find(config["model"]).tokenizers:  # it reads words, which every folder has, however it was encoded
        return ""
    own = config["input"]
    for what, theirs, ours in (
        ("--tokenizer", meta.tokenizer, own["tokenizer"]),
        ("--words", meta.u, own["u"]),
        ("--letters", meta.v, own["v"]),
    ):
        if theirs != ours:
            return f"{tensors} has {what} {theirs}, {run} {ours}; encode with {what} {ours}."
    if meta.tokenizer == "wordpiece":
        # opened, as one vocabulary may be written in several ways: by another release of tokenizers, say
        theirs, ours = (WordPiece.load(folder / VOCABULARY).to_json() for folder in (tensors, run))
        if theirs != ours:
            return f"{tensors} has another vocabulary than {run}; encode with --vocabulary {run / VOCABULARY}."
    return ""


def check_labels(run: Path, labels: Mapping[str, Any], tensors: Path, meta: Meta) -> None:
    """Raise DataError unless the tensors have a run's labels, the content of its labels.json."""
    if meta.labels_sha256 != labels["sha256"]:
        raise DataError(f"{tensors} has other labels than {run}; encode the dataset that it was trained on.")


def load(
    run: Path | str, device: str = "auto", precision: str = "auto", *, threshold: str | float | None = None
) -> Run:
    """Open a finished run for prediction; see Run.

    Args:
        run: folder that train made.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.
        threshold: of a predicted label's probability, or a rule that `ewe tune` found: global, labels or first;
            None for the run's own.
    """
    return Run(Path(run), Compute.choose(device, precision), threshold)


def _check_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise UsageError(f"--top-k must be at least 1, not {top_k}.")


@contextmanager
def _json_writer(path: Path) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="\n") as file:

        def write(ids: list[str], names: list[list[str]], probabilities: list[list[float]]) -> None:
            for each, labels, values in zip(ids, names, probabilities, strict=True):
                record = {"id": each, "label_names": labels, "probabilities": [round(p, 6) for p in values]}
                file.write(json.dumps(record) + "\n")

        yield write


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels, values = pa.list_(pa.string()), pa.list_(pa.float32())
    schema = pa.schema([("id", pa.string()), ("label_names", labels), ("probabilities", values)])
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(path, schema, compression="zstd") as file:

        def flush() -> None:
            file.write_table(pa.Table.from_batches(waiting, schema))
            waiting.clear()

        def write(ids: list[str], names: list[list[str]], probabilities: list[list[float]]) -> None:
            waiting.append(pa.record_batch([ids, names, probabilities], schema))
            if sum(map(len, waiting)) >= ROW_GROUP:
                flush()

        yield write
        flush()


WRITERS = {".jsonl": _json_writer, ".parquet": _parquet_writer}


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

    Args:
        run: folder that train made.
        source: a tensors/ folder; a Parquet file, or a folder of some, with a column text or claims; JSON lines
            (.jsonl) with text or claims; any other file: a text a line; `-`: lines on standard input, JSON where
            the first starts with a brace. Claims are one string as published: cleaned, split, 20 joined.
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
    if out.suffix not in WRITERS:
        raise UsageError(f"--out {out} must end in {' or '.join(WRITERS)}.")
    _check_top_k(top_k)
    if top_k is not None and threshold is not None:
        raise UsageError("--top-k takes the best labels whatever their --threshold; give one of the two.")
    _refuse_overwriting(run, source, out)
    is_tensors = (source / "meta.json").is_file()
    if split is not None and not is_tensors:
        raise UsageError(f"--split belongs to tensors, which {source} is not; leave it out or name a tensors folder.")
    opened = load(run, device, precision, threshold=threshold)
    total, batches = _from_tensors(opened, source, split) if is_tensors else _from_texts(opened, source)
    opened.expect(total or 0)
    rows = labels = 0
    with (
        store.publish(out) as path,
        WRITERS[out.suffix](path) as write,
        progress.bar("predict", total, "texts") as advance,
    ):
        for numbers, chosen_rows in _one_ahead((n, opened.begin(opened.logits(ids), top_k)) for ids, n in batches):
            chosen = list(chosen_rows())
            write(numbers, [names for names, _ in chosen], [p for _, p in chosen])
            rows, labels = rows + len(numbers), labels + sum(len(names) for names, _ in chosen)
            advance(len(numbers))
    if rows and not labels:
        progress.warn("No label's probability is above its threshold; ask for the best ones with --top-k.")
    return {"out": str(out), "rows": rows, "labels_a_row": labels / max(rows, 1), "made_up": opened.config["made_up"]}


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


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items, each when the next has been made."""
    held = list(islice(items, 1))
    for item in items:
        yield held.pop()
        held.append(item)
    yield from held


def _from_tensors(run: Run, folder: Path, split: str | None) -> tuple[int, Encoded]:
    meta = Meta.read(folder)
    run.check(folder, meta)
    names = [split] if split else [name for name in meta.splits if name != "train"] or list(meta.splits)
    splits = [Split.open(folder, name, meta, run.reads) for name in names]

    def batches() -> Encoded:
        for each in splits:
            for start in range(0, len(each), run.batch_size):
                rows = np.arange(start, min(start + run.batch_size, len(each)))
                yield each.batch(rows).ids, [number.decode() for number in each.numbers[rows].tolist()]

    return sum(map(len, splits)), batches()


def _from_texts(run: Run, source: Path) -> tuple[int | None, Encoded]:
    total, texts = read_texts(source, run.input["max_claims"] or MAX_CLAIMS)

    def batches() -> Encoded:
        while chunk := list(islice(texts, run.batch_size)):
            yield run.encode([text for _, text in chunk]), [name for name, _ in chunk]

    return total, batches()
