"""Verified links between texts that share a band, and the groups they make: exact, and near-linear in a family's size.

Candidates are the pairs that share a band; a link is a candidate whose exact Jaccard similarity reaches the threshold.
Groups are the connected components of all links, though few candidates are compared: two texts already in one group
need no comparing, so in a bucket a text is compared with each *other* group until one member links. Three things keep
that cheap. A bucket of one group is passed over. The member most like all others comes first, so that the copies of one
original link at the first try. And a pair whose signatures agree too rarely for the threshold (a chance below 1e-9 for
a true link) is not compared at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ewe.kernel import kernel
from ewe.pipeline.minhash import PERMUTATIONS, Int64, ShingleSets, UInt32, UInt64

AT_ONCE = 16_384  # texts or so whose sets are in memory at a time
MISSED = 1e-9  # chance at which a link may be passed over for its signatures' sake

Float64 = NDArray[np.float64]


class Texts(NamedTuple):
    """What comparing N distinct texts takes."""

    signatures: UInt32
    """(N, 128)"""
    read: Callable[[Int64], ShingleSets]
    """the sets of some of them, given by their numbers in ascending order"""


class Links(NamedTuple):
    """A spanning forest of the groups of N texts."""

    pairs: Int64
    """(E, 2)"""
    similarity: Float64
    """(E,) Jaccard"""
    roots: Int64
    """(N,) the least text of each one's group"""


def least_agreement(jaccard: float) -> int:
    """How many of 128 hashes two texts of this similarity share, but for a chance of MISSED (a binomial's tail)."""
    chance = 0.0
    for shared in range(PERMUTATIONS + 1):
        chance += comb(PERMUTATIONS, shared) * jaccard**shared * (1 - jaccard) ** (PERMUTATIONS - shared)
        if chance > MISSED:
            return shared
    return PERMUTATIONS


def link(texts: Texts, banded: Iterable[tuple[Int64, Int64]], rows: int, jaccard: float) -> Links:
    """Link texts that share a band.

    Args:
        texts: N of them, distinct.
        banded: for each band its buckets of texts, (members, starts) as `minhash.buckets` gives them.
        rows: hashes a band.
        jaccard: the threshold.
    """
    N = len(texts.signatures)
    roots, places = np.arange(N), np.zeros(N, np.int64)
    pairs = np.empty((N, 2), np.int64)
    similarity = np.empty(N)
    found = 0
    bar = jaccard, least_agreement(jaccard)
    for band, (members, starts) in enumerate(banded):
        last = 0
        for cut in np.searchsorted(starts, range(AT_ONCE, len(members) + AT_ONCE, AT_ONCE)):
            some = starts[last : cut + 1]
            last = cut
            _flatten(roots)
            wanted = _of_several_groups(roots, members, some)
            places[wanted] = np.arange(len(wanted))
            sets = texts.signatures, *texts.read(wanted), places
            found = _link_band(*sets, bar, (band, rows), members, some, roots, pairs, similarity, found)
    _flatten(roots)
    return Links(pairs[:found], similarity[:found], roots)


def _of_several_groups(roots: Int64, members: Int64, starts: Int64) -> Int64:
    """The texts, sorted, that stand in buckets of more than one group."""
    if len(starts) < 2:
        return members[:0]
    inside = members[starts[0] : starts[-1]]
    least, most = (each.reduceat(roots[inside], starts[:-1] - starts[0]) for each in (np.minimum, np.maximum))
    return np.unique(inside[np.repeat(least < most, np.diff(starts))])


def nearest(
    texts: Texts, jaccard: float, of: tuple[Int64, Int64, Int64], among: tuple[Int64, Int64, Int64]
) -> tuple[Int64, Float64]:
    """For each row of one kind a near-copy among the rows of another kind, of its own family if there is one.

    Both kinds are given as (group, text, family) of their rows, `among` sorted by group; only rows of one group are
    compared. Rows of the same text are copies; a text that shares no band may have any number outside `texts`.

    Returns:
        (index in `among`, or -1; Jaccard similarity), one each.
    """
    N = len(texts.signatures)
    starts = np.searchsorted(among[0], of[0], "left")
    ends = np.searchsorted(among[0], of[0], "right")
    places = np.zeros(N, np.int64)
    near = np.full(len(starts), -1)
    similarity = np.zeros(len(starts))
    bar = jaccard, least_agreement(jaccard)
    for start in range(0, len(starts), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        wanted = np.unique(np.concatenate([of[1][some], among[1][np.isin(among[0], of[0][some])]]))
        wanted = wanted[wanted < N]
        places[wanted] = np.arange(len(wanted))
        sets = texts.signatures, *texts.read(wanted), places
        own = of[1][some], of[2][some], starts[some], ends[some]
        _nearest(*sets, bar, *own, *among[1:], near[some], similarity[some])
    return near, similarity


# -- kernels ----------------------------------------------------------------------------------------------------------

_Bar = tuple[float, int]  # threshold, and the least number of equal hashes


@kernel
def _jaccard(a: UInt64, b: UInt64, jaccard: float) -> float:
    """Similarity of two sorted sets, or 0 as soon as it cannot reach the threshold."""
    size = len(a) + len(b)
    needed = int(np.ceil(jaccard * size / (1 + jaccard)))
    while needed > 0 and (needed - 1) / (size - needed + 1) >= jaccard:  # against rounding
        needed -= 1
    spare_a, spare_b = len(a) - needed, len(b) - needed
    i = j = both = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            both += 1
            i += 1
            j += 1
        elif a[i] < b[j]:
            i += 1
            spare_a -= 1
            if spare_a < 0:
                return 0.0
        else:
            j += 1
            spare_b -= 1
            if spare_b < 0:
                return 0.0
    return both / (size - both)


@kernel
def _similar(signatures: UInt32, hashes: UInt64, indptr: Int64, places: Int64, bar: _Bar, x: int, y: int) -> float:
    """Jaccard similarity of two texts, or 0 where it is below the threshold; text x is number places[x] of the sets."""
    jaccard, least = bar
    agree = 0
    for k in range(PERMUTATIONS):
        agree += signatures[x, k] == signatures[y, k]
    if agree < least:
        return 0.0
    i, j = places[x], places[y]
    found = _jaccard(hashes[indptr[i] : indptr[i + 1]], hashes[indptr[j] : indptr[j + 1]], jaccard)
    return found if found >= jaccard else 0.0


@kernel
def _first_shared(a: UInt32, b: UInt32, rows: int, last: int) -> int:
    """The first band up to `last` that two signatures share, or -1."""
    for band in range(last + 1):
        k = band * rows
        while k < (band + 1) * rows and a[k] == b[k]:
            k += 1
        if k == (band + 1) * rows:
            return band
    return -1


@kernel
def _find(roots: Int64, x: int) -> int:
    while roots[x] != x:
        roots[x] = roots[roots[x]]
        x = roots[x]
    return x


@kernel
def _flatten(roots: Int64) -> None:
    for x in range(len(roots)):
        roots[x] = _find(roots, x)


@kernel
def _of_one_group(roots: Int64, members: Int64) -> bool:
    root = _find(roots, members[0])
    strangers = 0
    for x in members:
        strangers += _find(roots, x) != root
    return strangers == 0


@kernel
def _likest_first(signatures: UInt32, members: Int64) -> Int64:
    """Members by how many hashes they share with the bucket's majority (a vote each, Boyer and Moore)."""
    majority = signatures[members[0]].copy()
    votes = np.zeros(PERMUTATIONS, np.int64)
    for x in members:
        for k in range(PERMUTATIONS):
            if votes[k] == 0:
                majority[k] = signatures[x, k]
            votes[k] += 1 if majority[k] == signatures[x, k] else -1
    unlike = np.zeros(len(members), np.int64)
    for i in range(len(members)):
        for k in range(PERMUTATIONS):
            unlike[i] += majority[k] != signatures[members[i], k]
    return members[np.argsort(unlike, kind="mergesort")]


@kernel
def _link_band(
    signatures: UInt32,
    hashes: UInt64,
    indptr: Int64,
    places: Int64,
    bar: _Bar,
    banding: tuple[int, int],
    members: Int64,
    starts: Int64,
    roots: Int64,
    pairs: Int64,
    similarity: Float64,
    found: int,
) -> int:
    """Link one band's buckets; returns how many links there are then.

    A pair is compared in the first band it shares alone: in a later one it is known to be in one group, or not to link.
    """
    band, rows = banding
    for bucket in range(len(starts) - 1):
        ids = members[starts[bucket] : starts[bucket + 1]]
        if _of_one_group(roots, ids):
            continue
        ids = _likest_first(signatures, ids)
        # the groups met so far, each a chain through `following`
        heads, tails, following = np.empty_like(ids), np.empty_like(ids), np.full(len(ids), -1)
        groups = 0
        for i in range(len(ids)):
            x = ids[i]
            own = 0
            while own < groups and _find(roots, ids[heads[own]]) != _find(roots, x):
                own += 1
            if own == groups:
                heads[own] = i
                groups += 1
            else:
                following[tails[own]] = i
            tails[own] = i
            group = 0
            while group < groups:
                at = heads[group] if group != own else -1
                near = 0.0
                while at >= 0:
                    if _first_shared(signatures[x], signatures[ids[at]], rows, band) == band:
                        near = _similar(signatures, hashes, indptr, places, bar, x, ids[at])
                    if near > 0:
                        break
                    at = following[at]
                if at < 0:
                    group += 1
                    continue
                a, b = _find(roots, x), _find(roots, ids[at])
                roots[max(a, b)] = min(a, b)
                pairs[found, 0], pairs[found, 1] = min(x, ids[at]), max(x, ids[at])
                similarity[found] = near
                found += 1
                # its own group goes behind the other's, and the last group into the free place
                following[tails[group]] = heads[own]
                heads[own] = heads[group]
                groups -= 1
                heads[group], tails[group] = heads[groups], tails[groups]
                if own == groups:
                    own = group
    return found


@kernel
def _nearest(
    signatures: UInt32,
    hashes: UInt64,
    indptr: Int64,
    places: Int64,
    bar: _Bar,
    texts: Int64,
    families: Int64,
    starts: Int64,
    ends: Int64,
    among_texts: Int64,
    among_families: Int64,
    near: Int64,
    similarity: Float64,
) -> None:
    for i in range(len(texts)):
        for j in range(starts[i], ends[i]):
            related = families[i] == among_families[j]
            if not related and near[i] >= 0:
                continue
            alike = 1.0
            if texts[i] != among_texts[j]:
                alike = _similar(signatures, hashes, indptr, places, bar, texts[i], among_texts[j])
            if alike > 0:
                near[i], similarity[i] = j, alike
                if related:
                    break
