"""Several processes that train as one: `torchrun --nproc-per-node N -m ewe train ...`.

Each step's rows are those of one process, dealt out among all; gradients are summed by torch's
DistributedDataParallel. The first process alone writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn

PATIENCE = timedelta(hours=6)  # the others wait while the first hashes, evaluates and writes


@dataclass(frozen=True)
class World:
    """The processes that train together; one where torchrun did not start this one."""

    rank: int = 0
    size: int = 1

    @classmethod
    @contextmanager
    def join(cls, device: torch.device) -> Iterator[Self]:
        """Meet the other processes that torchrun's environment tells of; part from them at the end."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            yield cls()
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        try:
            yield cls(distributed.get_rank(), distributed.get_world_size())
        finally:
            distributed.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def share(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """This process's rows of a step, and how much of the step they are.

        A process that gets none, as the last step of an epoch may have fewer rows than there are processes,
        takes one at no weight: every process must take part in the sum of gradients.
        """
        mine = rows[self.rank :: self.size]
        return (mine, len(mine) / len(rows)) if len(mine) else (rows[:1], 0.0)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose backward pass averages gradients over all processes."""
        return nn.parallel.DistributedDataParallel(model) if self.size > 1 else model

    def sum(self, values: Tensor) -> Tensor:
        """The sum of all processes' values."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is up in any process."""
        return bool(self.sum(torch.tensor(int(flag), device=device))) if self.size > 1 else flag

    def told(self, value: Any) -> Any:
        """The first process's value."""
        box = [value]
        if self.size > 1:
            distributed.broadcast_object_list(box)
        return box[0]

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every process's tensor (of one shape, on the host), in all of them."""
        found: list[Any] = [None] * self.size
        if self.size > 1:
            distributed.all_gather_object(found, tensor)
            return found
        return [tensor]


ALONE = World()
