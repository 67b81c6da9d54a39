"""The tokenizer against `ewe.encode`, and its padding."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ewe
from ewe.errors import UsageError
from ewe.tokenizer import Tokenizer

TEXTS = ["a lever", "", "one two three four five six seven eight nine"]


@pytest.mark.parametrize("tokenizer", ["whitespace", "bytes"])
def test_ids_are_those_of_encode(tokenizer: str):
    found = Tokenizer(u=8, v=4, tokenizer=tokenizer)(TEXTS)
    expected = ewe.encode(TEXTS, 8, 4, tokenizer)
    assert list(found) == Tokenizer.model_input_names
    assert found["input_ids"].dtype == np.uint8
    np.testing.assert_array_equal(found["input_ids"], expected)
    np.testing.assert_array_equal(found["attention_mask"], expected[..., 0] != 0)


def test_tensors_and_their_mask():
    found = Tokenizer(u=8, v=4)(TEXTS, return_tensors="pt")
    assert torch.equal(found["attention_mask"].bool(), ewe.attention_mask(found["input_ids"]))
    assert found["attention_mask"].dtype == torch.int64
    assert found.to("meta")["input_ids"].is_meta


def test_padding():
    tokenizer = Tokenizer(u=8, v=4)
    assert tokenizer(TEXTS[:2], padding="longest", return_tensors="np")["input_ids"].shape == (2, 4, 4)
    assert tokenizer(TEXTS[:2], padding=True)["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert [len(row) for row in tokenizer(TEXTS, padding=False)["input_ids"]] == [4, 2, 8]
    assert tokenizer([], padding=True)["input_ids"].shape == (0, 0, 4)
    for wrong in ({"padding": "shortest"}, {"return_tensors": "tf"}, {"padding": False, "return_tensors": "pt"}):
        with pytest.raises(ValueError, match="padding"):
            tokenizer(TEXTS, **wrong)


def test_the_arguments_that_others_take():
    tokenizer = Tokenizer(u=8, v=4)
    texts = ["one two three four", "one"]
    plain = tokenizer(texts, padding=True, return_tensors="pt")
    same = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    assert all(torch.equal(same[name], plain[name]) for name in plain)
    short = tokenizer(texts, padding="max_length", truncation=True, max_length=4)
    assert np.array_equal(short["input_ids"], ewe.encode(texts, 4, 4))
    for wrong in ({"truncation": False}, {"truncation": "do_not_truncate"}, {"max_length": 9}):
        with pytest.raises(ValueError, match="always cut at u=8"):
            tokenizer(texts, **wrong)
    with pytest.raises(UsageError):
        tokenizer(texts, max_length=0)


def test_one_text_has_no_batch_unless_tensors_are_asked_for():
    tokenizer = Tokenizer(u=8, v=4)
    assert tokenizer("a lever")["input_ids"].shape == (8, 4)
    assert tokenizer("a lever", padding=False)["attention_mask"].shape == (4,)
    assert tokenizer("a lever", return_tensors="pt")["input_ids"].shape == (1, 8, 4)


def test_pad_collects_what_else_there_is():
    tokenizer = Tokenizer(u=8, v=4)
    rows = [tokenizer(text, padding=False) | {"label": index} for index, text in enumerate(TEXTS[:2])]
    batch = tokenizer.pad(rows, pad_to_multiple_of=3)
    assert batch["input_ids"].shape == (2, 6, 4)
    assert batch["labels"].tolist() == [0, 1]
    assert torch.equal(batch["input_ids"][:, :4], torch.from_numpy(ewe.encode(TEXTS[:2], 8, 4)[:, :4]))
    lists = [{"input_ids": row["input_ids"].tolist()} for row in rows]  # as a datasets column gives them
    assert torch.equal(
        tokenizer.pad(lists, "max_length")["input_ids"], tokenizer(TEXTS[:2], return_tensors="pt")["input_ids"]
    )


def test_decode():
    tokenizer = Tokenizer(u=8, v=4)
    assert tokenizer.decode(tokenizer("a léver turns")["input_ids"]) == "a lév turn"
    stream = Tokenizer(u=8, v=4, tokenizer="bytes")
    assert stream.decode(stream("a lever turns")["input_ids"]) == "a lever turns"


def test_saved_and_read(tmp_path: Path):
    Tokenizer(u=9, v=5, tokenizer="bytes").save_pretrained(tmp_path / "model")
    found = Tokenizer.from_pretrained(tmp_path / "model")
    assert (found.u, found.v, found.tokenizer) == (9, 5, "bytes")


def test_what_cannot_be():
    with pytest.raises(UsageError, match="no tokenizer"):
        Tokenizer(tokenizer="words")
