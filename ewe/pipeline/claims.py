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
    return lines if split_claims(lines) == known else "".join(claim + CLAIM_END for claim in numbered)
