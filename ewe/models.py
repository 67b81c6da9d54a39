"""The systems by their names on the command line: how each is built, and how large it is beside Table 1."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ewe import published, store
from ewe.batches import Meta
from ewe.config import Sizes, TrainConfig
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
    letters: int = 0
    """v of the tensors that the name was published with, where that is not the usual 16"""

    def network(self) -> Any:
        """The class, imported."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)


MODELS = {
    "bert-ewe": Model("ewe.bert:EweBert", ("whitespace",)),
    "bert-ewe-no-focus": Model("ewe.bert:EweBert", ("whitespace",), {"focus": False}),
    "bert-ewe-bytes": Model("ewe.bert:EweBert", ("bytes",)),
    "bert-ewe-gradient": Model("ewe.bert:EweBert", ("bytes",), {"gradient": True, "focus": False}, letters=8),
    "bert-orig": Model("ewe.bert:OrigBert", ("wordpiece",)),
    "albert-ewe": Model("ewe.huggingface:AlbertEwe", ("whitespace",)),
    "albert-orig": Model("ewe.huggingface:AlbertOrig", ("wordpiece",)),
    "canine-ewe": Model("ewe.huggingface:CanineEwe", ("whitespace",)),
    "canine-orig": Model("ewe.huggingface:CanineOrig", ("codepoints",)),
    "byt5": Model("ewe.byt5:ByT5", ("bytes",), {"merge": "none"}),
    "byt5-attention": Model("ewe.byt5:ByT5", ("bytes",), {"merge": "attention"}),
    "byt5-random": Model("ewe.byt5:ByT5", ("bytes",), {"merge": "random"}),
    "byt5-spaces": Model("ewe.byt5:ByT5", ("bytes",), {"merge": "spaces"}),
    "byt5-extraction": Model("ewe.byt5:ByT5", ("bytes",), {"merge": "extraction"}),
    "naive-bayes": Model("ewe.baselines.linear:Linear", (), {"method": "naive-bayes"}),
    "logistic": Model("ewe.baselines.linear:Linear", (), {"method": "logistic"}),
    "svm": Model("ewe.baselines.linear:Linear", (), {"method": "svm"}),
    "knn": Model("ewe.baselines.neighbours:Neighbours"),
    "rocchio": Model("ewe.baselines.neighbours:Rocchio"),
    "average": Model("ewe.baselines.networks:Average"),
    "sif": Model("ewe.baselines.networks:Sif"),
    "dan": Model("ewe.baselines.networks:Dan"),
    "fasttext": Model("ewe.baselines.networks:FastText"),
    "attention-pooling": Model("ewe.baselines.networks:AttentionPooling"),
    "self-attention": Model("ewe.baselines.networks:SelfAttention"),
    "cnn": Model("ewe.baselines.networks:Cnn"),
    "bilstm": Model("ewe.baselines.networks:BiLstm"),
    "transformer": Model("ewe.baselines.networks:Transformer"),
    "autoencoder": Model("ewe.baselines.networks:Autoencoder"),
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
            chosen[name] = json.loads(value.lower() if value in ("True", "False") else value)
        except ValueError:
            chosen[name] = value
    return chosen


def sizes_of(config: TrainConfig, meta: Meta) -> Sizes:
    """What a configuration and the tensors together tell every model."""
    chosen = {name: getattr(config, name) for name in ("layers", "width", "heads", "dropout", "focus", "init_std")}
    return Sizes(u=meta.u, v=meta.v, vocabulary=meta.vocabulary, labels=len(meta.label_names), **chosen)


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
        like = own[name]
        if type(like) is float and type(value) is int:  # JSON's 5 is an int, and 5.0 is meant
            chosen[name] = float(value)
        elif isinstance(like, bool | int | float | str) and type(value) is not type(like):  # True is no int here
            raise UsageError(f"--option {name} of {model} must be like {json.dumps(like)}, not {json.dumps(value)}.")
        elif type(like) is int and value < 1:
            raise UsageError(f"--option {name} of {model} must be at least 1, not {value}.")
    if not sizes.focus and "focus" not in own:
        raise UsageError(f"{model} has no focus embeddings to leave out; drop --no-focus.")
    decided = {name: value for name, value in found.options.items() if name in common}
    chosen |= {name: value for name, value in found.options.items() if name not in common}
    return asdict(config_class.of(replace(sizes, **decided), **chosen))


def build(model: str, shape: Mapping[str, Any]) -> Any:
    """The model (nn.Module) of this name and shape, its weights drawn from torch's global generator."""
    network = find(model).network()
    return network(network.config_class(**shape))


def sizes(model: str, shape: Mapping[str, Any]) -> dict[str, int]:
    """Parameters, counted on the model itself.

    Returns:
        "total", "embedding" (as Table 1 counts: elements and focus, or a token table), and what `tables` of the
        model tells apart; "without_gradient" where some are allocated and never learn.
    """
    with torch.device("meta"):
        network = build(model, shape)
    total = sum(p.numel() for p in network.parameters())
    idle = sum(p.numel() for p in network.parameters() if not p.requires_grad)
    tables = _tables(network)
    counted = {"total": total, "embedding": sum(tables.values()), **tables}
    return counted | ({"without_gradient": idle} if idle else {})


def _tables(network: Any) -> dict[str, int]:
    """Sizes of what turns ids into vectors, by name: as the network or its embedding tells, else all its tables."""
    for each in (network, network.embedding if hasattr(network, "embedding") else network):
        if hasattr(each, "table_sizes"):
            sizes: dict[str, int] = each.table_sizes()
            return sizes
    tables = [each.weight for each in network.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
    return {"tables": sum(each.numel() for each in tables)} if tables else {}


def info(model: str | None = None, labels: int = 1328, u: int = 128, v: int = 16) -> dict[str, Any]:
    """Sizes of a model in the paper's shape, or of all models, beside what Table 1 prints.

    Args:
        model: a key of MODELS; None for all of the paper.
        labels: L; the paper's 664 subclasses as First and Later make 1,328.
        u: materials.
        v: elements a material.
    """
    table = {}
    for name in published.SCORES if model is None else (model,):
        known = find(name)
        tokenizer = known.tokenizers[0] if known.tokenizers else "whitespace"
        wanted = Sizes(u=u, v=known.letters or v, vocabulary=published.VOCABULARIES.get(name, 256), labels=labels)
        total, embedding = published.SIZES.get(name, ("–", "–"))
        table[name] = sizes(name, shape(name, wanted, tokenizer)) | {"table_1": f"{total} / {embedding}"}
    return {
        "labels": labels,
        "u": u,
        "models": table,
        "others": [name for name in MODELS if name not in table],
        "notes": published.NOTES,
    }


def info_run(run: Path) -> dict[str, Any]:
    """What a trained run is: its model, its sizes, how it was trained, and its evaluations."""
    config = store.read_recorded(run, store.read_manifest(run, "run"), "config.json")
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
