"""Labels for new texts from a trained run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from ewe import models, progress, store
from ewe.batches import Meta, Split
from ewe.compute import Compute
from ewe.elements import encode
from ewe.errors import DataError, UsageError
from ewe.inputs import read_texts

BATCH_SIZE = 128
ROW_GROUP = 16_384  # rows of a row group in the predictions' Parquet

Encoded = Iterator[tuple[NDArray[np.uint8], list[str]]]  # ids (B, u, v) and the texts' names
Write = Callable[[list[str], list[list[str]], list[list[float]]], None]  # names, labels, probabilities


class Run:
    """A trained run, ready to predict; `load` opens one.

    Attributes:
        names: the L labels, in the order of the logits.
        threshold: of a predicted label's probability.
        model: in evaluation mode, its positions folded.
    """

    def __init__(self, folder: Path, compute: Compute) -> None:
        store.read_manifest(folder, "run")
        self.folder, self.compute = folder, compute
        self.config = store.read_json(folder / "config.json")
        self.labels = store.read_json(folder / "labels.json")
        self.names: list[str] = self.labels["names"]
        self.threshold: float = self.config["training"]["threshold"]
        self.u, self.v = self.config["shape"]["u"], self.config["shape"]["v"]
        with torch.device("meta"):  # draw no weights that are to be replaced
            self.model = models.build(self.config["model"], self.config["shape"])
        self.model.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
        self.model.embedding.fold()
        self.model.to(compute.device).eval()

    def check(self, tensors: Path, meta: Meta) -> None:
        """Raise DataError unless the tensors were encoded as this run's training tensors were."""
        for what, theirs, ours in (
            ("--words", meta.u, self.u),
            ("--letters", meta.v, self.v),
            ("--tokenizer", meta.tokenizer, self.config["tokenizer"]),
        ):
            if theirs != ours:
                raise DataError(f"{tensors} has {what} {theirs}, {self.folder} {ours}; encode with {what} {ours}.")

    def check_labels(self, tensors: Path, meta: Meta) -> None:
        """Raise DataError unless the tensors have this run's labels."""
        if meta.labels_sha256 != self.labels["sha256"]:
            raise DataError(
                f"{tensors} has other labels than {self.folder}; encode the dataset that it was trained on."
            )

    @torch.inference_mode()
    def logits(self, ids: Tensor | NDArray[np.uint8]) -> Tensor:
        """Logits float32 (B, L), on the run's device, from ids uint8 (B, u, v)."""
        with self.compute.autocast():
            z: Tensor = self.model(torch.as_tensor(ids).to(self.compute.device))
        return z.float()

    def predict(self, texts: Sequence[str], top_k: int | None = 5) -> list[dict[str, float]]:
        """The labels of each text with their probabilities, most probable first.

        Args:
            texts: the first claims of a patent joined by a space, as training's were (text.join_claims).
            top_k: how many; None for all above the run's threshold.
        """
        found: list[dict[str, float]] = []
        for start in range(0, len(texts), BATCH_SIZE):
            ids = encode(texts[start : start + BATCH_SIZE], self.u, self.v, self.config["tokenizer"])
            found += [dict(zip(names, p, strict=True)) for names, p in self.choose(self.logits(ids), top_k)]
        return found

    def choose(self, logits: Tensor, top_k: int | None) -> Iterator[tuple[list[str], list[float]]]:
        """Label names and probabilities of each row of logits (B, L), most probable first."""
        L = len(self.names)
        p, order = logits.sigmoid().sort(descending=True, stable=True)
        counts = [min(top_k, L)] * len(p) if top_k is not None else (p > self.threshold).sum(1).tolist()
        longest = max(counts, default=0)
        for count, values, indices in zip(counts, p[:, :longest].tolist(), order[:, :longest].tolist(), strict=True):
            yield [self.names[i] for i in indices[:count]], values[:count]


def load(run: Path | str, device: str = "auto", precision: str = "auto") -> Run:
    """Open a finished run for prediction; see Run."""
    return Run(Path(run), Compute.choose(device, precision))


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
            if len(waiting) * BATCH_SIZE >= ROW_GROUP:
                flush()

        yield write
        flush()


WRITERS = {".jsonl": _json_writer, ".parquet": _parquet_writer}


def predict_file(
    run: Path,
    source: Path,
    out: Path,
    top_k: int | None = None,
    split: str | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, Any]:
    """Predict the labels of every text of a file or folder, and write id, label_names and probabilities.

    Args:
        run: folder that train made.
        source: a tensors/ folder; a Parquet file, or a folder of some, with a column text or claims; JSON lines
            (.jsonl) with text or claims; any other file: a text a line; `-`: lines on standard input, JSON where
            the first starts with a brace. Claims are one string as published: cleaned, split, 20 joined.
        out: a .parquet or .jsonl file.
        top_k: the k most probable labels; None for those above the run's threshold.
        split: of a tensors/ folder; None for all but train, or for the only one.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.

    Returns:
        A summary: rows, labels a row.

    Raises:
        UsageError: `out` has another ending, or there is no such split.
        DataError: the source does not hold what it must.
    """
    if out.suffix not in WRITERS:
        raise UsageError(f"--out {out} must end in {' or '.join(WRITERS)}.")
    if top_k is not None and top_k < 1:
        raise UsageError(f"--top-k must be at least 1, not {top_k}.")
    opened = load(run, device, precision)
    is_tensors = (source / "meta.json").is_file()
    total, batches = _from_tensors(opened, source, split) if is_tensors else _from_texts(opened, source)
    rows = labels = 0
    with (
        store.publish(out) as path,
        WRITERS[out.suffix](path) as write,
        progress.bar("predict", total, "texts") as advance,
    ):
        for ids, numbers in batches:
            chosen = list(opened.choose(opened.logits(ids), top_k))
            write(numbers, [names for names, _ in chosen], [p for _, p in chosen])
            rows, labels = rows + len(numbers), labels + sum(len(names) for names, _ in chosen)
            advance(len(numbers))
    if rows and not labels:
        progress.warn(f"No label's probability is above {opened.threshold}; ask for the best ones with --top-k.")
    return {"out": str(out), "rows": rows, "labels_a_row": labels / max(rows, 1), "made_up": opened.config["made_up"]}


def _from_tensors(run: Run, folder: Path, split: str | None) -> tuple[int, Encoded]:
    meta = Meta.read(folder)
    run.check(folder, meta)
    names = [split] if split else [name for name in meta.splits if name != "train"] or list(meta.splits)
    splits = [Split.open(folder, name, meta) for name in names]

    def batches() -> Encoded:
        for each in splits:
            for start in range(0, len(each), BATCH_SIZE):
                chosen = slice(start, start + BATCH_SIZE)
                yield np.array(each.ids[chosen]), [number.decode() for number in each.numbers[chosen].tolist()]

    return sum(map(len, splits)), batches()


def _from_texts(run: Run, source: Path) -> tuple[int | None, Encoded]:
    total, texts = read_texts(source)

    def batches() -> Encoded:
        while chunk := list(islice(texts, BATCH_SIZE)):
            yield (
                encode([text for _, text in chunk], run.u, run.v, run.config["tokenizer"]),
                [name for name, _ in chunk],
            )

    return total, batches()
