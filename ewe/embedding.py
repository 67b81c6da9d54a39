"""Elementwise embedding: a word is the concatenation of its letters' vectors (the paper's section 3).

    e(i) = Reshape(1, w)[ {E[id(i, j)] + g(p)}_j ] + f(i)      p = i*v + j, counted from 0

[decided] The printed p = (i x j) + j gives only 915 distinct positions of 2,048 at u=128, v=16.
LayerNorm and dropout belong to the parent model, whose embedding this takes the place of.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

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
        ids, grad = ctx.saved_tensors[0].flatten(), grads[0].flatten(0, -2)
        if grad.is_cuda:  # a matrix product: no atomics
            alphabet = torch.arange(ALPHABET, device=ids.device, dtype=ids.dtype)
            total = (ids == alphabet[:, None]).to(grad.dtype) @ grad
        else:
            total = grad.new_zeros(ALPHABET, grad.shape[-1]).index_put_((ids.long(),), grad, accumulate=True)
        total[0] = 0  # padding stays the zero vector
        return total, None


class ElementwiseEmbedding(nn.Module):
    """Letters in, words out: ids (B, n<=u, v) -> (B, n, w) with w = v*c.

    Args:
        u: the most materials (words) in a text, CLS and SEP counted.
        v: elements (letters) in a material.
        c: width of an element's vector.
        focus: whether to add the positions g (of letters) and f (of words), the paper's focus embeddings.

    Attributes:
        elements: (256, c), row 0 (padding) is zero and stays so.
        letters: g, (u*v, c); absent without focus and after `fold`.
        words: f, (u, w); absent without focus.
    """

    letters: nn.Parameter | None
    words: nn.Parameter | None

    def __init__(self, u: int, v: int, c: int, focus: bool = True) -> None:
        super().__init__()
        self.u, self.v, self.c = u, v, c
        self.elements = nn.Parameter(torch.empty(ALPHABET, c))
        self.letters = nn.Parameter(torch.empty(u * v, c)) if focus else None
        self.words = nn.Parameter(torch.empty(u, v * c)) if focus else None
        self.reset_parameters()

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
        """Embed ids, uint8 or int64 (B, n, v) with n <= u, as (B, n, w)."""
        n = ids.shape[-2]
        e: Tensor = _Lookup.apply(self.elements, ids).flatten(-2)  # type: ignore[no-untyped-call]
        if self.words is None:
            return e
        focus = self.words if self.letters is None else self.words + self.letters.view_as(self.words)
        return e + focus[:n]

    def extra_repr(self) -> str:
        """The shape's letters, for print(model)."""
        return f"u={self.u}, v={self.v}, c={self.c}, focus={self.words is not None}"
