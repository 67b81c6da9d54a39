"""What decides a run: one dataclass whose fields are the flags of `ewe train`, and its presets.

This module imports no torch, so that `ewe train --help` is quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ewe.errors import UsageError

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
HOLDOUT = "holdout"  # as a split's name: the training rows that --holdout keeps out of training


def _option(text: str, *, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run besides its data; the defaults are the paper's recipe."""

    model: str = _option("Which model; `ewe info --all` lists them.", default="bert-ewe")
    options: dict[str, Any] = field(default_factory=dict)  # of that model alone: --option NAME=VALUE
    layers: int = _option("Layers of the encoder.", default=12)
    width: int = _option("w, the model's width: a multiple of the tensors' letters v.", default=768)
    heads: int = _option("Attention heads; 0 is one a letter, h = v.", default=0)
    focus: bool = _option("Let letters and words know their positions.", default=True)
    dropout: float = _option("Of embeddings, attention, hidden states and the pooled vector.", default=0.1)
    init_std: float = _option("Standard deviation of the linear layers' weights at the start.", default=0.02)
    prior_bias: bool = _option("Start the head's biases at the labels' log odds in the training rows.", default=False)
    epochs: int = _option("Passes over the training rows.", default=10)
    min_steps: int = _option("At least so many steps, in more epochs, unless --epochs is given.", default=0)
    batch_size: int = _option("Texts a step.", default=32)
    learning_rate: float = _option("At its highest; it falls linearly to 0.", default=2e-5)
    warmup: float = _option("Share of the steps over which the learning rate first rises.", default=0.0)
    weight_decay: float = _option("AdamW's; none on biases and LayerNorm.", default=0.01)
    clip: float = _option("Largest norm of the gradient; 0 leaves it as it is.", default=0.0)
    threshold: float = _option("A label is predicted when its probability is above this.", default=0.3)
    holdout: float = _option("Share of the training rows, by hashed number, kept for evaluation.", default=0.0)
    seed: int = _option("Of the weights, of dropout and of the order.", default=0)
    device: str = _option("auto, cpu or cuda.", default="auto")
    precision: str = _option("auto, fp32, bf16 or fp16; auto is fp32 on a CPU, else bf16 or fp16.", default="auto")
    plain: bool = _option("Take the readable path on a CUDA card too: no graphs, nothing compiled.", default=False)
    deterministic: bool = _option("Repeat to the bit on one card, at some cost; a CPU always does.", default=False)
    checkpoint_every: int = _option("Steps between checkpoints; 0: ten minutes.", default=0)

    def __post_init__(self) -> None:
        """Refuse a value out of its range."""
        for names, (what, holds) in _RULES.items():
            for name in names.split():
                if not holds(getattr(self, name)):
                    raise UsageError(f"--{name.replace('_', '-')} must be {what}, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Sizes:
    """What the tensors and a TrainConfig tell every model; its config_class makes its shape of it."""

    u: int
    """materials, tokens or code points a text"""
    v: int
    """letters a material; 1 where a text is one row of ids"""
    vocabulary: int
    """ids of the tokenizer: 256 elements, or a WordPiece vocabulary's size"""
    labels: int
    layers: int = 12
    width: int = 768
    heads: int = 0
    dropout: float = 0.1
    focus: bool = True
    init_std: float = 0.02


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "layers width epochs batch_size": ("at least 1", lambda x: x >= 1),
    "heads clip weight_decay min_steps checkpoint_every": ("at least 0", lambda x: 0 <= x < math.inf),
    "seed": ("at least 0 and below 2^63", lambda x: 0 <= x < 2**63),
    "learning_rate init_std": ("above 0 and finite", lambda x: 0 < x < math.inf),
    "dropout warmup holdout": ("at least 0 and below 1", lambda x: 0 <= x < 1),
    "threshold": ("between 0 and 1", lambda x: 0 < x < 1),
    "device": (f"one of {', '.join(DEVICES)}", DEVICES.__contains__),
    "precision": (f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},  # 12 layers, w=768, h=16, 10 epochs of batch 32 at 2e-5, no warm-up
    # What reached the F1 of the paper's recipe soonest on held-out rows of small models (benchmarks/bench_recipe.py):
    # most of the gain is the head's start at the labels' odds; above four times the rate twelve layers learnt nothing.
    "fast": {"prior_bias": True, "learning_rate": 8e-5, "warmup": 0.05, "clip": 1.0, "epochs": 3},
    # For two cores and minutes. Without dropout, as a step with it takes twice as long on a CPU. The weights start
    # at 1/sqrt(w): BERT's 0.02 suits w=768, but at w=128 it lets the text reach material 0 so faintly that nothing
    # is learnt for a thousand steps and more.
    "tiny": {
        "layers": 2,
        "width": 128,
        "dropout": 0.0,
        "init_std": 0.09,
        "prior_bias": True,
        "min_steps": 1000,
        "batch_size": 16,
        "learning_rate": 1e-3,
        "warmup": 0.05,
        "clip": 1.0,
    },
}


def configure(preset: str = "paper", **choices: Any) -> TrainConfig:
    """A preset with some fields chosen otherwise; a choice of None leaves the preset's.

    Raises:
        UsageError: an unknown preset or field, or a value out of its range.
    """
    if preset not in PRESETS:
        raise UsageError(f"There is no preset {preset}; choose from {', '.join(PRESETS)}.")
    if unknown := sorted(set(choices) - {each.name for each in fields(TrainConfig)}):
        raise UsageError(f"Training has no option {unknown[0]}.")
    chosen = {name: value for name, value in choices.items() if value is not None}
    if "epochs" in chosen:  # who asks for so many epochs means them
        chosen.setdefault("min_steps", 0)
    return replace(TrainConfig(), **(PRESETS[preset] | chosen))
