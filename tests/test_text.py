import html
import re
import sys
from html.entities import html5
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ewe import text as module
from ewe.text import JoinedClaims, clean, join_claims, join_claims_batch, split_claims

WHITE = [chr(c) for c in range(sys.maxunicode + 1) if chr(c).isspace()]
LADDER = " \n     \n         \n       "

# ---------------------------------------------------------------------------------------------------------------------
# clean


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (" \n\t\xa0\u3000 ", ""),
        ("\0\0\0", ""),
        ("a\0b", "ab"),
        ("  A \t method\r\n of\u2009use\u2028here ", "A method of use here"),
        ("of  claim 1 , wherein", "of claim 1, wherein"),
        ("a ; b . c , d : e", "a; b. c, d : e"),
        ("a\n, b", "a, b"),
        ("at 2 . 5 V", "at 2. 5 V"),
        ("&#39;a&#x27; &amp; &lt;b&gt;&nbsp;&quot;c&quot;", "'a' & <b> \"c\""),
        ("5&#176;C &mu;m &CounterClockwiseContourIntegral; &nGt;", "5°C μm ∳ ≫⃒"),
        ("&amp;#39;", "'"),
        ("&amp;amp;lt;", "<"),
        ("&lt ; &am&#112;;", "< &"),
        ("R&D, AT&T; S&OP &copy &nosuch; &; &#; &#x;", "R&D, AT&T; S&OP &copy &nosuch; &; &#; &#x;"),
        ("&#0;&#55296;&#128;", "\ufffd\ufffd€"),
        ("a \ud800 b \udfff", "a \ufffd b \ufffd"),
        ("f\u2061x \u2062 y\u200bz \uf603 co\xadop", "f\u2061x \u2062 y\u200bz \uf603 co\xadop"),
        ("CO2 Ｆull e\u0301 É", "CO2 Ｆull e\u0301 É"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_white_space_is_that_of_str_split() -> None:
    assert len(WHITE) == 29
    assert clean("a".join(WHITE)) == " ".join("a" * 28)
    assert sorted(module._BREAKS + module._BLANKS + " ") == WHITE


signs = [*WHITE, *",.;:&#()", "a", "Z", "é", "漢", "😀", "\0", "\u200b", "0", "12", "claim", "FIG. "]
markers = ["1.", "2.", "3 .", "1. ", "\n2. ", "\n 3. ", " 4. ", "What is claimed is:", "A kit:"]
pieces = st.sampled_from(signs + markers + ["amp", "lt;", "&#39", "&#x3b;", "&#32;", "&#46;", "&#"])
texts = st.lists(pieces | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=40).map("".join)
entities = st.builds(
    "&{};".format,
    st.sampled_from([name[:-1] for name in html5 if name.endswith(";")])
    | st.integers(0, 0x110010).map("#{}".format)
    | st.integers(0, 0x110010).map("#x{:X}".format),
)
words = st.text("etaoins,.;", min_size=1, max_size=12) | st.sampled_from(
    ["2.", "3. A", "é", "≦", "a\nb", "a ,", "&lt;"]
)
prose = st.lists(words, min_size=20, max_size=60).map(" ".join)  # longer than a window of the kernel
documents = st.lists(texts | entities | prose, max_size=4).map("".join)


@given(documents | st.text(st.characters()))
@example("&am&#112;;")
@example("&lt &#59;")
def test_clean_twice_is_clean_once_and_always_utf8(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    cleaned.encode()
    assert cleaned == cleaned.strip()
    assert not set(cleaned) & (set(WHITE) - {" "})
    assert not re.search(r"  | [,.;]|\0", cleaned)


@given(texts.filter(lambda text: "&" not in text))
def test_clean_equals_split_and_join(text: str) -> None:
    assert clean(text) == re.sub(" ([,.;])", r"\1", " ".join(text.replace("\0", "").split()))


@given(st.lists(entities, max_size=5))
def test_one_decoding_is_html_s(found: list[str]) -> None:
    for entity in found:
        decoded = html.unescape(entity)
        assert clean(f"a{entity}b") == clean(f"a{decoded}b")


# ---------------------------------------------------------------------------------------------------------------------
# split_claims


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ("", []),
        ("\0\0", []),
        ("1.", ["1."]),
        ("1. ", ["1."]),
        ("What is claimed is:", ["What is claimed is:"]),
        ("What is claimed is: 1.", ["What is claimed is: 1."]),
        ("A chair.", ["A chair."]),
        ("1. A chair. 2. The chair of claim 1.", ["A chair.", "The chair of claim 1."]),
        ("1 . A chair. 2 . The chair of  claim 1 , red.", ["A chair.", "The chair of claim 1, red."]),
        (f"I claim:{LADDER}1. A chair.{LADDER}2 . The chair of  claim 1 .", ["A chair.", "The chair of claim 1."]),
        ("1.\xa0a chair; 2.&nbsp;a table", ["a chair;", "a table"]),
        # the next number only
        ("1. A chair. 3. A table. 2. A bed. 3. A lamp.", ["A chair. 3. A table.", "A bed.", "A lamp."]),
        ("1. A 2.5 kg (2.) or No.2. or 02. chair. 2. A bed.", ["A 2.5 kg (2.) or No.2. or 02. chair.", "A bed."]),
        ("2. A chair.", ["2. A chair."]),
        ("1-11. (canceled) 12. A chair.", ["1-11. (canceled) 12. A chair."]),
        # a number that ends a claim
        ("1. A pH of 5 to 2. 2. The pH of claim 1, at least 3.", ["A pH of 5 to 2.", "The pH of claim 1, at least 3."]),
        ("1. 1. A chair. 2. 2. A bed.", ["A chair. 2.", "A bed."]),
        # lines before running text
        ("1. As in FIG. 2. So.\n2. As in FIG. 3. So.\n3. A bed.", ["As in FIG. 2. So.", "As in FIG. 3. So.", "A bed."]),
        ("1. A chair.\n2. A bed. 3. A lamp.", ["A chair.", "A bed.", "A lamp."]),
        # claims without text keep their number
        ("1. A chair. 2. 3. A lamp.", ["A chair.", "", "A lamp."]),
        # unnumbered: inner numbers are no claims
        ("A polypeptide of SEQ ID NO: 1.", ["A polypeptide of SEQ ID NO: 1."]),
        ("Protein of SEQ ID NO: 1. 2. Or so.", ["Protein of SEQ ID NO: 1. 2. Or so."]),
        ("A cooler: a. a tank; 1. said one; 2. said two.", ["A cooler: a. a tank; 1. said one; 2. said two."]),
        ("Kit comprising: 1. a cup; 2. a lid.", ["Kit comprising: 1. a cup; 2. a lid."]),
        ("What is claimed is: a kit with a cup and: 1. a lid", ["What is claimed is: a kit with a cup and: 1. a lid"]),
        ("The chair of claim 1. It is red.", ["The chair of claim 1. It is red."]),
    ],
)  # fmt: skip
def test_split_claims(claims: str, expected: list[str]) -> None:
    assert split_claims(claims) == expected


PREAMBLES = [
    *module._COMMON_PREAMBLES,
    "",
    "\ufeff",
    "Claim",
    "Claims (20)",
    "we claim",
    "The claims defining the invention are as follows:",
    "Having thus described our invention, we claim:",
    "Having thus described a seat comprising a back, I therefore claim as my invention",
    "What is desired to be protected is:",
    "x" * 199 + ":",
]


@pytest.mark.parametrize("preamble", PREAMBLES)
def test_preambles(preamble: str) -> None:
    for gap in " ", LADDER:
        assert split_claims(f"{preamble}{gap}1. A chair.{gap}2. A bed.") == ["A chair.", "A bed."]


@pytest.mark.parametrize(
    "text",
    [
        "x" * 200 + ":",
        "A kit comprising:",
        "In a chair, the improvement consisting of:",
        "Method having the steps:",
        "Insurance claim processor comprising:",
        "The device of claim",
        "A device",
    ],
)
def test_no_preambles(text: str) -> None:
    claims = f"{text} 1. a cup; 2. a lid."
    assert split_claims(claims) == [claims]


def only_letters(text: str) -> str:
    return "".join(filter(str.isalpha, text))


@given(documents)
@example("1. 2. 3. a")
@example("I claim: 1. 2. 2. 3. a")
def test_no_letter_is_lost_but_the_preamble_s(source: str) -> None:
    claims = split_claims(source)
    kept, all_of_it = only_letters("".join(claims)), only_letters(clean(source))
    assert all_of_it.endswith(kept)
    lost = all_of_it.removesuffix(kept)
    assert not lost or ("1." in clean(source) and len(lost) <= 200)
    assert bool(claims) == bool(clean(source))
    assert any(claims) or not all_of_it
    assert claims == [clean(claim) for claim in claims]


sentences = st.lists(
    st.sampled_from(["A", "seat", "of", "claim", "1", "at", "2.5", "V", "(3.)", "5", ";", ", and", "é"]),
    min_size=1,
    max_size=12,
).map(lambda words: clean(f"The {' '.join(words)}."))  # fmt: skip


@given(
    st.lists(sentences, min_size=1, max_size=30),
    st.sampled_from(PREAMBLES),
    st.sampled_from([" ", "\n", LADDER, "\r\n", "&#10;"]),
    st.sampled_from(["{}. {}", "{} . {}", "{}.\xa0{}", "{} .  {}"]),
    st.sampled_from([".", " of 7."]),
)
def test_any_layout_is_split_where_it_was_joined(
    claims: list[str], preamble: str, gap: str, form: str, ending: str
) -> None:
    claims = [claim.removesuffix(".") + ending for claim in claims]
    source = gap.join([preamble, *(form.format(n + 1, claim) for n, claim in enumerate(claims))])
    assert split_claims(source) == claims


@given(st.lists(sentences, min_size=2, max_size=12), st.sampled_from(["\n", LADDER]))
def test_numbers_within_the_claims_of_a_ladder(claims: list[str], gap: str) -> None:
    claims = [f"{claim} See FIG. {n + 2}. Or so." for n, claim in enumerate(claims[1:])] + [claims[0]]
    assert split_claims(gap.join(f"{n + 1}. {claim}" for n, claim in enumerate(claims))) == claims


# ---------------------------------------------------------------------------------------------------------------------
# join_claims and its batch


def test_join_claims() -> None:
    claims = "We claim: 1. An é. 2. 3. The é of claim 1. 4. A lamp."

    assert join_claims(claims) == JoinedClaims("An é. The é of claim 1. A lamp.", [0, 6, 24], 4)
    assert join_claims(claims, 3) == JoinedClaims("An é. The é of claim 1.", [0, 6], 4)
    assert join_claims(claims, 1) == JoinedClaims("An é.", [0], 4)
    assert join_claims("A lamp.", 1) == JoinedClaims("A lamp.", [0], 1)
    assert join_claims(" \0 ") == JoinedClaims("", [], 0)


@given(documents, st.integers(1, 4))
def test_offsets_cut_the_text_into_its_claims(source: str, max_claims: int) -> None:
    joined = join_claims(source, max_claims)
    split = split_claims(source)
    cut = [joined.text[start:end].strip() for start, end in pairwise([*joined.offsets, len(joined.text)])]

    assert cut == [claim for claim in split[:max_claims] if claim]
    assert joined.text == clean(joined.text)
    assert joined.n_claims == len(split) >= len(joined.offsets)


def assert_batch_equals_rows(sources: list[str], max_claims: int = 20, skip: int = 0) -> None:
    """Compare the kernel with the definition; `skip` leaves out leading rows, as a sliced Arrow array does."""
    encoded = [source.encode() for source in sources]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    batch = join_claims_batch(np.frombuffer(b"".join(encoded), np.uint8), offsets[skip:], max_claims)
    expected = [join_claims(source, max_claims) for source in sources[skip:]]

    found = [
        JoinedClaims(
            batch.text[batch.text_offsets[row] : batch.text_offsets[row + 1]].tobytes().decode(),
            batch.claim_offsets[batch.claim_indptr[row] : batch.claim_indptr[row + 1]].tolist(),
            int(batch.n_claims[row]),
        )
        for row in range(len(expected))
    ]
    assert found == expected
    assert [values.dtype for values in batch] == [np.uint8, np.int64, np.int32, np.int64, np.int16]
    assert len(batch.text) == batch.text_offsets[-1]
    assert len(batch.claim_offsets) == batch.claim_indptr[-1]


@settings(deadline=None)  # the first call compiles
@given(st.lists(documents, max_size=4), st.integers(1, 3), st.integers(0, 1))
@example(["&nGt;" * 20, "1. &Gt; 2. &semi; a &#44; b &emsp; ."], 1, 0)
@example(["9998. a 9999. b 10000. c", "a &nbsp;; b\u2003\n, \u2003."], 1, 0)
def test_batch_equals_join_claims(sources: list[str], max_claims: int, skip: int) -> None:
    assert_batch_equals_rows(sources, max_claims, min(skip, len(sources)))


def test_every_entity_in_a_batch() -> None:
    numbers = [*range(0x300), *range(0x1FF0, 0x2070), *range(0x2FF0, 0x3010), 0xD7FF, 0xD800, 0xFFFF, 0x10000, 0x110000]
    found = [f"&{name}" for name in html5]
    found += [form.format(n) for n in numbers for form in ("&#{};", "&#x{:x};", "&#X0{:X};")]
    assert_batch_equals_rows([f"1. a {entity} b{entity}." for entity in found])


def test_every_character_in_a_batch() -> None:
    everything = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    assert_batch_equals_rows([f"1. a{c} {c} b" for c in everything if c < "\u3100"] + ["".join(everything)])


@pytest.mark.parametrize("preamble", PREAMBLES)
def test_every_preamble_in_a_batch(preamble: str) -> None:
    assert_batch_equals_rows(
        [f"{preamble}{LADDER}1. A chair. 2. A bed.", f"{preamble}. 1. A chair.", preamble[:-1] + " 1. a"]
    )


def test_a_batch_of_no_rows() -> None:
    assert_batch_equals_rows([])


def test_a_batch_over_arrow_buffers() -> None:
    array = pa.array(["gone", "1. A chair. 2. The chair of claim 1.", "", "A lamp."], pa.large_string())[1:]
    _, offsets, data = array.buffers()
    batch = join_claims_batch(
        np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64)[array.offset : array.offset + 4]
    )
    text = pa.LargeStringArray.from_buffers(3, pa.py_buffer(batch.text_offsets), pa.py_buffer(batch.text))

    assert text.to_pylist() == ["A chair. The chair of claim 1.", "", "A lamp."]
    assert batch.n_claims.tolist() == [2, 0, 1]


def test_extremes() -> None:
    long_word = "x" * 10_000_000
    many = " ".join(f"{n + 1}. The part of claim {n}." for n in range(5000))
    past_the_last_number = "".join(f"\n{n + 1}. a" for n in range(10_010))
    sources = [
        long_word,
        "\0" * 1_000_000,
        "",
        "1.",
        "1. ",
        many,
        past_the_last_number,
        " " * 1_000_000 + "a",
        "&" * 99_999,
    ]
    sources += ["&" + "amp;" * 100_000, "&lt;" * 100_000, "1. " * 100_000, ";" + "a" * 100_000 + ";"]

    assert join_claims(long_word) == JoinedClaims(long_word, [0], 1)
    assert join_claims(many).n_claims == 5000
    assert join_claims(past_the_last_number).n_claims == 9999
    assert_batch_equals_rows(sources)


# ---------------------------------------------------------------------------------------------------------------------
# real patents


@pytest.fixture(scope="module")
def published(real: Path) -> dict[str, str]:
    table = pq.read_table(real / "publications.parquet", columns=["publication_number", "claims_localized"])
    return {
        row["publication_number"]: row["claims_localized"][0]["text"]
        for row in table.to_pylist()
        if row["claims_localized"]
    }


@pytest.fixture(scope="module")
def truth(real: Path) -> dict[str, list[str]]:
    rows = pq.read_table(real / "claims_truth.parquet").to_pylist()
    return {
        row["publication_number"]: [clean(re.sub(r"^\s*\d+\s*\.", "", claim)) for claim in row["claims"]]
        for row in rows
    }


def test_real_claims_are_split_as_they_were_marked_up(published: dict[str, str], truth: dict[str, list[str]]) -> None:
    wrong = [number for number, claims in truth.items() if split_claims(published[number]) != claims]
    assert not wrong
    assert len(truth) == 279


@pytest.mark.parametrize("gap", [" ", "\n", LADDER])
@pytest.mark.parametrize("form", ["{}. {}", "{} . {}"])
def test_real_claims_in_other_layouts(truth: dict[str, list[str]], gap: str, form: str) -> None:
    for index, claims in enumerate(truth.values()):
        numbered = [form.format(n + 1, claim) for n, claim in enumerate(claims)]
        assert split_claims(gap.join([PREAMBLES[index % len(PREAMBLES)], *numbered])) == claims


@pytest.mark.parametrize("number", ["US-6887980-B2", "US-6893019-B2", "US-6886360-B2"])
def test_inner_numbers_of_unnumbered_claims(published: dict[str, str], number: str) -> None:
    assert split_claims(published[number]) == [clean(published[number])]


def test_lone_first_claims_stay_one_claim(published: dict[str, str], truth: dict[str, list[str]]) -> None:
    first = {n: text for n, text in published.items() if n not in truth and "\n" not in text}
    assert len(first) > 2500
    for text in first.values():
        assert split_claims(text) == [re.sub(r"^1\. ", "", clean(text))]


def test_real_claims_in_a_batch(published: dict[str, str]) -> None:
    assert_batch_equals_rows(list(published.values()))
    assert_batch_equals_rows(list(published.values()), max_claims=3)
