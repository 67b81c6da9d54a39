"""The fast path on a CUDA card: the whole split lies on the card, and one step is one CUDA graph.

What it gains, and why each piece is here:
- no data loader: ids (N, u, v) are bytes, 3.9 GB at the paper's size, and a step gathers its rows on the card
- one graph a step (gather, forward, loss, backward, clip, AdamW): at batch 32 a step is otherwise bound by the
  launching of its thousand and more kernels
- torch.compile fuses what lies between the matrix products
- in bf16 the linear layers' weights are narrowed, and their gradients widened, all at once: autocast does the same one
  by one, a quarter of a step's launches
- labels are a rectangle of positives, padded with L, so that every step has the same shapes; no dense target

The arithmetic is the plain path's (tests); an epoch's last, smaller step runs uncompiled and without the graph.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from ewe import progress
from ewe.batches import Split
from ewe.bert import Bert
from ewe.compute import Compute
from ewe.config import TrainConfig
from ewe.distributed import World

ROOM = 0.5  # of the card's free memory, for the split
WARM_UP = 3  # steps before the capture: cuBLAS and the allocator settle
BLOCK = 1 << 16  # rows that go to the card at a time


class Resident:
    """A split's rows on a device: ids (N, u, v) or (N, n), and columns (N, K), its labels padded with L."""

    def __init__(self, split: Split, labels: int, device: torch.device) -> None:
        N = len(split)
        counts = np.diff(split.indptr)
        width = max(int(counts.max(initial=0)), 1)
        self.ids = torch.empty(split.ids.shape, dtype=_dtype(split), device=device)
        self.columns = torch.empty((N, width), dtype=torch.int32, device=device)
        for start in range(0, N, BLOCK):
            rows = np.arange(start, min(start + BLOCK, N))
            batch = split.batch(rows)
            self.ids[start : start + len(rows)] = batch.ids.to(device)
            block = np.full((len(rows), width), labels, np.int32)
            at, columns = batch.rows.numpy(), batch.columns.numpy()
            place = np.arange(len(at)) - np.searchsorted(at, at)
            block[at, place] = columns
            self.columns[start : start + len(rows)] = torch.from_numpy(block).to(device)

    @staticmethod
    def size(split: Split) -> int:
        """Bytes that the split would take."""
        counts = np.diff(split.indptr)
        each = int(np.prod(split.ids.shape[1:])) * _dtype(split).itemsize
        return len(split) * (each + 4 * max(int(counts.max(initial=0)), 1))


def _dtype(split: Split) -> torch.dtype:
    return torch.uint8 if split.ids.dtype == np.uint8 else torch.int64


def fits(config: TrainConfig, compute: Compute, split: Split, model: nn.Module, world: World) -> bool:
    """Whether the fast path can serve this training; what keeps it from it is said."""
    if compute.device.type != "cuda" or config.plain:
        return False
    reason = ""
    if world.size > 1:
        reason = "several processes take the plain path"
    elif config.deterministic or compute.precision == "fp16":
        reason = "--deterministic and fp16 take the plain path"
    elif not isinstance(model, Bert):
        reason = "of all models BERT's encoder has one"
    elif Resident.size(split) > ROOM * torch.cuda.mem_get_info(compute.device)[0]:
        reason = "the tensors take more than half of the card's free memory"
    if reason:
        progress.say(f"Without the fast path: {reason}.")
    return not reason


def cross_entropy(logits: Tensor, columns: Tensor) -> Tensor:
    """`metrics.cross_entropy` from padded positives: columns (B, K), L where there is none."""
    z = logits.float()
    return (softplus(z).sum() - pad(z, (0, 1)).gather(1, columns.long()).sum()) / z.numel()


def clip_gradients(model: nn.Module, largest: float) -> None:
    """`clip_grad_norm_`, but not in place: compiled gradients may share memory, as those of both positions do."""
    grads = {p: p.grad for p in model.parameters() if p.grad is not None}
    scale = (largest / (nn.utils.get_total_norm(grads.values()) + 1e-6)).clamp(max=1.0)
    for p, grad in zip(grads, torch._foreach_mul(list(grads.values()), scale), strict=True):
        p.grad = grad


def _loss(model: nn.Module, compute: Compute, ids: Tensor, columns: Tensor) -> Tensor:
    with compute.autocast():
        logits = model(ids)
    return cross_entropy(logits, columns)


def narrowed(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A model with linear layers of this dtype that shares every other weight: what autocast computes with."""
    wide = [m for m in model.modules() if not isinstance(m, nn.Linear)]
    shared = {id(p): p for m in wide for p in m.parameters(recurse=False)}
    narrow = copy.deepcopy(model, shared)
    for module in narrow.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)
    return narrow


class Graphed:
    """One optimisation step, captured once and replayed; equal to `train.Stepper`'s.

    Args:
        model: on the device, its weights as they are to start from.
        optimizer: AdamW over it, capturable, its learning rate a tensor; its moments as they are to start from.
        config: of the training.
        compute: device and precision; on a CPU nothing is captured or compiled (for tests).
        data: the rows.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, config: TrainConfig, compute: Compute, data: Resident
    ) -> None:
        self.model, self.optimizer, self.clip, self.compute, self.data = model, optimizer, config.clip, compute, data
        self.narrow = narrowed(model, torch.bfloat16) if compute.precision == "bf16" else model
        pairs = zip(model.parameters(), self.narrow.parameters(), strict=True)
        self.pairs = [(wide, narrow) for wide, narrow in pairs if wide is not narrow]
        self.rows = torch.zeros(config.batch_size, dtype=torch.int64, device=compute.device)
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=False)  # fp16 takes the plain path
        self.on_card = compute.device.type == "cuda"
        self._loss: Any = torch.compile(_loss, dynamic=False) if self.on_card and compiles(compute.device) else _loss
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output = torch.zeros(())

    def _step(self, rows: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        _copy([narrow for _, narrow in self.pairs], [wide for wide, _ in self.pairs])
        loss_of = self._loss if len(rows) == len(self.rows) else _loss  # one step an epoch: not worth compiling
        loss: Tensor = loss_of(self.narrow, self.compute, self.data.ids[rows], self.data.columns[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        for wide, _ in self.pairs:
            wide.grad = torch.empty_like(wide)
        _copy([wide.grad for wide, _ in self.pairs], [narrow.grad for _, narrow in self.pairs])
        for _, narrow in self.pairs:
            narrow.grad = None
        if self.clip:
            clip_gradients(self.model, self.clip)
        self.optimizer.step()
        return loss.detach()

    def __call__(self, rows: NDArray[np.int64], learning_rate: float) -> Tensor:
        """Learn from these rows of the split; returns the loss, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"].fill_(learning_rate)
        at = torch.from_numpy(rows)
        if self.compute.device.type == "cuda":
            at = at.pin_memory()
        whole = len(rows) == len(self.rows)
        if whole:
            self.rows.copy_(at, non_blocking=True)
            if self.on_card and self._graph is None:
                self._capture()
        if whole and self._graph is not None:
            self._graph.replay()
            return self._output.clone()  # the next replay writes over it
        return self._step(self.rows if whole else at.to(self.compute.device, non_blocking=True))

    def _capture(self) -> None:
        """Warm up and record the step, all state put back; where that fails, go on without the graph."""
        put_back = self._keep()
        try:
            self._warm_up()
            put_back()
            gc.collect()  # no graph of an earlier training may be freed meanwhile
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._output = self._step(self.rows)
            self._graph = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # of Triton, the C compiler or the driver: slower is better than not at all
            why = (str(error).splitlines() or [type(error).__name__])[0]
            progress.warn(f"Without torch.compile and the CUDA graph, which failed here: slower ({why}).")
            self.on_card, self._loss = False, _loss
        put_back()

    def _keep(self) -> Callable[[], None]:
        """Copy weights, moments and random state; returns what puts them back."""
        device = self.compute.device
        random = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
        weights = [p.detach().clone() for p in self.model.parameters()]
        moments = {
            p: {name: value.clone() for name, value in state.items()} for p, state in self.optimizer.state.items()
        }

        @torch.no_grad()
        def put_back() -> None:
            for p, before in zip(self.model.parameters(), weights, strict=True):
                p.copy_(before)
            for weight, state in self.optimizer.state.items():
                for name, value in state.items():
                    value.copy_(moments[weight][name] if weight in moments else torch.zeros_like(value))
            self.optimizer.zero_grad(set_to_none=True)
            for _, narrow in self.pairs:
                narrow.grad = None
            if device.type == "cuda":
                torch.cuda.set_rng_state(random, device)
            else:
                torch.set_rng_state(random)

        return put_back

    def _warm_up(self) -> None:
        device = self.compute.device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), warnings.catch_warnings():
            # Compiling advises TF32 wherever a product is in fp32, as the elements' gradients mean to be.
            warnings.filterwarnings("ignore", "TensorFloat32", UserWarning)
            for _ in range(WARM_UP):
                self._step(self.rows)
        torch.cuda.current_stream(device).wait_stream(stream)


@torch.no_grad()
def _copy(to: list[Any], of: list[Any]) -> None:
    """All of these tensors into those, in a few launches."""
    if to:
        torch._foreach_copy_(to, of)


def compiles(device: torch.device) -> bool:
    """Whether torch.compile has what it needs: a card from Volta on, Triton, and C with Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    header = Path(sysconfig.get_path("include"), "Python.h").is_file()
    able = torch.cuda.get_device_capability(device) >= (7, 0)
    found = bool(able and importlib.util.find_spec("triton") and compiler and header)
    if not found:
        progress.say("Without torch.compile, which needs Triton, a C compiler and Python's headers: slower.")
    return found
