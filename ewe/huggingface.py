"""The elementwise embedding inside models of `transformers`: ALBERT and CANINE as systems, BERT and its kin at hand.

The embeddings' tables give way (characters or tokens, positions, types); their LayerNorm and dropout stay, and so
does everything else. `Elementwise(parent, embedding)` does this to any parent that keeps them together under
`embeddings`, as BERT, RoBERTa, ELECTRA, ALBERT and others do. For another parent, whatever takes `inputs_embeds`:

    import ewe
    import torch
    from transformers import T5Config, T5EncoderModel

    ids = torch.from_numpy(ewe.encode(["A lever comprising a handle"], u=32, v=8))
    embedding = ewe.ElementwiseEmbedding(u=32, v=8, c=8)
    parent = T5EncoderModel(T5Config(vocab_size=1, d_model=64, num_layers=2, num_heads=8))
    mask = ewe.attention_mask(ids)
    words = parent(inputs_embeds=embedding(ids), attention_mask=mask).last_hidden_state

ORIG systems are the library's own sequence classifiers. Every system is equal to the library's model on the same
weights and `inputs_embeds` (a test); rows of nothing but padding give numbers, as position 0 is always seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AlbertForSequenceClassification, CanineForSequenceClassification

from ewe.bert import ParentConfig
from ewe.config import Sizes
from ewe.embedding import ElementwiseEmbedding
from ewe.errors import UsageError
from ewe.hub import Hub

PLACES = ("embeddings", "char_embeddings")  # where a parent keeps its tables, LayerNorm and dropout


class WithoutTables(nn.Module):
    """What stays of a parent's embeddings where vectors come from outside: LayerNorm and dropout."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.LayerNorm, self.dropout = embeddings.LayerNorm, embeddings.dropout

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Tensor:
        """(B, n, w) -> (B, n, w); positions and types, which the parent hands over too, are the embedding's affair."""
        out: Tensor = self.dropout(self.LayerNorm(inputs_embeds))
        return out


def without_tables(parent: Any) -> Any:
    """The parent (PreTrainedModel), changed in place: fed `inputs_embeds`, it adds nothing of its own to them."""
    base = parent.base_model
    for place in PLACES:
        if hasattr(getattr(base, place, None), "LayerNorm"):
            setattr(base, place, WithoutTables(getattr(base, place)))
            return parent
    raise ValueError(
        f"{type(parent).__name__} keeps its tables elsewhere than {' or '.join(PLACES)}: feed inputs_embeds."
    )


def visible(ids: Tensor) -> Tensor:
    """What is no padding, bool (B, n), of ids (B, n) or (B, n, v); the first always, so that no row sees nothing."""
    mask = (ids if ids.ndim == 2 else ids[..., 0]) != 0
    mask[:, 0] = True
    return mask


class Elementwise(nn.Module):
    """A model of `transformers` that reads letters; it takes and gives what the parent does, loss included.

    Args:
        parent: BERT or its kin, with any head; its tables are given up, so make them small (`vocab_size=1`).
        embedding: w = v*c wide, as the parent's embeddings were.
    """

    def __init__(self, parent: Any, embedding: ElementwiseEmbedding) -> None:
        super().__init__()
        self.parent, self.embedding = without_tables(parent), embedding

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **rest: Any
    ) -> Any:
        """What the parent returns for ids (B, n, v) and a mask (B, n), which is derived where none is given."""
        mask = visible(input_ids) if attention_mask is None else attention_mask
        given = rest if labels is None else {"labels": labels, **rest}
        return self.parent(inputs_embeds=self.embedding(input_ids), attention_mask=mask, **given)


# -- shapes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EweConfig(ParentConfig):
    """What the shape of every parent with an elementwise embedding has."""

    heads: int = 16  # h = v
    u: int = 128  # materials (words), CLS and SEP counted
    v: int = 16  # elements (letters) a material
    focus: bool = True  # whether letters and words know their positions

    @classmethod
    def _heads(cls, sizes: Sizes) -> int:
        return sizes.heads or sizes.v


@dataclass(frozen=True)
class AlbertEweConfig(EweConfig):
    """ALBERT_EWE's shape: embeddings of v*c = 128, a Linear to the model's width, one layer used again and again."""

    c: int = 8  # width of an element

    def parent(self) -> Any:
        """The library's configuration; its tables, which are given up, have one row."""
        tables = {"vocab_size": 1, "max_position_embeddings": 1, "type_vocab_size": 1}
        return _albert(self, embedding_size=self.v * self.c, **tables)


@dataclass(frozen=True)
class AlbertOrigConfig(ParentConfig):
    """ALBERT_ORIG's shape."""

    vocabulary: int = 30_000  # of the tokenizer
    embedding: int = 128  # width of the tables
    positions: int = 512  # the most tokens a text; ALBERT's size counts 512 whatever is read of them

    def _check(self, sizes: Sizes) -> None:
        if self.positions < sizes.u:
            raise UsageError(
                f"ALBERT has {self.positions} positions for {sizes.u} tokens: --option positions={sizes.u}."
            )

    def parent(self) -> Any:
        """The library's configuration."""
        tables = {"vocab_size": self.vocabulary, "max_position_embeddings": self.positions}
        return _albert(self, embedding_size=self.embedding, **tables)


def _common(config: ParentConfig) -> dict[str, Any]:
    """What the library's configurations call the fields of ours."""
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "num_labels": config.labels,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "initializer_range": config.init_std,
    }


def _albert(config: ParentConfig, **tables: int) -> Any:
    no_text = {"bos_token_id": None, "eos_token_id": None}
    return transformers.AlbertConfig(**_common(config), classifier_dropout_prob=config.dropout, **tables, **no_text)


@dataclass(frozen=True)
class CanineEweConfig(EweConfig):
    """CANINE_EWE's shape: words in the place of characters, a quarter as many in the deep stack."""

    rate: int = 4  # words that the strided convolution takes as one
    window: int = 128  # of the local layer before it

    def _check(self, sizes: Sizes) -> None:
        if self.width % self.v:
            raise UsageError(f"--width {self.width} must be a multiple of the tensors' {self.v} letters.")
        _check_stride(sizes.u, self.rate, self.window)

    def parent(self) -> Any:
        """The library's configuration; its tables, which are given up, have one row."""
        return _canine(self, num_hash_functions=1, num_hash_buckets=1, max_position_embeddings=1, type_vocab_size=1)


@dataclass(frozen=True)
class CanineOrigConfig(ParentConfig):
    """CANINE_ORIG's shape: hashed characters."""

    hashes: int = 8  # each gives a part of the width
    buckets: int = 16_384  # rows of each hash's table, and of the positions'
    rate: int = 4  # characters that the strided convolution takes as one
    window: int = 128  # of the local layer before it

    def _check(self, sizes: Sizes) -> None:
        if self.width % self.hashes:
            raise UsageError(f"--width {self.width} must be a multiple of CANINE's {self.hashes} hash functions.")
        if sizes.u > self.buckets:
            raise UsageError(
                f"CANINE has {self.buckets} positions for {sizes.u} characters: --option buckets={sizes.u}."
            )
        _check_stride(sizes.u, self.rate, self.window)

    def parent(self) -> Any:
        """The library's configuration."""
        tables = {"num_hash_buckets": self.buckets, "max_position_embeddings": self.buckets}
        return _canine(self, num_hash_functions=self.hashes, **tables)


def _check_stride(u: int, rate: int, window: int) -> None:
    if rate < 1 or window < 1 or u % rate:
        raise UsageError(
            f"CANINE takes {rate} positions as one: encode a multiple of them, not {u}, or choose another rate."
        )


def _canine(config: CanineEweConfig | CanineOrigConfig, **tables: int) -> Any:
    stride = {"downsampling_rate": config.rate, "local_transformer_stride": config.window}
    return transformers.CanineConfig(**_common(config), **stride, **tables)


# -- systems -----------------------------------------------------------------------------------------------------------


class System(nn.Module, Hub):
    """A sequence classifier of the library, its loss left to the caller."""

    def __init__(self, config: Any, parent: Any) -> None:
        super().__init__()
        self.config, self.parent = config, parent

    @property
    def head(self) -> nn.Linear:
        """The parent's own classifier."""
        head: nn.Linear = self.parent.classifier
        return head


class AlbertEwe(System):
    """ALBERT_EWE: ids uint8 (B, n<=u, v) -> logits (B, L)."""

    config_class = AlbertEweConfig
    reads = "letters"

    def __init__(self, config: AlbertEweConfig) -> None:
        super().__init__(config, without_tables(AlbertForSequenceClassification(config.parent())))
        self.embedding = ElementwiseEmbedding(config.u, config.v, config.c, config.focus)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L) of the labels; materials whose first id is 0 are padding."""
        logits: Tensor = self.parent(inputs_embeds=self.embedding(ids), attention_mask=visible(ids)).logits
        return logits


class AlbertOrig(System):
    """ALBERT_ORIG: token ids int64 (B, n) -> logits (B, L)."""

    config_class = AlbertOrigConfig
    reads = "tokens"

    def __init__(self, config: AlbertOrigConfig) -> None:
        super().__init__(config, AlbertForSequenceClassification(config.parent()))
        _settle(self.parent.albert.embeddings)

    def table_sizes(self) -> dict[str, int]:
        """Parameters of the token table, which is what Table 1 counts."""
        return {"tokens": self.parent.albert.embeddings.word_embeddings.weight.numel()}

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L) of the labels; tokens of id 0 are padding."""
        logits: Tensor = self.parent(ids.long(), attention_mask=visible(ids)).logits
        return logits


class Canine(System):
    """CANINE up to its pooler, which the library computes beyond.

    What follows the pooler there, up to characters again, gets no gradient from classification: it is allocated, as
    the paper's table counts it, and neither computed nor optimised.
    """

    def __init__(self, config: CanineEweConfig | CanineOrigConfig, parent: Any) -> None:
        super().__init__(config, parent)
        parent.canine.projection.requires_grad_(requires_grad=False)
        parent.canine.final_char_encoder.requires_grad_(requires_grad=False)

    def logits(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, L) of embedded positions (B, n, w), n a multiple of the rate, and their mask (B, n)."""
        canine, rate = self.parent.canine, self.config.rate
        n = vectors.shape[1]
        local = mask[:, None].expand(-1, n, -1)
        x = canine.initial_char_encoder(vectors, attention_mask=local).last_hidden_state
        molecules = canine.chars_to_molecules(x)
        seen = mask.view(len(mask), -1, rate).any(-1)
        hidden = canine.encoder(molecules, attention_mask=seen[:, None]).last_hidden_state
        logits: Tensor = self.head(self.parent.dropout(canine.pooler(hidden)))
        return logits

    def whole(self, ids: Tensor) -> Tensor:
        """The ids with padding up to a multiple of the rate, as the convolution would drop what is left over."""
        return pad(ids, (0, 0) * (ids.ndim - 2) + (0, -ids.shape[1] % self.config.rate))


class CanineEwe(Canine):
    """CANINE_EWE: ids uint8 (B, n<=u, v) -> logits (B, L)."""

    config_class = CanineEweConfig
    reads = "letters"

    def __init__(self, config: CanineEweConfig) -> None:
        super().__init__(config, without_tables(CanineForSequenceClassification(config.parent())))
        self.embedding = ElementwiseEmbedding(config.u, config.v, config.width // config.v, config.focus)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L) of the labels; materials whose first id is 0 are padding."""
        ids = self.whole(ids)
        return self.logits(self.parent.canine.char_embeddings(inputs_embeds=self.embedding(ids)), visible(ids))


class CanineOrig(Canine):
    """CANINE_ORIG: code points int64 (B, n) -> logits (B, L)."""

    config_class = CanineOrigConfig
    reads = "codepoints"

    def __init__(self, config: CanineOrigConfig) -> None:
        super().__init__(config, CanineForSequenceClassification(config.parent()))
        _settle(self.parent.canine.char_embeddings)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L) of the labels; code points of 0 are padding."""
        ids = self.whole(ids).long()
        return self.logits(self.parent.canine.char_embeddings(input_ids=ids), visible(ids))


def _settle(embeddings: nn.Module) -> None:
    """Give buffers their values on the meta device too: a state dict lacks them, so that loading would not."""
    for name, buffer in list(embeddings.named_buffers()):
        if buffer.is_meta:
            values = torch.arange(buffer.shape[-1], device="cpu")[None]
            setattr(embeddings, name, values if name == "position_ids" else torch.zeros_like(values))
