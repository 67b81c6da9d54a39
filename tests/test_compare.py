"""`ewe compare`: one table of several systems, resumable, from tensors that must be of the same rows."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score
from tiny_tensors import NAMES, write_tensors

from ewe import compare, store
from ewe.batches import Meta, Split
from ewe.compare import GUESS, compare_models
from ewe.errors import DataError, UsageError
from ewe.predict import load
from ewe.train import train_model

TINY = {"preset": "tiny", "layers": 1, "width": 8, "heads": 2, "epochs": 2, "min_steps": 0, "device": "cpu"}
ROWS = {"train": 60, "test_2015a": 20, "test_2015b": 15}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same rows by two tokenizers."""
    folder = tmp_path_factory.mktemp("data")
    return [write_tensors(folder / name, ROWS, tokenizer=name, made_up=True) for name in ("whitespace", "bytes")]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Measure in this process, for speed, and remember which runs were."""
    measured: list[Path] = []

    def apart(function: Any, tensors: Path, run: Path, *rest: Any) -> dict[str, Any]:
        measured.append(run)
        return function(tensors, run, *rest)

    monkeypatch.setattr(compare, "_apart", apart)
    return measured


def test_a_table_of_two_systems_and_a_finished_run(tensors: list[Path], tmp_path: Path, here: list[Path]) -> None:
    own = tmp_path / "mine"
    train_model(tensors[0], own, **{**TINY, "width": 16})
    names = ("bert-ewe", "bert-ewe-bytes")

    found = compare_models(tensors, tmp_path / "out", names=names, runs=[own], seeds=2, **TINY)

    table = store.read_json(tmp_path / "out" / "table.json")
    assert [row["system"] for row in table["rows"]] == [*names, "bert-ewe (mine)", GUESS]
    assert found["f1"]["bert-ewe"]["test_2015a"] == table["rows"][0]["test_2015a"]["f1"]["mean"]
    assert (table["training_rows"], table["labels"], table["seeds"], table["made_up"]) == (60, 6, 2, True)

    # each figure against scikit-learn, from the runs' own predictions
    split = Split.open(tensors[0], "test_2015a", Meta.read(tensors[0]))
    truth = np.zeros((20, 6), bool)
    truth[split.labels(np.arange(20))] = True
    scores = []
    for seed in range(2):
        run = load(tmp_path / "out" / "runs" / "bert-ewe" / f"seed-{seed}", device="cpu")
        predicted = run.logits(np.array(split.ids)).sigmoid().numpy() > 0.3
        scores.append(f1_score(truth, predicted, average="micro", zero_division=0))
    assert table["rows"][0]["test_2015a"]["f1"] == pytest.approx(
        {"mean": np.mean(scores), "deviation": np.std(scores, ddof=1)}
    )
    assert all(row["train_examples_per_second"] > 0 for row in table["rows"][:2])
    assert table["rows"][2]["train_examples_per_second"] is None
    assert all(row["peak_memory_bytes"] > 1e7 for row in table["rows"][:3])
    assert table["rows"][0]["published"]["test_2015a"] == [64.30, 66.02, 62.66]
    assert table["rows"][0]["differs"] == ["data", "budget"]

    text = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "made up" in text
    assert "| bert-ewe | whitespace | " in text
    assert "64.30 / 66.02 / 62.66 †‡" in text
    assert "±" in text
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["system"], line["split"]) for line in lines[:2]] == [
        ("bert-ewe", "test_2015a"),
        ("bert-ewe", "test_2015b"),
    ]
    assert float(lines[0]["f1"]) == table["rows"][0]["test_2015a"]["f1"]["mean"]
    assert (tmp_path / "out" / "table.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")
    store.verify(tmp_path / "out")


def test_the_same_call_goes_on_and_measures_nothing_twice(
    tensors: list[Path], tmp_path: Path, here: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, measure = ("bert-ewe", "bert-ewe-no-focus"), compare._measure

    def dies(*arguments: Any) -> dict[str, Any]:
        if arguments[1].parent.name == "bert-ewe-no-focus":
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(compare, "_measure", dies)
    with pytest.raises(KeyboardInterrupt):
        compare_models(tensors[:1], tmp_path / "out", names=names, **TINY)
    monkeypatch.setattr(compare, "_measure", measure)
    compare_models(tensors[:1], tmp_path / "out", names=names, **TINY)
    assert [run.parent.name for run in here] == ["bert-ewe", "bert-ewe-no-focus", "bert-ewe-no-focus"]

    compare_models(tensors[:1], tmp_path / "out", names=names, **TINY)
    assert len(here) == 3
    with pytest.raises(DataError, match="made differently"):
        compare_models(tensors[:1], tmp_path / "out", names=names, **{**TINY, "epochs": 3})


def test_head_middle_and_tail_hold_the_shares_they_say(tmp_path: Path) -> None:
    counts = np.array([1, 50, 9, 20, 0, 20])  # of 100: head 50; middle 20 + 20; tail the rest
    (tmp_path / "labels.json").write_text(json.dumps({"counts": counts.tolist()}))
    predicted, support, hits = [1, 4, 2, 0, 0, 8], [2, 5, 2, 2, 0, 9], [1, 3, 1, 0, 0, 6]
    lines = ["label\tsupport\tpredicted\tprecision\trecall\tf1"]
    lines += [
        f"{name}\t{s}\t{p}\t0\t{h / s if s else 0:.6f}\t0"
        for name, s, p, h in zip(NAMES, support, predicted, hits, strict=True)
    ]
    (tmp_path / "labels-test.tsv").write_text("\n".join(lines) + "\n")

    groups = compare._by_frequency(tmp_path, "test")

    assert {name: group["labels"] for name, group in groups.items()} == {"head": 1, "middle": 2, "tail": 3}
    assert groups["head"]["f1"] == pytest.approx(2 * 3 / (4 + 5))
    assert groups["middle"]["f1"] == pytest.approx(2 * 6 / (8 + 11))
    assert groups["tail"]["f1"] == pytest.approx(2 * 2 / (3 + 4))


def test_what_cannot_be_compared(tensors: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="bert-orig reads tensors of --tokenizer wordpiece"):
        compare_models(tensors, out, names=["bert-orig"], **TINY)
    with pytest.raises(UsageError, match="no model bert; choose from"):
        compare_models(tensors, out, names=["bert"], **TINY)
    with pytest.raises(UsageError, match="in a folder named elsewhere"):
        compare_models(tensors, out, names=["bert-ewe@elsewhere"], **TINY)
    with pytest.raises(UsageError, match="multiple of the tensors' 4 letters"):
        compare_models(tensors, out, names=["bert-ewe"], **{**TINY, "width": 9})
    other = write_tensors(tmp_path / "other", ROWS, seed=1)
    with pytest.raises(DataError, match="differ; encode one dataset"):
        compare_models([tensors[0], other], out, names=["bert-ewe"], **TINY)
    fewer = write_tensors(tmp_path / "fewer", {"train": 60})
    with pytest.raises(DataError, match="the same splits"):
        compare_models([tensors[0], fewer], out, names=["bert-ewe"], **TINY)
    with pytest.raises(UsageError, match="no split besides train"):
        compare_models([fewer], out, names=["bert-ewe"], **TINY)
    assert not out.exists()


def test_groups_take_what_the_tensors_allow(tensors: list[Path]) -> None:
    folders = {path: Meta.read(path) for path in tensors}
    chosen = [system.name for system in compare._systems(["paper"], [], folders)]
    assert {"bert-ewe", "bert-ewe-bytes", "albert-ewe"} <= set(chosen)
    assert not {"bert-orig", "canine-orig"} & set(chosen)
    named = compare._systems(["bert-ewe-bytes@bytes"], [], folders)[0]
    assert (named.name, named.tensors.name) == ("bert-ewe-bytes@bytes", "bytes")


def test_a_process_of_its_own_returns_and_raises(tensors: list[Path], tmp_path: Path) -> None:
    found = compare._apart(compare._measure, tensors[0], tmp_path / "run", ["test_2015a"], TINY | {"model": "bert-ewe"})
    assert found["model"] == "bert-ewe"
    assert found["peak_memory_bytes"] > 1e7
    with pytest.raises(DataError, match="not a tensors folder"):
        compare._apart(compare._measure, tmp_path / "missing", tmp_path / "b", ["test"], TINY)
