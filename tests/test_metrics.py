"""Metrics against scikit-learn, a slow loop, and PyTorch's dense loss."""

import csv
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_fscore_support
from torch.nn.functional import binary_cross_entropy_with_logits

from ewe.batches import Batch
from ewe.metrics import Counts, cross_entropy, most_frequent
from ewe.rule import Rule

CPU = torch.device("cpu")
NAMES = ["First-A01B", "First-G06Q", "First-H01L", "Later-A01B", "Later-G06Q", "Later-H01L"]


def draw(N: int, L: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Logits (N, L), correlated with a truth bool (N, L)."""
    random = np.random.default_rng(seed)
    truth = random.random((N, L)) < random.random(L) * 0.6
    logits = random.normal(size=(N, L)) + truth * random.normal(1, 2, size=L)
    return torch.from_numpy(logits.astype(np.float32)), truth


def as_batch(truth: np.ndarray) -> Batch:
    rows, columns = (torch.from_numpy(t) for t in np.nonzero(truth))
    return Batch(torch.zeros(len(truth), 1, 1, dtype=torch.uint8), rows, columns)


def count(
    logits: torch.Tensor, truth: np.ndarray, names: list[str] = NAMES, threshold: float = 0.3, step: int = 7
) -> Counts:
    counts = Counts(names, threshold, CPU)
    for start in range(0, len(truth), step):
        counts.update(logits[start : start + step], as_batch(truth[start : start + step]))
    return counts


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 10_000), st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]), st.integers(1, 40))
def test_equals_scikit_learn(N: int, seed: int, threshold: float, step: int):
    logits, truth = draw(N, 6, seed)
    report = count(logits, truth, threshold=threshold, step=step).report()
    predicted = logits.sigmoid().numpy() > threshold
    groups = {None: slice(None), "first": slice(0, 3), "later": slice(3, 6)}
    for group, columns in groups.items():
        figures = report[group] if group else report
        for average in ("micro", "macro"):
            p, r, f, _ = precision_recall_fscore_support(
                truth[:, columns], predicted[:, columns], average=average, zero_division=0
            )
            assert list(figures[average].values()) == pytest.approx([p, r, f], abs=1e-12), (group, average)
    assert report["positives"] == truth.sum()
    assert report["predicted_positives"] == predicted.sum()


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(0, 10_000), st.sampled_from([1, 30]))
def test_ranking_equals_a_slow_loop(N: int, seed: int, scale: int):
    logits, truth = draw(N, 6, seed)
    logits *= scale  # by 30, many a float32 probability is 1.0
    report = count(logits, truth).report()
    hits = dict.fromkeys((1, 3, 5), 0)
    right, with_first = 0, 0
    for z, t in zip(logits.tolist(), truth, strict=True):
        ranking = sorted(range(6), key=lambda label: -z[label])
        for k in hits:
            hits[k] += sum(t[label] for label in ranking[:k])
        if t[:3].any():
            with_first += 1
            right += t[max(range(3), key=lambda label: z[label])]
    assert report["precision_at"] == {str(k): pytest.approx(n / k / N) for k, n in hits.items()}
    assert report["top1_first"] == pytest.approx(right / with_first if with_first else 0)


def test_labels_whose_probabilities_are_all_one_are_ranked():
    logits, truth = torch.tensor([[20.0, 40, 0, 0, 0, 0]]), np.array([[False, True, False, False, False, False]])
    assert (logits.sigmoid()[0, :2] == 1).all()
    report = count(logits, truth).report()
    assert report["precision_at"] == {"1": 1, "3": pytest.approx(1 / 3), "5": pytest.approx(1 / 5)}
    assert report["top1_first"] == 1
    by_rule = Counts(NAMES, Rule.one_first(NAMES, 0.6), CPU)
    by_rule.update(logits, as_batch(truth))
    assert by_rule.report()["micro"] == {"precision": 1, "recall": 1, "f1": 1}


def test_labels_without_positions_have_no_first_and_later():
    logits, truth = draw(9, 4, 0)
    report = count(logits, truth, names=["A01B", "G06Q", "H01L", "Y02E"]).report()
    assert not {"first", "later", "top1_first"} & set(report)
    one = count(logits[:, :1], truth[:, :1], names=["A01B"]).report()
    assert one["precision_at"]["5"] == pytest.approx(truth[:, 0].mean() / 5)


def test_no_rows_and_no_predictions_give_zeros():
    report = Counts(NAMES, 0.3, CPU).report()
    assert (report["rows"], report["micro"]["f1"], report["precision_at"]["1"]) == (0, 0.0, 0.0)
    logits, truth = draw(9, 6, 0)
    assert count(logits - 100, truth).report()["predicted_positives"] == 0


def test_a_label_is_predicted_above_the_threshold_not_at_it():
    counts = Counts(["A"], 0.5, CPU)
    counts.update(torch.tensor([[0.0], [0.001]]), as_batch(np.array([[True], [True]])))
    assert counts.report()["predicted_positives"] == 1


def test_most_frequent_equals_guessing_them():
    logits, truth = draw(50, 6, 3)
    counts = np.array([7, 30, 2, 30, 5, 26])
    guess = most_frequent(NAMES, counts, rows=40, found=count(logits, truth))
    assert (guess["k"], guess["labels"]) == (
        3,
        ["First-G06Q", "Later-A01B", "Later-H01L"],
    )  # 100 labels / 40 rows = 2.5
    predicted = np.zeros_like(truth)
    predicted[:, [1, 3, 5]] = True
    for average in ("micro", "macro"):
        p, r, f, _ = precision_recall_fscore_support(truth, predicted, average=average, zero_division=0)
        assert list(guess[average].values()) == pytest.approx([p, r, f])


def test_table_is_scikit_learns_figures_a_label():
    logits, truth = draw(30, 6, 1)
    lines = [line.split("\t") for line in count(logits, truth).table().splitlines()]
    assert lines[0] == ["label", "support", "predicted", "precision", "recall", "f1"]
    p, r, f, s = precision_recall_fscore_support(truth, logits.sigmoid().numpy() > 0.3, zero_division=0)
    for row, line in enumerate(lines[1:]):
        assert (line[0], int(line[1])) == (NAMES[row], s[row])
        assert [float(x) for x in line[3:]] == pytest.approx([p[row], r[row], f[row]], abs=1e-6)


def test_labels_of_any_name_leave_the_table_a_table():
    names = ["plain", "a\tb", "two\nlines", "a\rb", 'a "quoted" one', "it's"]
    logits, truth = draw(30, 6, 1)
    counts = count(logits, truth, names=names)
    rows = list(csv.DictReader(io.StringIO(counts.table(), newline=""), delimiter="\t"))
    assert [row["label"] for row in rows] == names
    assert [int(row["support"]) for row in rows] == truth.sum(0).tolist()
    assert counts.table().splitlines()[1].startswith("plain\t")


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 10_000))
def test_loss_from_positives_equals_the_dense_one(B: int, L: int, seed: int):
    logits, truth = draw(B, L, seed)
    logits = (logits * 10).requires_grad_()
    batch = as_batch(truth)
    loss = cross_entropy(logits, batch.rows, batch.columns)
    loss.backward()
    gradient, logits.grad = logits.grad, None
    dense = binary_cross_entropy_with_logits(logits, torch.from_numpy(truth).float())
    dense.backward()
    torch.testing.assert_close(loss, dense, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-5, atol=1e-7)


def test_loss_of_an_even_guess_is_log_two():
    loss = cross_entropy(torch.zeros(3, 5), torch.tensor([0]), torch.tensor([2]))
    assert loss.item() == pytest.approx(math.log(2))
