"""Texts to what a model of the Hugging Face world takes: `input_ids` and `attention_mask`.

    tokenizer = ewe.Tokenizer(u=128, v=16)
    model(**tokenizer(["A lever comprising a handle"], return_tensors="pt"))

Ids are those of ewe.elements, one matrix of letters a text; the mask is 1 where a material (a word) is text. The
object serves as the Trainer's `processing_class` and with its collators.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ewe import elements
from ewe.store import publish_json

FILE = "tokenizer_config.json"


class Encoding(dict[str, Any]):
    """What a model takes, by its arguments' names."""

    def to(self, device: Any) -> Self:
        """The same with every tensor on a device."""
        return type(self)({name: value.to(device) for name, value in self.items()})


class Tokenizer:
    """Cuts texts into materials (words) of elements (letters).

    Args:
        u: the most materials of a text, CLS and SEP counted; a longer text is cut.
        v: elements of a material.
        tokenizer: "whitespace" (words) or "bytes" (the UTF-8 stream cut every v bytes).

    Raises:
        UsageError: u < 3, v < 1 or an unknown tokenizer.
    """

    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]

    def __init__(self, u: int = 128, v: int = 16, tokenizer: str = "whitespace") -> None:
        elements.check(u, v, tokenizer)
        self.u, self.v, self.tokenizer = u, v, tokenizer

    def __call__(
        self,
        texts: str | Sequence[str],
        padding: bool | str = "max_length",
        return_tensors: str | None = None,
        *,
        truncation: bool | str = True,
        max_length: int | None = None,
    ) -> Encoding:
        """Encode one text or several.

        Args:
            texts: B strings; or one, whose arrays have no B unless tensors are asked for.
            padding: "max_length" (to u), "longest" or True (to the longest of these), False (none).
            return_tensors: "pt", "np", or None for arrays of numpy in a list where each has its own length.
            truncation: longer texts are always cut, so False is refused.
            max_length: the most materials of these texts, where that is less than u.

        Returns:
            input_ids uint8 (B, n, v) and attention_mask int64 (B, n), n <= u.

        Raises:
            ValueError: another value of padding or return_tensors; truncation is off, or max_length more than u.
            UsageError: max_length < 3.
        """
        if truncation in {False, "do_not_truncate"} or (max_length or 0) > self.u:
            raise ValueError(f"texts are always cut at u={self.u} materials; make a Tokenizer with a larger u")
        single, u = isinstance(texts, str), self.u if max_length is None else max_length
        ids = elements.encode([texts] if isinstance(texts, str) else texts, u, self.v, self.tokenizer)
        lengths = (ids[..., 0] != 0).sum(1)
        rows: list[NDArray[Any]] = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        features = [{"input_ids": row, "attention_mask": np.ones(len(row), np.int64)} for row in rows]
        if not padding:
            if return_tensors:
                raise ValueError("texts of different lengths make no tensor; ask for padding")
            columns = {name: [each[name] for each in features] for name in self.model_input_names}
            return Encoding({name: values[0] for name, values in columns.items()} if single else columns)
        found = self.pad(features, padding, u, return_tensors=return_tensors or "np")
        return Encoding({name: value[0] for name, value in found.items()}) if single and not return_tensors else found

    def pad(
        self,
        features: Sequence[Mapping[str, Any]],
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = "pt",
    ) -> Encoding:
        """A batch out of single texts' features, as the collators of `transformers` ask for it.

        Args:
            features: mappings with input_ids (n, v) each; what else they hold is stacked.
            padding: "max_length", or "longest" and True.
            max_length: what "max_length" means; None for u.
            pad_to_multiple_of: n becomes a multiple of this.
            return_tensors: "pt" or "np".
        """
        if padding not in {True, "longest", "max_length"} or return_tensors not in {"pt", "np"}:
            raise ValueError(f"padding {padding!r} as {return_tensors!r} is unknown: longest or max_length, pt or np")
        ids = [np.asarray(each["input_ids"], np.uint8).reshape(-1, self.v) for each in features]
        longest = max((len(each) for each in ids), default=0)
        n = max(longest, max_length or self.u) if padding == "max_length" else longest
        n += -n % (pad_to_multiple_of or 1)
        out = np.zeros((len(ids), n, self.v), np.uint8)
        for row, each in zip(out, ids, strict=True):
            row[: len(each)] = each
        batch: dict[str, Any] = {"input_ids": out, "attention_mask": (out[..., 0] != 0).astype(np.int64)}
        for name in features[0] if features else ():
            if name not in batch:
                batch["labels" if name == "label" else name] = np.stack([np.asarray(each[name]) for each in features])
        if return_tensors == "pt":
            import torch

            batch = {name: torch.from_numpy(value) for name, value in batch.items()}
        return Encoding(batch)

    def decode(self, ids: Any) -> str:
        """The text of ids (n, v), as far as it was kept: words cut at v bytes, one space between them."""
        between = " " if self.tokenizer == "whitespace" else ""
        return between.encode().join(elements.decode(np.asarray(ids, np.uint8))).decode(errors="replace")

    def save_pretrained(self, folder: Path | str, **_: Any) -> tuple[str]:
        """Write tokenizer_config.json beside a model; returns its path, as the library's tokenizers do."""
        path = Path(folder) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_json(path, {"u": self.u, "v": self.v, "tokenizer": self.tokenizer})
        return (str(path),)

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> Self:
        """Read what `save_pretrained` wrote."""
        return cls(**json.loads((Path(folder) / FILE).read_text(encoding="utf-8")))
