"""Where a model computes, and in which precision."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import torch

from ewe.config import DEVICES, PRECISIONS
from ewe.errors import UsageError


@dataclass(frozen=True)
class Compute:
    """A device and the precision of its matrix products: fp32, or mixed bf16 or fp16."""

    device: torch.device
    precision: str

    @classmethod
    def choose(cls, device: str = "auto", precision: str = "auto") -> Self:
        """Resolve `auto`: the card where there is one, and there bf16 where the card has it, else fp16; fp32 on a CPU.

        Of several cards, a process that torchrun started takes its own.

        Raises:
            UsageError: a device or precision that there is not, a card that is not there, or fp16 on a CPU.
        """
        for name, chosen, known in (("device", device, DEVICES), ("precision", precision, PRECISIONS)):
            if chosen not in known:
                raise UsageError(f"--{name} must be one of {', '.join(known)}, not {chosen}.")
        card = torch.cuda.is_available()
        if device == "auto":
            device = "cuda" if card else "cpu"
        if device == "cuda" and not card:
            raise UsageError("PyTorch sees no CUDA card here; use --device cpu.")
        if precision == "auto":
            bf16 = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            precision = "fp32" if device == "cpu" else "bf16" if bf16 else "fp16"
        if device == "cpu" and precision == "fp16":
            raise UsageError("fp16 needs a CUDA card; use --precision fp32 or bf16 on a CPU.")
        if device == "cuda" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            device = f"cuda:{os.environ['LOCAL_RANK']}"
        return cls(torch.device(device), precision)

    def autocast(self) -> AbstractContextManager[None]:
        """The context that a forward pass runs in."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.precision != "fp32")

    def __str__(self) -> str:
        """As `cpu fp32` or `NVIDIA H200 bf16`."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return f"{name} {self.precision}"
