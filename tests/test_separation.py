"""Small tasks in the made-up sample's words that tell readers of text apart: who must solve them, and who cannot.

    identity   which of twelve words, spread over four labels, occur
    spelling   how a word ends; no word of the test rows' has been seen in training
    order      which of two words comes first
    beyond     how a word goes on behind its 22nd letter
    case       whether a word starts with a capital

Of order, beyond and case the rows come in pairs with one label each, and what is blind to the difference reads the
same twice. Whatever it predicts, of its labels at most half are right, so its F1 is 2/3 or less: BLIND.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from ewe.evaluate import evaluate_run
from ewe.pipeline.encode import encode_folder
from ewe.pipeline.prose import FIRST, LAST, MIDDLE, ORDINARY
from ewe.train import train_model

ROWS = {"train": 3000, "test": 300}
ROOTS = Random(0).sample(["".join(parts) for parts in product(FIRST, MIDDLE, LAST)], 4096)  # six letters each
PLAIN = ORDINARY[0]
ENDINGS = {"noun": ("tor", "ment"), "adjective": ("ted", "ric"), "gerund": ("ting", "zing")}
MARKS = {label: ROOTS[3 * n : 3 * n + 3] for n, label in enumerate(("A01B", "G06Q", "H01L", "F16H"))}
LONG = "trifluoromethylpyridin"
BLIND = 2 / 3 + 1e-9
CHANCE = 0.55  # of spelling's three labels: naming all of them each time gives 1/2
SOLVED = 0.9

Row = tuple[list[str], list[str]]  # words and labels


# -- tasks ------------------------------------------------------------------------------------------------------------


def identity(random: Random, _: str) -> list[Row]:
    labels = random.sample(list(MARKS), random.choice([1, 1, 2]))
    words = [random.choice(MARKS[label]) + "r" for label in labels] + random.choices(PLAIN, k=6)
    random.shuffle(words)
    return [(words, labels)]


def spelling(random: Random, split: str) -> list[Row]:
    label = random.choice(list(ENDINGS))
    root = random.choice(ROOTS[:3000] if split == "train" else ROOTS[3000:])
    words = [root + random.choice(ENDINGS[label]), *random.choices(PLAIN, k=5)]
    random.shuffle(words)
    return [(words, [label])]


def order(random: Random, _: str) -> list[Row]:
    return _pair(random, [("lever", "spring"), ("spring", "lever")])


def beyond(random: Random, _: str) -> list[Row]:
    return _pair(random, [(LONG + "amide",), (LONG + "ethanol",)])


def case(random: Random, _: str) -> list[Row]:
    return _pair(random, [("lever",), ("Lever",)])


def _pair(random: Random, each: list[tuple[str, ...]]) -> list[Row]:
    """Two rows, alike but for the words, one or two, that tell the label."""
    plain = random.choices(PLAIN[:20], k=5)
    places = sorted(random.sample(range(5 + len(each[0])), len(each[0])))
    rows = []
    for label, marks in zip(("one", "other"), each, strict=True):
        words = list(plain)
        for place, mark in zip(places, marks, strict=True):
            words.insert(place, mark)
        rows.append((words, [label]))
    return rows


TASKS = {task.__name__: task for task in (identity, spelling, order, beyond, case)}


def write_task(name: str, path: Path) -> Path:
    with path.open("w") as file:
        for seed, (split, N) in enumerate(ROWS.items()):
            random, rows = Random(seed), []
            while len(rows) < N:
                rows += TASKS[name](random, split)
            for words, labels in rows:
                file.write(json.dumps({"text": " ".join(words), "label_names": labels, "split": split}) + "\n")
    return path


# -- systems ----------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How a system reads and learns a task."""

    model: str
    encoding: dict[str, Any]
    training: dict[str, Any]


WHOLE = {"tokenizer": "whitespace", "words": 12, "letters": 16}
BYTES = {"tokenizer": "bytes", "words": 24, "letters": 4}
PIECES = {"tokenizer": "wordpiece", "words": 40, "vocabulary": 400}
HASHED = {"options": {"buckets": 2**12}}
LONGER = {"min_steps": 600}
WAYS = {
    "bert-ewe": Way("bert-ewe", WHOLE, {}),
    "no focus": Way("bert-ewe-no-focus", WHOLE, {}),
    "albert-ewe": Way("albert-ewe", WHOLE, {}),
    "canine-ewe": Way("canine-ewe", WHOLE, {}),
    "bytes": Way("bert-ewe-bytes", BYTES, {}),
    "bytes, longer": Way("bert-ewe-bytes", BYTES, LONGER),
    "gradient": Way("bert-ewe-gradient", BYTES | {"words": 14, "letters": 8}, LONGER),
    "bert-orig": Way("bert-orig", PIECES, {"heads": 4}),
    "albert-orig": Way("albert-orig", PIECES, {"heads": 4}),
    "canine-orig": Way("canine-orig", {"tokenizer": "codepoints", "words": 80}, {"heads": 4, "min_steps": 400}),
    "average": Way("average", WHOLE, HASHED | {"learning_rate": 3e-2}),
    "naive-bayes": Way("naive-bayes", WHOLE, HASHED),
    "bilstm": Way("bilstm", WHOLE, HASHED),
}


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], Path]:
    """What makes the tensors of a task, once an encoding."""
    made: dict[str, Path] = {}

    def encode(task: str, how: dict[str, Any]) -> Path:
        key = f"{task} {how}"
        if key not in made:
            folder = tmp_path_factory.mktemp(task)
            made[key] = folder / "tensors"
            encode_folder(write_task(task, folder / "texts.jsonl"), made[key], **how)
        return made[key]

    return encode


def learn(system: str, tensors: Path, run: Path) -> float:
    """Train, and return micro-F1 on the test rows; tried with seeds 0, 1 and 2, it was 0.94 or more for what solves."""
    way = WAYS[system]
    choices = {"preset": "tiny", "layers": 1, "width": 64, "min_steps": 200, "epochs": 1, "batch_size": 32}
    choices |= {"learning_rate": 3e-3, "device": "cpu"} | way.training
    train_model(tensors, run, model=way.model, **choices)
    return float(evaluate_run(run, tensors, device="cpu")["test"]["f1"])


# -- who solves what --------------------------------------------------------------------------------------------------

SOLVES = {
    "bert-ewe": "identity spelling order case",
    "no focus": "identity spelling case",
    "albert-ewe": "spelling order",
    "canine-ewe": "spelling order",
    "bytes": "beyond case",
    "bytes, longer": "identity spelling order",
    "gradient": "spelling order",  # without focus: its v-grams overlap, so that each knows what follows it
    "bert-orig": "identity spelling order beyond",
    "albert-orig": "order",
    "canine-orig": "order",
    "average": "identity beyond",
    "naive-bayes": "identity beyond",
    "bilstm": "order",
}
FAILS = {
    "bert-ewe": "beyond",  # of a word it reads 16 letters
    "no focus": "order",  # words are a set, and nothing else knows their places
    "bert-orig": "case",  # its pieces are uncased
    "average": "spelling order case",  # an unseen word's hash tells nothing of its letters
    "naive-bayes": "spelling order case",
    "bilstm": "spelling case",
}
QUICK = {
    "bert-ewe": "identity spelling order case beyond",
    "no focus": "spelling order",
    "bytes": "beyond",
    "bert-orig": "order case",
    "average": "identity spelling order",
    "naive-bayes": "identity beyond spelling order case",
    "bilstm": "order",
}


def _cases(table: dict[str, str]) -> list[Any]:
    return [
        pytest.param(system, task, marks=[] if task in QUICK.get(system, "").split() else pytest.mark.slow)
        for system, tasks in table.items()
        for task in tasks.split()
    ]


@pytest.mark.parametrize(("system", "task"), _cases(SOLVES))
def test_it_solves(encoded: Callable[[str, dict[str, Any]], Path], tmp_path: Path, system: str, task: str):
    assert learn(system, encoded(task, WAYS[system].encoding), tmp_path / "run") > SOLVED


@pytest.mark.parametrize(("system", "task"), _cases(FAILS))
def test_it_cannot(encoded: Callable[[str, dict[str, Any]], Path], tmp_path: Path, system: str, task: str):
    found = learn(system, encoded(task, WAYS[system].encoding), tmp_path / "run")
    assert found <= (CHANCE if task == "spelling" else BLIND)
