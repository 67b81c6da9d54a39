"""Text -> hashed words: what the baselines read, from the text that every tensors/ folder keeps beside its ids.

A word is a run of ASCII letters and digits, lower-cased, and of bytes >= 0x80, which all count as letters as they
are; any other byte ends it. A text's words are those of its first 512 white-space words, which is as much as
tensors/ keeps, and of them the first 512 ("a-b" is one white-space word and two words). Its id is the 32-bit FNV-1a
hash of its bytes, folded to 20 bits as FNV's authors advise (the upper 12 bits are XORed onto the lower 20);
1 takes the place of 0, which is padding. So ids are in [1, 2**20), and no vocabulary has to be counted, kept or
shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ewe.elements import TEXT_WORDS, buffers, measure
from ewe.kernel import kernel

IDS = 2**20  # ids are below
_BASIS, _PRIME = np.uint32(2166136261), np.uint32(16777619)  # of 32-bit FNV-1a
_FOLD, _LOW = np.uint32(20), np.uint32(IDS - 1)

_LETTERS = np.zeros(256, np.uint8)  # what a byte counts as within a word; 0 ends it
for _byte in range(256):
    if _byte >= 0x80 or chr(_byte).isalnum():
        _LETTERS[_byte] = ord(chr(_byte).lower()) if _byte < 0x80 else _byte

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


@kernel
def _hash(data: Bytes, starts: Places, ends: Places, out: npt.NDArray[np.int32]) -> int:
    """Fill rows of zeros with words; returns how many the longest row has."""
    longest = 0
    for n in range(starts.size):
        count = 0
        inside = False
        x = _BASIS
        for i in range(starts[n], ends[n] + 1):
            letter = _LETTERS[data[i]] if i < ends[n] else np.uint8(0)
            if letter:
                x = np.uint32((x ^ letter) * _PRIME)
                inside = True
            elif inside:
                out[n, count] = max(np.int32((x >> _FOLD) ^ (x & _LOW)), np.int32(1))
                count += 1
                if count == out.shape[1]:
                    break
                inside = False
                x = _BASIS
        longest = max(longest, count)
    return longest


def hash_rows(data: Bytes, starts: Places, ends: Places) -> npt.NDArray[np.int32]:
    """The words of texts that lie in one buffer, each already cut after 512 white-space words.

    Args:
        data: UTF-8 bytes.
        starts: int64 (B,), where each text starts.
        ends: int64 (B,), where each ends.

    Returns:
        int32 (B, n), n being the words of the longest text and at least 1; 0 where a text has no more.
    """
    out = np.zeros((len(starts), TEXT_WORDS), np.int32)
    views = [np.asarray(each).view() for each in (data, starts, ends)]  # a memory map's, too
    for view in views:
        view.flags.writeable = False  # so that all share one compiled kernel
    longest = _hash(*views, out)
    return np.ascontiguousarray(out[:, : max(longest, 1)])


def encode(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """The words of texts, as `hash_rows` gives them for the same texts in tensors/: int32 (B, n).

    Raises:
        TypeError: `texts` is one string.
    """
    data, offsets = buffers(texts)
    return hash_rows(data, offsets[:-1], offsets[:-1] + measure(data, offsets))


def buckets(ids: Any, count: int) -> Any:
    """Ids modulo the rows of a table: as with ids, 0 remains padding and 1 takes the place of other zeros.

    Args:
        ids: integers >= 0, an array or a tensor.
        count: rows of the table, at least 2.
    """
    rest = ids % count
    return rest + ((rest == 0) & (ids > 0))
