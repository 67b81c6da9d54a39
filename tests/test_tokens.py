"""WordPiece against Hugging Face's own BERT tokenizer, code points against plain Python and CANINE's tokenizer."""

import json
import random
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_elements import characters, cleaned, shapes, texts

from ewe import elements, tokens
from ewe.elements import TEXT_WORDS, buffers
from ewe.errors import DataError, UsageError
from ewe.tokens import SPECIAL, WordPiece, codepoints, encode_codepoints

tokenizers = pytest.importorskip("tokenizers", reason="the models extra is not installed")
transformers = pytest.importorskip("transformers", reason="the models extra is not installed")

WORDS = [
    "a",
    "plough",
    "ploughing",
    "ploughs",
    "Handle,",
    "handles",
    "1,2-dichloro",
    "café",
    "naïve",
    "支付",
    "é",
    "(b)",
]


def corpus(seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    made = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(1, 7))) for _ in range(80)]
    return [" ".join(chance.choices(WORDS + made, k=60)) for _ in range(60)]


@pytest.fixture(scope="module")
def pieces() -> WordPiece:
    return WordPiece.train(corpus(), 250)


def hugging_face(pieces: WordPiece):
    """Hugging Face's tokenizer of the same file, told that a text is only text."""
    opened = tokenizers.Tokenizer.from_str(pieces.to_json())
    return transformers.BertTokenizerFast(tokenizer_object=opened, split_special_tokens=True)


@pytest.fixture(scope="module")
def peer(pieces):
    return hugging_face(pieces)


def padded(peer, found: list[str], u: int) -> np.ndarray:
    encoded = peer([cleaned(text) for text in found], truncation=True, max_length=u, padding="max_length")
    return np.array(encoded["input_ids"])


# -- WordPiece -------------------------------------------------------------------------------------------------------

odd = st.sampled_from(["\x1c", "\x0b", "\x85", "\ufffd", "\u0301", "e\u0301", "İ", "ß", "ﬁ", "Ω", "각", "字", "\u200b"])
literal = st.sampled_from([*SPECIAL, "##ing", "[unused1]", "##"])
sentences = st.lists(
    st.one_of(
        st.sampled_from(WORDS),
        literal,
        odd,
        characters,
        st.sampled_from([" ", "  ", "\t", "\r\n", "\xa0", "\u2028"]),
        st.sampled_from(["a", "é", "-"]).map(lambda letter: letter * 101),
    ),
    max_size=80,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(sentences, texts), min_size=1, max_size=4), st.integers(3, 24))
@example(["plough " * 50, "plough\u0301 " * 50, "\x01 " * 9 + "plough " * 9, "字" * 50], 6)
@example(["\x1c \x85 \u0301 \u200b plough \x0ba handle"], 4)
def test_wordpiece_is_hugging_faces(pieces, peer, found, u):
    ids = pieces.encode(found, u)

    assert ids.dtype == np.uint16
    np.testing.assert_array_equal(ids, padded(peer, found, u))


def test_real_claims_are_read_as_hugging_face_does(real):
    claims = pq.read_table(real / "claims_truth.parquet")["claims"].to_pylist()
    found = [" ".join(each) for each in claims]
    pieces = WordPiece.train(found, 4000)

    np.testing.assert_array_equal(pieces.encode(found, 128), padded(hugging_face(pieces), found, 128))


def test_counts_say_what_was_lost(pieces, peer):
    found = ["plough " * 9, "plough 支付ƒ\u16a0 handles", "", "plough \x01\x02", "ploughs " * 4]
    data, offsets = buffers(found)
    whole = [ids[1:-1] for ids in peer(found)["input_ids"]]
    unknown = SPECIAL.index("[UNK]")

    counts = pieces.encode_buffers(data, offsets, np.empty((5, 6), np.uint16))

    assert counts.materials == sum(min(len(ids), 4) for ids in whole)
    assert counts.materials_cut == sum(ids[:4].count(unknown) for ids in whole) > 0
    assert counts.rows_cut == sum(len(ids) > 4 for ids in whole) == 2


def test_forgotten_words_are_asked_for_again(pieces, peer, monkeypatch):
    monkeypatch.setattr(tokens, "MOST_KEPT", 50)
    found = corpus(1)

    for start in range(0, len(found), 7):
        part = found[start : start + 7]
        np.testing.assert_array_equal(pieces.encode(part, 40), padded(peer, part, 40))


def test_a_vocabulary_begins_with_its_special_tokens(pieces):
    model = json.loads(pieces.to_json())["model"]["vocab"]

    assert [model[token] for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert sorted(model.values()) == list(range(pieces.size))
    assert pieces.size == 250
    assert "plough" in model
    assert "ploughs" in model or "##s" in model
    assert "Handle" not in model


def test_a_vocabulary_is_as_small_as_its_texts():
    small = WordPiece.train(["ab ab ab", "abc abc"], 100)

    model = json.loads(small.to_json())["model"]["vocab"]
    assert set(model) == {*SPECIAL, "a", "b", "c", "##a", "##b", "##c", "ab", "abc"}


def test_the_rarest_letters_are_left_out(monkeypatch):
    monkeypatch.setattr(tokens, "ALPHABET", 3)
    kept = WordPiece.train(["bbb ccc aaaa b d", "E"], 100)

    model = json.loads(kept.to_json())["model"]["vocab"]
    assert {piece for piece in model if len(piece) == 1} == {"a", "b", "c"}
    assert kept.encode(["d a"], 4).tolist() == [[2, SPECIAL.index("[UNK]"), model["a"], 3]]


def test_the_same_texts_give_the_same_vocabulary():
    """Not so with the library's trainer alone: its hash tables have random seeds."""
    code = (
        "import sys, json; from ewe.tokens import WordPiece; "
        "print(WordPiece.train(json.load(sys.stdin), 250).to_json())"
    )
    printed = {
        subprocess.check_output([sys.executable, "-c", code], input=json.dumps(found), text=True)
        for found in (corpus(), corpus()[::-1], corpus())
    }

    assert len(printed) == 1


def test_no_texts_make_no_more_than_special_tokens():
    assert WordPiece.train([], 100).size == WordPiece.train(["", " \x01"], 100).size == len(SPECIAL)


@pytest.mark.parametrize("size", [0, 99, 65_537])
def test_a_vocabulary_that_cannot_be(size):
    with pytest.raises(UsageError, match="100 to 65,536"):
        WordPiece.train(corpus(), size)


def test_a_vocabulary_is_opened_again(pieces, tmp_path):
    (tmp_path / "tokenizer.json").write_text(pieces.to_json(), encoding="utf-8")
    model = json.loads(pieces.to_json())["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("\r\n".join(sorted(model, key=model.__getitem__)) + "\r\n", encoding="utf-8")

    for name in ("tokenizer.json", "vocab.txt"):
        opened = WordPiece.load(tmp_path / name)
        assert opened.to_json() == pieces.to_json()
        assert opened.size == pieces.size


def test_a_cased_tokenizer_stays_cased(tmp_path):
    cased = tokenizers.BertWordPieceTokenizer(
        {**{token: n for n, token in enumerate(SPECIAL)}, "A": 5, "a": 6}, lowercase=False
    )
    cased.save(str(tmp_path / "tokenizer.json"))

    assert WordPiece.load(tmp_path / "tokenizer.json").encode(["A a É"], 6).tolist() == [[2, 5, 6, 1, 3, 0]]


def broken(pieces, **parts) -> str:
    return json.dumps(json.loads(pieces.to_json()) | parts)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "one of BPE, BertNormalizer, BertPreTokenizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "one of WordPiece, BertNormalizer, Whitespace"),
        ({"normalizer": None}, "no whole tokenizer"),
        ({"model": {"type": "WordPiece", "vocab": ["[PAD]"]}}, "no whole tokenizer"),
        ({"model": {"type": "WordPiece", "vocab": {"[PAD]": 0}}}, r"has no \[UNK\]"),
        ({"added_tokens": [{"id": 250, "content": "New York"}]}, "adds 'New York'"),
        (
            {"model": {"type": "WordPiece", "vocab": {token: 1 + n for n, token in enumerate(SPECIAL)}}},
            r"has \[PAD\] as 1",
        ),
        (
            {"model": {"type": "WordPiece", "vocab": {**{t: n for n, t in enumerate(SPECIAL)}, "a": 65_536}}},
            "ids up to 65,536",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_vocabulary(pieces, tmp_path, parts, message):
    (tmp_path / "own.json").write_text(broken(pieces, **parts))

    with pytest.raises(DataError, match=f"own.json .*{message}.*; give a BERT tokenizer's"):
        WordPiece.load(tmp_path / "own.json")


@pytest.mark.parametrize(
    ("name", "content"),
    [("vocab.txt", b"[PAD]\n\xff\n"), ("vocab.txt", b""), ("own.json", b"{"), ("own.json", b"[]")],
)
def test_what_is_no_file_of_one(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=name):
        WordPiece.load(tmp_path / name)


# -- code points -----------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, max_size=5), st.integers(3, 40))
@example(["", "\0\0", "a\0b\0", "\ud800", "\U0010ffff\ue000"], 4)
def test_codepoints_are_code_points(found, u):
    wanted = np.zeros((len(found), u), np.uint32)
    for row, text in zip(wanted, found, strict=True):
        ids = [0xE000, *map(ord, cleaned(text)[: u - 2]), 0xE001]
        row[: len(ids)] = ids

    ids = codepoints(found, u)

    assert ids.dtype == np.uint32
    np.testing.assert_array_equal(ids, wanted)


@pytest.fixture(scope="module")
def canine():
    return transformers.CanineTokenizer()


@settings(max_examples=30, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3), st.integers(3, 40))
def test_codepoints_are_canines(canine, found, u):
    peers = canine([cleaned(text) for text in found], truncation=True, max_length=u, padding="max_length")

    np.testing.assert_array_equal(codepoints(found, u), np.array(peers["input_ids"]))


def test_codepoints_count_what_was_cut():
    data, offsets = buffers(["abc", "abc\0", "ab\0cd", "", "é字"])

    assert encode_codepoints(data, offsets, np.empty((5, 5), np.uint32)) == (3 + 3 + 3 + 0 + 2, 0, 1)


# -- both ------------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(texts, texts.map(lambda text: f"{text} " * 60)), max_size=4), shapes)
def test_texts_are_measured_alike(pieces, found, shape):
    data, offsets = buffers(found)
    wanted, pieces_, points = (np.full(len(found), -1) for _ in range(3))
    elements.encode_buffers(data, offsets, np.empty((len(found), *shape), np.uint8), wanted)

    pieces.encode_buffers(data, offsets, np.empty((len(found), 9), np.uint16), pieces_)
    encode_codepoints(data, offsets, np.empty((len(found), 9), np.uint32), points)

    np.testing.assert_array_equal(pieces_, wanted)
    np.testing.assert_array_equal(points, wanted)
    np.testing.assert_array_equal(elements.measure(data, offsets), wanted)


def test_measuring_stops_at_word_512():
    data, offsets = buffers(["ab " * 600, "ab"])

    assert elements.measure(data, offsets).tolist() == [3 * TEXT_WORDS - 1, 2]


def test_texts_are_several_and_rows_have_room(pieces):
    for encode in (pieces.encode, codepoints):
        assert encode([], 5).shape == (0, 5)
        with pytest.raises(UsageError):
            encode(["a"], 2)
        with pytest.raises(TypeError):
            encode("a text", 5)


def test_tokens_load_lightly():
    heavy = "('tokenizers', 'transformers', 'torch', 'polars', 'pyarrow', 'duckdb')"
    code = f"import sys, ewe.tokens; ewe.tokens.codepoints(['a']); print([m for m in {heavy} if m in sys.modules])"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
