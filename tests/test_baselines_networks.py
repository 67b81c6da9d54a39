"""The network baselines: against slow loops, blind to padding, and able to learn what each can."""

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from course import Rows, f1, guess, orders, topics
from safetensors.torch import load_file, save_file
from torch import nn

from ewe import words
from ewe.baselines import networks
from ewe.baselines.networks import Network
from ewe.batches import Plan
from ewe.config import Sizes
from ewe.errors import DataError, UsageError
from ewe.metrics import cross_entropy

SIZES = Sizes(u=8, v=4, vocabulary=256, labels=6, layers=1, width=32, heads=2, dropout=0.1)
NAMES = (
    "Average",
    "Sif",
    "Dan",
    "FastText",
    "AttentionPooling",
    "SelfAttention",
    "Cnn",
    "BiLstm",
    "Transformer",
    "Autoencoder",
)
TEXTS = Rows(["one two three two", "", "four", "; ", "two one " * 9], np.zeros((5, 6), np.bool_))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, and much slower where other tests use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(name: str, labels: int = 6, **options: object) -> Network:
    torch.manual_seed(0)
    network = getattr(networks, name)
    return network(network.config_class.of(replace(SIZES, labels=labels), **{"buckets": 1024, **options}))


def learn(model: Network, rows: Rows, steps: int) -> Network:
    """As `ewe train` does: prepare, then steps of AdamW."""
    rate = 5e-3 if isinstance(model, networks.Transformer) else 2e-2
    everything = np.arange(len(rows))
    model.prepare(rows, everything, seed=0)
    plan = Plan(everything, 32, 1, steps, seed=0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for step in range(steps):
        batch = rows.batch(plan.rows(step))
        optimizer.zero_grad()
        cross_entropy(model(batch.ids), batch.rows, batch.columns).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def vectors(model: Network, text: str) -> torch.Tensor:
    """A text's word vectors (n, w), one by one."""
    ids = [words.encode([word])[0, 0] for word in re.findall("[a-z0-9]+", text)]
    return torch.stack([model.embedding.weight[max(1, id_ % model.config.buckets)] for id_ in ids])


def judge(model: Network, text: torch.Tensor) -> torch.Tensor:
    """The logits of a text's vector, scaled."""
    return model.head((text - text.mean()) / text.std(correction=0))


# -- what each computes ---------------------------------------------------------------------------------------------


def test_average_is_the_mean_of_the_words_vectors() -> None:
    model = make("Average").eval()

    expected = [judge(model, vectors(model, TEXTS.texts[i]).mean(0)) for i in (0, 2, 4)]

    assert torch.allclose(model(TEXTS.batch(np.array([0, 2, 4])).ids), torch.stack(expected), atol=1e-6)


def test_sif_weighs_by_counted_frequencies() -> None:
    model = make("Sif", buckets=2**20, width=4).eval()
    rows = topics(50, 0)

    model.prepare(rows, np.arange(50), seed=0)

    counts = Counter(word for text in rows.texts for word in text.split())
    text = rows.texts[0]
    shares = torch.tensor([0.001 / (0.001 + counts[word] / counts.total()) for word in text.split()])
    expected = judge(model, (shares[:, None] * vectors(model, text)).mean(0))
    assert torch.allclose(model(rows.batch(np.array([0])).ids)[0], expected, atol=1e-6)


def test_fasttext_averages_words_and_hashed_bigrams() -> None:
    model = make("FastText").eval()
    a, b, c = (int(x) for x in words.encode(["one two three"])[0])
    grams = [a, b, c, a * 116049371 + b, b * 116049371 + c]

    expected = judge(model, model.embedding.weight[[max(1, gram % 1024) for gram in grams]].mean(0))

    assert torch.allclose(model(torch.tensor([[a, b, c, 0]])), expected[None], atol=1e-6)


@torch.no_grad()
def test_attention_pooling_is_the_slow_loop() -> None:
    model = make("AttentionPooling").eval()
    x = vectors(model, TEXTS.texts[0])
    keys, values = [model.key(each) for each in x], [model.value(each) for each in x]

    scores = [math.exp(sum(k * q for k, q in zip(key, model.query, strict=True)) / math.sqrt(32)) for key in keys]

    text = sum(score / sum(scores) * value for score, value in zip(scores, values, strict=True))
    assert torch.allclose(model(TEXTS.batch(np.array([0, 4])).ids)[0], judge(model, text), atol=1e-5)


@torch.no_grad()
def test_self_attention_is_the_slow_loop() -> None:
    model = make("SelfAttention").eval()
    model.embedding.weight.mul_(5)  # so that attention is far from uniform
    x = vectors(model, TEXTS.texts[0])

    hidden = []
    for i in x:
        scores = [math.exp(float(i @ j) / math.sqrt(32)) for j in x]
        hidden.append(sum(score / sum(scores) * j for score, j in zip(scores, x, strict=True)))

    expected = judge(model, torch.stack(hidden).mean(0))
    assert torch.allclose(model(TEXTS.batch(np.array([0, 4])).ids)[0], expected, atol=1e-5)


def test_cnn_is_the_slow_loop_over_windows() -> None:
    model = make("Cnn", k=3).eval()
    x = vectors(model, TEXTS.texts[0])  # 4 words

    features = []
    for k, window in enumerate(model.windows, 1):
        padded = torch.cat([x.new_zeros(k - 1, 32), x, x.new_zeros(k - 1, 32)])
        answers = [
            torch.einsum("kw,fwk->f", padded[t : t + k], window.weight) + window.bias for t in range(len(x) + k - 1)
        ]
        features.append(torch.stack(answers).amax(0).relu())

    expected = judge(model, torch.cat(features))
    assert torch.allclose(model(TEXTS.batch(np.array([0, 4])).ids)[0], expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_gives_the_same_whatever_stands_beside_it(name: str) -> None:
    model = make(name).eval()

    together = model(TEXTS.batch(np.arange(5)).ids)

    alone = torch.cat([model(TEXTS.batch(np.array([row])).ids) for row in range(5)])
    assert together.isfinite().all()
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together[1], together[3])  # both are without words


@pytest.mark.parametrize("name", ["Average", "BiLstm", "Transformer"])
def test_512_words_are_read(name: str) -> None:
    rows = Rows(["word " * 600, "word " * 512], np.zeros((2, 6), np.bool_))

    first, second = make(name).eval()(rows.batch(np.arange(2)).ids)

    assert torch.allclose(first, second)


@pytest.mark.parametrize("name", ["Average", "FastText", "Transformer"])
def test_as_many_words_as_asked_for_are_read(name: str) -> None:
    rows = Rows(["one two three four", "one two three", "one two"], np.zeros((3, 6), np.bool_))

    first, second, third = make(name, longest=3).eval()(rows.batch(np.arange(3)).ids)

    assert torch.allclose(first, second, atol=1e-6)
    assert not torch.allclose(first, third, atol=1e-3)


# -- what each learns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_each_learns_the_topics_and_survives_saving(name: str, tmp_path: Path) -> None:
    train, test = topics(400, 0), topics(200, 1)
    options = {"steps": 600} if name == "Autoencoder" else {}

    model = learn(make(name, **options), train, steps=150)

    least = 0.8 if name == "Autoencoder" else 0.9
    assert f1(model, test) > least > guess(model, train, test) + 0.3
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        again = type(model)(type(model.config)(**asdict(model.config)))
    again.load_state_dict(load_file(tmp_path / "model.safetensors"), assign=True)
    ids = test.batch(np.arange(20)).ids
    assert torch.equal(again.eval()(ids), model(ids))


@pytest.mark.parametrize("name", ["FastText", "Cnn", "BiLstm", "Transformer"])
def test_what_knows_order_learns_it(name: str) -> None:
    model = learn(make(name, labels=2), orders(400, 0), steps=400 if name == "Transformer" else 150)

    assert f1(model, orders(200, 1), threshold=0.5) > 0.95


@pytest.mark.parametrize("name", ["Average", "Sif", "Dan", "AttentionPooling", "SelfAttention", "Autoencoder"])
def test_what_ignores_order_cannot(name: str) -> None:
    """The two labels' texts are made of the same words: where order does not count, neither can be told."""
    options = {"steps": 50} if name == "Autoencoder" else {}
    model = learn(make(name, labels=2, **options), orders(400, 0), steps=100)
    rows = Rows(["noise1 lever spring noise2", "noise2 spring lever noise1"], np.eye(2, dtype=np.bool_))

    first, second = model(rows.batch(np.arange(2)).ids)

    assert torch.allclose(first, second, atol=1e-5)


def test_only_the_head_learns_on_an_autoencoder() -> None:
    rows = topics(60, 0)
    model = make("Autoencoder", steps=5)
    model.prepare(rows, np.arange(60), seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    cross_entropy(model(rows.batch(np.arange(60)).ids), *rows.batch(np.arange(60))[1:]).backward()

    assert {name for name, p in model.named_parameters() if p.grad is not None} == {"head.weight", "head.bias"}
    again = make("Autoencoder", steps=5)
    again.prepare(rows, np.arange(60), seed=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in again.state_dict().items())
    assert not torch.equal(before["embedding.weight"], make("Autoencoder", steps=5).embedding.weight)


# -- word vectors from a file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_vectors_are_read_from_a_file(header: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(header + "Lever 1 2 3\nspring 4 5 6\nlever 7 8 9\nhalf-open 0 0 0\n. . 1 1 1\n", encoding="utf-8")
    model = make("Average", width=3, vectors=str(path), buckets=2**20)
    before = vectors(model, "half").clone()

    model.prepare(topics(2, 0), np.arange(2), seed=0)

    assert vectors(model, "lever spring").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert torch.equal(vectors(model, "half"), before)
    assert not model.embedding.weight[0].any()


@pytest.mark.parametrize("width", [2, 4])
def test_vectors_of_another_width_are_refused(width: int, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("lever 1 2 3\nspring 4 5 6\n", encoding="utf-8")

    with pytest.raises(DataError, match="choose the --width"):
        make("Average", width=width, vectors=str(path)).prepare(topics(2, 0), np.arange(2), seed=0)
    with pytest.raises(UsageError, match="no file of word vectors"):
        make("Average", vectors=str(path / "none")).prepare(topics(2, 0), np.arange(2), seed=0)


# -- the configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Average", {"buckets": 1}),
        ("Average", {"longest": 513}),
        ("Sif", {"a": 0.0}),
        ("Dan", {"depth": 0}),
        ("FastText", {"ngrams": 0}),
        ("Cnn", {"k": 0}),
        ("Transformer", {"width": 33}),
        ("Autoencoder", {"steps": 0}),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        make(name, **options)


def test_heads_are_one_in_64_where_nothing_is_asked() -> None:
    configure = networks.TransformerConfig.of

    assert configure(replace(SIZES, heads=0, width=768)).heads == 12
    assert configure(replace(SIZES, heads=0, width=32)).heads == 1
    assert configure(replace(SIZES, heads=4)).heads == 4


def test_networks_need_neither_scikit_learn_nor_scipy() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['sklearn', 'scipy', 'polars', 'pyarrow', 'duckdb']));"

    subprocess.run([sys.executable, "-c", f"{blocked} import ewe.baselines.networks"], check=True)
