"""A trained run, opened: its model, its labels, and what makes ids of new texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import pad

from ewe import fast, models, rule, store, words
from ewe.batches import Meta
from ewe.bert import Bert
from ewe.compute import Compute
from ewe.elements import encode
from ewe.embedding import ElementwiseEmbedding
from ewe.errors import DataError, UsageError
from ewe.tokens import VOCABULARY_FILE, WordPiece, codepoints

BATCH_SIZE = 128
ON_CARD = 512  # texts at a time on a card
MANY = 2_000_000  # texts whose time compiling pays for, on a card: an estimate (benchmarks/README.md)

Chosen = Iterator[tuple[list[str], list[float]]]  # of each row label names and probabilities, most probable first


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
        manifest = store.read_manifest(folder, "run")
        self.folder, self.compute, self.sha256 = folder, compute, manifest["manifest_sha256"]
        self.config = store.read_recorded(folder, manifest, "config.json")
        self.labels = store.read_recorded(folder, manifest, "labels.json")
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

    def identity(self) -> dict[str, str]:
        """What decides its predictions, as JSON values."""
        thresholds = store.sha256_json(self.rule.thresholds.tolist())
        return {"run": self.sha256, "rule": self.rule.name, "thresholds": thresholds, "compute": str(self.compute)}

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
            pieces = WordPiece.load(self.folder / VOCABULARY_FILE)
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
        check_top_k(top_k)
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
        theirs, ours = (WordPiece.load(folder / VOCABULARY_FILE).to_json() for folder in (tensors, run))
        if theirs != ours:
            return f"{tensors} has another vocabulary than {run}; encode with --vocabulary {run / VOCABULARY_FILE}."
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


def check_top_k(top_k: int | None) -> None:
    """Raise UsageError unless it is None or at least 1."""
    if top_k is not None and top_k < 1:
        raise UsageError(f"--top-k must be at least 1, not {top_k}.")
