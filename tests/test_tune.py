"""Thresholds against slow sweeps, brute force and scikit-learn; what tuning reads, keeps and refuses."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from tiny_tensors import NAMES, write_tensors

from ewe import batches, rule, tune
from ewe.batches import Batch, Meta, Split, held_out
from ewe.errors import DataError, UsageError
from ewe.evaluate import evaluate_run
from ewe.predict import predict_file
from ewe.rule import Rule
from ewe.run import load
from ewe.train import train_model
from ewe.tune import Histogram, best_global, best_labels, best_later, cuts, tune_run

CPU = torch.device("cpu")
CUTS = cuts(0.3)
OWN = int(CUTS.searchsorted(0.3))
SMALL = {"preset": "tiny", "width": 8, "epochs": 2, "min_steps": 0, "batch_size": 16, "learning_rate": 1e-2}
HOLDOUT = {"device": "cpu", "holdout": 0.3}
ROWS = {"train": 500, "test_2015a": 60, "test_2015b": 40}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tensors(tmp_path_factory.mktemp("data") / "tensors", ROWS, made_up=True)


@pytest.fixture(scope="module")
def trained(tensors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    train_model(tensors, out, **SMALL, **HOLDOUT)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, for each test to tune."""
    copy = tmp_path / "run"
    copy.mkdir()
    for path in trained.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    return copy


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    return f1_score(truth, predicted, average="micro", zero_division=0)


def quick_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The same, for sweeps of thousands."""
    return 2 * (truth & predicted).sum() / max(truth.sum() + predicted.sum(), 1)


def draw(N: int, L: int, seed: int, step: float | None = None) -> tuple[torch.Tensor, np.ndarray]:
    """Logits (N, L), even multiples of a step where one is given, correlated with a truth bool (N, L)."""
    random = np.random.default_rng(seed)
    truth = random.random((N, L)) < random.random(L) * 0.6
    logits = random.normal(-1, 1.5, (N, L)) + truth * random.normal(1, 2, L) + random.normal(0, 1, L)
    if step:
        logits = (np.clip(logits, -7, 7) / step).round() * step
    return torch.from_numpy(logits.astype(np.float32)), truth


def between(logits: torch.Tensor) -> np.ndarray:
    """Thresholds just above each distinct logit, multiples of 1/16: torch rounds one logit's sigmoid in two ways."""
    return 1 / (1 + np.exp(-(np.unique(logits) + 1 / 32)))


def histogram(logits: torch.Tensor, truth: np.ndarray, step: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts = Histogram(CUTS, truth.shape[1], CPU)
    for start in range(0, len(truth), step):
        rows, columns = (torch.from_numpy(each) for each in np.nonzero(truth[start : start + step]))
        counts.update(logits[start : start + step], Batch(torch.zeros(0), rows, columns))
    return counts.above()


def probabilities_and_truth(run: Path, tensors: Path, name: str) -> tuple[torch.Tensor, np.ndarray]:
    """Of a split, or of the held-out rows: (N, L) each."""
    data = Split.open(tensors, "train" if name == "holdout" else name, Meta.read(tensors))
    rows = np.flatnonzero(held_out(data.numbers, 0.3)) if name == "holdout" else np.arange(len(data))
    truth = np.zeros((len(rows), len(NAMES)), bool)
    truth[data.labels(rows)] = True
    return load(run, "cpu").logits(data.ids[rows]).sigmoid(), truth


def decide(name: str, found: dict, p: np.ndarray) -> np.ndarray:
    """The rule of this name as a slow loop: bool (N, L)."""
    predicted = np.zeros(p.shape, bool)
    for n, row in enumerate(p):
        for label, value in enumerate(row):
            if name == "first":
                is_best = label < 3 and value == max(row[:3])
                predicted[n, label] = is_best if label < 3 else value > np.float32(found["first"]["threshold"])
            elif name == "labels":
                own = found["labels"]["own"].get(NAMES[label], found["global"]["threshold"])
                predicted[n, label] = value > np.float32(own)
            else:
                predicted[n, label] = value > np.float32(found["global"]["threshold"])
    return predicted


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 10_000), st.integers(1, 40))
def test_a_histogram_counts_what_a_rule_predicts(N: int, L: int, seed: int, step: int):
    logits, truth = draw(N, L, seed)
    logits[0] = torch.tensor([-99.0, 99.0, 0.0, *map(float, np.log(CUTS[7:10] / (1 - CUTS[7:10])))])[:L]
    tp, predicted, support = histogram(logits, truth, step)
    assert (support == truth.sum(0)).all()
    for k in (0, 7, 8, 9, OWN, 1000, len(CUTS) - 2, len(CUTS) - 1):
        slow = logits.sigmoid().numpy() > np.float32(CUTS[k])
        assert (Rule.above(CUTS[k])(logits).numpy() == slow).all()
        assert (predicted[:, k] == slow.sum(0)).all()
        assert (tp[:, k] == (slow & truth).sum(0)).all()
    assert not predicted[:, -1].any()


def test_cuts_are_close_and_hold_the_runs_own():
    assert (np.diff(CUTS) > 0).all()
    assert 0.3 in CUTS
    assert len(cuts(0.123456789)) == len(CUTS) == 2051
    inner = CUTS[:-1].astype(np.float32).astype(np.float64)
    assert np.diff(np.log(inner / (1 - inner))).max() < 1 / 80
    assert all(float(json.dumps(cut)) == cut for cut in CUTS)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 10_000))
def test_the_global_cut_equals_a_slow_sweep(N: int, L: int, seed: int):
    """Over all distinct probabilities, exactly where each has a bin of its own, else to a bin's width."""
    for step in (1 / 16, None):
        logits, truth = draw(N, L, seed, step)
        cut, best = best_global(*histogram(logits, truth), near=OWN)
        p = logits.sigmoid().numpy()
        assert best == pytest.approx(f1(truth, p > np.float32(CUTS[cut])), abs=1e-12)
        sweep = {t: quick_f1(truth, p > t) for t in [*(between(logits) if step else np.unique(p)), np.float32(0)]}
        highest = max(sweep.values())
        if step:
            assert best == pytest.approx(highest, abs=1e-12)
        else:
            assert best <= highest + 1e-12
            on_cuts = [CUTS[max(CUTS.searchsorted(t) - side, 0)] for t in sweep for side in (0, 1)]
            assert best >= max(quick_f1(truth, p > np.float32(t)) for t in on_cuts) - 1e-12


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(2, 3), st.integers(0, 10_000))
def test_cuts_of_labels_equal_brute_force_over_all_combinations(N: int, L: int, seed: int):
    logits, truth = draw(N, L, seed, step=1 / 16)
    counts = histogram(logits, truth)
    chosen, best = best_labels(*counts, near=OWN, minimum=0)
    p = logits.sigmoid().numpy()
    combinations = itertools.product(*([0.0, *between(column)] for column in logits.T))
    highest = max(quick_f1(truth, p > np.array(each, np.float32)) for each in combinations)
    assert best == pytest.approx(highest, abs=1e-12)
    assert best == pytest.approx(f1(truth, p > CUTS[chosen].astype(np.float32)), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(0, 10_000), st.integers(1, 30))
def test_rare_labels_keep_the_global_cut(N: int, seed: int, minimum: int):
    logits, truth = draw(N, 4, seed)
    tp, predicted, support = histogram(logits, truth)
    shared, shared_f1 = best_global(tp, predicted, support, OWN)
    chosen, best = best_labels(tp, predicted, support, shared, minimum)
    assert (chosen[support < minimum] == shared).all()
    assert best >= shared_f1
    assert best_labels(tp, predicted, support, shared, N + 1) == (pytest.approx(np.full(4, shared)), shared_f1)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 30), st.integers(0, 10_000))
def test_one_first_and_its_cut_of_later_equal_a_slow_loop(N: int, seed: int):
    logits, truth = draw(N, 6, seed, step=1 / 16)
    p = logits.sigmoid().numpy()
    first = np.zeros((N, 6), bool)
    first[np.arange(N), [max(range(3), key=lambda label: row[label]) for row in p]] = True
    tp, predicted, support = histogram(logits, truth)
    cut, best = best_later(tp[3:], predicted[3:], int(support.sum()), (int((first & truth).sum()), N), OWN)
    found = Rule.one_first(NAMES, CUTS[cut])(logits).numpy()
    assert (found[:, :3] == first[:, :3]).all()
    sweep = [np.hstack([first[:, :3], p[:, 3:] > t]) for t in [0.0, *between(logits[:, 3:])]]
    assert best == pytest.approx(max(quick_f1(truth, each) for each in sweep), abs=1e-12)
    assert best == pytest.approx(f1(truth, found), abs=1e-12)


def test_the_one_first_label_is_that_of_the_highest_logit():
    logits = torch.tensor([[20.0, 40, -9, 30, -30, -30], [-200, -300, -110, 0, 0, 1]])  # sigmoids of 1.0, and of 0.0
    predicted = Rule.one_first(NAMES, 0.6)(logits)
    assert predicted.tolist() == [[0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1]]
    assert Rule.above(0.3)(logits)[0].tolist() == [1, 1, 0, 1, 0, 0]


def test_of_equal_cuts_the_nearest_is_taken():
    logits, truth = torch.tensor([[3.0], [-3.0]]), np.array([[True], [False]])  # any cut between them is perfect
    assert best_global(*histogram(logits, truth), near=OWN) == (OWN, 1.0)
    above = int(CUTS.searchsorted(0.99))
    cut, _ = best_global(*histogram(logits, truth), near=above)
    assert CUTS[cut] < 1 / (1 + np.exp(-3)) <= CUTS[cut + 1]
    assert best_global(*histogram(logits, np.zeros((2, 1), bool)), near=OWN)[1] == 0.0


def test_tuned_thresholds_and_gains_are_scikit_learns(run: Path, tensors: Path):
    summary = tune_run(run, tensors, device="cpu")
    found = json.loads((run / "thresholds.json").read_text())
    assert set(found["labels"]["own"]) < set(NAMES)  # some are frequent enough, and some not
    assert len(found["labels"]["own"]) > 1
    assert summary["of_their_own"] == f"{len(found['labels']['own'])} of 6 labels"
    assert summary["thresholds"] == {name: found[name]["threshold"] for name in ("global", "first")}
    assert summary["made_up"]
    for split, rows in (("holdout", None), ("test_2015a", 60), ("test_2015b", 40)):
        p, truth = probabilities_and_truth(run, tensors, split)
        assert summary[split]["rows"] == len(truth) == (rows or len(truth)) > 30
        published = f1(truth, p.numpy() > 0.3)
        assert summary[split]["f1"] == pytest.approx(published)
        for name in ("global", "labels", "first"):
            expected = f1(truth, decide(name, found, p.numpy()))
            assert summary[split][f"{name}_f1"] == pytest.approx(expected), (split, name)
            assert summary[split][f"{name}_gain"] == pytest.approx(expected - published)
    holdout = summary["holdout"]
    assert holdout["labels_f1"] >= holdout["global_f1"] > holdout["f1"]
    p, truth = probabilities_and_truth(run, tensors, "holdout")
    slow = max(f1(truth, p.numpy() > t) for t in np.unique(p.numpy()))
    assert holdout["global_f1"] == pytest.approx(slow, abs=0.01)  # neighbours that share a bin


def test_the_same_call_says_the_same_and_reads_nothing_again(
    run: Path, tensors: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    summary = tune_run(run, tensors, device="cpu")
    written = (run / "thresholds.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(tune, "read", None)  # which no row comes past
        assert tune_run(run, tensors, device="cpu") == summary
    assert (run / "thresholds.json").read_bytes() == written
    more = write_tensors(tmp_path / "more", {"train": 500, "test_2015a": 60, "test_2015b": 41}, made_up=True)
    again = tune_run(run, more, device="cpu")
    assert again["test_2015b"]["rows"] == 41
    assert {**again, "test_2015b": 0} == {**summary, "test_2015b": 0}


def test_thresholds_stand_before_a_test_row_is_read(run: Path, tensors: Path, monkeypatch: pytest.MonkeyPatch):
    opened = []
    map_file = batches._map

    def spy(path: Path) -> np.ndarray:
        opened.append((path.name, (run / "thresholds.json").exists()))
        return map_file(path)

    monkeypatch.setattr(batches, "_map", spy)
    tune_run(run, tensors, device="cpu")
    before = {name.split(".")[0] for name, stand in opened if not stand}
    after = {name.split(".")[0] for name, stand in opened if stand}
    assert before == {"train"}
    assert after == {"test_2015a", "test_2015b"}


def test_test_rows_change_no_threshold(run: Path, tensors: Path, tmp_path: Path):
    """Another folder with the same training rows, and test files that cannot be read, or none at all."""
    tune_run(run, tensors, device="cpu")
    found = json.loads((run / "thresholds.json").read_text())
    (run / "thresholds.json").unlink()
    broken = write_tensors(tmp_path / "broken", ROWS)
    for path in broken.glob("test_*.npy"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError, match="test_2015a"):
        tune_run(run, broken, device="cpu")
    assert json.loads((run / "thresholds.json").read_text()) == found | {"tests": {}}
    alone = write_tensors(tmp_path / "alone", {"train": 500})
    summary = tune_run(run, alone, device="cpu")
    assert not [name for name in summary if name.startswith("test_")]


def test_evaluate_and_predict_by_a_tuned_rule(run: Path, tensors: Path, tmp_path: Path):
    evaluate_run(run, tensors, split="test_2015a", device="cpu")
    published = (run / "evaluation-test_2015a.json").read_bytes()
    for name in rule.TUNED:
        with pytest.raises(UsageError, match=f"run ewe tune before --threshold {name}"):
            evaluate_run(run, tensors, threshold=name, device="cpu")
        with pytest.raises(UsageError, match="run ewe tune"):
            predict_file(run, tensors, tmp_path / "out.jsonl", threshold=name, device="cpu")
    summary = tune_run(run, tensors, device="cpu")
    found = json.loads((run / "thresholds.json").read_text())
    p, _ = probabilities_and_truth(run, tensors, "test_2015a")
    for name in rule.TUNED:
        evaluated = evaluate_run(run, tensors, split="test_2015a", threshold=name, device="cpu")
        assert evaluated["test_2015a"]["f1"] == summary["test_2015a"][f"{name}_f1"]
        report = json.loads((run / f"evaluation-test_2015a.{name}.json").read_text())
        assert report["rule"] == name
        assert report["threshold"] == (None if name == "labels" else found[name]["threshold"])
        predict_file(run, tensors, tmp_path / "out.jsonl", split="test_2015a", threshold=name, device="cpu")
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        predicted = decide(name, found, p.numpy())
        assert report["predicted_positives"] == predicted.sum()
        for row, mine, values in zip(rows, predicted, p.numpy(), strict=True):
            ranked = sorted(np.flatnonzero(mine), key=lambda label: -values[label])
            assert row["label_names"] == [NAMES[label] for label in ranked]
            assert row["probabilities"] == pytest.approx(values[ranked], abs=1e-6)
        if name == "first":
            assert all(sum(label.startswith("First-") for label in row["label_names"]) == 1 for row in rows)
    assert (run / "evaluation-test_2015a.json").read_bytes() == published
    texts = ["A plough.", "word " * 9]
    opened = load(run, "cpu", threshold="first")
    predicted = opened.predict(texts, top_k=None)
    every = opened.predict(texts, top_k=6)
    for mine, row in zip(predicted, every, strict=True):
        assert mine.items() <= row.items()
        assert sum(label.startswith("First-") for label in mine) == 1
    with pytest.raises(UsageError, match="--top-k"):
        predict_file(run, tensors, tmp_path / "out.jsonl", top_k=2, threshold="first", device="cpu")


def test_what_cannot_be_tuned(run: Path, tensors: Path, tmp_path: Path):
    other = write_tensors(tmp_path / "other", {"train": 500, "test": 3}, seed=1)
    with pytest.raises(DataError, match="was trained on other rows than"):
        tune_run(run, other, device="cpu")
    for share, sentence in ((0.0, "with --holdout 0.02"), (1e-9, "with a larger --holdout")):
        out = tmp_path / str(share)
        train_model(other, out, **SMALL | {"epochs": 1}, device="cpu", holdout=share)
        with pytest.raises(UsageError, match=f"held no rows out to tune on; .* {sentence}") as caught:
            tune_run(out, other, device="cpu")
        assert caught.value.exit_code == 2
        assert not (out / "thresholds.json").exists()
    (run / "thresholds.json").write_text("{")
    with pytest.raises(DataError, match=r"thresholds\.json is not valid JSON"):
        tune_run(run, tensors, device="cpu")


def test_other_weights_have_no_thresholds_yet(run: Path, tensors: Path):
    tune_run(run, tensors, device="cpu")
    found = json.loads((run / "thresholds.json").read_text())
    (run / "thresholds.json").write_text(json.dumps(found | {"model_sha256": "0"}))
    with pytest.raises(UsageError, match="run ewe tune"):
        load(run, "cpu", threshold="global")
    tune_run(run, tensors, device="cpu")
    assert json.loads((run / "thresholds.json").read_text()) == found


def test_labels_without_positions_have_no_first_rule(tmp_path: Path):
    names = ["A01B", "G06Q", "H01L", "Y02E"]
    tensors = write_tensors(tmp_path / "tensors", {"train": 100, "test": 20}, names=names)
    train_model(tensors, tmp_path / "run", **SMALL, **HOLDOUT)
    summary = tune_run(tmp_path / "run", tensors, device="cpu")
    assert set(summary["thresholds"]) == {"global"}
    assert set(summary["test"]) == {"rows", "f1", "global_f1", "global_gain", "labels_f1", "labels_gain"}
    with pytest.raises(UsageError, match="no First labels for --threshold first; choose global or labels"):
        load(tmp_path / "run", "cpu", threshold="first")


def test_a_bare_box_tunes_by_the_command(run: Path, tensors: Path):
    """polars, duckdb, pyarrow and scikit-learn are not needed."""
    script = """
import sys
for name in ("polars", "duckdb", "pyarrow", "sqlglot", "datasketch", "tensorboard", "transformers", "sklearn"):
    sys.modules[name] = None
from ewe.cli import ewe
ewe(["tune", *sys.argv[1:], "--device", "cpu", "--json"], standalone_mode=False)
print("--")
ewe(["tune", *sys.argv[1:], "--device", "cpu"], standalone_mode=False)
print("--")
ewe(["evaluate", *sys.argv[1:], "--threshold", "labels", "--device", "cpu", "--json"], standalone_mode=False)
"""
    command = [sys.executable, "-c", script, str(run), str(tensors)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    tuned, rendered, evaluated = done.stdout.split("--\n")
    summary, evaluated = json.loads(tuned), json.loads(evaluated)
    assert {f"{name}_gain" for name in rule.TUNED} <= set(summary["test_2015b"])
    assert "global_gain" in rendered
    assert evaluated["test_2015b"]["f1"] == summary["test_2015b"]["labels_f1"]
