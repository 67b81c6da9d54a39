"""Elementwise embedding for patents: from one SQL query to a trained EWE-BERT.

Public names load on first use, so that `import ewe` costs nothing:

    ewe.encode(texts, u=128, v=16)      text -> uint8 (N, u, v)
    ewe.Tokenizer(u=128, v=16)(texts)   text -> input_ids, attention_mask
    ewe.ElementwiseEmbedding(u, v, c)   ids (B, n<=u, v) -> (B, n, v*c)
    ewe.attention_mask(ids)             (B, n, v) -> bool (B, n)
    ewe.EweBert(ewe.BertConfig())       the paper's BERT_EWE
    ewe.Elementwise(parent, embedding)  a model of `transformers` that reads letters
    ewe.load(run)                       a trained run; .predict(texts, top_k=5)
    ewe.pipeline                        the data's way, step by step
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ewe import pipeline as pipeline
    from ewe.bert import BertConfig as BertConfig
    from ewe.bert import EweBert as EweBert
    from ewe.elements import encode as encode
    from ewe.embedding import ElementwiseEmbedding as ElementwiseEmbedding
    from ewe.embedding import attention_mask as attention_mask
    from ewe.huggingface import Elementwise as Elementwise
    from ewe.run import load as load
    from ewe.tokenizer import Tokenizer as Tokenizer

__version__ = "0.1.0"
__all__ = [
    "BertConfig",
    "Elementwise",
    "ElementwiseEmbedding",
    "EweBert",
    "Tokenizer",
    "attention_mask",
    "encode",
    "load",
    "pipeline",
]

_HOME = {
    "BertConfig": "ewe.bert",
    "Elementwise": "ewe.huggingface",
    "ElementwiseEmbedding": "ewe.embedding",
    "EweBert": "ewe.bert",
    "Tokenizer": "ewe.tokenizer",
    "attention_mask": "ewe.embedding",
    "encode": "ewe.elements",
    "load": "ewe.run",
}


def __getattr__(name: str) -> Any:
    if name == "pipeline":
        return importlib.import_module("ewe.pipeline")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ewe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
