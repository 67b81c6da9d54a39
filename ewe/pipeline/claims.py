"""Claims that a source knows one by one -> the one string that raw/ holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ewe.text import CLAIM_END, clean, split_claims

_OWN_NUMBER = re.compile(r"^[0-9]{1,4}\.(?![0-9]) ?")


def write_claims(claims: Iterable[str]) -> str | None:
    """The inverse of `split_claims`, which gives these claims back exactly, cleaned.

    A claim a line, numbered from 1 (`1. A ...`), the number the claim itself opens with taken off. What `split_claims`
    would misread so (an inner number that passes for the next claim, a last claim of no text) has CLAIM_END after
    each claim instead.

    Returns:
        None where no claim has text.
    """
    known = [_OWN_NUMBER.sub("", clean(claim)) for claim in claims]
    if not any(known):
        return None
    numbered = [f"{n}. {claim}" for n, claim in enumerate(known, 1)]
    lines = "\n".join(numbered)
    if not _may_mislead(known) or split_claims(lines) == known:
        return lines
    return "".join(claim + CLAIM_END for claim in numbered)


def _may_mislead(claims: list[str]) -> bool:
    """Whether lines need a second look, which costs more than all the rest: few do."""
    inner = f" {len(claims) + 1}. "
    return inner in claims[-1] or not all(claims) or any(claim[0] in ",.;0123456789" for claim in claims)
