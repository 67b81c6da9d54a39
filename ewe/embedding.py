"""Elementwise embedding: a word is the concatenation of its letters' vectors (the paper's section 3).

    e(i) = Reshape(1, w)[ {E[id(i, j)] + g(p)}_j ] + f(i)      p = i*v + j, counted from 0

[decided] The printed p = (i x j) + j gives only 915 distinct positions of 2,048 at u=128, v=16.
LayerNorm and dropout belong to the parent model, whose embedding this takes the place of; `TokenEmbedding` is
what stands there in BERT itself.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

ALPHABET = 256  # ids end at 248: uint8 holds them, and valid UTF-8 never needs more
STD = 0.02  # of every table at the start


def attention_mask(ids: Tensor) -> Tensor:
    """Which materials are text: bool (B, n) from ids (B, n, v); padding is where the first id is 0."""
    return ids[..., 0] != 0


class _Lookup(torch.autograd.Function):
    """E[ids] whose backward stands thousands of duplicates a row: ids hold 256 values, whatever their number.

    `nn.Embedding`'s own backward takes up to eight times as long on a CPU (at c=8) and adds in no fixed
    order on a card; both ways here are deterministic and equal to it within rounding.
    """

    @staticmethod
    def forward(ctx: Any, elements: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        return nn.functional.embedding(ids.long(), elements)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ids, grad = ctx.saved_tensors[0].flatten(1), grads[0].flatten(1, -2)
        total = sum_by_products(ids, grad) if grad.is_cuda else sum_by_index(ids, grad)
        total[0] = 0  # padding stays the zero vector
        return total, None


def sum_by_index(ids: Tensor, grad: Tensor) -> Tensor:
    """Vectors grad (B, m, c) summed by their ids (B, m): (256, c)."""
    return grad.new_zeros(ALPHABET, grad.shape[-1]).index_add_(0, ids.flatten().long(), grad.flatten(0, 1))


def sum_by_products(ids: Tensor, grad: Tensor) -> Tensor:
    """As `sum_by_index`, without atomics: a product a text, as one of all texts would keep few processors busy."""
    alphabet = torch.arange(ALPHABET, device=ids.device, dtype=ids.dtype)
    return ((ids[:, None] == alphabet[:, None]).to(grad.dtype) @ grad).sum(0)


class ElementwiseEmbedding(nn.Module):
    """Letters in, words out: ids (B, n<=u, v) -> (B, n, w) with w = v*c.

    Args:
        u: the most materials (words) in a text, CLS and SEP counted.
        v: elements (letters) in a material.
        c: width of an element's vector.
        focus: whether to add the positions g (of letters) and f (of words), the paper's focus embeddings.
        gradient: whether each element is replaced by the v-gram that starts at it (section 6.2; see `_grams`).

    Attributes:
        elements: (256, c), row 0 (padding) is zero and stays so.
        letters: g, (u*v, c); absent without focus and after `fold`.
        words: f, (u, w); absent without focus.
        s: (c,), what weighs the elements of a v-gram; absent without gradient.
    """

    letters: nn.Parameter | None
    words: nn.Parameter | None
    s: nn.Parameter | None

    def __init__(self, u: int, v: int, c: int, focus: bool = True, gradient: bool = False) -> None:
        super().__init__()
        if min(u, v, c) < 1:
            raise ValueError(f"u={u}, v={v} and c={c} must each be at least 1")
        self.u, self.v, self.c = u, v, c
        self.elements = nn.Parameter(torch.empty(ALPHABET, c))
        self.letters = nn.Parameter(torch.empty(u * v, c)) if focus else None
        self.words = nn.Parameter(torch.empty(u, v * c)) if focus else None
        self.s = nn.Parameter(torch.empty(c)) if gradient else None
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_fold_as_saved)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        """Draw every table from N(0, 0.02); padding is zero."""
        for table in self.parameters():
            nn.init.normal_(table, std=STD)
        with torch.no_grad():
            self.elements[0] = 0

    def fold(self) -> Self:
        """Add g into f, for inference and export: the sums, and so the outputs, are the same to the bit."""
        if self.letters is not None and self.words is not None:
            self.words = nn.Parameter((self.words + self.letters.view_as(self.words)).detach())
            self.letters = None
        return self

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ids, uint8 or int64 (B, n, v) with n <= u, as (B, n, w); ValueError where they do not fit."""
        n, v = ids.shape[-2:]
        if n > self.u or v != self.v:
            raise ValueError(f"{n} materials of {v} elements do not fit the embedding's u={self.u} and v={self.v}.")
        if self.s is None:
            e: Tensor = _Lookup.apply(self.elements, ids)  # type: ignore[no-untyped-call]
        else:
            e = self._grams(ids, self.s)
        e = e.flatten(-2)
        if self.words is None:
            return e
        focus = self.words if self.letters is None else self.words + self.letters.view_as(self.words)
        return e + focus[:n]

    def _grams(self, ids: Tensor, s: Tensor) -> Tensor:
        """Each element as the v-gram that starts at it: ids (B, n, v) -> (B, n, v, c).

            e_j <- sum_k a_k e_(j+k)      a = softmax over k < v of e_(j+k) . s

        The window slides by one over the text's stream of n*v elements. [decided] Padding weighs nothing, and stays
        the zero vector: what stands behind a text does not change it. A score depends on its element alone, so 255
        dot products serve all windows; a sum over k, of views, takes less time than pooling exp(e.s) * e would on a
        CPU, and no score is too large for it.
        """
        lowest = torch.finfo(s.dtype).min
        scores = pad((self.elements[1:] * s).sum(-1, keepdim=True), (0, 0, 1, 0), value=lowest)
        stream = pad(ids.flatten(-2), (0, self.v - 1))
        x: Tensor = _Lookup.apply(torch.cat([self.elements, scores], -1), stream)  # type: ignore[no-untyped-call]
        a = x[..., -1].unfold(-1, self.v, 1).softmax(-1)
        windows = (x[:, k : k + a.shape[1], :-1] for k in range(self.v))
        e = sum(a[..., k, None] * window for k, window in enumerate(windows))
        return (e * (ids != 0).flatten(-2)[..., None]).view(*ids.shape, self.c)

    def table_sizes(self) -> dict[str, int]:
        """Parameters by what they are for: elements, focus (g and f), and gradient (s) where there is one."""
        focus = sum(table.numel() for table in (self.letters, self.words) if table is not None)
        gradient = {} if self.s is None else {"gradient": self.s.numel()}
        return {"elements": self.elements.numel(), "focus": focus, **gradient}

    def extra_repr(self) -> str:
        """The shape's letters, for print(model)."""
        options = f"focus={self.words is not None}, gradient={self.s is not None}"
        return f"u={self.u}, v={self.v}, c={self.c}, {options}"


def _fold_as_saved(embedding: ElementwiseEmbedding, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Folded weights load as such, into an embedding that is not folded yet."""
    if f"{prefix}words" in state and f"{prefix}letters" not in state:
        embedding.letters = None


class TokenEmbedding(nn.Module):
    """Tokens in, vectors out, as BERT has it: ids (B, n) -> (B, n, w), token + position + type 0.

    Args:
        vocabulary: of the tokenizer; id 0 is padding.
        positions: the most tokens in a text.
        w: width of the vectors.

    Attributes:
        tokens: (vocabulary, w), row 0 is zero and stays so.
        positions: (positions, w).
        types: (2, w); a text alone is of type 0, the other is counted in BERT's size.
    """

    def __init__(self, vocabulary: int, positions: int, w: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(vocabulary, w))
        self.positions = nn.Parameter(torch.empty(positions, w))
        self.types = nn.Parameter(torch.empty(2, w))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every table from N(0, 0.02); padding is zero."""
        for table in self.parameters():
            nn.init.normal_(table, std=STD)
        with torch.no_grad():
            self.tokens[0] = 0

    def forward(self, ids: Tensor) -> Tensor:
        """Embed integer ids (B, n) as (B, n, w); ValueError where they are more than the positions."""
        n = ids.shape[-1]
        if n > len(self.positions):
            raise ValueError(f"{n} tokens are more than the embedding's {len(self.positions)} positions.")
        return nn.functional.embedding(ids.long(), self.tokens, padding_idx=0) + (self.positions[:n] + self.types[0])

    def table_sizes(self) -> dict[str, int]:
        """Parameters of the token table, which is what Table 1 counts."""
        return {"tokens": self.tokens.numel()}
