"""Claims text: cleaned, split into claims, the first ones joined. One definition for every source and every command.

`clean`, `split_claims` and `join_claims` are the definition, in plain Python; `join_claims_batch` is `join_claims` over
Arrow's string buffers in one numba kernel, equal to it bit for bit.

How a string of claims is read; [decided] marks what the specification leaves open:

1. It is cleaned first, and where a run of white space held a line break is remembered. Claims are slices of the cleaned
   text, so each comes out clean, and `n .` has already become `n.`.
2. A marker is a number of at most four digits and a dot, between white space, with text after it. It counts only when
   its number is the next one, and marker 1 only at the start or after a preamble (`_is_preamble`).
3. [decided] Markers at the start of a line come first; from the last of them the scan goes on with markers anywhere. So
   an inner `2. ` cannot pass for claim 2 of a ladder, and claims that stand on one line are split all the same.
4. [decided] Of two equal markers side by side the later one counts: `... of SEQ ID NO: 2. 2. The ...`.
5. Without marker 1 the whole string is one claim. [decided] A preamble alone does not go then.
6. [decided] A marker that the next one follows at once leaves a claim of no text (a formula printed as an image):
   it counts and keeps its number, and takes no room in joined text.
7. [decided] Where every claim begins with its number and ends in a paragraph separator (CLAIM_END), claims end there
   alone. So write sources that know each claim what the other rules would misread.
"""

from __future__ import annotations

import html
import re
from html.entities import html5
from itertools import accumulate
from string import ascii_letters, digits
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ewe.kernel import kernel
from ewe.window import WINDOW, below, copy, equal, lowest, ones

CLAIM_END = "\u2029"

_ENTITY = re.compile(r"&(?:(?:amp;)+|(?:#[0-9]{1,8}|#[xX][0-9A-Fa-f]{1,8}|[A-Za-z][0-9A-Za-z]*);)")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_MARKER = re.compile(r"(?<![^ \n])([1-9][0-9]{0,3})\.[ \n]")
_MOST_CLAIMS = 9999  # what four digits can number; the longest claim sets of the window have some hundreds

_LONGEST_PREAMBLE = 200
_PREAMBLE_FORMS = re.compile(
    r"""\W*(?:claims?(?:\W+[0-9]+)?                                  # Claims (20)
    |.*\b(?:what\s(?:is|i|we)\sclaim(?:ed)?|(?:it|which|that)\sis\sclaimed|(?:i|we)(?:\s\w+)?\sclaim
           |invention\sclaimed|claimed\sinvention)
      (?:\W+(?:is|are|as|new|my|our|invention|follows|the|following))*)\W*""",
    re.VERBOSE | re.DOTALL,
)
_COMMON_PREAMBLES = (  # those that the kernel knows
    "What is claimed is:",
    "The invention claimed is:",
    "We claim:",
    "I claim:",
    "What is claimed:",
    "That which is claimed:",
    "That which is claimed is:",
    "It is claimed:",
    "What we claim is:",
    "What I claim is:",
    "WHAT IS CLAIMED IS:",
    "What is claimed is",
    "CLAIMS",
    "Claims",
    "Claims:",
    "What is claimed as new is:",
    "Having thus described the invention, what is claimed is:",
    "What is claimed as new and desired to be secured by Letters Patent of the United States is:",
    "What is claimed as new and desired to be protected by Letters Patent of the United States is:",
    "The embodiments of the invention in which an exclusive property or privilege is claimed are defined as follows:",
)
_CLAIM_OPENING = re.compile(r"^an?\s|\b(?:compris|consist|contain|includ|wherein)|\shaving\b|\b(?:steps|of|nos?):$")


class JoinedClaims(NamedTuple):
    """The first claims of one patent."""

    text: str
    """The claims that hold text, cleaned, joined by one space."""
    offsets: list[int]
    """Where each of them starts in `text`, in characters."""
    n_claims: int
    """Claims of the whole patent."""


class JoinedBatch(NamedTuple):
    """The first claims of N patents, as Arrow lays strings and lists out."""

    text: NDArray[np.uint8]
    """All texts, UTF-8, end to end."""
    text_offsets: NDArray[np.int64]
    """(N+1,) where each text starts, in bytes."""
    claim_offsets: NDArray[np.int32]
    """Where each claim starts in its text, in characters, row after row."""
    claim_indptr: NDArray[np.int64]
    """(N+1,) where each row starts in `claim_offsets`."""
    n_claims: NDArray[np.int16]
    """(N,) claims of the whole patent."""


def clean(text: str) -> str:
    """Text as one line, so that the same words read alike in every year's layout.

    White space (the 29 characters of `str.split()`) becomes one space and none at the ends, the space that removed tags
    leave before `,` `.` `;` closes, and entities are decoded. [decided] Characters that only look empty (zero-width
    space, soft hyphen, invisible operators) stay as published. Entities are those that end in `;`, decoded until none
    is left (`&amp;lt;` is a `<` escaped twice), so cleaning twice is cleaning once. U+0000 goes and a lone surrogate
    becomes U+FFFD, so the result is always UTF-8.
    """
    return _flow(text).replace("\n", " ")


def split_claims(claims: str) -> list[str]:
    """The claims of one patent, cleaned, without preamble and without their own numbers.

    The list is empty only for a string without text; its i-th item is the claim numbered i+1, or the whole string where
    claims are not numbered.
    """
    if claims.endswith(CLAIM_END):
        ended = claims.split(CLAIM_END)[:-1]
        if all(claim.startswith(f"{n}. ") for n, claim in enumerate(ended, 1)):
            return [clean(claim.partition(" ")[2]) for claim in ended]
    flowed = _flow(claims)
    markers = _markers(flowed)
    if not markers:
        return [flowed.replace("\n", " ")] if flowed else []
    ends = [start for start, _ in markers[1:]] + [len(flowed)]
    return [flowed[start:end].strip().replace("\n", " ") for (_, start), end in zip(markers, ends, strict=True)]


def join_claims(claims: str, max_claims: int = 20) -> JoinedClaims:
    """The first `max_claims` claims as one text; those without text count and take no room."""
    split = split_claims(claims)
    filled = [claim for claim in split[:max_claims] if claim]
    starts = accumulate((len(claim) + 1 for claim in filled), initial=0)
    return JoinedClaims(" ".join(filled), list(starts)[: len(filled)], len(split))


def join_claims_batch(data: NDArray[np.uint8], offsets: NDArray[np.int64], max_claims: int = 20) -> JoinedBatch:
    """`join_claims` over N strings, without the interpreter's lock: threads may share the work by rows.

    Args:
        data: the strings' UTF-8, end to end, as in an Arrow buffer.
        offsets: (N+1,) where each string starts in `data`; the first need not be 0.
        max_claims: how many claims to join.
    """
    N = len(offsets) - 1
    size = int(offsets[-1] - offsets[0])
    batch = JoinedBatch(
        np.empty(size + size // 5, np.uint8),  # only `&nGt;` and `&nLt;` grow, by a byte
        np.zeros(N + 1, np.int64),
        np.empty(min(N * max_claims, N + size // 3), np.int32),  # a claim past the first takes three bytes or more
        np.zeros(N + 1, np.int64),
        np.empty(N, np.int16),
    )
    data, offsets = data.view(), offsets.view()
    data.flags.writeable = offsets.flags.writeable = False  # as Arrow's buffers are: one compiled version
    markers = np.empty((_MOST_CLAIMS + 1, 2), np.int64)
    row = 0
    while (row := _join_rows(data, offsets, max_claims, row, markers, *batch)) < N:
        joined = join_claims(data[offsets[row] : offsets[row + 1]].tobytes().decode(), max_claims)
        text = np.frombuffer(joined.text.encode(), np.uint8)
        for values, indptr, new in (
            (batch.text, batch.text_offsets, text),
            (batch.claim_offsets, batch.claim_indptr, joined.offsets),
        ):
            indptr[row + 1] = indptr[row] + len(new)
            values[indptr[row] : indptr[row + 1]] = new
        batch.n_claims[row] = joined.n_claims
        row += 1
    return batch._replace(
        text=batch.text[: batch.text_offsets[N]], claim_offsets=batch.claim_offsets[: batch.claim_indptr[N]]
    )


# ---------------------------------------------------------------------------------------------------------------------
# The definition


def _flow(text: str) -> str:
    r"""Cleaned text in which a gap that held a line break is `\n`, every other one a space."""
    text = _LONE_SURROGATE.sub("\ufffd", text.replace("\0", ""))
    while True:
        decoded = _ENTITY.sub(_character, text) if "&" in text else text
        flowed = "\n".join(filter(None, (" ".join(line.split()) for line in decoded.splitlines())))
        for mark in ",.;":
            flowed = flowed.replace(f" {mark}", mark).replace(f"\n{mark}", mark)
        if "&" not in flowed or flowed == text:
            return flowed
        text = flowed  # decoding and closing can each complete another entity


def _character(entity: re.Match[str]) -> str:
    if entity[0].startswith("&amp;"):
        return "&"
    if entity[0][1] == "#":
        return html.unescape(entity[0])
    return html5.get(entity[0][1:], entity[0])


def _markers(flowed: str) -> list[tuple[int, int]]:
    """Where each counted marker begins and where its claim's text does."""
    found: list[tuple[int, int]] = []
    for only_lines in (True, False):
        for match in _MARKER.finditer(flowed, found[-1][1] if found else 0):
            start, end = match.span()
            n = int(match[1])
            if n == len(found) and start == found[-1][1]:
                found[-1] = start, end
            elif n == len(found) + 1 and (n == 1 or not only_lines or flowed[start - 1] == "\n"):
                if n == 1 and not _is_preamble(flowed[:start]):
                    return []
                found.append((start, end))
    return found


def _is_preamble(text: str) -> bool:
    """Whether the text before marker 1 introduces the claims.

    At most 200 characters, and: it holds no letter; or it is `Claims` or ends like `What is claimed is`, `I claim` and
    their kin; or it ends in `:`. [decided] What ends in `:` but reads like a claim (`A kit comprising:`, or a second
    `:`) is one, and its numbers are those of an inner list.
    """
    text = text.strip().casefold()
    if len(text) > _LONGEST_PREAMBLE:
        return False
    if not any(map(str.isalpha, text)) or _PREAMBLE_FORMS.fullmatch(text):
        return True
    return text.find(":") == len(text) - 1 and not _CLAIM_OPENING.search(text)


# ---------------------------------------------------------------------------------------------------------------------
# The kernel: the same, a window or a byte at a time. What is rare (an entity of a long name, an odd preamble) it leaves
# to Python.


_ASK = -1  # Python must do this row
_ONE = np.uint64(1)
_SPACE, _LINE, _NOT_WHITE = ord(" "), ord("\n"), 0
_BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"  # what str.splitlines() splits at
_BLANKS = "\t\x1f\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_PLAIN, _ONE_SPACE, _WHITE, _WIDE, _PUNCTUATION, _SEMICOLON, _NUL = range(7)
_KIND = np.full(256, _PLAIN, np.uint8)
_KIND[[ord(c) for c in _BREAKS + _BLANKS if c < "\x80"]] = _WHITE
_KIND[[c.encode()[0] for c in _BREAKS + _BLANKS if c >= "\x80"]] = _WIDE  # lead bytes that may begin white space
_KIND[ord(" ")] = _ONE_SPACE
_KIND[[ord(","), ord(".")]] = _PUNCTUATION
_KIND[ord(";")] = _SEMICOLON
_KIND[0] = _NUL
_BODY = np.array([chr(byte) in f"#{digits}{ascii_letters}" for byte in range(256)])  # what stands in an entity

# Names of at most eight letters, as big-endian numbers, and the character each stands for where that is simple.
_NAMES = {int.from_bytes(name[:-1].encode()): c for name, c in html5.items() if name[-1] == ";" and len(name) < 10}
_NAME = np.array(sorted(_NAMES))
_NAMED = np.array(
    [ord(c) if c <= "\uffff" and c not in ",.;" and len(c) == 1 else _ASK for _, c in sorted(_NAMES.items())]
)
_NUMBERED = np.array([html.unescape(f"&#{n};") == chr(n) and chr(n) not in ",.;" for n in range(0x80)])

_END = np.frombuffer(CLAIM_END.encode(), np.uint8)
_COMMON = np.zeros((len(_COMMON_PREAMBLES), 1 + max(map(len, _COMMON_PREAMBLES))), np.uint8)
for _known, _form in zip(_COMMON, _COMMON_PREAMBLES, strict=True):
    _known[: len(_form)] = list(_form.encode())


@kernel
def _gap_of(c: int) -> int:
    """The gap that a character makes: _LINE, _SPACE or _NOT_WHITE."""
    if 0x0A <= c <= 0x0D or 0x1C <= c <= 0x1E or c == 0x85 or 0x2028 <= c <= 0x2029:
        return _LINE
    if c == 0x20 or c == 0x09 or c == 0x1F or c == 0xA0 or c == 0x1680:
        return _SPACE
    return _SPACE if 0x2000 <= c <= 0x200A or c == 0x202F or c == 0x205F or c == 0x3000 else _NOT_WHITE


@kernel
def _put_gap(out: NDArray[np.uint8], start: int, w: int, gap: int) -> int:
    """Write a gap at out[w], or into the gap that stands before it; nothing at the start."""
    if w == start:
        return w
    if out[w - 1] == _SPACE or out[w - 1] == _LINE:
        out[w - 1] = min(out[w - 1], gap)  # a line break wins
        return w
    out[w] = gap
    return w + 1


@kernel
def _entity(body: NDArray[np.uint8]) -> int:
    """The character of an entity by what stands between `&` and `;`, 0 if it is none, or _ASK."""
    if len(body) == 0:
        return 0
    if len(body) > 8:
        return _ASK
    if body[0] != ord("#"):
        name = 0
        for byte in body:
            name = name << 8 | byte
        index = np.searchsorted(_NAME, name)
        return _NAMED[index] if index < len(_NAME) and _NAME[index] == name else 0
    base = 16 if len(body) > 1 and body[1] | 0x20 == ord("x") else 10
    value = 0
    for byte in body[2 if base == 16 else 1 :]:
        digit = byte - ord("0") if byte <= ord("9") else (byte | 0x20) - ord("a") + 10
        if digit < 0 or digit >= base:
            return _ASK
        value = value * base + digit
    simple = _NUMBERED[value] if value < 0x80 else 0xA0 <= value < 0xD800
    return value if simple else _ASK


@kernel
def _holds(data: NDArray[np.uint8], i: int, stop: int, byte: int) -> bool:
    """Whether data[i:stop] has a byte."""
    while i + WINDOW <= stop:
        if equal(data, i, byte):
            return True
        i += WINDOW
    while i < stop:
        if data[i] == byte:
            return True
        i += 1
    return False


@kernel
def _look(data: NDArray[np.uint8], i: int, in_gap: bool, entities: bool) -> tuple[np.uint64, np.uint64]:
    """Masks of a window: spaces, and where a byte may have to change or takes away the space before it."""
    spaces = equal(data, i, ord(" "))
    closing = equal(data, i, ord(",")) | equal(data, i, ord(".")) | equal(data, i, ord(";"))
    odd = (spaces << _ONE | np.uint64(in_gap)) & (spaces | closing) | below(data, i, ord(" "))
    for lead in (0xC2, 0xE1, 0xE2, 0xE3):  # _WIDE
        odd |= equal(data, i, lead)
    if entities:
        odd |= equal(data, i, ord(";"))
    return spaces, odd


@kernel
def _flow_row(data: NDArray[np.uint8], i: int, stop: int, out: NDArray[np.uint8], start: int) -> int:
    """`_flow` of data[i:stop] to out[start:]; returns its end, or _ASK."""
    w = start
    in_gap = True  # the last byte written is white, or none is
    entities = _holds(data, i, stop, ord("&"))
    while i < stop:
        if i + WINDOW <= stop and w + WINDOW <= len(out):  # what stays as it is goes at once
            spaces, odd = _look(data, i, in_gap, entities)
            copy(out, w, data, i)
            plain = lowest(odd)
            i += plain
            w += plain
            if plain:
                in_gap = bool(spaces >> np.uint64(plain - 1) & _ONE)
            if plain == WINDOW:
                continue
        byte = data[np.uintp(i)]  # unsigned: no test for a negative index, which would halve the speed
        kind = _KIND[byte]
        i += 1
        if kind <= _ONE_SPACE:
            out[np.uintp(w)] = byte
            w += kind == _PLAIN or not in_gap
            in_gap = kind == _ONE_SPACE
            continue
        if kind == _NUL:
            continue
        c, size = int(byte), 1
        if kind == _WIDE:
            c, size = (c & 0x1F) << 6 | data[i] & 0x3F, 2
            if byte >= 0xE0:
                c, size = c << 6 | data[i + 1] & 0x3F, 3
        if kind in (_SEMICOLON, _PUNCTUATION):
            w -= in_gap and w > start
        elif _gap_of(c) != _NOT_WHITE:
            w = _put_gap(out, start, w, _gap_of(c))
            in_gap = True
            i += size - 1
            continue
        out[w] = byte
        w += 1
        in_gap = False
        if kind != _SEMICOLON:
            continue
        ampersand = w - 2
        while ampersand >= start and _BODY[out[ampersand]]:
            ampersand -= 1
        if ampersand < start or out[ampersand] != ord("&"):
            continue
        c = _entity(out[ampersand + 1 : w - 1])
        if c == _ASK:
            return _ASK
        if c == 0:
            continue
        w = ampersand
        if _gap_of(c) != _NOT_WHITE:
            w = _put_gap(out, start, w, _gap_of(c))
            in_gap = True
        else:
            w = _put_character(out, w, c)
    return w - (in_gap and w > start)


@kernel
def _put_character(out: NDArray[np.uint8], w: int, c: int) -> int:
    """Write a character below 0x10000 as UTF-8; returns where it ends."""
    if c < 0x80:
        out[w] = c
        return w + 1
    if c < 0x800:
        out[w] = 0xC0 | c >> 6
    else:
        out[w] = 0xE0 | c >> 12
        out[w + 1] = 0x80 | c >> 6 & 0x3F
        w += 1
    out[w + 1] = 0x80 | c & 0x3F
    return w + 2


@kernel
def _is_preamble_row(text: NDArray[np.uint8]) -> int:
    """`_is_preamble` of what stands before marker 1: 1 or 0, or _ASK."""
    if len(text) == 0:
        return 1
    if np.sum(text & 0xC0 != 0x80) > _LONGEST_PREAMBLE:  # characters
        return 0
    for form in _COMMON:
        p = 0
        while p < len(text) and text[p] == form[p]:
            p += 1
        if p == len(text) and form[p] == 0:
            return 1
    return _ASK


@kernel
def _next_dot(out: NDArray[np.uint8], p: int, stop: int) -> int:
    """Where the next dot with white space behind it stands in out[p:stop]; stop where there is none."""
    while p + WINDOW <= len(out) and p < stop:
        white = equal(out, p, _SPACE) | equal(out, p, _LINE)
        found: int = lowest(equal(out, p, ord(".")) & white >> _ONE)
        if found < WINDOW:
            return min(p + found, stop)
        p += WINDOW - 1
    while p < stop - 1:
        if out[p] == ord(".") and (out[p + 1] == _SPACE or out[p + 1] == _LINE):
            return p
        p += 1
    return stop


@kernel
def _markers_row(out: NDArray[np.uint8], start: int, stop: int, markers: NDArray[np.int64]) -> int:
    """`_markers` of out[start:stop] into markers; returns how many, or _ASK."""
    found = 0
    for only_lines in (True, False):
        p = markers[found - 1, 1] if found else start
        while True:
            p = _next_dot(out, p, stop) + 1
            if p >= stop:
                break
            begin = p - 1
            n = 0
            power = 1
            while begin > start and p - begin < 6 and ord("0") <= out[begin - 1] <= ord("9"):
                begin -= 1
                n += power * (out[begin] - ord("0"))
                power *= 10
            if begin > start and out[begin - 1] != _SPACE and out[begin - 1] != _LINE:
                continue
            if begin == p - 1 or p - begin > 5 or out[begin] == ord("0"):
                continue
            if n == found and begin == markers[found - 1, 1]:
                found -= 1
            elif n != found + 1 or (n > 1 and only_lines and out[begin - 1] != _LINE):
                continue
            elif n == 1:
                preamble: int = _is_preamble_row(out[start : max(begin - 1, start)])
                if preamble != 1:
                    return preamble
            markers[found, 0] = begin
            markers[found, 1] = p + 1
            found += 1
    return found


@kernel
def _move(text: NDArray[np.uint8], w: int, begin: int, end: int) -> int:
    """Move text[begin:end] down to text[w:], line breaks becoming spaces; returns how many characters that are."""
    characters = end - begin
    p = begin
    while p + WINDOW <= end:
        characters -= ones(below(text, p, 0xC0) & ~below(text, p, 0x80))
        lines = equal(text, p, _LINE)
        copy(text, w, text, p)
        while lines:
            text[w + lowest(lines)] = _SPACE
            lines &= lines - _ONE
        p += WINDOW
        w += WINDOW
    while p < end:
        byte = text[np.uintp(p)]
        text[np.uintp(w)] = _SPACE if byte == _LINE else byte
        characters -= byte & 0xC0 == 0x80
        p += 1
        w += 1
    return characters


@kernel
def _join_rows(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    max_claims: int,
    row: int,
    markers: NDArray[np.int64],
    text: NDArray[np.uint8],
    text_offsets: NDArray[np.int64],
    claim_offsets: NDArray[np.int32],
    claim_indptr: NDArray[np.int64],
    n_claims: NDArray[np.int16],
) -> int:
    """Join rows from `row` on; returns the first one that Python must do, or N."""
    while row < len(n_claims):
        if np.array_equal(data[max(offsets[row], offsets[row + 1] - len(_END)) : offsets[row + 1]], _END):
            return row
        start = text_offsets[row]
        stop = _flow_row(data, offsets[row], offsets[row + 1], text, start)
        found = _markers_row(text, start, stop, markers) if stop != _ASK else _ASK
        if found == _ASK:
            return row
        if found == 0 and stop > start:
            markers[0, 1] = start
            found = 1
        w = start  # claims move down over preamble and markers, in place
        characters = 0
        k = claim_indptr[row]
        for claim in range(min(found, max_claims)):
            begin = markers[claim, 1]
            end = markers[claim + 1, 0] - 1 if claim + 1 < found else stop
            if begin >= end:
                continue
            if w > start:
                text[w] = _SPACE
                w += 1
                characters += 1
            claim_offsets[k] = characters
            k += 1
            characters += _move(text, w, begin, end)
            w += end - begin
        n_claims[row] = found
        row += 1
        text_offsets[row] = w
        claim_indptr[row] = k
    return row
