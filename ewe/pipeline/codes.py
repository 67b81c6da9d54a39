"""CPC and IPC codes of a patent -> First and Later: the rule of `relabel.first_later`, a row at a time in machine code.

Codes stay in Arrow's buffers. A row has few of them, so each is compared with each other: no hash table, no sorting of
the whole column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ewe.kernel import kernel
from ewe.pipeline.buffers import text_buffers

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

WIDEST = 16  # bytes of a subclass's four characters
_BYTE, _LONG = np.uint64(8), np.uint64(255)
RANK = 6  # bytes of "First-" and of "Later-"
_FIRST, _LATER = (np.frombuffer(rank, np.uint8) for rank in (b"First-", b"Later-"))


_SYMBOL = re.compile(r"[A-HY]\d\d[A-Z]")


def no_symbols(subclasses: Iterable[str]) -> list[str]:
    """Those that do not look like a subclass of CPC or IPC (A01B): the source's own mistakes, which the rule keeps."""
    return [subclass for subclass in subclasses if not _SYMBOL.fullmatch(subclass)]


def subclasses(codes: pa.Array) -> set[str]:
    """The first four characters of all codes, as they stand: subclasses, and what white space has shifted.

    Args:
        codes: N rows, list<struct<code: string, first: bool, inventive: bool>>, null allowed.
    """
    found = pc.unique(pc.utf8_slice_codeunits(codes.flatten().field("code"), 0, 4)).to_pylist()
    return {subclass for subclass in found if subclass}


def label(codes: pa.Array) -> dict[str, pa.Array]:
    """Label rows by the position of their codes.

    Args:
        codes: (N,) list<struct<code, first, inventive>>, lists and values may be null, inventive absent.

    Returns:
        Arrays (N,), described in `relabel.first_later`: first (string), later, label_names and subclasses (lists of
        strings, bytes in order), several_first (bool).
    """
    N = len(codes)
    fields = dict(zip((field.name for field in codes.type.value_type), codes.flatten().flatten(), strict=True))
    data, offsets = _without_white_space(fields["code"])
    fields.setdefault("inventive", pa.nulls(len(fields["first"]), pa.bool_()))  # decides between several firsts alone
    known = [pc.fill_null(fields[name], fill_value=False) for name in ("first", "inventive")]
    rows = np.zeros(N + 1, np.int64)
    np.cumsum(pc.list_value_length(codes).fill_null(0).to_numpy(), out=rows[1:])
    M = len(offsets) - 1
    most = int(np.diff(rows).max(initial=1))
    listed, several = np.zeros(N, np.bool_), np.zeros(N, np.bool_)
    first = _Strings(N, N, WIDEST)
    later, subclasses, names = _Strings(N, M, WIDEST), _Strings(N, M, WIDEST), _Strings(N, M, WIDEST + RANK)
    _label_rows(
        data,
        offsets,
        *(flags.to_numpy(zero_copy_only=False) for flags in known),
        rows,
        listed,
        several,
        np.empty(most, np.int64),
        np.empty(most, np.uint64),
        np.empty((2, most), np.int64),
        np.empty(most, np.uint64),
        *first.arrays[:2],
        *(array for strings in (later, subclasses, names) for array in strings.arrays),
    )
    absent = pa.array(~listed)
    return {
        "first": pc.if_else(absent, pa.scalar(None, pa.large_string()), first.values(N)),
        "later": later.lists(absent),
        "subclasses": subclasses.lists(None),
        "several_first": pa.array(several),
        "label_names": names.lists(absent),
    }


def _without_white_space(codes: pa.Array) -> tuple[Bytes, Ints]:
    """UTF-8 of all codes, '' for null, and where each starts (M+1)."""
    codes = pc.fill_null(codes, "")
    data, offsets = text_buffers(codes)
    if (data >= 0x80).any():  # Unicode has more white space than ASCII
        data, offsets = text_buffers(pl.Series(codes).str.replace_all(r"[\s\x1c-\x1f]+", "").rechunk().to_arrow())
    squeezed, starts = np.empty(offsets[-1] - offsets[0], np.uint8), np.zeros_like(offsets)
    _squeeze(data, offsets, squeezed, starts)
    return squeezed, starts


class _Strings:
    """Room for lists of strings: bytes, where each string starts, and where each row's strings do."""

    def __init__(self, rows: int, values: int, widest: int) -> None:
        self.arrays = (
            np.empty(values * widest, np.uint8),
            np.zeros(values + 1, np.int64),
            np.zeros(rows + 1, np.int64),
        )

    def values(self, count: int) -> pa.Array:
        data, offsets, _ = self.arrays
        return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(data))

    def lists(self, null: pa.Array | None) -> pa.Array:
        rows = self.arrays[2]
        return pa.LargeListArray.from_arrays(rows, self.values(int(rows[-1])), mask=null)


@kernel
def _squeeze(data: Bytes, offsets: Ints, out: Bytes, starts: Ints) -> None:
    """Copy strings without ASCII's white space, which is that of Python's str.split."""
    w = 0
    for i in range(len(offsets) - 1):
        for p in range(offsets[i], offsets[i + 1]):
            byte = data[np.uintp(p)]
            out[np.uintp(w)] = byte
            w += not (9 <= byte <= 13 or 28 <= byte <= 32)
        starts[i + 1] = w


@kernel
def _order(data: Bytes, a: int, a_end: int, b: int, b_end: int) -> int:
    """-1, 0 or 1: how data[a:a_end] and data[b:b_end] compare."""
    for i in range(min(a_end - a, b_end - b)):
        if data[a + i] != data[b + i]:
            return -1 if data[a + i] < data[b + i] else 1
    return (a_end - a > b_end - b) - (a_end - a < b_end - b)


@kernel
def _four(data: Bytes, start: int, end: int) -> int:
    """Where the first four characters of data[start:end] end."""
    characters = 0
    for p in range(start, end):
        characters += data[np.uintp(p)] & 0xC0 != 0x80
        if characters > 4:
            return p
    return end


@kernel
def _key(data: Bytes, start: int, end: int) -> np.uint64:
    """A number that orders strings as their bytes do: the first seven and how many there are, 255 for more than seven.

    Of two strings with 255 and equal keys `_order` must decide.
    """
    count = min(end - start, 7)
    key = np.uint64(0)
    for p in range(start, start + count):
        key = key << _BYTE | np.uint64(data[np.uintp(p)])
    key <<= np.uint64(8 * (7 - count))
    return key << _BYTE | (np.uint64(count) if end - start == count else _LONG)


@kernel
def _same(data: Bytes, key: np.uint64, start: int, end: int, other_key: np.uint64, other: int, other_end: int) -> bool:
    """Whether two strings, of these keys, are one."""
    return bool(key == other_key and (key & _LONG != _LONG or _order(data, start, end, other, other_end) == 0))


@kernel
def _insert(data: Bytes, start: int, end: int, key: np.uint64, held: Any, keys: Any, count: int) -> int:
    """Put a string among the sorted distinct ones in held[:, :count]; returns their new count."""
    place = count
    while place > 0 and key <= keys[place - 1]:
        if key == keys[place - 1]:
            order: int = 0
            if key & _LONG == _LONG:
                order = _order(data, start, end, held[0, place - 1], held[1, place - 1])
            if order == 0:
                return count
            if order > 0:
                break
        place -= 1
    for k in range(count, place, -1):
        held[0, k], held[1, k], keys[k] = held[0, k - 1], held[1, k - 1], keys[k - 1]
    held[0, place], held[1, place], keys[place] = start, end, key
    return count + 1


@kernel
def _put(data: Bytes, start: int, end: int, prefix: Bytes, out: Bytes, offsets: Ints, count: int) -> int:
    """Append a prefix and a string to the strings in `out`; returns their new count."""
    w = offsets[count]
    for byte in prefix:
        out[np.uintp(w)] = byte
        w += 1
    for p in range(start, end):
        out[np.uintp(w)] = data[np.uintp(p)]
        w += 1
    offsets[count + 1] = w
    return count + 1


@kernel
def _is_inventive(data: Bytes, offsets: Ints, inventive: NDArray[np.bool_], begin: int, end: int, k: int) -> bool:
    """Whether any copy of code k among codes begin to end is."""
    for j in range(begin, end):
        if inventive[j] and _order(data, offsets[j], offsets[j + 1], offsets[k], offsets[k + 1]) == 0:
            return True
    return False


@kernel
def _label_rows(
    data: Bytes,
    offsets: Ints,
    first: NDArray[np.bool_],
    inventive: NDArray[np.bool_],
    rows: Ints,
    listed: NDArray[np.bool_],
    several: NDArray[np.bool_],
    cuts: Ints,
    code_keys: NDArray[np.uint64],
    held: Ints,
    keys: NDArray[np.uint64],
    first_out: Bytes,
    first_offsets: Ints,
    later_out: Bytes,
    later_offsets: Ints,
    later_rows: Ints,
    subclass_out: Bytes,
    subclass_offsets: Ints,
    subclass_rows: Ints,
    name_out: Bytes,
    name_offsets: Ints,
    name_rows: Ints,
) -> None:
    none = data[:0]
    laters = subclasses = names = 0
    for row in range(len(listed)):
        best, best_inventive, several_first = -1, False, False
        for k in range(rows[row], rows[row + 1]):
            if not first[k] or offsets[k] == offsets[k + 1]:
                continue
            if best < 0:
                best = k
                continue
            order = _order(data, offsets[k], offsets[k + 1], offsets[best], offsets[best + 1])
            if order == 0:
                continue
            if not several_first:
                best_inventive = _is_inventive(data, offsets, inventive, rows[row], rows[row + 1], best)
            several_first = True
            is_inventive = _is_inventive(data, offsets, inventive, rows[row], rows[row + 1], k)
            if is_inventive > best_inventive or (is_inventive == best_inventive and order < 0):
                best, best_inventive = k, is_inventive
        several[row] = several_first
        listed[row] = best >= 0
        count = 0
        for k in range(rows[row], rows[row + 1]):
            if offsets[k] < offsets[k + 1]:
                start, cut = offsets[k], _four(data, offsets[k], offsets[k + 1])
                key = _key(data, start, cut)
                cuts[k - rows[row]], code_keys[k - rows[row]] = cut, key
                count = _insert(data, start, cut, key, held, keys, count)
        for k in range(count):
            subclasses = _put(data, held[0, k], held[1, k], none, subclass_out, subclass_offsets, subclasses)
        first_offsets[row + 1] = first_offsets[row]
        if best >= 0:
            start, end = offsets[best], offsets[best + 1]
            cut, key = cuts[best - rows[row]], code_keys[best - rows[row]]
            _put(data, start, cut, none, first_out, first_offsets, row)
            names = _put(data, start, cut, _FIRST, name_out, name_offsets, names)
            shared = False  # by another full code, so that First's subclass is a Later, too
            for k in range(rows[row], rows[row + 1]):
                if offsets[k] < offsets[k + 1] and not shared:
                    j = k - rows[row]
                    shared = _same(data, code_keys[j], offsets[k], cuts[j], key, start, cut) and (
                        _order(data, offsets[k], offsets[k + 1], start, end) != 0
                    )
            for k in range(count):
                if shared or not _same(data, keys[k], held[0, k], held[1, k], key, start, cut):
                    laters = _put(data, held[0, k], held[1, k], none, later_out, later_offsets, laters)
                    names = _put(data, held[0, k], held[1, k], _LATER, name_out, name_offsets, names)
        later_rows[row + 1], subclass_rows[row + 1], name_rows[row + 1] = laters, subclasses, names
