"""Encoding against a slow obvious Python version, on Unicode of all planes."""

import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ewe.elements import CLS, SEP, TEXT_WORDS, decode, encode, encode_buffers, pack
from ewe.errors import UsageError

SPACES = [chr(c) for c in range(0x110000) if chr(c).isspace()]
ODD = [
    "\0",
    "\x01",
    "\x08",
    "\x7f",
    "\x80",
    "\x9f",
    "\u0084",
    "\u00a1",
    "\u200b",
    "\u2027",
    "\u2030",
    "\u205e",
    "\u3001",
]
LETTERS = ["a", "b", "z", "é", "ß", "ё", "€", "ก", "字", "\ue000", "\uf603", "\ufeff", "\uffff", "😀", "\U0010ffff"]

characters = st.one_of(
    st.sampled_from(["a", "e", " "]),
    st.sampled_from(SPACES + ODD + LETTERS),
    st.characters(exclude_categories=[]),  # surrogates too
)
prose = st.lists(st.text("etaoins", min_size=1, max_size=20), min_size=10, max_size=60).map(" ".join)  # windows of it
texts = st.lists(
    st.one_of(
        characters,
        prose,
        st.text("etaoins", min_size=1, max_size=30),
        st.sampled_from([" ", "  ", "\xa0", "\u2003"]),
        st.sampled_from(LETTERS).map(lambda letter: letter * 9),
    ),
    max_size=60,
).map("".join)
shapes = st.tuples(st.integers(3, 20), st.integers(1, 35))


def valid(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def cleaned(text: str) -> str:
    return valid(text).replace("\0", "")


def pieces(text: str, v: int, tokenizer: str) -> list[bytes]:
    if tokenizer == "whitespace":
        return [word.encode() for word in cleaned(text).split()]
    stream = cleaned(text).encode()
    return [stream[i : i + v] for i in range(0, len(stream), v)]


def slow_encode(text: str, u: int, v: int, tokenizer: str) -> list[list[int]]:
    words = [[byte + 4 for byte in word[:v]] for word in pieces(text, v, tokenizer)[: u - 2]]
    rows = [[CLS], *words, [SEP]]
    rows += [[]] * (u - len(rows))
    return [row + [0] * (v - len(row)) for row in rows]


def first_words(text: str, count: int) -> str:
    """The text up to the white space behind its word number `count`, or all of it."""
    for end in range(len(text)):
        if text[end].isspace() and len(cleaned(text[:end]).split()) == count:
            return text[:end]
    return text


def test_there_are_29_spaces():
    assert len(SPACES) == 29


@given(st.lists(texts, max_size=5), shapes, st.sampled_from(["whitespace", "bytes"]))
@example(["a" * 16 + " " + "b" * 17, "é" * 8 + " " + "x" + "é" * 8], (4, 16), "whitespace")
@example(["", " ", "\0", "\ud800", "a\0b\0\0c d"], (5, 3), "whitespace")
@example(["", " ", "\0", "abc", "abcd", "ab\0cd\0\0"], (4, 2), "bytes")
@settings(max_examples=400, deadline=None)
def test_encode_is_what_slow_python_does(rows, shape, tokenizer):
    u, v = shape

    found = encode(rows, u, v, tokenizer)

    assert found.shape == (len(rows), u, v)
    assert found.dtype == np.uint8
    assert found.tolist() == [slow_encode(text, u, v, tokenizer) for text in rows]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: f"U+{ord(space):04X}")
def test_every_space_splits_wherever_it_stands(space):
    rows = [f"{'a' * n}{space}b{space}{space}" + "c" * n for n in range(12)]

    assert encode(rows, 6, 8).tolist() == [slow_encode(text, 6, 8, "whitespace") for text in rows]


def test_no_other_character_splits():
    """Each of the planes' other characters stays one word with its neighbours."""
    others = [chr(c) for c in [*range(1, 0xD800), *range(0xE000, 0x30000, 7)] if not chr(c).isspace()]
    rows = [f"x{character}y" for character in others]

    assert (encode(rows, 4, 8)[:, 2, 0] == SEP).all()


@given(st.lists(texts, min_size=1, max_size=5), shapes, st.sampled_from(["whitespace", "bytes"]))
@settings(max_examples=200, deadline=None)
def test_counts(rows, shape, tokenizer):
    u, v = shape
    rows = [valid(text) for text in rows]
    all_pieces = [pieces(text, v, tokenizer) for text in rows]

    counts = encode_buffers(*buffers(rows), np.empty((len(rows), u, v), np.uint8), tokenizer=tokenizer)

    assert counts.materials == sum(min(len(words), u - 2) for words in all_pieces)
    assert counts.rows_cut == sum(len(words) > u - 2 for words in all_pieces)
    assert counts.materials_cut == sum(len(word) > v for words in all_pieces for word in words[: u - 2])


def buffers(rows: list[str]) -> tuple[np.ndarray, np.ndarray]:
    array = pa.array(rows, pa.large_string())
    _, offsets, data = array.buffers()
    return np.frombuffer(data or b"", np.uint8), np.frombuffer(offsets, np.int64)[: len(rows) + 1]


@given(
    st.lists(texts.map(valid), min_size=1, max_size=6),
    st.sampled_from([3, 4, 8, 12, 30]),
    st.integers(1, 9),
    st.sampled_from(["whitespace", "bytes"]),
)
@example(["", " x", "x \0 y z", "\0x y\0\0 z"], 4, 1, "whitespace")
@settings(max_examples=200, deadline=None)
def test_lengths_end_with_the_last_word_kept(rows, u, keep, tokenizer):
    """The kernels freeze TEXT_WORDS, so that many words are put before what is fuzzed."""
    rows = ["w " * (TEXT_WORDS - keep) + text for text in rows]
    lengths = np.full(len(rows), -1)

    encode_buffers(*buffers(rows), np.empty((len(rows), u, 5), np.uint8), lengths, tokenizer)

    head = 2 * (TEXT_WORDS - keep)
    assert lengths.tolist() == [head + len(first_words(text[head:], keep).encode()) for text in rows]


@pytest.mark.parametrize("u", [100, TEXT_WORDS, TEXT_WORDS + 1, TEXT_WORDS + 2, TEXT_WORDS + 3, 700])
@pytest.mark.parametrize("words", [0, 99, TEXT_WORDS - 1, TEXT_WORDS, TEXT_WORDS + 1, 900])
def test_lengths_do_not_depend_on_u(u, words):
    text = "  " + "word, " * words
    lengths = np.empty(1, np.int64)
    out = np.empty((1, u, 16), np.uint8)

    counts = encode_buffers(*buffers([text]), out, lengths)

    assert lengths[0] == (2 + 6 * TEXT_WORDS - 1 if words > TEXT_WORDS else len(text) - (words == TEXT_WORDS))
    assert counts == (min(words, u - 2), 0, words > u - 2)
    if u - 2 <= TEXT_WORDS:
        assert (encode([text[: lengths[0]]], u) == out).all()


@given(st.lists(texts.map(valid), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_pack(rows, data):
    raw = [text.encode() for text in rows]
    lengths = [data.draw(st.integers(0, len(text))) for text in raw]

    packed = pack(*buffers(rows), np.array(lengths, np.int64))

    assert packed.tobytes() == b"".join(text[:length] for text, length in zip(raw, lengths, strict=True))


def test_a_slice_of_arrow_reads_its_own_rows():
    data, offsets = buffers(["one two", "three", "four five", "six"])
    out = np.empty((2, 4, 5), np.uint8)

    encode_buffers(data, offsets[1:4], out)

    assert (out == encode(["three", "four five"], 4, 5)).all()


def test_threads_write_the_same_bytes():
    rows = [f"word{n} " * (n % 40) + "é" * n for n in range(5000)]
    alone, shared = np.full((2, 5000, 16, 11), 255, np.uint8)

    counts = encode_buffers(*buffers(rows), alone, threads=1)

    assert encode_buffers(*buffers(rows), shared, threads=4) == counts
    assert (alone == shared).all()


def test_a_memory_map_is_filled_in_place(tmp_path):
    rows = ["a memory map", "filled in place"]
    mapped = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.uint8, shape=(2, 6, 8))

    encode_buffers(*buffers(rows), mapped)
    mapped.flush()

    assert (np.load(tmp_path / "a.npy") == encode(rows, 6, 8)).all()


def test_kernels_let_other_threads_run():
    """Two encodings run at once from two Python threads and both come out right."""
    rows = ["some words of a text " * 50] * 2000
    out = np.empty((2, 2000, 128, 16), np.uint8)
    workers = [
        threading.Thread(target=encode_buffers, args=(*buffers(rows), block), kwargs={"threads": 2}) for block in out
    ]

    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert (out == encode(rows[:1])).all()


def test_the_paper_s_shape():
    ids = encode(["A method comprising: " + "word " * 200])[0]

    assert ids.shape == (128, 16)
    assert ids[0].tolist() == [CLS] + [0] * 15
    assert bytes(ids[2, :6] - 4) == b"method"
    assert ids[127].tolist() == [SEP] + [0] * 15


def test_a_word_of_ten_megabytes():
    ids = encode(["x" * 10_000_000 + " y"], 4, 16)

    assert decode(ids[0]) == [b"x" * 16, b"y"]


@given(texts, shapes, st.sampled_from(["whitespace", "bytes"]))
@settings(deadline=None)
def test_decode_is_the_inverse_up_to_the_cuts(text, shape, tokenizer):
    u, v = shape

    assert decode(encode([text], u, v, tokenizer)[0]) == [p[:v] for p in pieces(text, v, tokenizer)[: u - 2]]


@pytest.mark.parametrize("arguments", [{"u": 2}, {"v": 0}, {"tokenizer": "words"}])
def test_what_cannot_be_is_a_usage_error(arguments):
    with pytest.raises(UsageError):
        encode(["a"], **arguments)


@pytest.mark.parametrize("odd", [None, 1.5, b"x"])
def test_what_is_no_string_is_named(odd):
    with pytest.raises(TypeError, match=f"text 1 is {type(odd).__name__}, not a string"):
        encode(["a", odd], 8, 4)


def test_one_string_is_refused():
    with pytest.raises(TypeError, match="pass a list"):
        encode("a b c")


@pytest.mark.parametrize(
    ("offsets", "shape"), [([0, 9], (1, 4, 4)), ([0, 1, 2], (1, 4, 4)), ([0, 1], (2, 4, 4))], ids=str
)
def test_buffers_that_do_not_fit_are_refused(offsets, shape):
    with pytest.raises(ValueError, match="offsets must be"):
        encode_buffers(np.zeros(3, np.uint8), np.array(offsets), np.empty(shape, np.uint8))


def test_elements_needs_neither_torch_nor_arrow():
    code = "import sys, ewe.elements; print([m for m in ('torch', 'pyarrow', 'polars', 'duckdb') if m in sys.modules])"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
