"""Training BERT_EWE: this project, plain and fast, beside Hugging Face's Trainer, eager and compiled.

    python benchmarks/bench_train.py [--device cpu|cuda] [--batch 32 512] [--rounds 2] [--steps N] [--layers 12]
        [--width 768] [--rows 65536] [--compiled] [--pieces]

One architecture for all (u=128, v=16, L=1,328, dropout 0.1, AdamW at 2e-5 falling, no clipping; bf16 on a card, fp32 on
a CPU) and the same made-up rows. First both models are given the same weights, and their logits must be equal. Both
train without cuDNN's attention, whose dropout is no exact 0.1 (train.exact_attention).
    ours, plain     train.Training with train.Stepper
    ours, fast      the same with fast.Graphed; on a card alone
    Trainer         BertForSequenceClassification over nn.Embedding, dense targets; its rows come a batch at a time from
                    worker processes, pinned, so that no loader slows it down
    compiled        the same with torch_compile=True; on a CPU, where compiling takes minutes, with --compiled alone
    fast without X  on a card, with --pieces: what each piece of the fast path gains
Each runs its own whole loop, logging included. A case warms up, compiling and capturing included, then so many steps
are timed; cases go in turn, each anew in every round, and the best round counts. Rates are examples a second on a card
and examples a CPU second on a CPU, which neighbours on a busy machine do not change.

On a card `share of the limit` is the whole encoder's arithmetic over 790 TFLOP/s, measured on one H200 with large bf16
products; ours computes 7% less, as its last layer serves one material. The minutes of 1.91M rows and 10 epochs are
extrapolated from the timed steps, not measured. Compiling takes a minute a case: on a card give one --batch a call.
Prints one JSON document and writes it to benchmarks/results/train-DEVICE.json, or train-DEVICE-BATCH.json of one batch
alone, with -pieces behind it where they are asked for; each case tells its rate on standard error when it ends. Needs
no polars.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from result import keep
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from ewe import bert, fast, progress
from ewe.batches import Split
from ewe.compute import Compute
from ewe.config import TrainConfig
from ewe.fast import Graphed, Resident
from ewe.huggingface import without_tables
from ewe.train import Data, Stepper, Training, adamw, exact_attention

PEAK = 790e12  # FLOP/s in bf16
PAPER = {"rows": 1_910_000, "epochs": 10}
u, v, L = 128, 16, 1328
DEFAULTS = {
    "cuda": {"layers": 12, "width": 768, "batch": [32, 512], "steps": 0, "warm_up": 15, "rows": 65_536, "rounds": 2},
    "cpu": {"layers": 2, "width": 256, "batch": [8, 32], "steps": 4, "warm_up": 2, "rows": 256, "rounds": 2},
}


def made_up(rows: int, seed: int = 0) -> Split:
    """Random letters in full texts, as 20 joined claims are, and three labels a row on average."""
    random = np.random.default_rng(seed)
    ids = np.zeros((rows, u, v), np.uint8)
    ids[:, 1:-1] = random.integers(36, 240, (rows, u - 2, v), dtype=np.uint8)
    lengths = random.integers(1, v + 1, (rows, u - 2, 1))
    ids[:, 1:-1][np.arange(v) >= lengths] = 0
    ids[:, 0, 0], ids[:, -1, 0] = 1, 2
    counts = random.integers(1, 6, rows)
    labels = np.concatenate([np.sort(random.choice(L, count, replace=False)) for count in counts]).astype(np.uint16)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Split("train", ids, indptr, labels, np.array([b"US-%d" % row for row in range(rows)]))


def flops(layers: int, w: int) -> float:
    """Of one example's forward pass; training takes three times as many."""
    return u * layers * (24 * w * w + 4 * u * w) + 2 * w * (w + L)


# -- the peer ----------------------------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """The elementwise embedding as one writes it with nn.Embedding."""

    def __init__(self, w: int) -> None:
        super().__init__()
        self.elements = nn.Embedding(256, w // v, padding_idx=0)
        self.letters = nn.Parameter(0.02 * torch.randn(u, v, w // v))
        self.words = nn.Parameter(0.02 * torch.randn(u, w))

    def forward(self, ids: Tensor) -> Tensor:
        """(B, u, v) -> (B, u, w)."""
        return (self.elements(ids.int()) + self.letters).flatten(-2) + self.words


class Peer(nn.Module):
    """BERT_EWE of the library's own parts."""

    def __init__(self, layers: int, w: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=1,
            hidden_size=w,
            num_hidden_layers=layers,
            num_attention_heads=v,
            intermediate_size=4 * w,
            num_labels=L,
            problem_type="multi_label_classification",
        )
        self.embedding = Embedding(w)
        self.parent = without_tables(BertForSequenceClassification(config))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        """Loss and logits."""
        return self.parent(
            inputs_embeds=self.embedding(input_ids), attention_mask=input_ids[..., 0] != 0, labels=labels
        )


class Dense(torch.utils.data.Dataset):
    """The split's rows with dense targets, a whole batch at a time."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, rows: list[int]) -> dict[str, Tensor]:
        batch = self.split.batch(np.array(rows))
        labels = torch.zeros(len(rows), L)
        labels[batch.rows, batch.columns] = 1
        return {"input_ids": batch.ids, "labels": labels}


# -- the cases ---------------------------------------------------------------------------------------------------------


class Enough(Exception):  # noqa: N818
    """All steps that are timed have run."""


class Watch:
    """Seconds that the steps after the warm-up take."""

    def __init__(self, device: torch.device, warm_up: int, steps: int) -> None:
        self.device, self.first, self.last = device, warm_up, warm_up + steps
        self.seconds = 0.0

    def begin(self, step: int) -> bool:
        """Called before each step; True when all have been timed."""
        if step in (self.first, self.last):
            self.seconds = clock(self.device) - self.seconds
        return step == self.last


def clock(device: torch.device) -> float:
    """Seconds on the wall when all work of a card is done; CPU seconds without one."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Timed:
    """A stepper under a watch."""

    def __init__(self, stepper: Stepper | Graphed, watch: Watch) -> None:
        self.stepper, self.watch, self.step = stepper, watch, 0
        self.model, self.compute, self.optimizer, self.scaler = (
            getattr(stepper, name) for name in ("model", "compute", "optimizer", "scaler")
        )

    def __call__(self, rows: np.ndarray, learning_rate: float) -> Tensor:
        """One step."""
        if self.watch.begin(self.step):
            raise Enough
        self.step += 1
        return self.stepper(rows, learning_rate)


def leave_out(stepper: Graphed, piece: str) -> None:
    """Take a piece from the fast path."""
    match piece:
        case "graph":
            stepper.on_card = False
        case "compiling":
            stepper._loss = fast._loss
        case "narrowing":
            stepper.narrow, stepper.pairs = stepper.model, []


def ours(
    sizes: dict[str, Any], compute: Compute, split: Split, watch: Watch, *, plain: bool = False, without: str = ""
) -> None:
    """This project's training."""
    torch.manual_seed(0)
    w = sizes["width"]
    model = bert.EweBert(bert.BertConfig(u, v, w // v, sizes["layers"], v, 4 * w, L)).to(compute.device)
    steps = watch.last + 1
    epochs = -(-steps * sizes["batch"] // len(split))
    config = TrainConfig(
        batch_size=sizes["batch"], epochs=epochs, width=w, layers=sizes["layers"], checkpoint_every=10**9
    )
    if plain:
        stepper = Stepper(model, config, compute, split)
    else:
        stepper = Graphed(
            model, adamw(model, config, graphed=True), config, compute, Resident(split, L, compute.device)
        )
        leave_out(stepper, without)
    rows = np.arange(len(split))
    with tempfile.TemporaryDirectory() as folder:
        timed = Timed(stepper, watch)
        data = Data([str(n) for n in range(L)], split, rows, rows[:0])
        try:
            with exact_attention():
                Training(Path(folder), config, data, timed).go()
        except Enough:
            assert plain or compute.device.type != "cuda" or without == "graph" or stepper._graph is not None
            return
    raise AssertionError("too few rows")


def trainer(sizes: dict[str, Any], compute: Compute, split: Split, watch: Watch, *, compiled: bool) -> None:
    """Hugging Face's."""

    class Quiet(Trainer):
        """Without the gradient's norm, which it would compute and log although nothing is clipped."""

        def _get_grad_norm(self, *_: Any, **__: Any) -> None:
            return None

    class Stop(TrainerCallback):
        def on_step_begin(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            control.should_training_stop = watch.begin(state.global_step)

    torch.manual_seed(0)
    card = compute.device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=watch.last + 1,
            per_device_train_batch_size=sizes["batch"],
            learning_rate=2e-5,
            weight_decay=0.01,
            max_grad_norm=0,
            bf16=compute.precision == "bf16",
            use_cpu=not card,
            torch_compile=compiled,
            dataloader_num_workers=min(8, os.cpu_count() or 1) if card else 0,
            dataloader_pin_memory=card,
            remove_unused_columns=False,
            report_to="none",
            logging_strategy="no",
            logging_nan_inf_filter=False,  # it would wait for the card at every step
            accelerator_config={"non_blocking": True},
            save_strategy="no",
            disable_tqdm=True,
        )
        peer = Peer(sizes["layers"], sizes["width"])
        theirs = Quiet(peer, arguments, lambda batch: batch, Dense(split), callbacks=[Stop()])
        theirs.remove_callback(PrinterCallback)  # it would print into the document
        with exact_attention():
            theirs.train()


def cases(compute: Compute, *, compiled: bool, pieces: bool) -> dict[str, Callable[..., None]]:
    """What is compared."""
    found: dict[str, Callable[..., None]] = {"ours, plain": lambda *a: ours(*a, plain=True)}
    if compute.device.type == "cuda":
        found["ours, fast"] = ours
        for piece in ("graph", "compiling", "narrowing") if pieces else ():
            found[f"fast without {piece}"] = partial(ours, without=piece)
    found["Trainer"] = lambda *a: trainer(*a, compiled=False)
    if compiled:
        found["Trainer, compiled"] = lambda *a: trainer(*a, compiled=True)
    return found


def measure(sizes: dict[str, Any], compute: Compute, split: Split, **which: bool) -> dict[str, Any]:
    """All cases at one batch size."""
    works = cases(compute, **which)
    rates: dict[str, list[float]] = {name: [] for name in works}
    needed: dict[str, int] = {}
    sizes = sizes | {"steps": sizes["steps"] or max(60, 19_200 // sizes["batch"])}  # some seconds of a card
    card = compute.device.type == "cuda"
    for _ in range(sizes["rounds"]):
        for name, work in works.items():
            watch = Watch(compute.device, sizes["warm_up"], sizes["steps"])
            if card:
                torch.cuda.reset_peak_memory_stats()
            work(sizes, compute, split, watch)
            rates[name].append(sizes["steps"] * sizes["batch"] / watch.seconds)
            print(f"batch {sizes['batch']}, {name}: {rates[name][-1]:,.1f} examples/s", file=sys.stderr, flush=True)
            needed[name] = round(torch.cuda.max_memory_allocated() / 1e6) if card else 0
            torch.compiler.reset()
            gc.collect()
            if card:
                torch.cuda.empty_cache()
    best = {name: max(each) for name, each in rates.items()}
    mine = max(rate for name, rate in best.items() if name.startswith("ours"))
    found: dict[str, Any] = {
        "steps": sizes["steps"],
        "examples a second" if card else "examples a CPU second": {name: round(rate, 1) for name, rate in best.items()},
        "all rounds": {name: [round(rate, 1) for rate in each] for name, each in rates.items()},
        **{f"speed over {name}": round(mine / rate, 2) for name, rate in best.items() if not name.startswith("ours")},
    }
    if card:
        limit = PEAK / (3 * flops(sizes["layers"], sizes["width"]))
        examples = PAPER["rows"] * PAPER["epochs"]
        found |= {
            "peak MB": needed,
            "share of the limit": {name: round(rate / limit, 3) for name, rate in best.items()},
            "extrapolated minutes of 1.91M rows x 10 epochs": {
                **{name: round(examples / rate / 60, 1) for name, rate in best.items()},
                "limit": round(examples / limit / 60, 1),
            },
        }
    return found


def lend(model: bert.EweBert, peer: Peer) -> None:
    """Give the peer the model's weights."""
    base = peer.parent.bert
    same: dict[Any, Any] = {
        base.embeddings.LayerNorm: model.norm,
        base.pooler.dense: model.pooler,
        peer.parent.classifier: model.head,
    }
    for theirs, mine in zip(base.encoder.layer, model.encoder.layers, strict=True):
        same |= {
            theirs.attention.output.dense: mine.attention.out,
            theirs.attention.output.LayerNorm: mine.norm1,
            theirs.intermediate.dense: mine.up,
            theirs.output.dense: mine.down,
            theirs.output.LayerNorm: mine.norm2,
        }
        at = theirs.attention.self
        for name in ("weight", "bias"):
            for linear, part in zip(
                (at.query, at.key, at.value), getattr(mine.attention.qkv, name).chunk(3), strict=True
            ):
                getattr(linear, name).data.copy_(part)
    for theirs, mine in same.items():
        theirs.load_state_dict(mine.state_dict())
    tables = (peer.embedding.elements.weight, peer.embedding.letters, peer.embedding.words)
    for table, mine in zip(tables, model.embedding.parameters(), strict=True):
        table.data.copy_(mine.view_as(table))


@torch.inference_mode()
def check(sizes: dict[str, Any], split: Split) -> int:
    """That both are one function of as many parameters; returns how many."""
    w = sizes["width"]
    mine = bert.EweBert(bert.BertConfig(u, v, w // v, sizes["layers"], v, 4 * w, L)).eval()
    peer = Peer(sizes["layers"], w).eval()
    counts = [sum(p.numel() for p in model.parameters()) for model in (mine, peer)]
    assert counts[0] == counts[1], counts
    lend(mine, peer)
    ids = split.batch(np.arange(2)).ids
    torch.testing.assert_close(peer(ids).logits, mine(ids), rtol=1e-4, atol=1e-5)
    return counts[0]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--batch", type=int, nargs="+")
    for name in ("layers", "width", "steps", "warm-up", "rows", "rounds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--compiled", action="store_true", help="on a CPU too, where compiling takes minutes")
    parser.add_argument("--pieces", action="store_true", help="on a card, the fast path without each of its pieces too")
    options = parser.parse_args()
    compute = Compute.choose(options.device)
    defaults = DEFAULTS[compute.device.type]
    sizes = defaults | {name: getattr(options, name) for name in defaults if getattr(options, name) is not None}
    progress.set_quiet(True)
    which = {"compiled": options.compiled or compute.device.type == "cuda", "pieces": options.pieces}
    split = made_up(sizes["rows"])
    result = {
        "compute": str(compute),
        "compiled": compute.device.type == "cuda" and fast.compiles(compute.device),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
        "sizes": {**sizes, "u": u, "v": v, "labels": L, "parameters": check(sizes, split)},
        "GFLOP of an example's step": round(3 * flops(sizes["layers"], sizes["width"]) / 1e9, 2),
        "by batch": {str(b): measure(sizes | {"batch": b}, compute, split, **which) for b in sizes["batch"]},
    }
    one = [f"-{b}" for b in sizes["batch"] if options.batch and len(options.batch) == 1]
    pieces = ["-pieces"] if options.pieces else []
    keep(
        "".join([f"train-{compute.device.type}", *one, *pieces]), result, "torch", "transformers", "accelerate", "numpy"
    )


if __name__ == "__main__":
    main()
