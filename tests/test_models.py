"""`ewe info`: sizes counted on the models, beside the paper's Table 1."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiny_tensors import write_tensors

from ewe import models, published
from ewe.config import Sizes
from ewe.errors import DataError, UsageError
from ewe.evaluate import evaluate_run
from ewe.models import info, info_run
from ewe.train import train_model


def test_table_1():
    table = info()["models"]
    assert list(table) == list(published.SCORES)
    assert table["bert-ewe"] == {
        "total": 86_876_720,
        "elements": 12_288,
        "focus": 196_608,
        "embedding": 208_896,
        "table_1": "87M / 12k",
    }


def test_other_sizes():
    found = info("bert-ewe", labels=10, u=64)["models"]["bert-ewe"]
    assert found["total"] == 86_876_720 - 1318 * 769 - 2 * 64 * 768
    with pytest.raises(UsageError, match="choose from bert-ewe"):
        info("bert-large")


def test_notes_tell_the_papers_slip_and_the_caveat():
    notes = " ".join(info()["notes"])
    assert "0.05% of" in notes
    assert "0.005%" in notes
    assert "dense" in notes


@pytest.mark.parametrize(
    ("model", "pair", "value"),
    [
        ("logistic", "penalty=5", 5.0),
        ("logistic", "penalty=0.5", 0.5),
        ("sif", "a=1", 1.0),
        ("knn", "k=3", 3),
        ("knn", "vote=majority", "majority"),
        ("bert-ewe", "gradient=True", True),
        ("bert-ewe", "gradient=false", False),
    ],
)
def test_an_option_has_its_fields_type(model: str, pair: str, value: Any):
    name = pair.partition("=")[0]
    found = models.shape(model, Sizes(8, 4, 256, 6), "whitespace", models.options([pair]))[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("model", "pair", "like"),
    [
        ("knn", "k=True", "15, not true"),
        ("bert-ewe", "gradient=yes", 'false, not "yes"'),
        ("knn", "k=3.0", "15, not 3.0"),
        ("knn", "vote=3", '"weighted", not 3'),
        ("logistic", "penalty=true", "10.0, not true"),
        ("logistic", "penalty=much", '10.0, not "much"'),
    ],
)
def test_an_option_of_another_type_is_refused(model: str, pair: str, like: str):
    with pytest.raises(UsageError, match=f"^--option {pair.partition('=')[0]} of {model} must be like {like}\\.$"):
        models.shape(model, Sizes(8, 4, 256, 6), "whitespace", models.options([pair]))


@pytest.mark.parametrize(
    ("model", "pair", "sentence"),
    [
        ("bert-ewe", "ffn=-1", "--option ffn of bert-ewe must be at least 1, not -1."),
        ("knn", "k=0", "--option k of knn must be at least 1, not 0."),
        (
            "bert-ewe",
            "c=3",
            "--option c=3 and the tensors' 4 letters make a width of 12, not --width 768; leave c out.",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused(model: str, pair: str, sentence: str):
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        models.shape(model, Sizes(8, 4, 256, 6), "whitespace", models.options([pair]))


def test_a_run(tmp_path: Path):
    tensors = write_tensors(tmp_path / "tensors", {"train": 20, "test": 5}, made_up=True)
    train_model(tensors, tmp_path / "run", preset="tiny", width=8, epochs=1, min_steps=0, device="cpu")
    evaluated = evaluate_run(tmp_path / "run", tensors)
    found = info_run(tmp_path / "run")
    assert (found["model"], found["preset"], found["made_up"]) == ("bert-ewe", "tiny", True)
    total = found["parameters"]["total"]
    assert found["parameters"] == {"total": total, "embedding": 640, "elements": 512, "focus": 128}
    assert found["micro_f1"] == {"test": evaluated["test"]["f1"]}
    with pytest.raises(DataError, match="not a run folder"):
        info_run(tensors.parent)
