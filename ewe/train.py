"""Training: one configuration, one loop, one step; interrupted anywhere, it goes on as if it had not been.

The learning rate and the rows of a step are functions of the step, so a checkpoint is the weights, the
optimizer's moments, the loss scaler and torch's random state. The loop knows only `stepper(rows, learning_rate)`:
`Stepper` is the plain path, readable, on any device and in any number of processes; `fast.Graphed` is the same step
as one CUDA graph.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ewe import __version__, checkpoint, fast, journal, models, progress
from ewe.batches import Meta, Plan, Split, held_out
from ewe.compute import Compute
from ewe.config import TrainConfig, configure
from ewe.distributed import ALONE, World
from ewe.errors import DataError, EweError, IncompleteError
from ewe.fast import Graphed, Resident
from ewe.metrics import count, cross_entropy
from ewe.store import Store, publish_json, refuse_inside
from ewe.tokens import VOCABULARY_FILE

LOG_EVERY = 10  # steps: how often losses leave the device, are looked at and written
CHECKPOINT_SECONDS = 600  # between checkpoints, unless steps are given
REPORTS = 20  # how often at most a run says how it does, held-out rows included: at the ends of epochs


def train_model(tensors: Path, out: Path, *, preset: str = "paper", **choices: Any) -> dict[str, Any]:
    """Train on the split named train of a tensors/ folder; the same call again resumes.

    Args:
        tensors: folder that encode made; of its splits only train is opened.
        out: the run's folder.
        preset: a key of ewe.config.PRESETS.
        choices: fields of TrainConfig that take the place of the preset's.

    Returns:
        A summary of the run; nothing in processes beside the first, which are quiet.

    Raises:
        UsageError: the configuration cannot be, or `out` lies in the tensors.
        DataError: the tensors hold nothing to learn, or `out` was made with another configuration.
        EweError: the loss is no longer finite; the evidence is in `out`.
    """
    config = configure(preset, **choices)
    compute = Compute.choose(config.device, config.precision)
    refuse_inside(out, tensors)
    meta = Meta.read(tensors)
    data = Data.open(tensors, meta, config)
    shape = models.shape(config.model, models.sizes_of(config, meta), meta.tokenizer, config.options)

    with World.join(compute.device) as world, _deterministic(config.deterministic), exact_attention():
        if not world.leads:  # it takes part in the steps and in nothing else
            progress.set_quiet(quiet=True)
            if not world.told(None):
                _learn(out, config, compute, data, shape, world)
            return {}
        if config.holdout and not len(data.holdout):
            kept = f"--holdout {config.holdout} keeps none of {len(data.rows):,} training rows apart"
            progress.warn(f"{kept}: it goes by their names, which are few or all the same.")
        decides = {name: value for name, value in asdict(config).items() if name != "checkpoint_every"}
        with Store(out, "run", {**decides, "tensors_sha256": meta.content_sha256("train")}) as store:
            if world.told(store.finished):
                progress.say(f"{out} is finished; nothing to do.")
                return {"run": str(out), **store.manifest["summary"]}
            if not store.has("config.json"):
                read = {"tokenizer": meta.tokenizer, "u": meta.u, "v": meta.v, "max_claims": meta.max_claims}
                facts = {"model": config.model, "shape": shape, "input": read, "preset": preset}
                store.write_json("config.json", facts | _circumstances(config, compute, meta, world))
            if meta.tokenizer == "wordpiece" and not store.has(VOCABULARY_FILE):
                store.write_text(VOCABULARY_FILE, (tensors / VOCABULARY_FILE).read_text(encoding="utf-8"))
            if not store.has("labels.json"):
                labels = {"names": meta.label_names, "sha256": meta.labels_sha256}
                store.write_json("labels.json", labels | {"rows": len(data.rows), "counts": data.counts().tolist()})
            model, learned, rate = _learn(out, config, compute, data, shape, world)
            with store.write("model.safetensors") as path:
                checkpoint.write_tensors(model.state_dict(), path)
            if (out / journal.NAME).is_file():
                store.record(journal.NAME)
            numbers = list(model.parameters()) or list(model.state_dict().values())
            summary = {
                "model": config.model,
                "parameters": sum(each.numel() for each in numbers),
                "rows": len(data.rows),
                "held_out_rows": len(data.holdout),
                **learned,
                "compute": str(compute),
                "made_up": meta.made_up,
            }
            store.finish(summary=summary)
    return {"run": str(out), **summary, **({"examples_per_second": rate} if rate else {})}


@dataclass(frozen=True)
class Data:
    """What a run learns from: the split named train."""

    names: list[str]
    """the L labels"""
    split: Split
    rows: NDArray[np.int64]
    """of the split, to train on"""
    holdout: NDArray[np.int64]
    """of the split, to look at after each epoch"""

    @classmethod
    def open(cls, tensors: Path, meta: Meta, config: TrainConfig) -> Self:
        """Of a tensors/ folder; DataError where it holds nothing to learn."""
        split = Split.open(tensors, "train", meta, models.find(config.model).network().reads)
        apart = held_out(split.numbers, config.holdout)
        data = cls(meta.label_names, split, np.flatnonzero(~apart), np.flatnonzero(apart))
        if not len(data.rows) or not data.names:
            raise DataError(f"{tensors} has no training rows or no labels; encode other data or lower --holdout.")
        return data

    def counts(self) -> NDArray[np.int64]:
        """How many of the rows to train on bear each label, (L,)."""
        return np.bincount(self.split.labels(self.rows)[1], minlength=len(self.names))


def _learn(
    out: Path, config: TrainConfig, compute: Compute, data: Data, shape: dict[str, Any], world: World
) -> tuple[nn.Module, dict[str, Any], float]:
    """Build the model and train it to the end; returns it, what the summary says of it, and examples/s of this call.

    A rate of 0 is that of a call that found all steps done.
    """
    split, rows = data.split, data.rows
    torch.manual_seed(config.seed)
    model = models.build(config.model, shape)
    if hasattr(model, "fit"):  # without steps
        begun = time.perf_counter()
        model.fit(split, rows, config.seed)
        return model, {}, len(rows) / (time.perf_counter() - begun)
    if config.prior_bias:
        counts = data.counts()
        odds = (counts + 0.5) / (len(rows) - counts + 0.5)
        model.head.bias.data = torch.from_numpy(np.log(odds)).float()
    model.to(compute.device)
    if hasattr(model, "prepare") and not checkpoint.latest(out):
        model.prepare(split, rows, config.seed)
    if world.size > 1:  # one start for all, and each its own dropout
        torch.manual_seed(config.seed + world.rank * 0x9E3779B9)
    stepper: Stepper | Graphed
    if fast.fits(config, compute, split, model, world):
        resident = Resident(split, len(data.names), compute.device)
        stepper = Graphed(model, adamw(model, config, graphed=True), config, compute, resident)
    else:
        stepper = Stepper(model, config, compute, split, world)
    training = Training(out, config, data, stepper, world)
    try:
        loss, rate = training.go()
    except torch.OutOfMemoryError:
        raise EweError(
            f"{compute} has too little memory for a step of {config.batch_size} texts;"
            " train into another --out with a smaller --batch-size."
        ) from None
    return model, {"epochs": training.plan.epochs, "steps": training.plan.steps, "loss": loss}, rate


def adamw(model: nn.Module, config: TrainConfig, *, graphed: bool = False) -> torch.optim.AdamW:
    """AdamW (0.9, 0.999, 1e-8), without decay on biases and LayerNorm; for a CUDA graph its rate is a tensor."""
    learning = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in learning if p.ndim >= 2]},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]
    rate = torch.tensor(config.learning_rate, device=learning[0].device) if graphed else config.learning_rate
    on_card = graphed and learning[0].is_cuda
    return torch.optim.AdamW(groups, lr=rate, weight_decay=config.weight_decay, fused=True, capturable=on_card)


class Stepper:
    """One optimisation step on any device: forward, loss, backward, clip, AdamW; the plain path."""

    def __init__(
        self, model: nn.Module, config: TrainConfig, compute: Compute, split: Split, world: World = ALONE
    ) -> None:
        self.model, self.clip, self.compute, self.split, self.world = model, config.clip, compute, split, world
        self.forward = world.wrap(model)
        self.optimizer = adamw(model, config)
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=compute.precision == "fp16")

    def __call__(self, rows: NDArray[np.int64], learning_rate: float) -> Tensor:
        """Learn from these rows of the split; returns the loss (of this process's share), still on the device."""
        mine, share = self.world.share(rows)
        batch = self.split.batch(mine).to(self.compute.device)
        with self.compute.autocast():
            logits = self.forward(batch.ids)
        loss = cross_entropy(logits, batch.rows, batch.columns) * share
        self.optimizer.zero_grad()
        self.scaler.scale(loss * self.world.size).backward()  # type: ignore[no-untyped-call]  # DDP takes the mean
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """The rate of step 0..steps-1: up over the warm-up's share of the steps, then linearly down to 0."""
    warmup = int(config.warmup * steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / (warmup + 1)
    return config.learning_rate * (steps - step) / (steps - warmup)


@dataclass
class Training:
    """The loop over steps: from the last checkpoint, or the start, to the end."""

    run: Path
    config: TrainConfig
    data: Data
    stepper: Stepper | Graphed
    world: World = ALONE

    def __post_init__(self) -> None:
        config = self.config
        self.plan = Plan(self.data.rows, config.batch_size, config.epochs, config.min_steps, config.seed)
        self.model, self.compute = self.stepper.model, self.stepper.compute
        self.state = (self.model, self.stepper.optimizer, self.stepper.scaler, self.compute, self.world)
        self.pending: list[Tensor] = []  # losses that are still on the device
        self.saved = time.monotonic()

    def go(self) -> tuple[float, float]:
        """Train to the end; returns the last epoch's loss and examples/s."""
        config, plan = self.config, self.plan
        step = 0
        if found := checkpoint.latest(self.run):
            step = checkpoint.restore(found, *self.state)
            progress.say(f"{self.run}: going on after step {step:,} of {plan.steps:,}.")
        started, begun = plan.examples(step), time.perf_counter()
        bar = progress.bar("train", plan.examples(plan.steps), "examples", done=started)

        with journal.Journal(self.run, step, keeps=self.world.leads) as log, _signals() as received, bar as advance:
            self.model.train()
            while not (stopped := self._stopped(received, step)) and step < plan.steps:
                # -- one step ---------------------------------------------------------------------------------------
                rows = plan.rows(step)
                self.pending.append(self.stepper(rows, learning_rate(config, step, plan.steps)))
                step += 1

                # -- what it says -----------------------------------------------------------------------------------
                epoch, at = divmod(step, plan.steps_an_epoch)
                due = step == plan.steps or self._due(step)
                if step % LOG_EVERY == 0 or at == 0 or due:
                    self._settle(log, step)
                advance(len(rows), f"loss {log.losses[-1]:.4f}" if log.losses else "")
                if at == 0 and epoch * REPORTS // plan.epochs > (epoch - 1) * REPORTS // plan.epochs:
                    rate = (plan.examples(step) - started) / (time.perf_counter() - begun)
                    news = f"epoch {epoch} of {plan.epochs}: loss {self._loss(log):.4f}, {rate:,.0f} examples/s"
                    if self.world.leads:
                        progress.say(news + self._look(log, step, epoch))

                # -- what it leaves ---------------------------------------------------------------------------------
                if due:
                    self._save(log, step)
            if stopped:
                self._settle(log, step)
                self._save(log, step)
            loss, rate = self._loss(log), (plan.examples(step) - started) / (time.perf_counter() - begun)
        if stopped:
            signal.raise_signal(received[0] if received else signal.SIGTERM)  # all is safe: now as the caller wants it
            raise IncompleteError(f"{self.run} stopped at step {step:,} of {plan.steps:,}; run the same command again.")
        return loss, rate

    def _stopped(self, received: list[int], step: int) -> bool:
        """Whether to stop before this step or after the last: all processes at the same one, so they ask."""
        asks = self.world.size == 1 or step % LOG_EVERY == 0 or step == self.plan.steps
        return asks and self.world.any(bool(received), self.compute.device)

    def _due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step: in all processes at the same one, so they ask."""
        if self.config.checkpoint_every:
            return step % self.config.checkpoint_every == 0
        late = time.monotonic() - self.saved >= CHECKPOINT_SECONDS
        return step % LOG_EVERY == 0 and self.world.any(late, self.compute.device)

    def _settle(self, log: journal.Journal, step: int) -> None:
        """Bring the losses of the last steps to the host and write them; stop where one is not finite."""
        losses = self.world.sum(torch.stack(self.pending)).tolist() if self.pending else []
        self.pending.clear()
        for index, loss in enumerate(losses, step - len(losses)):
            if not math.isfinite(loss):
                self._stop(index, losses)
            rate = learning_rate(self.config, index, self.plan.steps)
            epoch = index // self.plan.steps_an_epoch + 1
            log.write({"step": index + 1, "epoch": epoch, "learning_rate": rate, "loss": loss})
        log.flush()

    def _stop(self, index: int, losses: list[float]) -> NoReturn:
        weights = self.model.named_parameters()
        evidence = {
            "step": index + 1,
            "losses": [str(loss) for loss in losses],
            "texts": [number.decode(errors="replace") for number in self.data.split.numbers[self.plan.rows(index)]],
            "broken_parameters": [name for name, p in weights if not bool(p.isfinite().all())],
        }
        path = self.run / f"broken-step-{index + 1:08d}.json"
        if self.world.leads:
            publish_json(path, evidence)
        raise EweError(
            f"The loss of step {index + 1:,} is not finite (see {path});"
            " train into another --out with a lower --learning-rate, with --clip 1 or --precision fp32."
        )

    def _loss(self, log: journal.Journal) -> float:
        """Mean over the last epoch's steps."""
        return float(np.mean(log.losses[-self.plan.steps_an_epoch :])) if log.losses else math.nan

    def _look(self, log: journal.Journal, step: int, epoch: int) -> str:
        """Evaluate the held-out rows, if there are any, and write it down."""
        split, rows, names = self.data.split, self.data.holdout, self.data.names
        if not len(rows):
            return ""
        counts = count(self.model, self.compute, split, rows, names, self.config.threshold)
        self.model.train()
        micro = counts.report()["micro"]
        log.write({"step": step, "epoch": epoch, "holdout": micro})
        log.flush()
        return f", held-out micro-F1 {micro['f1']:.4f}"

    def _save(self, log: journal.Journal, step: int) -> None:
        log.sync()
        checkpoint.save(self.run, step, *self.state)
        self.saved = time.monotonic()


def _circumstances(config: TrainConfig, compute: Compute, meta: Meta, world: World) -> dict[str, Any]:
    bit_equal = compute.device.type == "cpu" or config.deterministic
    return {
        "training": asdict(config),
        "compute": str(compute),
        "processes": world.size,
        "resume": "bit-equal" if bit_equal else "exact in data order, random state and step",
        "tensors_sha256": meta.content_sha256("train"),
        "made_up": meta.made_up,
        "versions": {"ewe-patents": __version__, "torch": str(torch.__version__), "numpy": np.__version__},
    }


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying in the middle of a step; the caller looks after each step."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda n, _: received.append(n)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


@contextmanager
def exact_attention() -> Iterator[None]:
    """Train without cuDNN's attention, which torch prefers on Hopper.

    It keeps a dropout's probability in sixteenths (pytorch/pytorch#174245), and its backward may give NaN
    (pytorch/pytorch#196678, NVIDIA/cudnn-frontend#1072).
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """Have torch choose deterministic kernels, cuBLAS included, where wanted."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted or before)
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first matrix product
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
