"""Text <-> (u, v) bytes: the one byte contract, used by encoding and by prediction.

A text becomes u materials of v ids each: `[CLS, 0, ...]`, its first u - 2 words (each its first v
UTF-8 bytes, padded with zeros), `[SEP, 0, ...]`, then zeros. Ids are PAD=0, CLS=1, SEP=2, MASK=3 and
byte + 4: valid UTF-8 has no byte above 0xF4, so one uint8 an id is enough. Words are what Python's
`str.split()` gives; U+0000 is dropped and a lone surrogate becomes U+FFFD. [decided: u counts CLS and
SEP, as BERT's max_length does; a cut inside a multi-byte letter is allowed]

The kernels read Arrow's string buffers as they lie in memory, so nothing becomes a Python string.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ewe.errors import UsageError
from ewe.kernel import kernel
from ewe.window import LETTERS, LINE, WINDOW, below, equal, lowest, ones, prefetch, put

PAD, CLS, SEP, MASK, SHIFT = 0, 1, 2, 3, 4
TEXT_WORDS = 512  # how much of a text is kept beside its bytes, for models that read words

_LETTER, _SPACE, _NUL, _WIDE = 0, 1, 2, 3
_KIND = np.full(256, _LETTER, np.uint8)
_KIND[[*range(0x09, 0x0E), *range(0x1C, 0x21)]] = _SPACE
_KIND[0x00] = _NUL
_KIND[[0xC2, 0xE1, 0xE2, 0xE3]] = _WIDE  # lead bytes of the 19 white-space characters beyond ASCII

_NONE, _ONE, _LAST = (np.uint64(n) for n in (0, 1, WINDOW - 1))
_WORD_BYTES = 7  # with the blank behind it, on average and a bit more

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


class Counts(NamedTuple):
    """What an encoding lost, over all its rows."""

    materials: int  # written, without CLS and SEP
    materials_cut: int  # words longer than v bytes
    rows_cut: int  # rows with more text than u - 2 materials hold


@kernel
def _wide_space(data: Bytes, i: int, end: int) -> int:
    """Length of the white-space character beyond ASCII that starts at i; 0 where none does."""
    if data[i] == 0xC2:
        return 2 if i + 1 < end and (data[i + 1] == 0x85 or data[i + 1] == 0xA0) else 0
    if i + 2 >= end:
        return 0
    lead, middle, last = data[i], data[i + 1], data[i + 2]
    if lead == 0xE1:
        found = middle == 0x9A and last == 0x80
    elif lead == 0xE3:
        found = middle == 0x80 and last == 0x80
    elif middle == 0x80:
        found = last <= 0x8A or last == 0xA8 or last == 0xA9 or last == 0xAF
    else:
        found = middle == 0x81 and last == 0x9F
    return 3 if found else 0


@kernel
def _classify(data: Bytes, i: int, end: int) -> tuple[int, int]:
    """(kind, bytes) of what stands at i; a multi-byte letter counts byte by byte."""
    kind = _KIND[data[i]]
    if kind != _WIDE:
        return kind, 1
    width = _wide_space(data, i, end)
    return (_SPACE, width) if width else (_LETTER, 1)


@kernel
def _blanks_and_odd(data: Bytes, i: int) -> tuple[np.uint64, np.uint64]:
    """Masks of a window: blanks, and what is neither a blank nor a letter of ASCII."""
    blanks = equal(data, i, 0x20)
    return blanks, (below(data, i, 0x21) ^ blanks) | ~below(data, i, 0x80)


@kernel
def _skip_words(data: Bytes, i: int, end: int, count: int, limit: int) -> tuple[int, int]:
    """Read on from between two words, `count` of them behind, to the end of word number `limit`.

    Returns:
        (where that is, limit), or (end, number of words in all) where there are fewer.
    """
    inside = _NONE  # 1 within a word
    while i < end:
        if i + WINDOW <= end:
            blanks, odd = _blanks_and_odd(data, i)
            letters = ~blanks
            words = count + ones(letters & ~(letters << _ONE | inside))
            if odd == _NONE and words < limit:
                count = words
                inside = letters >> _LAST
                i += WINDOW
                continue
        for _ in range(WINDOW):  # a byte at a time, and no second look at this window
            kind, width = _classify(data, i, end)
            if kind == _LETTER and inside == _NONE:
                count += 1
                inside = _ONE
            elif kind == _SPACE:
                if inside == _ONE and count == limit:
                    return i, count
                inside = _NONE
            i += width
            if i >= end:
                break
    return end, count


@kernel
def _whitespace(data: Bytes, offsets: Places, out: Bytes, lengths: Places) -> tuple[int, int, int]:
    """Rows of words.

    A window shows where its words end, and each goes out as 16 bytes at once: its letters, then zeros, which the next
    word covers where v is less. Texts lie far apart: the next one's words are on their way while this one's are read.
    """
    N, u, v = out.shape
    keep = TEXT_WORDS if lengths.size else 0
    flat = out.reshape(N * u * v)
    materials = words_cut = rows_cut = 0
    for n in range(N):
        i, end = offsets[n], offsets[n + 1]
        if n + 1 < N:
            for line in range(end, min(end + u * _WORD_BYTES, offsets[n + 2]), LINE):
                prefetch(data, line)
        row = n * u * v
        flat[row : row + u * v] = PAD
        flat[row] = CLS
        to, last = row + v, row + (u - 1) * v
        while i < end and to < last:
            if i + WINDOW + LETTERS <= end and to + LETTERS <= last + v:
                blanks, odd = _blanks_and_odd(data, i)
                stops = blanks & ((odd & (~odd + _ONE)) - _ONE)  # those before anything odd
                window, begin = i, i
                while stops != _NONE and to + LETTERS <= last + v and to < last:
                    stop = window + lowest(stops)
                    length = stop - i
                    if length > LETTERS and v > LETTERS:  # longer than what goes out at once
                        break
                    put(flat, to, data, i, min(length, v), SHIFT)
                    words_cut += length > v
                    to += v if length else 0
                    stops &= stops - _ONE
                    i = stop + 1
                if i > begin:
                    continue
            length = 0
            while i < end:  # a word, a byte at a time
                kind, width = _classify(data, i, end)
                if kind == _LETTER:
                    if length < v:
                        flat[to + length] = data[i] + SHIFT
                    length += 1
                elif kind == _SPACE and length:
                    break
                i += width
            words_cut += length > v
            to += v if length else 0
        flat[to] = SEP
        m = (to - row) // v - 1
        materials += m
        stop, count = _skip_words(data, i, end, m, max(keep, m + 1))
        rows_cut += count > m
        if m >= keep > 0:
            stop, _ = _skip_words(data, offsets[n], end, 0, keep)
        if keep:
            lengths[n] = stop - offsets[n]
    return materials, words_cut, rows_cut


@kernel
def _bytes(data: Bytes, offsets: Places, out: Bytes, lengths: Places) -> tuple[int, int, int]:
    """Rows of the UTF-8 stream itself, white space kept, cut every v bytes."""
    N, u, v = out.shape
    flat = out.reshape(N * u * v)
    room = (u - 2) * v
    materials = rows_cut = 0
    for n in range(N):
        i, end = offsets[n], offsets[n + 1]
        to = n * u * v
        flat[to : to + u * v] = PAD
        flat[to] = CLS
        to += v
        length = 0
        while i < end and length < room:
            if i + WINDOW <= end and length + LETTERS <= room and lowest(equal(data, i, 0)) >= LETTERS:
                put(flat, to + length, data, i, LETTERS, SHIFT)
                i += LETTERS
                length += LETTERS
                continue
            if data[i] != 0:
                flat[to + length] = data[i] + SHIFT
                length += 1
            i += 1
        m = (length + v - 1) // v
        flat[to + m * v] = SEP
        materials += m
        while i < end and data[i] == 0:
            i += 1
        rows_cut += i < end
        if lengths.size:
            lengths[n] = _skip_words(data, offsets[n], end, 0, TEXT_WORDS)[0] - offsets[n]
    return materials, 0, rows_cut


TOKENIZERS: dict[str, Callable[..., tuple[int, int, int]]] = {"whitespace": _whitespace, "bytes": _bytes}
# Of every tokenizer, those of tokens.py too: the part of tensors/ that holds its ids, SPLIT.PART.npy
PARTS = {"whitespace": "bytes", "bytes": "bytes", "wordpiece": "tokens", "codepoints": "codepoints"}


@kernel
def _pack(data: Bytes, offsets: Places, lengths: Places, out: Bytes) -> None:
    to = 0
    for n in range(lengths.size):
        for i in range(offsets[n], offsets[n] + lengths[n]):
            out[to] = data[i]
            to += 1


def pack(data: Bytes, offsets: Places, lengths: Places) -> Bytes:
    """The first lengths[n] bytes of each text, one after another.

    Args:
        data: UTF-8 bytes of all texts.
        offsets: int64 (N+1), where each text starts.
        lengths: int64 (N), bytes wanted of each.
    """
    out = np.empty(int(lengths.sum()), np.uint8)
    _pack(frozen(data), frozen(offsets), lengths, out)
    return out


@kernel
def _measure(data: Bytes, offsets: Places, lengths: Places) -> None:
    for n in range(lengths.size):
        lengths[n] = _skip_words(data, offsets[n], offsets[n + 1], 0, TEXT_WORDS)[0] - offsets[n]


def measure(data: Bytes, offsets: Places) -> Places:
    """Each text's length in bytes up to the end of its word number TEXT_WORDS, int64 (N); all where there are fewer.

    Args:
        data: valid UTF-8 of all texts.
        offsets: int64 (N+1), where each text starts.
    """
    lengths = np.empty(len(offsets) - 1, np.int64)
    _measure(frozen(data), frozen(offsets), lengths)
    return lengths


def check(u: int, v: int = 1, tokenizer: str = "whitespace") -> None:
    """Raise UsageError unless texts can be cut into u materials of v ids this way."""
    if tokenizer not in TOKENIZERS:
        raise UsageError(f"There is no tokenizer {tokenizer!r}; choose one of {', '.join(TOKENIZERS)}.")
    if u < 3:
        raise UsageError(f"{u} materials (words) hold nothing beside [CLS] and [SEP]; ask for 3 or more.")
    if v < 1:
        raise UsageError(f"A material of {v} letters holds nothing; ask for 1 or more.")


def encode_buffers(
    data: Bytes,
    offsets: Places,
    out: Bytes,
    lengths: Places | None = None,
    tokenizer: str = "whitespace",
    threads: int = os.cpu_count() or 1,
) -> Counts:
    """Encode the texts in an Arrow string array's buffers; rows are shared out between threads.

    Args:
        data: valid UTF-8 of all texts, without surrogates.
        offsets: int64 (N+1), where each text starts.
        out: uint8 (N, u, v), C-contiguous; every byte of it is written.
        lengths: int64 (N), filled with each text's length in bytes up to the end of its word
            number TEXT_WORDS (all of it where there are fewer); None where nobody asks.
        tokenizer: "whitespace" (words) or "bytes" (the UTF-8 stream cut every v bytes).
        threads: how many at most.

    Raises:
        UsageError: u < 3, v < 1 or an unknown tokenizer.
    """
    N, u, v = out.shape
    check(u, v, tokenizer)
    if offsets.shape != (N + 1,) or int(offsets[-1]) > data.size or not out.flags.c_contiguous:
        raise ValueError("offsets must be (N+1,) within data, and out (N, u, v) C-contiguous")
    encode_rows = TOKENIZERS[tokenizer]
    data, offsets, out = frozen(data), frozen(offsets), np.asarray(out)
    lengths = np.empty(0, np.int64) if lengths is None else lengths

    def encode_block(start: int) -> tuple[int, int, int]:
        block = slice(start, start + step)
        return encode_rows(data, offsets[start : start + step + 1], out[block], lengths[block])

    step = max(1024, -(-N // threads // 8)) if threads > 1 else max(N, 1)
    starts = range(0, N, step)
    if len(starts) < 2:
        parts = list(map(encode_block, starts))
    else:
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(encode_block, starts))
    return Counts(*(sum(part[k] for part in parts) for k in range(3)))


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view, so that Arrow's buffers and our own arrays share one compiled kernel."""
    view = array.view()
    view.flags.writeable = False
    return view


def utf8(text: str) -> bytes:
    """UTF-8 of a Python string; a lone surrogate, which has none, becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()


def buffers(texts: Sequence[str]) -> tuple[Bytes, Places]:
    """Python strings as Arrow keeps them: (UTF-8 of all texts, int64 (N+1) where each starts).

    Raises:
        TypeError: `texts` is one string, or holds what is none.
    """
    if isinstance(texts, str):
        raise TypeError("texts is one string; pass a list of them")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {number} is {type(text).__name__}, not a string; fill it or leave it out")
    raw = [utf8(text) for text in texts]
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum([len(text) for text in raw], out=offsets[1:])
    return np.frombuffer(b"".join(raw), np.uint8), offsets


def encode(texts: Sequence[str], u: int = 128, v: int = 16, tokenizer: str = "whitespace") -> Bytes:
    """Encode texts as uint8 ids (N, u, v).

    Args:
        texts: N strings.
        u: materials a text, CLS and SEP included: u - 2 words.
        v: ids a material.
        tokenizer: "whitespace" (words) or "bytes" (the UTF-8 stream cut every v bytes).

    Raises:
        UsageError: u < 3, v < 1 or an unknown tokenizer.
        TypeError: `texts` is one string, or holds what is none.
    """
    check(u, v, tokenizer)
    data, offsets = buffers(texts)
    out = np.empty((len(texts), u, v), np.uint8)
    encode_buffers(data, offsets, out, tokenizer=tokenizer)
    return out


def decode(ids: Bytes) -> list[bytes]:
    """The materials of one text, without CLS, SEP and padding: encoding's inverse as far as it goes.

    Args:
        ids: uint8 (u, v).

    Returns:
        Each word's first v bytes (of the tokenizer "bytes": the stream, v bytes a piece). A letter
        may be cut at the end, so show them with `.decode(errors="replace")`.
    """
    words = [bytes((material[material >= SHIFT] - SHIFT).astype(np.uint8)) for material in ids]
    return [word for word in words if word]
