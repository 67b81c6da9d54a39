"""MinHash as datasketch defines it, from Arrow text: signatures, bands, buckets, and the exact sets behind them.

A text's shingles are the sets of five words next to each other in `text.lower().split(" ")` (cleaned text knows no
other white space); a text of fewer words is one shingle. Its signature is, bit for bit,

    datasketch.MinHash(num_perm=128, seed=1, scheme="affine32", hashfunc=zlib.crc32)

updated with them. Hashing the text is what costs: a shingle's CRC-32 follows from the register before its first and
after its last byte, which one pass of eight bytes a step gives, so no byte is read for each of five shingles.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketch import MinHash
from numpy.typing import NDArray

from ewe.kernel import kernel
from ewe.pipeline.buffers import text_buffers
from ewe.window import lowest

WORDS = 5
PERMUTATIONS = 128
SEED = 1
SCHEME = "affine32"  # datasketch 2's default; its earlier one is "legacy"
HASH = "zlib.crc32"
RECALL = 0.99  # aimed at for a pair at the threshold, so that chance leaves 0.98

UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]


class ShingleSets(NamedTuple):
    """The distinct shingles of N texts, each as 64 bits: CRC-32 before CRC-32C."""

    hashes: UInt64
    """row after row, sorted and distinct within a row"""
    indptr: Int64
    """(N+1,) where each row starts in `hashes`"""


def shingles(text: str) -> list[str]:
    """The shingles of a text in order: the definition that the kernels follow."""
    words = text.lower().split(" ")
    return [" ".join(words[start : start + WORDS]) for start in range(max(len(words) - WORDS + 1, 1))]


def lower(texts: pa.Array) -> pa.LargeStringArray:
    """What str.lower() makes of each of N strings without nulls."""
    data, offsets = text_buffers(texts)
    offsets = offsets - offsets[0]
    folded = np.empty(offsets[-1], np.uint8)
    beyond = _fold(data[len(data) - len(folded) :], offsets, _UPPER, folded)
    lowered = pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(folded))
    if not beyond.any():
        return lowered
    mask = pa.array(beyond)
    slowly = pa.array([text.lower() for text in texts.filter(mask).to_pylist()], pa.large_string())
    return pc.replace_with_mask(lowered, mask, slowly)


def signatures(lowered: pa.Array) -> UInt32:
    """MinHash signatures (N, 128) of what `lower` gave; holds no lock, so threads may share the rows."""
    data, offsets = text_buffers(lowered)
    out = np.empty((len(lowered), PERMUTATIONS), np.uint32)
    _sign(data, _eights(data), offsets, _CRC32, _PERMUTATIONS, out)
    return out


def shingle_sets(lowered: pa.Array) -> ShingleSets:
    """The distinct shingles of what `lower` gave.

    64 bits stand for a shingle. Two of the some 1,500 that a pair of patents holds share them by a chance of 1e-13, and
    never where they differ within four bytes.
    """
    data, offsets = text_buffers(lowered)
    hashes = np.empty(len(data) + len(lowered), np.uint64)
    ends = _collect(data, _eights(data), offsets, _CRC32, _CRC32C, hashes)
    for start, end in pairwise([0, *ends.tolist()]):
        hashes[start:end].sort()
    indptr = _distinct(hashes, ends)
    return ShingleSets(hashes[: indptr[-1]].copy(), indptr)


def bands(jaccard: float) -> tuple[int, int]:
    """(bands, rows a band): the most rows that still find pairs at the threshold with a chance of RECALL or more.

    A pair of Jaccard t shares one of b bands of r rows with a chance of 1 - (1 - t^r)^b, here with b = 128 // r.

    Raises:
        ValueError: no similarity, or one so low that no banding reaches RECALL there.
    """
    for rows in range(PERMUTATIONS // 2, 0, -1):
        count = PERMUTATIONS // rows
        if 0 < jaccard <= 1 and 1 - (1 - jaccard**rows) ** count >= RECALL:
            return count, rows
    raise ValueError(f"{PERMUTATIONS} permutations find too few pairs at Jaccard {jaccard}")


def band_keys(signatures: UInt32, count: int, rows: int) -> UInt64:
    """Each band of each signature (N, 128) as 64 bits: (count, N)."""
    keys = np.empty((count, len(signatures)), np.uint64)
    _band_keys(signatures, rows, keys)
    return keys


def buckets(keys: UInt64) -> tuple[Int64, Int64]:
    """Who shares a band: one band's keys (N,) -> (members, starts).

    Bucket i is members[starts[i] : starts[i + 1]], at least two row numbers in ascending order. Keys are compared in
    the bits that row numbers leave (43 at two million rows), since one sort of both together is what is fast; a reader
    to whom one false pair in millions matters compares the band itself.
    """
    low = np.uint64(max(len(keys) - 1, 1).bit_length())
    mask = (np.uint64(1) << low) - np.uint64(1)
    together = np.sort(keys & ~mask | np.arange(len(keys), dtype=np.uint64))
    key = together >> low
    same = np.zeros(len(key) + 1, np.bool_)  # as the one before
    same[1:-1] = key[1:] == key[:-1]
    inside = same[:-1] | same[1:]
    starts = np.flatnonzero(~same[:-1][inside])
    return (together & mask)[inside].astype(np.int64), np.append(starts, np.count_nonzero(inside))


# -- CRC tables -------------------------------------------------------------------------------------------------------

_Tables = tuple[UInt32, UInt32]
_LONG = 64  # bytes that one step over zeros covers; 95% of shingles are shorter


def _tables(polynomial: int) -> _Tables:
    """(8, 256): register after byte b, then j zeros; (64, 4, 256): register whose byte j is b, after n zeros."""
    step = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        step = np.where(step & 1, step >> 1 ^ np.uint32(polynomial), step >> 1)
    sliced = [step]
    for _ in range(7):
        sliced.append(step[sliced[-1] & 255] ^ sliced[-1] >> 8)
    shifted = [np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]]
    for _ in range(_LONG - 1):
        shifted.append(step[shifted[-1] & 255] ^ shifted[-1] >> 8)
    return np.array(sliced, np.uint32), np.array(shifted, np.uint32)


_CRC32 = _tables(0xEDB88320)
_CRC32C = _tables(0x82F63B78)
_PERMUTATIONS: UInt32 = MinHash(num_perm=PERMUTATIONS, seed=SEED, scheme=SCHEME).permutations


def _upper_case() -> NDArray[np.bool_]:
    """Which two bytes may begin a letter beyond ASCII that str.lower() changes."""
    table = np.zeros((256, 256), np.bool_)
    for letter in map(chr, range(0x80, 0x1F000)):  # no script beyond has case
        if letter != letter.lower():
            table[tuple(letter.encode()[:2])] = True
    return table


_UPPER = _upper_case()

# -- kernels ----------------------------------------------------------------------------------------------------------


_ONES = np.uint64(0xFFFFFFFF)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_BLANKS = np.uint64(0x2020202020202020)
_BYTE, _1, _3, _7, _8, _16, _24, _32, _40, _48, _56 = map(np.uint64, (255, 1, 3, 7, 8, 16, 24, 32, 40, 48, 56))


@kernel
def _over(sliced: UInt32, x: np.uint64) -> np.uint64:
    """The register after eight bytes, the register before them being in x already."""
    last = (sliced[0, x >> _56] ^ sliced[1, x >> _48 & _BYTE]) ^ (
        sliced[2, x >> _40 & _BYTE] ^ sliced[3, x >> _32 & _BYTE]
    )
    first = (sliced[4, x >> _24 & _BYTE] ^ sliced[5, x >> _16 & _BYTE]) ^ (
        sliced[6, x >> _8 & _BYTE] ^ sliced[7, x & _BYTE]
    )
    return np.uint64(last ^ first)


@kernel
def _zeros(shifted: UInt32, x: np.uint64, n: np.uint64) -> np.uint64:
    """The register x after n zero bytes."""
    while True:
        step = min(n, np.uint64(_LONG - 1))
        row = shifted[step]
        x = np.uint64(row[0, x & _BYTE] ^ row[1, x >> _8 & _BYTE] ^ row[2, x >> _16 & _BYTE] ^ row[3, x >> _24])
        n -= step
        if n == 0:
            return x


@kernel
def _scratch(offsets: Int64) -> tuple[UInt64, UInt64, UInt64, UInt32]:
    """Room for the longest row; what a row does not need is never touched."""
    eights = 1
    for n in range(len(offsets) - 1):
        eights = max(eights, (offsets[n + 1] - offsets[n]) // 8 + 1)
    room = 8 * eights + 2
    return (
        np.empty((eights, 2), np.uint64),
        np.empty(room, np.uint64),
        np.empty(room, np.uint64),
        np.empty(room, np.uint32),
    )


@kernel
def _crcs(
    data: NDArray[np.uint8],
    eight: UInt64,
    start: int,
    end: int,
    tables: _Tables,
    scratch: tuple[UInt64, UInt64, UInt64, UInt32],
) -> int:
    """The CRC of each shingle of data[start:end], in order, into the last scratch array; returns how many.

    Once through the text for the register before every eight bytes and the place of every blank, the end filled up
    with blanks; once through the blanks for the register there. CRC being linear, that of a shingle is the register
    after it, less what the register before it becomes over as many zeros.
    """
    sliced, shifted = tables
    before, stops, opened, out = scratch
    register = np.uint64(0)
    words = 0
    for c in range((end - start) // 8 + 1):
        i = start + 8 * c
        if i + 8 <= end:
            x = eight[i]
        else:
            x = _BLANKS
            for j in range(end - i):
                x ^= np.uint64(data[i + j] ^ 0x20) << np.uint64(8 * j)
        before[c, 0], before[c, 1] = register, x ^ register
        register = _over(sliced, x ^ register)
        x ^= _BLANKS
        blanks = ~((x & _LOW) + _LOW | x | _LOW)
        for _ in range(2):  # without a branch, since nothing predicts where words end
            stops[words] = np.uint64(8 * c) + (np.uint64(lowest(blanks)) >> _3)
            words += blanks != np.uint64(0)
            blanks &= blanks - _1
        while blanks:
            stops[words] = np.uint64(8 * c) + (np.uint64(lowest(blanks)) >> _3)
            words += 1
            blanks &= blanks - _1
    while stops[words - 1] > np.uint64(end - start):
        words -= 1
    opened[0] = _ONES
    for j in range(words):
        c, bits = stops[j] >> _3, (stops[j] & _7) << _3
        register = _over(sliced, before[c, 1] << (_56 - bits) << _8) ^ before[c, 0] >> bits
        opened[j + 1] = sliced[0, (register ^ _32) & _BYTE] ^ register >> _8 ^ _ONES
        if j >= WORDS - 1 or j == words - 1:
            first = max(j - WORDS + 1, 0)
            length = stops[j] - (stops[first - 1] + _1 if first else np.uint64(0))
            out[first] = ~(register ^ _zeros(shifted, opened[first], length))
    return max(words - WORDS + 1, 1)


@kernel
def _sign(
    data: NDArray[np.uint8], eight: UInt64, offsets: Int64, tables: _Tables, permutations: UInt32, out: UInt32
) -> None:
    scratch = _scratch(offsets)
    hashes = scratch[3]
    for n in range(len(out)):
        count = _crcs(data, eight, offsets[n], offsets[n + 1], tables, scratch)
        for i in range(count):  # datasketch's pre-mix, MurmurHash3's finalizer
            x = hashes[i]
            x = np.uint32((x ^ x >> 16) * np.uint32(0x85EBCA6B))
            x = np.uint32((x ^ x >> 13) * np.uint32(0xC2B2AE35))
            hashes[i] = x ^ x >> 16
        for k in range(PERMUTATIONS):
            a, b = permutations[0, k], permutations[1, k]
            least = np.uint32(0xFFFFFFFF)
            for i in range(count):
                least = min(least, np.uint32(a * hashes[i] + b))
            out[n, k] = least


@kernel
def _collect(
    data: NDArray[np.uint8], eight: UInt64, offsets: Int64, high: _Tables, low: _Tables, hashes: UInt64
) -> Int64:
    """Both CRCs of every shingle, row after row; returns where each row ends."""
    scratch = _scratch(offsets)
    ends = np.empty(len(offsets) - 1, np.int64)
    at = 0
    for n in range(len(ends)):
        count = _crcs(data, eight, offsets[n], offsets[n + 1], high, scratch)
        for i in range(count):
            hashes[at + i] = np.uint64(scratch[3][i]) << _32
        _crcs(data, eight, offsets[n], offsets[n + 1], low, scratch)
        for i in range(count):
            hashes[at + i] |= np.uint64(scratch[3][i])
        at += count
        ends[n] = at
    return ends


@kernel
def _distinct(hashes: UInt64, ends: Int64) -> Int64:
    """Close the gaps that repeated hashes leave; returns where each row starts and the last one ends (N+1,)."""
    indptr = np.zeros(len(ends) + 1, np.int64)
    start = to = 0
    last = np.uint64(0)
    for n in range(len(ends)):
        for i in range(start, ends[n]):
            if i == start or hashes[i] != last:
                last = hashes[i]
                hashes[to] = last
                to += 1
        start = ends[n]
        indptr[n + 1] = to
    return indptr


@kernel
def _fold(
    data: NDArray[np.uint8], offsets: Int64, upper: NDArray[np.bool_], out: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """ASCII letters lower-cased into out; returns which rows may hold other letters with case."""
    for i in range(len(out)):
        out[i] = data[i] + np.uint8(32) * (data[i] - np.uint8(65) < np.uint8(26))
    beyond = np.zeros(len(offsets) - 1, np.bool_)
    for n in range(len(beyond)):
        bits = np.uint8(0)
        for byte in data[offsets[n] : offsets[n + 1]]:
            bits |= byte
        if bits >= 0x80:
            for i in range(offsets[n], offsets[n + 1] - 1):
                beyond[n] |= upper[data[i], data[i + 1]]
    return beyond


@kernel
def _band_keys(signatures: UInt32, rows: int, keys: UInt64) -> None:
    for n in range(len(signatures)):
        for band in range(len(keys)):
            key = np.uint64(0)
            for i in range(band * rows, band * rows + rows):
                key = (key ^ signatures[n, i]) * np.uint64(0x9E3779B97F4A7C15)
                key ^= key >> _32
            keys[band, n] = key


# -- Arrow's buffers --------------------------------------------------------------------------------------------------


def _eights(data: NDArray[np.uint8]) -> UInt64:
    """Element i is bytes i..i+7 as one little-endian number: overlapping, unaligned."""
    whole = np.frombuffer(data[: data.size // 8 * 8], "<u8")
    return np.lib.stride_tricks.as_strided(whole, (max(data.size - 7, 0),), (1,), writeable=False)
