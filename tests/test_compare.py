"""`ewe compare`: one table of several systems, resumable, from tensors that must be of the same rows."""

import csv
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from tiny_tensors import NAMES, write_tensors

from ewe import compare, store
from ewe.batches import Meta, Split
from ewe.compare import GUESS, compare_models
from ewe.errors import DataError, EweError, UsageError
from ewe.metrics import Counts
from ewe.run import load
from ewe.tokens import SPECIAL, WordPiece
from ewe.train import train_model

TINY = {"preset": "tiny", "layers": 1, "width": 8, "heads": 2, "epochs": 2, "min_steps": 0, "device": "cpu"}
ROWS = {"train": 60, "test_2015a": 20, "test_2015b": 15}
CPU = {"device": "cpu", "precision": "fp32"}


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
    (line,) = [line for line in text.splitlines() if line.startswith("| bert-ewe | whitespace")]
    assert f" {table['rows'][0]['training_rows']:,} × {table['rows'][0]['epochs']:,} " in line
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


def test_head_middle_and_tail_hold_the_shares_they_say() -> None:
    trained = np.array([1, 50, 9, 20, 0, 20])  # of 100: head 50; middle 20 + 20; tail the rest
    counts = Counts(NAMES, 0.3, torch.device("cpu"))
    counts.predicted = torch.tensor([1, 4, 2, 0, 0, 8])
    counts.support = torch.tensor([2, 5, 2, 2, 0, 9])
    counts.tp = torch.tensor([1, 3, 1, 0, 0, 6])

    groups = compare._by_frequency(trained, counts)

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
    namesake = write_tensors(tmp_path / "elsewhere" / tensors[0].name, ROWS, made_up=True)
    with pytest.raises(UsageError, match=f"{tensors[0]} and {namesake} are both named whitespace, .*; rename one"):
        compare_models([tensors[0], namesake], out, names=["bert-ewe"], **TINY)
    run = tmp_path / "run"
    train_model(tensors[0], run, model="bert-ewe", **TINY)
    other_size = write_tensors(tmp_path / "larger", ROWS, u=9)
    with pytest.raises(UsageError, match=f"--run {run} fits none of these tensors: .*encode with --words 8"):
        compare_models([other_size], out, names=[], runs=[run], **TINY)
    with pytest.raises(UsageError, match="Two runs of bert-ewe are named run; name each once"):
        compare_models(tensors, out, names=[], runs=[run, run], **TINY)
    assert not out.exists()


def test_device_and_precision_reach_evaluation(tensors: list[Path], tmp_path: Path, here: list[Path]) -> None:
    own = tmp_path / "mine"
    train_model(tensors[0], own, **TINY)
    choices = {**TINY, "precision": "bf16"}
    compare_models(tensors, tmp_path / "out", names=["bert-ewe"], runs=[own], **choices)
    for measured in (tmp_path / "out" / "measured").rglob("*.json"):
        found = store.read_json(measured)
        computes = [found["compute"], *(each["compute"] for each in found["evaluations"].values())]
        assert computes == ["cpu bf16"] * 3


def test_a_run_is_compared_on_tensors_of_its_vocabulary(tmp_path: Path) -> None:
    folders = {}
    for name, piece in (("a", "plough"), ("b", "ledger")):
        path = write_tensors(tmp_path / name, ROWS, tokenizer="wordpiece")
        pieces = WordPiece({token: number for number, token in enumerate([*SPECIAL, piece])})
        (path / "tokenizer.json").write_text(pieces.to_json(), encoding="utf-8")
        folders[path] = Meta.read(path)
    run = tmp_path / "run"
    with store.Store(run, "run", {}) as out:
        out.write_json("config.json", {"model": "bert-orig", "input": {"tokenizer": "wordpiece", "u": 8, "v": 4}})
        out.write_json("labels.json", {"sha256": store.sha256_json(NAMES)})
        out.write_text("tokenizer.json", (tmp_path / "b" / "tokenizer.json").read_text(encoding="utf-8"))
        out.finish()
    (system,) = compare._systems([], [run], folders)
    assert system.tensors == tmp_path / "b"
    del folders[system.tensors]
    with pytest.raises(UsageError, match=r"fits none of these tensors: .* has another vocabulary"):
        compare._systems([], [run], folders)


def test_a_run_of_other_labels_is_refused_before_anything_is_trained(
    tensors: list[Path], tmp_path: Path, here: list[Path]
) -> None:
    other = write_tensors(tmp_path / "other", ROWS, names=["First-A01B", "Later-A01B"])
    train_model(other, tmp_path / "run", **TINY)
    with pytest.raises(DataError, match=r"whitespace has other labels than .*run; encode the dataset that it was"):
        compare_models(tensors[:1], tmp_path / "out", names=["bert-ewe"], runs=[tmp_path / "run"], **TINY)
    assert not here
    assert not (tmp_path / "out").exists()


def test_another_threshold_is_marked(tensors: list[Path], tmp_path: Path, here: list[Path]) -> None:
    own = tmp_path / "mine"
    train_model(tensors[0], own, **TINY, threshold=0.5)
    compare_models(tensors[:1], tmp_path / "out", names=["bert-ewe"], runs=[own], **TINY)
    lines = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith("| bert-ewe (mine) § | ")]) == 2  # of each split's scores
    assert not any("bert-ewe §" in line or f"{GUESS} §" in line for line in lines)
    assert "§ Labels above another probability than 0.3: bert-ewe (mine) above 0.5." in lines
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        assert [line["threshold"] for line in csv.DictReader(file)] == ["0.3", "0.3", "0.5", "0.5", "", ""]


def test_what_a_group_leaves_out_is_said(
    tensors: list[Path],
    tmp_path: Path,
    here: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    some = ("bert-ewe", "bert-orig", "bert-ewe-bytes", "canine-orig", "albert-orig")  # of the paper's, for speed
    monkeypatch.setattr(compare.published, "SCORES", {model: compare.published.SCORES[model] for model in some})
    compare_models(tensors[:1], tmp_path / "out", **TINY)
    left = "bert-orig, albert-orig (--tokenizer wordpiece), bert-ewe-bytes (--tokenizer bytes), "
    left += "canine-orig (--tokenizer codepoints)"
    (warned,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warned.startswith(f"warning: {tmp_path / 'out'} goes without {left}, as no tensors")
    lines = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()
    assert f"Left out, as no tensors of that --tokenizer are here: {left}." in lines

    compare_models(tensors[:1], tmp_path / "named", names=["bert-ewe"], **TINY)
    assert "warning" not in capsys.readouterr().err
    assert "Left out" not in (tmp_path / "named" / "table.md").read_text(encoding="utf-8")


def test_labels_of_any_name_are_compared(tmp_path: Path, here: list[Path]) -> None:
    names = ["First-A\t1", "First-B\n2", "First-C\r3", 'Later-"A"', "Later-B", "Later-C"]
    tensors = write_tensors(tmp_path / "tensors", ROWS, names=names)
    compare_models([tensors], tmp_path / "out", names=["bert-ewe"], **TINY)
    row = store.read_json(tmp_path / "out" / "table.json")["rows"][0]
    assert {"head", "middle", "tail"} & set(row["test_2015a"])


def test_groups_take_what_the_tensors_allow(tensors: list[Path]) -> None:
    folders = {path: Meta.read(path) for path in tensors}
    chosen = [system.name for system in compare._systems(["paper"], [], folders)]
    assert {"bert-ewe", "bert-ewe-bytes", "albert-ewe"} <= set(chosen)
    assert not {"bert-orig", "canine-orig"} & set(chosen)
    named = compare._systems(["bert-ewe-bytes@bytes"], [], folders)[0]
    assert (named.name, named.tensors.name) == ("bert-ewe-bytes@bytes", "bytes")


def test_a_process_of_its_own_returns_and_raises(tensors: list[Path], tmp_path: Path) -> None:
    found = compare._apart(
        compare._measure, tensors[0], tmp_path / "run", ["test_2015a"], CPU, TINY | {"model": "bert-ewe"}
    )
    assert found["model"] == "bert-ewe"
    assert found["peak_memory_bytes"] > 1e7
    with pytest.raises(DataError, match="not a tensors folder"):
        compare._apart(compare._measure, tmp_path / "missing", tmp_path / "b", ["test"], CPU, TINY)


def write_module(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that another process, too, can import."""
    path.write_text(text)
    monkeypatch.syspath_prepend(path.parent)
    return importlib.import_module(path.stem)


def test_a_process_of_its_own_ignores_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first import on; it is its parent's to answer and to end it."""
    ctrl_c = write_module(
        tmp_path / "ctrl_c.py",
        "import multiprocessing, signal\n"
        "def press(): signal.raise_signal(signal.SIGINT); return {'went': 'on'}\n"
        "if multiprocessing.parent_process(): press()\n",
        monkeypatch,
    )
    handler = signal.getsignal(signal.SIGINT)
    assert compare._apart(ctrl_c.press) == {"went": "on"}
    assert signal.getsignal(signal.SIGINT) is handler


def test_how_a_process_of_its_own_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Want of memory is guessed at only where the process was killed."""
    ends = write_module(
        tmp_path / "ends.py",
        "import os, signal\n"
        "def fails(): raise ValueError('a bug')\n"
        "def is_killed(): os.kill(os.getpid(), signal.SIGKILL)\n",
        monkeypatch,
    )
    with pytest.raises(EweError, match="ended with 1 before its result; mend what it says above") as caught:
        compare._apart(ends.fails)
    assert "memory" not in str(caught.value)
    if os.name != "nt":
        with pytest.raises(EweError, match="ended by signal 9 before its result; for want of memory"):
            compare._apart(ends.is_killed)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups to send Ctrl-C to")
def test_ctrl_c_says_one_sentence_leaves_no_process_and_goes_on(tensors: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ewe", "compare", str(tensors[0]), "--out", str(tmp_path / "out")]
    command += ["--models", "bert-ewe", "--preset", "tiny", "--layers", "1", "--width", "8", "--device", "cpu"]
    command += ["--epochs", "4000"]  # for longer than the test takes
    for sign in ("epoch 200 of", "going on after step"):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stderr
            assert any(sign in line for line in process.stderr)
            os.killpg(process.pid, signal.SIGINT)
            rest = process.stderr.read()  # to its end, which is where nobody is left to write
        assert process.returncode == 130
        assert rest.splitlines()[-1] == "error: Interrupted; what is finished stays: run the same command again."
        assert not [line for line in rest.splitlines()[:-1] if "epoch" not in line]
