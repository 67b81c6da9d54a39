"""ByT5's encoder over raw bytes, its tokens merged on the way: by attention, at random or at spaces, or not.

The blocks are those of `transformers` (5.15 or later, whose T5 has fused attention); ours is the merge of Tanaka,
Sudoh and Nakamura (*Merging tokens by ByT5's attention*, in Japanese), after block 2 of 18 by default:

- attention: Sig(c), the attention that byte c gets, mean over heads and then over queries; the k bytes of highest
  Sig, k = L/5 of a row's L bytes, each start a segment, which runs to before the next one
- random: k bytes drawn at random; spaces: the bytes that are spaces
- bytes before the first of them form a segment of their own; a segment's vector is the mean of its hidden states
- extraction: as attention, but those k bytes stay as they are and all others are dropped
- `</s>` is always a token of its own, and the blocks behind the merge have their own table of relative positions

[decided] k is rounded down, to 1 at least; of equal scores the earlier byte wins; `</s>` asks for attention but does
not compete for a place among the k. The paper says no word on its head: here the mean of a row's last hidden states,
then one linear layer. In training, Sig is of the weights as the library returns them, behind their dropout.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from ewe.batches import Split
from ewe.config import Sizes
from ewe.elements import SHIFT
from ewe.errors import DataError, UsageError
from ewe.hub import Hub

END, BYTES = 1, 3  # ByT5's ids: 0 is padding, 1 is </s>, byte b is b + 3
SPACE = ord(" ") + BYTES
MERGES = {  # and which options mean something to each
    "none": (),
    "attention": ("after", "ratio"),
    "random": ("after", "ratio"),
    "spaces": ("after",),
    "extraction": ("after", "ratio"),
}
ALIKE = {"vocab_size": 384, "feed_forward_proj": "gated-gelu"}  # in every size of ByT5, beside what T5Config has
POSITIONS = "layer.0.SelfAttention.relative_attention_bias.weight"


@dataclass(frozen=True)
class ByT5Config:
    """The encoder's shape and its merge; the defaults are ByT5-base and the paper's."""

    layers: int = 18
    width: int = 1536
    heads: int = 12
    head: int = 64  # width of a head
    ffn: int = 3968
    labels: int = 1328
    dropout: float = 0.1
    merge: str = "none"  # a key of MERGES
    after: int = 2  # how many blocks see every byte
    ratio: float = 0.2  # k of a row's bytes
    pretrained: str = ""  # folder of a Hugging Face ByT5 checkpoint to start from; "" for random weights

    @classmethod
    def of(cls, sizes: Sizes, **options: Any) -> Self:
        """The shape for these sizes; what ByT5 does not scale is T5's.

        Heads are one for every 128 of the width unless chosen, each 64 wide (narrower in narrow models); the
        feed-forward network is 31/12 as wide as the model, in multiples of 64. So 18 layers of width 1536 are
        ByT5-base. A pretrained folder decides all of these itself. `after` is 2, or less where layers are fewer.
        T5 scales its first weights by the widths, so `sizes.init_std` is not used.

        Raises:
            UsageError: the sizes or options do not fit each other, or `pretrained` is no ByT5.
        """
        merge, pretrained = options.get("merge", "none"), options.get("pretrained", "")
        if merge not in MERGES:
            raise UsageError(f"--option merge={merge} is unknown; choose from {', '.join(MERGES)}.")
        if idle := sorted({"after", "ratio"} & set(options) - set(MERGES[merge])):
            raise UsageError(f"--option {idle[0]} means nothing where merge is {merge}; leave it out.")
        shape = _shape_of(Path(pretrained)) if pretrained else _shape(sizes)
        if pretrained and (both := sorted(set(shape) & set(options))):
            raise UsageError(f"--option {both[0]} is decided by {pretrained}; leave it out.")
        placed = {"after": min(2, shape["layers"] - 1) if merge != "none" else 0}
        config = cls(labels=sizes.labels, dropout=sizes.dropout, **{**shape, **placed, **options})
        if min(config.heads, config.head, config.ffn) < 1:
            raise UsageError(f"--width {config.width} is too narrow for --heads {config.heads}.")
        if merge != "none" and not 1 <= config.after < config.layers:
            raise UsageError(
                f"--option after={config.after} must leave a block before and behind the merge; there are "
                f"{config.layers} (--layers)."
            )
        if not 0 < config.ratio < 1:
            raise UsageError(f"--option ratio={config.ratio} must be between 0 and 1.")
        return config


def _shape(sizes: Sizes) -> dict[str, int]:
    heads = sizes.heads or max(1, sizes.width // 128)
    ffn = max(64, sizes.width * 31 // 12 // 64 * 64)
    head = min(64, sizes.width // heads)
    return {"layers": sizes.layers, "width": sizes.width, "heads": heads, "head": head, "ffn": ffn}


def _shape_of(folder: Path) -> dict[str, int]:
    """What config.json of a checkpoint says; UsageError where it is none of ByT5's."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; give --option pretrained the folder of a ByT5 checkpoint.")
    try:
        found = T5Config.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):
        raise UsageError(f"{folder}/config.json is not T5's; give --option pretrained a ByT5 checkpoint.") from None
    usual = T5Config(**ALIKE)
    names = (*ALIKE, "relative_attention_num_buckets", "relative_attention_max_distance", "layer_norm_epsilon")
    for name in names:
        if getattr(found, name) != getattr(usual, name):
            raise UsageError(
                f"{folder} is no ByT5: its {name} is {getattr(found, name)}, not {getattr(usual, name)}; "
                "give --option pretrained a ByT5 checkpoint."
            )
    return {
        "layers": found.num_layers,
        "width": found.d_model,
        "heads": found.num_heads,
        "head": found.d_kv,
        "ffn": found.d_ff,
    }


def byte_tokens(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Our letters as ByT5's tokens, where they lie: the bytes, `</s>`, padding.

    Args:
        ids: uint8 (B, n, v) of the tokenizer "bytes".

    Returns:
        int64 (B, (n-1)*v), and a bool mask of the same shape, False where padding.
    """
    letters = ids[:, 1:].flatten(1).long()  # without [CLS]
    tokens = (letters - SHIFT + BYTES) * (letters >= SHIFT)
    place, ends = torch.arange(tokens.shape[1], device=ids.device), (tokens > 0).sum(1, keepdim=True)
    return torch.where(place == ends, END, tokens), place <= ends


def significance(weights: Tensor, mask: Tensor) -> Tensor:
    """Sig(c) = (1/L) sum_i A[c_i, c]: the attention that each token gets, mean over heads, then over queries.

    Args:
        weights: (B, h, n, n), of query by key.
        mask: bool (B, n), False where padding, which asks for nothing.

    Returns:
        (B, n).
    """
    queries = mask.to(weights.dtype)
    return (weights.mean(1) * queries[:, :, None]).sum(1) / queries.sum(1, keepdim=True)


def keep(scores: Tensor, letters: Tensor, ratio: float) -> Tensor:
    """The share of each row's bytes with the highest scores, rounded down but one at least; earlier ones where equal.

    Args:
        scores: (B, n), not negative.
        letters: bool (B, n), which tokens are bytes.
        ratio: the share.

    Returns:
        bool (B, n).
    """
    k = (letters.sum(1, keepdim=True).double() * ratio).long().clamp(min=1)
    order = scores.masked_fill(~letters, -1).argsort(dim=1, descending=True, stable=True)
    best = torch.arange(scores.shape[1], device=scores.device) < k
    return torch.zeros_like(letters).scatter(1, order, best) & letters


def noise(tokens: Tensor, mask: Tensor) -> Tensor:
    """Numbers that look random but are a function of the row's own tokens, whatever stands beside or behind it.

    Args:
        tokens: int64 (B, n).
        mask: bool (B, n), False where padding.

    Returns:
        int64 (B, n), not negative.
    """
    place = torch.arange(tokens.shape[1], device=tokens.device)
    text = (_mix(tokens * 1024 + _mix(place)) * mask).sum(1, keepdim=True)
    return _mix(_mix(text) + place) & (2**63 - 1)


def _mix(x: Tensor) -> Tensor:
    """Scatter the bits of 64-bit integers, as SplitMix64's finaliser does."""
    x = (x ^ (x >> 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ (x >> 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ (x >> 31)


def merge(x: Tensor, mask: Tensor, starts: Tensor, width: int, drop: bool = False) -> tuple[Tensor, Tensor]:
    """One vector a segment, the mean of its hidden states, without leaving the device.

    A cumulative sum numbers the segments, one addition by that number fills them, and their gradient is a gather.
    (Differences of cumulative sums of x itself would lose digits in long rows, and torch has no deterministic ones
    on a card.)

    Args:
        x: (B, n, w), hidden states.
        mask: bool (B, n), False where padding.
        starts: bool (B, n), at which tokens a segment starts; none of them padding.
        width: of the result: segments a row at most.
        drop: keep only the tokens at which a segment starts.

    Returns:
        (B, width, w), and its mask (B, width).
    """
    B, _, w = x.shape
    slots = (starts.cumsum(1) * (starts if drop else mask)).clamp(max=width)  # slot 0 is for what is left out
    slots = (slots + torch.arange(B, device=x.device)[:, None] * (width + 1)).flatten()
    sums = x.new_zeros(B * (width + 1), w).index_add(0, slots, x.flatten(0, 1))
    sizes = x.new_zeros(B * (width + 1)).index_add(0, slots, torch.ones_like(slots, dtype=x.dtype))
    means = (sums / sizes.clamp(min=1)[:, None]).view(B, width + 1, w)
    return means[:, 1:], sizes.view(B, width + 1)[:, 1:] > 0


class ByT5(nn.Module, Hub):
    """ByT5's encoder with a multilabel head: ids uint8 (B, n<=u, v) of the tokenizer "bytes" -> logits (B, L)."""

    config_class = ByT5Config
    reads = "letters"

    def __init__(self, config: ByT5Config) -> None:
        super().__init__()
        self.config = config
        t5 = {
            **ALIKE,
            "num_layers": config.layers,
            "d_model": config.width,
            "num_heads": config.heads,
            "d_kv": config.head,
            "d_ff": config.ffn,
            "dropout_rate": config.dropout,
        }
        self.encoder = T5EncoderModel(T5Config(**t5, attn_implementation="sdpa")).encoder
        if config.merge != "none":
            later = self._attention(config.after)
            later.relative_attention_bias = deepcopy(self._attention(0).relative_attention_bias)
            later.has_relative_attention_bias = True
        if config.merge in ("attention", "extraction"):  # fused attention returns no weights, so one block goes without
            self._attention(config.after - 1).config = T5Config(**t5, attn_implementation="eager")
        self.head = nn.Linear(config.width, config.labels)
        nn.init.normal_(self.head.weight, std=config.width**-0.5)  # as T5's own head for classes
        nn.init.zeros_(self.head.bias)

    def table_sizes(self) -> dict[str, int]:
        """Parameters of the table of bytes."""
        return {"tokens": self.encoder.embed_tokens.weight.numel()}

    def prepare(self, _split: Split, _rows: NDArray[Any], _seed: int) -> None:
        """Start from the pretrained checkpoint, where one is chosen; both tables of relative positions are its own.

        Raises:
            DataError: the checkpoint's weights are missing or of other sizes than its config.json says.
        """
        if not (folder := self.config.pretrained):
            return
        try:
            found, info = T5EncoderModel.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
        except (OSError, RuntimeError):
            raise DataError(f"{folder} holds no weights that fit its config.json; copy the checkpoint again.") from None
        if missing := sorted(info["missing_keys"]):
            raise DataError(f"{folder} lacks the weights {missing[0]}; give --option pretrained a whole checkpoint.")
        weights = found.encoder.state_dict()
        if self.config.merge != "none":
            weights[f"block.{self.config.after}.{POSITIONS}"] = weights[f"block.0.{POSITIONS}"]
        self.encoder.load_state_dict(weights)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L) of the labels."""
        x, mask = self.encode(ids)
        counted = mask[:, :, None].to(x.dtype)
        logits: Tensor = self.head((x * counted).sum(1) / counted.sum(1))  # </s> is always there to be counted
        return logits

    def encode(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The last hidden states (B, m, w) of ids uint8 (B, n, v), and their mask (B, m): bytes, or segments.

        For attention, random and extraction, m depends on the shape of ids alone; for spaces it is read from the
        device, the one number that leaves it: how many segments the row with most of them has.
        """
        after, blocks = self.config.after, list(self.encoder.block)
        tokens, mask = byte_tokens(ids)
        x = self.encoder.dropout(self.encoder.embed_tokens(tokens))
        if self.config.merge == "none":
            x, _ = self._through(blocks, x, mask)
        else:
            x, weights = self._through(blocks[:after], x, mask)
            x, mask = self._merge(x, mask, tokens, weights)
            x, _ = self._through(blocks[after:], x, mask)
        return self.encoder.dropout(self.encoder.final_layer_norm(x)), mask

    def _through(self, blocks: list[Any], x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Blocks that share the first one's relative positions; with the last one's weights, if it returns any.

        Positions and mask are one tensor for all of them, as T5 has had it, not one more in the memory of each.
        """
        attention, n = blocks[0].layer[0].SelfAttention, x.shape[1]
        bias = attention.compute_bias(n, n, device=x.device)
        if torch.is_autocast_enabled(x.device.type):
            bias = bias.to(torch.get_autocast_dtype(x.device.type))
        bias = bias.masked_fill(~mask[:, None, None, :], torch.finfo(bias.dtype).min)
        weights = None
        for block in blocks:
            attend, feed = block.layer
            x, _, weights = attend(x, position_bias=bias)
            x = feed(x)
        return x, weights

    def _merge(self, x: Tensor, mask: Tensor, tokens: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        drop = self.config.merge == "extraction"
        starts = self._kept(tokens, mask, weights) | (tokens == END)
        if not drop:
            starts[:, 0] = True
        if self.config.merge == "spaces":
            width = int(starts.sum(1).max())
        else:  # k, what comes before and </s>; fused attention likes multiples of 8
            width = -(-(max(1, int((x.shape[1] - 1) * self.config.ratio)) + 2) // 8) * 8
        return merge(x, mask, starts, width, drop)

    @torch.no_grad()
    def _kept(self, tokens: Tensor, mask: Tensor, weights: Tensor | None) -> Tensor:
        """Which bytes start a segment; random ones by torch's generator in training, else by `noise`."""
        if self.config.merge == "spaces":
            return tokens == SPACE
        if weights is not None:
            scores = significance(weights, mask)
        else:
            scores = torch.rand(tokens.shape, device=tokens.device) if self.training else noise(tokens, mask)
        return keep(scores, tokens >= BYTES, self.config.ratio)

    def _attention(self, block: int) -> Any:
        return self.encoder.block[block].layer[0].SelfAttention
