"""The systems by their names on the command line: how each is built, and how large it is beside Table 1."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from ewe import published, store
from ewe.config import Sizes
from ewe.errors import UsageError


@dataclass(frozen=True)
class Model:
    """What a name stands for."""

    home: str
    """module:class; the class has `config_class` and `reads`"""
    tokenizers: tuple[str, ...] = ()
    """whose tensors it reads; none: any, as it reads their texts' words"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """fields of the class's configuration that the name decides"""

    def network(self) -> Any:
        """The class, imported."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)


MODELS = {
    "bert-ewe": Model("ewe.bert:EweBert", ("whitespace",)),
    "bert-ewe-no-focus": Model("ewe.bert:EweBert", ("whitespace",), {"focus": False}),
    "bert-ewe-bytes": Model("ewe.bert:EweBert", ("bytes",)),
}


def find(model: str) -> Model:
    """The system of this name; UsageError where there is none."""
    if model not in MODELS:
        raise UsageError(f"There is no model {model}; choose from {', '.join(MODELS)}.")
    return MODELS[model]


def options(pairs: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` pairs as a mapping; values are JSON where they can be, else text."""
    chosen = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--option {pair} must be NAME=VALUE.")
        try:
            chosen[name] = json.loads(value)
        except ValueError:
            chosen[name] = value
    return chosen


def shape(model: str, sizes: Sizes, tokenizer: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a model of this name is built from, as JSON values.

    Args:
        model: a key of MODELS.
        sizes: what tensors and configuration tell.
        tokenizer: what made the tensors.
        options: fields of the model's own configuration.

    Raises:
        UsageError: the name or an option is unknown, or the sizes do not fit each other.
    """
    found, chosen = find(model), dict(options or {})
    if found.tokenizers and tokenizer not in found.tokenizers:
        raise UsageError(
            f"{model} reads tensors of --tokenizer {' or '.join(found.tokenizers)}, not {tokenizer}; encode again, or "
            f"choose another --model."
        )
    config_class = found.network().config_class
    common = {each.name for each in fields(Sizes)}
    own = {each.name: each.default for each in fields(config_class)}
    allowed = sorted(set(own) - common - set(found.options))
    for name, value in chosen.items():
        if name not in allowed:
            raise UsageError(f"{model} has no option {name}; it has {', '.join(allowed) or 'none'}.")
        if isinstance(own[name], bool | int | float | str) and not isinstance(value, type(own[name])):
            raise UsageError(f"--option {name} of {model} must be like {own[name]!r}, not {value!r}.")
    if not sizes.focus and "focus" not in own:
        raise UsageError(f"{model} has no focus embeddings to leave out; drop --no-focus.")
    decided = {name: value for name, value in found.options.items() if name in common}
    chosen |= {name: value for name, value in found.options.items() if name not in common}
    return asdict(config_class.of(replace(sizes, **decided), **chosen))


def build(model: str, shape: Mapping[str, Any]) -> Any:
    """The model (nn.Module) of this name and shape, its weights drawn from torch's global generator."""
    network = find(model).network()
    return network(network.config_class(**shape))


def sizes(model: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters in all, of the element table and of the focus embeddings, counted on the model itself."""
    with torch.device("meta"):
        network = build(model, shape)
    elements = network.embedding.elements.numel()
    focus = sum(p.numel() for p in network.embedding.parameters()) - elements
    return {"total": sum(p.numel() for p in network.parameters()), "elements": elements, "focus": focus}


def info(model: str | None = None, labels: int = 1328, u: int = 128, v: int = 16) -> dict[str, Any]:
    """Sizes of a model in the paper's shape, or of all models, beside what Table 1 prints.

    Args:
        model: a key of MODELS; None for all of the paper.
        labels: L; the paper's 664 subclasses as First and Later make 1,328.
        u: materials.
        v: elements a material.
    """
    table = {}
    for name in MODELS if model is None else (model,):
        wanted = Sizes(u=u, v=v, vocabulary=256, labels=labels)
        counted = sizes(name, shape(name, wanted, find(name).tokenizers[0]))
        total, embedding = published.SIZES.get(name, ("-", "-"))
        table[name] = {**counted, "table_1_total": total, "table_1_embedding": embedding}
    return {
        "labels": labels,
        "u": u,
        "v": v,
        "models": table,
        "notes": [published.SLIP, published.ATTENTION],
    }


def info_run(run: Path) -> dict[str, Any]:
    """What a trained run is: its model, its sizes, how it was trained, and its evaluations."""
    store.read_manifest(run, "run")
    config = store.read_json(run / "config.json")
    evaluations = {
        path.stem.removeprefix("evaluation-"): store.read_json(path) for path in sorted(run.glob("evaluation-*.json"))
    }
    return {
        "run": str(run),
        "model": config["model"],
        "parameters": sizes(config["model"], config["shape"]),
        **{name: config[name] for name in ("preset", "shape", "input", "training", "compute", "made_up")},
        "micro_f1": {split: evaluation["micro"]["f1"] for split, evaluation in evaluations.items()},
    }
