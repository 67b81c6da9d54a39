"""The linear and neighbour baselines: equal to scikit-learn over Python's own words, and able to learn."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from course import Rows, f1, guess, topics
from safetensors.torch import load_file, save_file
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from ewe.baselines.bags import BAGS, Bags, calibrate, hold_out
from ewe.baselines.linear import METHODS, Linear, LinearConfig, passes
from ewe.baselines.neighbours import VOTES, Neighbours, NeighboursConfig, Rocchio, RocchioConfig
from ewe.config import Sizes
from ewe.errors import DataError, UsageError

SIZES = Sizes(u=8, v=4, vocabulary=256, labels=6)
BUCKETS = 2**20  # where none of these few words shares one with another
SMALL = 2**12
TRAIN, TEST = topics(400, 0), topics(200, 1)
ALL = np.arange(len(TRAIN))


def counted(rows: Rows) -> list[Counter[str]]:
    return [Counter(re.findall(r"[a-z0-9]+", text)) for text in rows.texts]


def bags(kind: str, fit: Rows, *others: Rows, unit: bool = True):
    """scikit-learn's bags of these rows over a vocabulary of words."""
    vocabulary = DictVectorizer().fit(counted(fit))
    weigh = TfidfTransformer(norm="l2" if unit else None, use_idf=kind == "tfidf")
    raw = [vocabulary.transform(counted(rows)) for rows in (fit, *others)]
    raw = [each.sign() if kind == "binary" else each for each in raw]
    weigh.fit(raw[0])
    return [weigh.transform(each) for each in raw]


def part(rows: Rows, chosen: np.ndarray) -> Rows:
    return Rows([rows.texts[row] for row in chosen], rows.truth[chosen])


def logits(model: torch.nn.Module, rows: Rows) -> np.ndarray:
    return model(rows.batch(np.arange(len(rows))).ids).detach().numpy()


def fitted(model):
    model.fit(TRAIN, ALL, seed=3)
    return model


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("kind", BAGS)
def test_bags_are_those_of_scikit_learn(kind: str, unit: bool) -> None:
    hashed = Bags(BUCKETS, kind, unit)

    ours = hashed.fit(TRAIN, ALL)

    theirs, new = bags(kind, TRAIN, TEST, unit=unit)
    assert np.allclose(np.sort(ours.data), np.sort(theirs.data), atol=1e-6)
    assert np.allclose((ours @ ours.T).toarray(), (theirs @ theirs.T).toarray(), atol=1e-4)
    known = hashed.rows(TEST.batch(np.arange(len(TEST))).ids)
    assert np.allclose((known @ ours.T).toarray(), (new @ theirs.T).toarray(), atol=1e-4)


@pytest.mark.parametrize("kind", BAGS)
def test_naive_bayes_is_scikit_learns(kind: str) -> None:
    model = fitted(Linear(LinearConfig.of(SIZES, method="naive-bayes", bag=kind, buckets=BUCKETS)))

    fit, new = bags(kind, TRAIN, TEST, unit=False)
    theirs = OneVsRestClassifier(MultinomialNB()).fit(fit, TRAIN.truth).predict_proba(new)
    assert np.allclose(1 / (1 + np.exp(-logits(model, TEST))), theirs, atol=1e-4)


@pytest.mark.parametrize(("method", "loss"), [("logistic", "log_loss"), ("svm", "hinge")])
def test_descent_is_scikit_learns_decision_calibrated(method: str, loss: str) -> None:
    """The features stand in another order, which the descent does not see: each label's margin is the same."""
    model = fitted(Linear(LinearConfig.of(SIZES, method=method, buckets=BUCKETS)))

    own, apart = hold_out(ALL, seed=3)
    fit, new = bags("tfidf", part(TRAIN, own), TEST)
    descent = SGDClassifier(loss=loss, alpha=1 / (10 * len(own)), max_iter=passes(len(own)), tol=None, average=True)
    descent.set_params(random_state=3)
    for label in range(6):
        theirs = descent.fit(fit, TRAIN.truth[own, label]).decision_function(new)
        ours = logits(model, TEST)[:, label]
        slope, offset = np.polyfit(theirs, ours, 1)
        assert slope > 0
        assert np.allclose(slope * theirs + offset, ours, atol=0.02)
    assert len(apart) == 40


def test_logistic_regression_is_near_the_exact_one() -> None:
    """Stochastic descent of 50 passes ranks texts as the exact optimum does."""
    model = fitted(Linear(LinearConfig.of(SIZES, method="logistic", buckets=BUCKETS)))

    own, _ = hold_out(ALL, seed=3)
    fit, new = bags("tfidf", part(TRAIN, own), TEST)
    exact = OneVsRestClassifier(LogisticRegression(C=10)).fit(fit, TRAIN.truth[own]).decision_function(new)
    for label in range(6):
        assert np.corrcoef(exact[:, label], logits(model, TEST)[:, label])[0, 1] > 0.99


@pytest.mark.parametrize("vote", VOTES)
def test_neighbours_vote_as_scikit_learns(vote: str) -> None:
    model = fitted(Neighbours(NeighboursConfig.of(SIZES, vote=vote, k=7, buckets=BUCKETS)))

    fit, new = bags("tfidf", TRAIN, TEST)
    weights = (lambda distances: 1 - distances) if vote == "weighted" else "uniform"
    theirs = KNeighborsClassifier(7, weights=weights, metric="cosine", algorithm="brute").fit(fit, TRAIN.truth)
    shares = np.stack([each[:, 1] for each in theirs.predict_proba(new)], 1)
    ours = 1 / (1 + np.exp(-logits(model, TEST).astype(float)))
    if vote == "majority":
        assert ((ours > 0.3) == theirs.predict(new)).all()
        assert ((ours > 0.75) == theirs.predict(new)).all()
    else:
        assert np.allclose(ours, shares, atol=1e-5)


def test_rocchio_is_scikit_learns_nearest_centroid() -> None:
    """Before calibration a score is above 0 where the label's centroid is nearer than the rest's."""
    model = Rocchio(RocchioConfig.of(SIZES, buckets=BUCKETS))
    model.calibrated = False

    fitted(model)

    fit, new = bags("tfidf", TRAIN, TEST)
    for label in range(6):
        theirs = NearestCentroid().fit(fit.toarray(), TRAIN.truth[:, label]).predict(new.toarray())
        assert ((logits(model, TEST)[:, label] > 0) == theirs).all()


MODELS = [
    (lambda: Linear(LinearConfig.of(SIZES, method="naive-bayes", buckets=SMALL)), 0.85),
    (lambda: Linear(LinearConfig.of(SIZES, method="naive-bayes", bag="binary", buckets=SMALL)), 0.85),
    (lambda: Linear(LinearConfig.of(SIZES, method="logistic", buckets=SMALL)), 0.95),
    (lambda: Linear(LinearConfig.of(SIZES, method="svm", buckets=SMALL)), 0.95),
    (lambda: Linear(LinearConfig.of(SIZES, method="svm", bag="count", buckets=SMALL)), 0.95),
    (lambda: Neighbours(NeighboursConfig.of(SIZES, buckets=SMALL)), 0.75),
    (lambda: Rocchio(RocchioConfig.of(SIZES, buckets=SMALL)), 0.85),
]


@pytest.mark.parametrize(("make", "least"), MODELS)
def test_each_learns_the_topics_and_survives_saving(make, least: float, tmp_path) -> None:
    model = fitted(make())

    assert f1(model, TEST) > least > guess(model, TRAIN, TEST) + 0.2
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        again = make()
    again.load_state_dict(load_file(tmp_path / "model.safetensors"), assign=True)
    assert (logits(again, TEST) == logits(model, TEST)).all()
    empty = Rows(["", "."], np.zeros((2, 6), np.bool_))
    assert np.isfinite(logits(again, empty)).all()


@pytest.mark.parametrize("method", METHODS)
def test_labels_that_no_row_or_every_row_bears_keep_their_odds(method: str) -> None:
    truth = TRAIN.truth.copy()
    truth[:, 1], truth[:, 2] = False, True
    model = Linear(LinearConfig.of(SIZES, method=method, buckets=SMALL))

    model.fit(Rows(TRAIN.texts, truth), ALL, seed=0)

    constant = logits(model, TEST)[:, 1:3]
    assert (constant == constant[0]).all()
    assert constant[0, 0] < -6
    assert constant[0, 1] > 6


def test_calibration_recovers_log_odds() -> None:
    """Margins that are log odds, shrunk and shifted by half the prior."""
    random = np.random.default_rng(0)
    prior = np.array([-3.0, -1.0, 0.0, 1.0])
    odds = random.normal(0, 2, (20_000, 4)) + prior
    truth = random.random(odds.shape) < 1 / (1 + np.exp(-odds))

    found = calibrate(0.25 * (odds - 0.5 * prior) - 0.1, truth, prior)

    assert np.allclose(found, (4, 0.5, 0.4), atol=0.1)
    assert calibrate(odds, np.zeros_like(truth), prior) == (1, 0, 0)


def test_what_cannot_be_is_refused() -> None:
    for options in ({"bag": "words"}, {"penalty": 0.0}, {"buckets": 1}, {"method": "forest"}):
        with pytest.raises(UsageError):
            LinearConfig.of(SIZES, **options)
    for options in ({"vote": "loud"}, {"k": 0}):
        with pytest.raises(UsageError):
            NeighboursConfig.of(SIZES, **options)
    with pytest.raises(DataError, match="lower --option k"):
        Neighbours(NeighboursConfig.of(SIZES, k=9)).fit(TRAIN, ALL[:8], 0)
