"""Claims written as one string are read back exactly, whatever stands in them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ewe.pipeline.claims import write_claims
from ewe.text import CLAIM_END, clean, join_claims, join_claims_batch, split_claims

PIECES = [
    "1. ",
    "2. ",
    "3. ",
    "12.",
    "A thing",
    " of claim 1",
    ", wherein",
    "\n",
    " ",
    ".",
    ";",
    "1.5 mm",
    "&amp;",
    "&lt;",
    CLAIM_END,
]
texts = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))


def without_number(claim: str) -> str:
    """A claim as `split_claims` promises it: cleaned, its own number off, by slow and obvious means."""
    claim = clean(claim)
    digits = len(claim) - len(claim.lstrip("0123456789"))
    after = claim[digits + 1 : digits + 2]
    if (
        1 <= digits <= 4
        and claim[:digits].isascii()
        and claim[digits : digits + 1] == "."
        and after not in set("0123456789")
    ):
        return claim[digits + 1 :].removeprefix(" ")
    return claim


@given(st.lists(texts, min_size=1, max_size=6))
@example(["A method of: 1. heating; 2. cooling."])
@example(["A thing.", ""])
@example(["", "A thing."])
@example(["A thing of SEQ ID NO: 2. A part.", "The thing of SEQ ID NO: 3. A part."])
@example(["1. 1. A thing"])
@example([".x", ", y"])
@example(["&am", "p;lt; A"])
@example(["1.5 mm of wire", "2. The 3. "])
def test_what_is_written_is_read_back(claims: list[str]) -> None:
    known = [without_number(claim) for claim in claims]
    written = write_claims(claims)
    if not any(known):
        assert written is None
        return
    assert written is not None
    assert split_claims(written) == known


@settings(deadline=None)  # the kernel compiles once
@given(st.lists(st.lists(texts, min_size=1, max_size=4), max_size=5))
def test_the_kernel_reads_it_the_same(patents: list[list[str]]) -> None:
    written = [write_claims(claims) or "" for claims in patents]
    array = pa.array(written, pa.large_string())
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    offsets = np.frombuffer(array.buffers()[1], np.int64)[: len(written) + 1]
    batch = join_claims_batch(data, offsets)
    expected = [join_claims(each) for each in written]
    assert batch.n_claims.tolist() == [each.n_claims for each in expected]
    assert batch.text.tobytes() == "".join(each.text for each in expected).encode()


def test_plain_lines_where_they_do() -> None:
    assert (
        write_claims(["1. A thing.", "2 . The  thing of claim 1 , red.\n"])
        == "1. A thing.\n2. The thing of claim 1, red."
    )


@pytest.mark.parametrize("claims", [["A thing: 1. a; 2. b"], ["A", "B, of SEQ ID NO: 3. C"], ["A", ""]])
def test_claim_ends_where_lines_would_mislead(claims: list[str]) -> None:
    written = write_claims(claims)
    assert written == "".join(f"{n}. {claim}{CLAIM_END}" for n, claim in enumerate(claims, 1))


def test_no_claims() -> None:
    assert write_claims([]) is None
    assert write_claims(["", " 1. "]) is None
