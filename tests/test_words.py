"""Hashed words: against Python's own words and a slow FNV-1a, and tensors' words against prediction's."""

import re

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ewe.elements import TEXT_WORDS, buffers, encode_buffers, measure
from ewe.words import IDS, buckets, encode, hash_rows


def fnv1a(word: bytes) -> int:
    x = 0x811C9DC5
    for byte in word:
        x = (x ^ byte) * 0x01000193 % 2**32
    return x


def slow(text: str) -> list[int]:
    """The definition: words of the first 512 white-space words, each hashed and folded to 20 bits."""
    ends = [word.end() for word in re.finditer(r"\S+", text)]
    kept = text[: ends[TEXT_WORDS - 1]] if len(ends) >= TEXT_WORDS else text
    words = re.findall(rb"[0-9A-Za-z\x80-\xff]+", kept.encode())
    return [max(1, fnv1a(word.lower()) >> 20 ^ fnv1a(word.lower()) % IDS) for word in words][:TEXT_WORDS]


def rows(ids: np.ndarray) -> list[list[int]]:
    """Rows without the zeros that pad them, which may stand at the end alone."""
    lengths = (ids > 0).sum(1)
    assert not any(row[length:].any() for row, length in zip(ids, lengths, strict=True))
    return [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]


def test_the_oracle_is_the_published_hash() -> None:
    assert [fnv1a(word) for word in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


def test_words_end_at_punctuation_and_case_is_ascii() -> None:
    ids = rows(
        encode(["The lever, the LEVER; half-open (0.5 mm)", "the lever the lever half open 0 5 mm", "Ärm", "ärm"])
    )

    assert ids[0] == ids[1] == slow("the lever the lever half open 0 5 mm")
    assert ids[2] != ids[3]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=5))
@example(["\x85", "", " ", ".", "a" * 3000, "\u00a0a\u2003b", "a-b " * 600, "- " * 600 + "c", "w\u0085" * 513])
def test_equal_to_the_slow_definition(texts: list[str]) -> None:
    ids = encode(texts)

    assert ids.dtype == np.int32
    assert ids.shape == (len(texts), max([1, *(len(slow(text)) for text in texts)]))
    assert rows(ids) == [slow(text) for text in texts]


def test_the_words_of_tensors_are_those_of_prediction(tmp_path) -> None:
    """Tensors keep a text up to its 512th white-space word; prediction sees all of it."""
    texts = ["- " * 500 + "late words " * 20, "one two", "", "a-b " * 600]
    raw = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, raw)])
    lengths = np.empty(len(raw), np.int64)
    encode_buffers(np.frombuffer(b"".join(raw), np.uint8), offsets, np.empty((4, 8, 4), np.uint8), lengths)
    kept = b"".join(text[:length] for text, length in zip(raw, lengths, strict=True))
    np.save(tmp_path / "text.npy", np.frombuffer(kept, np.uint8))
    data = np.load(tmp_path / "text.npy", mmap_mode="r")
    indptr = np.cumsum([0, *lengths])
    chosen = np.array([3, 0, 1])

    assert (hash_rows(data, indptr[:-1], indptr[1:]) == encode(texts)).all()
    assert rows(hash_rows(data, indptr[chosen], indptr[chosen + 1])) == [slow(texts[n]) for n in chosen]


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.text(st.sampled_from("a \0\x85\u2003é-")), max_size=4))
@example(["a\0 " * 600, " \0", "", "é\u2003" * 513])
def test_lengths_are_those_that_encoding_gives(texts: list[str]) -> None:
    """`measure` alone, which prediction asks, and the encoding that fills tensors."""
    data, offsets = buffers(texts)
    lengths = np.empty(len(texts), np.int64)
    encode_buffers(data, offsets, np.empty((len(texts), 3, 1), np.uint8), lengths)

    assert measure(data, offsets).tolist() == lengths.tolist()


def test_one_string_is_no_list_of_texts() -> None:
    with pytest.raises(TypeError, match="pass a list"):
        encode("a text")


@given(st.lists(st.integers(0, IDS - 1), min_size=1), st.integers(2, 2**21))
def test_buckets_keep_padding_apart(ids: list[int], count: int) -> None:
    expected = [0 if x == 0 else max(1, x % count) for x in ids]

    assert buckets(np.array(ids, np.int32), count).tolist() == expected
    assert buckets(torch.tensor(ids), count).tolist() == expected
