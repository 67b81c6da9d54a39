"""When a label is predicted: above one threshold, above its own, or as the one First label of a text.

The plain rule is the published one, a probability above 0.3. `ewe tune` finds three more on the rows that a run held
out, and keeps them in the run; each is asked for by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ewe import store
from ewe.errors import UsageError

TUNED = ("global", "labels", "first")
FIRST = "First-"  # how the names of labels of the first position start
FILE = "thresholds.json"  # of a run, written by ewe tune


@dataclass(frozen=True)
class Rule:
    """A function of logits (B, L) that says which labels are predicted, bool (B, L).

    Thresholds are of probabilities; what is the most probable is asked of the logits, as a float32 sigmoid is 1.0
    above 17 or so and tells such labels no longer apart.
    """

    name: str
    """global, labels, first, or the threshold itself"""
    thresholds: Tensor
    """float32 () or (L,); a label is predicted when its probability is above it"""
    first: Tensor | None = None
    """int64 (F,), the labels of which the most probable is always predicted, and no other; None for none"""

    @classmethod
    def above(cls, threshold: float, name: str = "") -> Self:
        """Every label whose probability is above one threshold."""
        return cls(name or str(threshold), torch.tensor(threshold, dtype=torch.float32))

    @classmethod
    def one_first(cls, names: Sequence[str], threshold: float) -> Self:
        """The most probable First label, and the other labels above a threshold."""
        first = [index for index, name in enumerate(names) if name.startswith(FIRST)]
        return cls("first", torch.tensor(threshold, dtype=torch.float32), torch.tensor(first))

    def __call__(self, logits: Tensor) -> Tensor:
        """Which labels are predicted, bool (B, L), on the device of the logits (B, L) and of the rule."""
        predicted = logits.float().sigmoid() > self.thresholds
        if self.first is not None:
            best = self.first[logits[:, self.first].argmax(1)]
            predicted[:, self.first] = False
            predicted.scatter_(1, best[:, None], value=True)
        return predicted

    def to(self, device: torch.device) -> Self:
        """The rule on a device."""
        first = None if self.first is None else self.first.to(device)
        return replace(self, thresholds=self.thresholds.to(device), first=first)

    def facts(self) -> dict[str, Any]:
        """The rule's name and its threshold, null where each label has its own."""
        threshold = None if self.thresholds.ndim else round(float(self.thresholds), 7)
        return {"rule": self.name, "threshold": threshold}


def tuned(found: dict[str, Any], names: Sequence[str]) -> dict[str, Rule]:
    """The rules in what `ewe tune` has found, by name; `first` is missing where no label is a First one.

    Args:
        found: the content of thresholds.json.
        names: the labels, in order.
    """
    shared, own = found["global"]["threshold"], found["labels"]["own"]
    thresholds = torch.tensor([own.get(name, shared) for name in names], dtype=torch.float32)
    rules = {"global": Rule.above(shared, "global"), "labels": Rule("labels", thresholds)}
    if found["first"]:
        rules["first"] = Rule.one_first(names, found["first"]["threshold"])
    return rules


def read(run: Path) -> dict[str, Any] | None:
    """What `ewe tune` has found for this very model of a run; None where it has not been there."""
    if not (run / FILE).is_file():
        return None
    found: dict[str, Any] = store.read_json(run / FILE)
    return found if found["model_sha256"] == model_sha256(run) else None


def model_sha256(run: Path) -> str:
    """The hash of a run's weights, as its manifest has it."""
    sha256: str = store.read_manifest(run, "run")["files"]["model.safetensors"]["sha256"]
    return sha256


def choose(run: Path, names: Sequence[str], threshold: str | float) -> Rule:
    """The rule that `--threshold` asks for.

    Args:
        run: folder that train made.
        names: its labels, in order.
        threshold: a number, also as text, or one of TUNED.

    Raises:
        UsageError: it is neither, or the run has not been tuned, or has no First labels.
    """
    if threshold in TUNED:
        found = read(run)
        if found is None:
            raise UsageError(f"{run} has no thresholds of its own yet; run ewe tune before --threshold {threshold}.")
        rules = tuned(found, names)
        if threshold not in rules:
            raise UsageError(f"{run} has no First labels for --threshold {threshold}; choose global or labels.")
        return rules[str(threshold)]
    try:
        number = float(threshold)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise UsageError(f"--threshold must be between 0 and 1, or global, labels or first, not {threshold}.")
    return Rule.above(number)
