"""BERT_EWE and BERT_ORIG: BERT's post-LN encoder, with a multilabel head, over elements and over tokens.

- equal to Hugging Face's BertModel on the same weights (a test), parameters included
- query, key and value are one matrix; attention is torch's scaled_dot_product_attention
- only material 0 feeds the pooler, so the last layer computes its queries, and what follows them, there alone:
  the same logits and gradients for a twelfth less work in twelve layers, and for almost half less in two
- padding is masked, except material 0, so that a row of nothing but padding gives numbers, not NaN
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from ewe.config import Sizes
from ewe.embedding import STD, ElementwiseEmbedding, TokenEmbedding, attention_mask
from ewe.errors import UsageError
from ewe.hub import Hub

EPS = 1e-12  # of every LayerNorm, as BERT has it


@dataclass(frozen=True)
class BertConfig:
    """BERT_EWE's shape; the defaults are the paper's, for its 664 subclasses as First and Later."""

    u: int = 128  # materials (words), CLS and SEP counted
    v: int = 16  # elements (letters) a material
    c: int = 48  # width of an element; w = v*c
    layers: int = 12
    heads: int = 16  # h = v: a head a letter
    ffn: int = 3072
    labels: int = 1328
    dropout: float = 0.1  # of embeddings, attention, hidden states and the pooled vector
    focus: bool = True  # whether letters and words know their positions
    init_std: float = STD  # of the linear layers' weights at the start; narrow models start from more
    gradient: bool = False  # whether v-grams stand for their first elements; the paper's, over bytes and without focus

    @property
    def w(self) -> int:
        """Width of the model."""
        return self.v * self.c

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The shape for these tensors; UsageError where width, letters and heads do not fit each other."""
        config = cls(
            **{
                "u": sizes.u,
                "v": sizes.v,
                "c": sizes.width // sizes.v,
                "layers": sizes.layers,
                "heads": sizes.heads or sizes.v,
                "ffn": 4 * sizes.width,
                "labels": sizes.labels,
                "dropout": sizes.dropout,
                "focus": sizes.focus,
                "init_std": sizes.init_std,
                **options,
            }
        )
        if "c" in options and config.w != sizes.width:
            raise UsageError(
                f"--option c={config.c} and the tensors' {sizes.v} letters make a width of {config.w},"
                f" not --width {sizes.width}; leave c out."
            )
        if config.w != sizes.width or config.w % config.heads:
            raise UsageError(
                f"--width {sizes.width} must be a multiple of the tensors' {sizes.v} letters"
                f" and of --heads {config.heads}."
            )
        return config


@dataclass(frozen=True)
class ParentConfig:
    """What the shape of every parent has; the defaults are the paper's."""

    width: int = 768
    layers: int = 12
    heads: int = 12  # of 64
    ffn: int = 3072
    labels: int = 1328
    dropout: float = 0.1  # of embeddings, attention, hidden states and the pooled vector
    init_std: float = STD  # of the weights at the start; narrow models start from more

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The shape for these tensors; UsageError where they do not fit each other."""
        names = {each.name for each in fields(cls)}
        shared = {each.name: getattr(sizes, each.name) for each in fields(sizes) if each.name in names}
        config = cls(**(shared | {"heads": cls._heads(sizes), "ffn": 4 * sizes.width} | options))
        if config.width % config.heads:
            raise UsageError(f"--width {config.width} must be a multiple of --heads {config.heads}.")
        config._check(sizes)
        return config

    @classmethod
    def _heads(cls, sizes: Sizes) -> int:
        return sizes.heads or max(1, sizes.width // 64)

    def _check(self, sizes: Sizes) -> None:
        """Raise UsageError where the parent cannot read such texts."""


@dataclass(frozen=True)
class OrigBertConfig(ParentConfig):
    """BERT_ORIG's shape, with the uncased vocabulary that the paper's Table 1 counts."""

    vocabulary: int = 30_522  # of the tokenizer
    positions: int = 512  # the most tokens a text; BERT's size counts 512 whatever is read of them

    @property
    def w(self) -> int:
        """Width of the model."""
        return self.width

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """As ParentConfig.of, with a position a token."""
        return super().of(sizes, **{"positions": max(cls.positions, sizes.u), **options})

    def _check(self, sizes: Sizes) -> None:
        if self.positions < sizes.u:
            raise UsageError(f"--option positions={self.positions} is less than the tensors' {sizes.u} tokens.")


Config = BertConfig | OrigBertConfig


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.w % config.heads:
            raise ValueError(f"a width of {config.w} cannot be shared out among {config.heads} heads")
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.w, 3 * config.w)
        self.out = nn.Linear(config.w, config.w)

    def forward(self, x: Tensor, mask: Tensor | None, queries: int) -> Tensor:
        """The first `queries` materials of x (B, n, w) attend to all that mask (B, 1, 1, n) lets through."""
        w = x.shape[-1]
        if queries == x.shape[1]:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            q = linear(x[:, :queries], self.qkv.weight[:w], self.qkv.bias[:w])
            k, v = linear(x, self.qkv.weight[w:], self.qkv.bias[w:]).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        if x.device.type == "cpu" and q.dtype == torch.bfloat16:  # torch's backward takes five times as long in bf16
            with torch.autocast("cpu", enabled=False):
                y = scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask, dropout_p=dropout)
        else:
            y = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out: Tensor = self.out(y.transpose(1, 2).flatten(-2))
        return out


class Layer(nn.Module):
    """Attention, then the feed-forward network; each is added to its input and normalised after."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.norm1 = nn.LayerNorm(config.w, EPS)
        self.up = nn.Linear(config.w, config.ffn)
        self.down = nn.Linear(config.ffn, config.w)
        self.norm2 = nn.LayerNorm(config.w, EPS)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None, queries: int) -> Tensor:
        """(B, n, w) -> (B, queries, w)."""
        x = self.norm1(x[:, :queries] + self.dropout(self.attention(x, mask, queries)))
        out: Tensor = self.norm2(x + self.dropout(self.down(gelu(self.up(x)))))
        return out


class Encoder(nn.Module):
    """The stack of layers, from embedded materials to the hidden states of the first few."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, x: Tensor, mask: Tensor | None = None, queries: int | None = None) -> Tensor:
        """(B, n, w) -> (B, queries, w).

        Args:
            x: embedded materials.
            mask: bool (B, n), False where padding.
            queries: how many hidden states are asked for; None for all n.
        """
        mask = mask[:, None, None, :] if mask is not None else None
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, x.shape[1] if i < last or queries is None else queries)
        return x


class Bert(nn.Module, Hub):
    """The encoder over any embedding of B texts as (B, n, w), its pooler and its multilabel head."""

    def __init__(self, config: Config, embedding: ElementwiseEmbedding | TokenEmbedding) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.norm = nn.LayerNorm(config.w, EPS)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.pooler = nn.Linear(config.w, config.w)
        self.head = nn.Linear(config.w, config.labels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights, as BERT does.

        | tensor | start |
        |---|---|
        | elements, letters, words, s; tokens, positions, types | N(0, 0.02), padding 0 |
        | weights of linear layers | N(0, config.init_std), BERT's 0.02 |
        | biases of linear layers | 0 |
        | LayerNorm | weight 1, bias 0 |
        """
        for module in self.modules():
            if isinstance(module, ElementwiseEmbedding | TokenEmbedding | nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config.init_std)
                nn.init.zeros_(module.bias)

    def logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, L) of ids (B, n, ...), of which mask (B, n) is False where padding."""
        mask[:, 0] = True
        x = self.dropout(self.norm(self.embedding(ids)))
        pooled = torch.tanh(self.pooler(self.encoder(x, mask, queries=1)[:, 0]))
        logits: Tensor = self.head(self.dropout(pooled))
        return logits


class EweBert(Bert):
    """BERT_EWE with its multilabel head: ids uint8 (B, n<=u, v) -> logits (B, L)."""

    config_class = BertConfig
    reads = "letters"

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, ElementwiseEmbedding(config.u, config.v, config.c, config.focus, config.gradient))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L) of the labels; materials whose first id is 0 are padding."""
        return self.logits(ids, attention_mask(ids))


class OrigBert(Bert):
    """BERT_ORIG, the parent itself, with the same head: token ids int64 (B, n<=positions) -> logits (B, L)."""

    config_class = OrigBertConfig
    reads = "tokens"

    def __init__(self, config: OrigBertConfig) -> None:
        super().__init__(config, TokenEmbedding(config.vocabulary, config.positions, config.w))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L) of the labels; tokens of id 0 are padding."""
        return self.logits(ids, ids != 0)
