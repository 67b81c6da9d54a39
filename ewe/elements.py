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
from numba import types
from numba.extending import intrinsic

from ewe.errors import UsageError
from ewe.kernel import kernel

PAD, CLS, SEP, MASK, SHIFT = 0, 1, 2, 3, 4
TEXT_WORDS = 512  # how much of a text is kept beside its bytes, for models that read words

_LETTER, _SPACE, _NUL, _WIDE = 0, 1, 2, 3
_KIND = np.full(256, _LETTER, np.uint8)
_KIND[[*range(0x09, 0x0E), *range(0x1C, 0x21)]] = _SPACE
_KIND[0x00] = _NUL
_KIND[[0xC2, 0xE1, 0xE2, 0xE3]] = _WIDE  # lead bytes of the 19 white-space characters beyond ASCII

# Eight bytes in one 64-bit word, each byte the same.
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGH = np.uint64(0x8080808080808080)
_ABOVE_SPACE = np.uint64(0x5F5F5F5F5F5F5F5F)  # added to a byte of 0x21 or more, it sets the high bit
_BLANKS = np.uint64(0x2020202020202020)
_SHIFTS = np.uint64(0x0404040404040404)
_0, _1, _7, _8, _63 = (np.uint64(n) for n in (0, 1, 7, 8, 63))

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


class Counts(NamedTuple):
    """What an encoding lost, over all its rows."""

    materials: int  # written, without CLS and SEP
    materials_cut: int  # words longer than v bytes
    rows_cut: int  # rows with more text than u - 2 materials hold


# What numba lacks: single machine instructions on a 64-bit word, here eight bytes at any place of an array.


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Where byte arguments[1] of the array arguments[0] lies, as a pointer to a 64-bit word."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    word = context.get_value_type(types.uint64).as_pointer()
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), word)


@intrinsic  # type: ignore[untyped-decorator]
def _load(_context: Any, data: Any, _i: Any) -> Any:
    """Eight bytes from data[i] on, the first one lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(_pointer(context, builder, signature, arguments))
        word.align = 1
        return word

    return types.uint64(data, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _store(_context: Any, data: Any, _i: Any, _x: Any) -> Any:
    """Put x's eight bytes at data[i], the lowest one first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _pointer(context, builder, signature, arguments)).align = 1
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _ones(_context: Any, _x: Any) -> Any:
    """How many bits are set."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _lowest(_context: Any, _x: Any) -> Any:
    """Which bit is the lowest one set."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, 0))

    return types.int64(types.uint64), generate


@kernel
def _not_plain(x: np.uint64) -> np.uint64:
    """The high bit of each of eight bytes that is not in 0x21..0x7F."""
    return ~((x & _LOW) + _ABOVE_SPACE & ~x) & _HIGH


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
def _skip_words(data: Bytes, i: int, end: int, count: int, limit: int) -> tuple[int, int]:
    """Read on from between two words, `count` of them behind, to the end of word number `limit`.

    Returns:
        (where that is, limit), or (end, number of words in all) where there are fewer.
    """
    inside = _0  # 1 within a word
    while i < end:
        if i + 8 <= end and count + 4 < limit:  # eight bytes start at most four words
            x = _load(data, i)
            stops = _not_plain(x)
            differ = x ^ _BLANKS
            if stops == ~((differ & _LOW) + _LOW | differ | _LOW):  # letters and blanks alone
                letters = ~stops & _HIGH
                count += _ones(letters & ~(letters << _8 | inside << _7))
                inside = letters >> _63
                i += 8
                continue
        kind, width = _classify(data, i, end)
        if kind == _LETTER and inside == _0:
            count += 1
            inside = _1
        elif kind == _SPACE:
            if inside == _1 and count == limit:
                return i, count
            inside = _0
        i += width
    return end, count


@kernel
def _whitespace(data: Bytes, offsets: Places, out: Bytes, lengths: Places) -> tuple[int, int, int]:
    """Rows of words.

    Eight letters are read, shifted and written at once where neither text nor material ends
    before; the bytes behind a stop are masked to the zeros that stand there anyway.
    """
    N, u, v = out.shape
    keep = TEXT_WORDS if lengths.size else 0
    flat = out.reshape(N * u * v)
    materials = words_cut = rows_cut = 0
    for n in range(N):
        i, end = offsets[n], offsets[n + 1]
        to = n * u * v
        flat[to : to + u * v] = PAD
        flat[to] = CLS
        to += v
        m = 0
        length = 0  # of the current word, cut or not
        while i < end and m < u - 2:
            byte = data[i]
            if i + 8 <= end and (length + 8 <= v or length >= v):
                x = _load(data, i)
                stops = _not_plain(x)
                if stops == _0:
                    if length < v:
                        _store(flat, to + length, x + _SHIFTS)
                    i += 8
                    length += 8
                    continue
                if length < v:
                    before = ((stops & (~stops + _1)) >> _7) - _1  # every bit of the letters before the first stop
                    _store(flat, to + length, (x + _SHIFTS) & before)
                plain = _lowest(stops) >> 3
                i += plain
                length += plain
                byte = np.uint8(x >> np.uint64(plain * 8))
            if byte == 0x20:
                kind, width = np.uint8(_SPACE), 1
            else:
                kind, width = _classify(data, i, end)
            if kind == _LETTER:
                if length < v:
                    flat[to + length] = byte + SHIFT
                length += 1
            elif kind == _SPACE and length:
                m += 1
                to += v
                words_cut += length > v
                length = 0
            i += width
        if length:
            m += 1
            to += v
            words_cut += length > v
        flat[to] = SEP
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
            if i + 8 <= end and length + 8 <= room:
                x = _load(data, i)
                if ((x & _LOW) + _LOW | x) & _HIGH == _HIGH:  # no NUL
                    _store(flat, to + length, x + _SHIFTS)
                    i += 8
                    length += 8
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
    kernel = TOKENIZERS[tokenizer]
    data, offsets, out = frozen(data), frozen(offsets), np.asarray(out)
    lengths = np.empty(0, np.int64) if lengths is None else lengths

    def encode_block(start: int) -> tuple[int, int, int]:
        block = slice(start, start + step)
        return kernel(data, offsets[start : start + step + 1], out[block], lengths[block])

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
        TypeError: `texts` is one string.
    """
    if isinstance(texts, str):
        raise TypeError("texts is one string; pass a list of them")
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
        TypeError: `texts` is one string.
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
