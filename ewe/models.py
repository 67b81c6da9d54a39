"""The models by their names on the command line: how each is built, and how large it is beside the paper's Table 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ewe import store
from ewe.bert import BertConfig, EweBert
from ewe.errors import UsageError

PUBLISHED = {"bert-ewe": {"total": "87M", "embedding": "12k"}}  # Table 1, as printed
NAMES = tuple(PUBLISHED)
SLIP = (
    f"BERT_EWE's 12,288 elements are {12_288 / 23_440_896:.2%} of BERT_ORIG's 23,440,896 token vectors; "
    "the paper's 0.005% and 0.005x are a slip."
)
ATTENTION = (
    "That head n sees only the n-th letters is the paper's reading: W_Q, W_K and W_V are dense and mix them; "
    "measured against chance 1/v, it is a finding, else an assumption."
)
BYTE_TOKENIZERS = ("whitespace", "bytes")  # whose tensors are letters, (N, u, v)


def shape(
    model: str,
    *,
    u: int,
    v: int,
    tokenizer: str,
    labels: int,
    layers: int = 12,
    width: int = 768,
    heads: int = 0,
    dropout: float = 0.1,
    focus: bool = True,
    init_std: float = 0.02,
) -> dict[str, Any]:
    """What a model of this name is built from, as JSON values.

    Args:
        model: one of NAMES.
        u: materials of the tensors.
        v: elements of the tensors.
        tokenizer: what made the tensors.
        labels: L.
        layers: of the encoder.
        width: w, of the model.
        heads: 0 for one a letter, h = v.
        dropout: as the parent has it.
        focus: whether letters and words know their positions.
        init_std: of the linear layers' weights at the start.

    Raises:
        UsageError: the name is unknown, or the sizes do not fit each other.
    """
    if model not in NAMES:
        raise UsageError(f"There is no model {model}; choose from {', '.join(NAMES)}.")
    if tokenizer not in BYTE_TOKENIZERS:
        raise UsageError(f"{model} reads letters; encode with --tokenizer whitespace or bytes, not {tokenizer}.")
    heads = heads or v
    if width % v or width % heads:
        raise UsageError(f"--width {width} must be a multiple of the tensors' {v} letters and of --heads {heads}.")
    return asdict(BertConfig(u, v, width // v, layers, heads, 4 * width, labels, dropout, focus, init_std))


def build(model: str, shape: Mapping[str, Any]) -> EweBert:
    """The model of this name and shape, its weights drawn from torch's global generator."""
    if model not in NAMES:
        raise UsageError(f"There is no model {model}; choose from {', '.join(NAMES)}.")
    return EweBert(BertConfig(**shape))


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
        model: one of NAMES; None for all.
        labels: L; the paper's 664 subclasses as First and Later make 1,328.
        u: materials.
        v: elements a material.
    """
    table = {}
    for name in NAMES if model is None else (model,):
        counted = sizes(name, shape(name, u=u, v=v, tokenizer="whitespace", labels=labels))
        table[name] = {
            **counted,
            "table_1_total": PUBLISHED[name]["total"],
            "table_1_embedding": PUBLISHED[name]["embedding"],
        }
    return {
        "labels": labels,
        "u": u,
        "v": v,
        "models": table,
        "notes": [SLIP, ATTENTION],
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
        **{name: config[name] for name in ("preset", "shape", "tokenizer", "training", "compute", "made_up")},
        "micro_f1": {split: evaluation["micro"]["f1"] for split, evaluation in evaluations.items()},
    }
