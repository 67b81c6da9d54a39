"""Evaluation against scikit-learn over the same logits, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score
from tiny_tensors import NAMES, write_tensors

from ewe.batches import Meta, Split, held_out
from ewe.errors import DataError, IncompleteError, UsageError
from ewe.evaluate import evaluate_run
from ewe.pipeline.encode import encode_folder
from ewe.predict import predict_file
from ewe.run import load
from ewe.tokens import SPECIAL
from ewe.train import train_model
from ewe.tune import tune_run

SMALL = {"preset": "tiny", "width": 8, "epochs": 1, "min_steps": 0, "batch_size": 16, "device": "cpu", "holdout": 0.2}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {"train": 80, "test_2015a": 30, "test_2015b": 0}
    return write_tensors(tmp_path_factory.mktemp("data") / "tensors", rows, made_up=True)


@pytest.fixture(scope="module")
def run(tensors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    train_model(tensors, out, **SMALL)
    return out


def report(run: Path, split: str) -> dict:
    return json.loads((run / f"evaluation-{split}.json").read_text())


def truth_and_probabilities(run: Path, tensors: Path, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    data = Split.open(tensors, split, Meta.read(tensors))
    truth = np.zeros((len(rows), len(NAMES)), bool)
    truth[data.labels(rows)] = True
    return truth, load(run).logits(data.ids[rows]).sigmoid().numpy()


def test_every_split_but_train_is_evaluated(run: Path, tensors: Path, capsys: pytest.CaptureFixture[str]):
    summary = evaluate_run(run, tensors)
    assert set(summary) == {"run", "made_up", "test_2015a", "test_2015b"}
    assert summary["made_up"]
    truth, probabilities = truth_and_probabilities(run, tensors, "test_2015a", np.arange(30))
    for name, columns in {"f1": slice(None), "first_f1": slice(0, 3), "later_f1": slice(3, 6)}.items():
        expected = f1_score(truth[:, columns], probabilities[:, columns] > 0.3, average="micro", zero_division=0)
        assert summary["test_2015a"][name] == pytest.approx(expected), name
    found = report(run, "test_2015a")
    assert (found["split"], found["rows"], found["threshold"], found["made_up"]) == ("test_2015a", 30, 0.3, True)
    assert found["predicted_positives"] == (probabilities > 0.3).sum() > 0
    table = (run / "labels-test_2015a.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in table] == ["label", *NAMES]
    assert report(run, "test_2015b")["rows"] == 0
    warned = capsys.readouterr().err
    assert f"warning: test_2015b of {tensors} has no row, so all its figures are 0" in warned
    assert "predicts no label" not in warned


def test_always_guessing_the_most_frequent_labels(run: Path, tensors: Path):
    evaluate_run(run, tensors, split="test_2015a")
    guess = report(run, "test_2015a")["most_frequent"]
    data = Split.open(tensors, "train", Meta.read(tensors))
    trained_on = np.flatnonzero(~held_out(data.numbers, 0.2))
    counts = np.bincount(data.labels(trained_on)[1], minlength=6)
    assert guess["k"] == 2  # every row has a First and a Later label
    assert guess["labels"] == [NAMES[i] for i in sorted(range(6), key=lambda label: (-counts[label], label))[:2]]
    truth, _ = truth_and_probabilities(run, tensors, "test_2015a", np.arange(30))
    guessed = np.tile(np.isin(NAMES, guess["labels"]), (30, 1))
    assert guess["micro"]["f1"] == pytest.approx(f1_score(truth, guessed, average="micro"))


def test_threshold(run: Path, tensors: Path):
    evaluate_run(run, tensors, split="test_2015a", threshold="0.3")  # the run's own
    published = (run / "evaluation-test_2015a.json").read_bytes()
    evaluate_run(run, tensors, split="test_2015a", threshold=0.6)
    assert (run / "evaluation-test_2015a.json").read_bytes() == published
    truth, probabilities = truth_and_probabilities(run, tensors, "test_2015a", np.arange(30))
    found = report(run, "test_2015a.0.6")
    assert (found["rule"], found["threshold"]) == ("0.6", 0.6)
    assert (run / "labels-test_2015a.0.6.tsv").exists()
    assert found["micro"]["f1"] == pytest.approx(f1_score(truth, probabilities > 0.6, average="micro", zero_division=0))
    for wrong in (0.0, "1", "nan", "best"):
        with pytest.raises(UsageError, match="between 0 and 1, or global, labels or first"):
            evaluate_run(run, tensors, threshold=wrong)


def test_predicting_no_label_is_said(run: Path, tensors: Path, capsys: pytest.CaptureFixture[str]):
    evaluate_run(run, tensors, split="test_2015a", threshold=0.999999)
    assert f"{run} predicts no label on test_2015a; train it longer or lower" in capsys.readouterr().err


def test_holdout_is_what_training_left_out(run: Path, tensors: Path):
    data = Split.open(tensors, "train", Meta.read(tensors))
    rows = np.flatnonzero(held_out(data.numbers, 0.2))
    summary = evaluate_run(run, tensors, split="holdout")
    truth, probabilities = truth_and_probabilities(run, tensors, "train", rows)
    assert summary["holdout"]["rows"] == len(rows) > 3
    assert summary["holdout"]["f1"] == pytest.approx(f1_score(truth, probabilities > 0.3, average="micro"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["holdout"]["f1"] == summary["holdout"]["f1"]


def test_what_does_not_fit_is_refused(run: Path, tensors: Path, tmp_path: Path):
    cases = {
        "--words 9, .* encode with --words 8": {"u": 9},
        "--letters 2, .* encode with --letters 4": {"v": 2},
        "--tokenizer bytes, .* encode with --tokenizer whitespace": {"tokenizer": "bytes"},
        "has other labels than": {"names": ["First-A01B", "Later-A01B"]},
    }
    for number, (sentence, options) in enumerate(cases.items()):
        other = write_tensors(tmp_path / str(number), {"train": 3, "test": 3}, **options)
        with pytest.raises(DataError, match=sentence) as caught:
            evaluate_run(run, other)
        assert caught.value.exit_code == 3
    with pytest.raises(UsageError, match="no split dev"):
        evaluate_run(run, tensors, split="dev")
    alone = write_tensors(tmp_path / "alone", {"train": 3})
    with pytest.raises(UsageError, match="no split besides train"):
        evaluate_run(run, alone)
    with pytest.raises(DataError, match="not a run folder"):
        evaluate_run(tmp_path, tensors)
    train_model(alone, tmp_path / "without", **SMALL | {"holdout": 0.0})
    with pytest.raises(UsageError, match="held no rows out"):
        evaluate_run(tmp_path / "without", alone, split="holdout")


def test_tensors_of_another_vocabulary_are_refused(tmp_path: Path):
    """Another vocabulary's ids mean other pieces; the same vocabulary, written otherwise, is the same."""
    words = ["plough", "lever", "ledger", "payment", "spring", "soil", "handle", "account"]
    random = np.random.default_rng(0)
    with (tmp_path / "texts.jsonl").open("w") as file:
        for n in range(60):
            row = {"id": n, "text": " ".join(random.choice(words, 9)), "label_names": [NAMES[n % 6]]}
            file.write(json.dumps(row | {"split": "train" if n < 40 else "test"}) + "\n")
    own, other, same = (tmp_path / name for name in ("own", "other", "same"))
    how = {"tokenizer": "wordpiece", "words": 8}
    for folder, pieces in ((own, words), (other, words[::-1])):
        (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *pieces]))
        encode_folder(tmp_path / "texts.jsonl", folder, vocabulary=tmp_path / "vocab.txt", **how)
    run = tmp_path / "run"
    train_model(own, run, **SMALL | {"model": "bert-orig"})
    encode_folder(tmp_path / "texts.jsonl", same, vocabulary=run / "tokenizer.json", **how)
    as_written = (same / "tokenizer.json").read_text(encoding="utf-8")
    (same / "tokenizer.json").write_text(json.dumps(json.loads(as_written)).ljust(len(as_written.encode())))

    assert evaluate_run(run, same) == evaluate_run(run, own)
    sentence = "other has another vocabulary than .*run; encode with --vocabulary .*run/tokenizer.json"
    for call in (
        lambda: evaluate_run(run, other),
        lambda: tune_run(run, other),
        lambda: predict_file(run, other, tmp_path / "out.jsonl"),
    ):
        with pytest.raises(DataError, match=sentence):
            call()


def test_an_unfinished_run_is_not_evaluated(tensors: Path, tmp_path: Path):
    with pytest.raises(Exception, match="not finite"):
        train_model(tensors, tmp_path, **SMALL | {"learning_rate": 1e38, "clip": 0.0, "warmup": 0.0, "epochs": 9})
    with pytest.raises(IncompleteError, match="run the same ewe train again"):
        evaluate_run(tmp_path, tensors)
