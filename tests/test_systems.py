"""Every system by its name, the same way through: encode, train, resume, reload, evaluate, predict, save."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ewe import models, train
from ewe.batches import Meta, Split
from ewe.evaluate import evaluate_run
from ewe.models import MODELS
from ewe.pipeline.encode import encode_folder
from ewe.predict import predict_file
from ewe.run import Run, load
from ewe.train import train_model

U, V = 16, 8  # CANINE wants a multiple of 4 materials, the gradient tokenizer was published with 8 letters
ROWS = {"train": 110, "spring": 20, "autumn": 21}
LABELS = ["First-A01B", "First-G06Q", "Later-A01B", "Later-G06Q"]
# dropout is on, so that random state matters; 110 rows by 32 make 4 steps an epoch, the last one smaller
SMALL = {"preset": "tiny", "layers": 1, "width": 32, "dropout": 0.1, "epochs": 2, "min_steps": 0, "batch_size": 32}
SMALL |= {"checkpoint_every": 3, "device": "cpu", "seed": 7}
SMALLER = {"buckets": 2**12, "steps": 4}  # options of the systems that have them
NEEDS = {"after": {"layers": 2}}  # what an option of a system takes: a merge has a block on either side

HUB = [name for name, known in MODELS.items() if not known.home.startswith("ewe.baselines")]
WORDS = [name for name, known in MODELS.items() if not known.tokenizers]


@dataclass(frozen=True)
class System:
    """A trained system, and what it was made from."""

    name: str
    tensors: Path
    texts: Path
    """of the split spring, in its order"""
    choices: dict[str, Any]
    run: Path
    logits: torch.Tensor
    """of spring by the model that training left, before anything was loaded"""
    parameters: int
    """of that model"""

    def train(self, out: Path) -> None:
        train_model(self.tensors, out, **self.choices)


def write_texts(folder: Path) -> tuple[Path, Path]:
    """All texts with labels and splits, and those of spring alone, as JSON lines."""
    random = np.random.default_rng(0)
    words = ["lever", "handle", "spring", "ledger", "account", "payment", "plough", "soil", "seed", "a", "wherein"]
    words += ["Schrödinger-Gerät", "αβ-δ", "農業機械", "🚜", "10⁵", "1,2-dichlorotetrafluoroethane", "[SEP]", "µm;"]
    rows = []
    for split, N in ROWS.items():
        for n in range(N):
            text = " ".join(random.choice(words, random.integers(1, 30)))
            first, later = random.integers(0, 2, 2)
            text = ["ledger", "plough"][first] + " " + text if n % 3 else text
            names = sorted({LABELS[first], LABELS[2 + later]})
            rows.append({"id": f"{split}-{n}", "text": text, "label_names": names, "split": split})
    start = {split: next(n for n, row in enumerate(rows) if row["split"] == split) for split in ROWS}
    for split in ROWS:
        rows[start[split]]["text"] = ""
        rows[start[split] + 1]["text"] = " \u00a0 ; \u2028 "
        rows[start[split] + 2]["text"] = " ".join(random.choice(words, 3000))
        rows[start[split] + 3]["text"] = "lever" * 500 + " ledger"
        rows[start[split] + 4]["text"] = "le\0ver\u0085\ufeffspring\u200b x\u00a0y"
        rows[start[split] + 5]["label_names"] = []
    whole, part = folder / "texts.jsonl", folder / "spring.jsonl"
    whole.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = [{name: row[name] for name in ("id", "text")} for row in rows if row["split"] == "spring"]
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen), encoding="utf-8")
    return whole, part


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def encoded(texts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What makes the tensors of a tokenizer, once."""
    made: dict[str, Path] = {}

    def encode(tokenizer: str) -> Path:
        if tokenizer not in made:
            own = {"vocabulary": 300} if tokenizer == "wordpiece" else {}
            own |= {"letters": V} if tokenizer in ("whitespace", "bytes") else {}
            made[tokenizer] = tmp_path_factory.mktemp(tokenizer) / "tensors"
            encode_folder(texts[0], made[tokenizer], tokenizer=tokenizer, words=U, **own)
        return made[tokenizer]

    return encode


@pytest.fixture(scope="module", params=MODELS)
def system(
    request: pytest.FixtureRequest,
    texts: tuple[Path, Path],
    encoded: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> System:
    """Each system of MODELS, trained small."""
    name, known = request.param, MODELS[request.param]
    tensors = encoded(known.tokenizers[0] if known.tokenizers else "whitespace")
    own = {each.name for each in fields(known.network().config_class)}
    options = {option: value for option, value in SMALLER.items() if option in own - set(known.options)}
    choices = SMALL | {"model": name, "options": options}
    for option in own & set(NEEDS):
        choices |= NEEDS[option]
    run, built = tmp_path_factory.mktemp(name) / "run", []
    with pytest.MonkeyPatch.context() as patch:
        build = models.build
        patch.setattr(models, "build", lambda *what: built.append(build(*what)) or built[-1])
        train_model(tensors, run, **choices)
    (model,) = built
    split = Split.open(tensors, "spring", Meta.read(tensors), model.reads)
    with torch.inference_mode():
        logits = model.eval()(split.batch(np.arange(len(split))).ids)
    parameters = sum(each.numel() for each in model.parameters())
    return System(name, tensors, texts[1], choices, run, logits, parameters)


def predictions(run: Path, source: Path, out: Path, **options: Any) -> dict[str, dict[str, float]]:
    """id -> label -> probability, as `predict` writes them."""
    predict_file(run, source, out, device="cpu", **options)
    records = map(json.loads, out.read_bytes().splitlines())
    return {each["id"]: dict(zip(each["label_names"], each["probabilities"], strict=True)) for each in records}


def opened(system: System) -> tuple[Run, torch.Tensor]:
    """The run, loaded, and spring as its model reads it."""
    run = load(system.run, device="cpu")
    split = Split.open(system.tensors, "spring", Meta.read(system.tensors), run.reads)
    return run, split.batch(np.arange(len(split))).ids


def test_a_reloaded_run_predicts_as_before_saving(system: System):
    run, ids = opened(system)
    assert system.logits.shape == (ROWS["spring"], len(LABELS))
    torch.testing.assert_close(run.logits(ids), system.logits, rtol=1e-5, atol=1e-5)  # positions are folded
    assert len(system.logits.round(decimals=4).unique(dim=0)) > 2  # it has read the texts


def test_texts_are_predicted_as_their_tensors(system: System, tmp_path: Path):
    top = {"top_k": len(LABELS)}
    from_tensors = predictions(system.run, system.tensors, tmp_path / "a.jsonl", split="spring", **top)
    from_texts = predictions(system.run, system.texts, tmp_path / "b.jsonl", **top)
    assert list(from_texts) == [f"spring-{n}" for n in range(ROWS["spring"])]
    assert from_texts == from_tensors
    odds = system.logits.sigmoid()
    for n, found in enumerate(from_texts.values()):
        assert [found[name] for name in LABELS] == pytest.approx(odds[n].tolist(), abs=1e-5)


def test_a_text_is_predicted_alike_whatever_stands_beside_it(system: System):
    run = load(system.run, device="cpu")
    texts = [json.loads(line)["text"] for line in system.texts.read_bytes().splitlines()]
    together = run.predict(texts, top_k=len(LABELS))
    for text, found in zip(texts, together, strict=True):
        (alone,) = run.predict([text], top_k=len(LABELS))
        assert [alone[name] for name in LABELS] == pytest.approx([found[name] for name in LABELS], abs=1e-4)


def test_evaluation_counts_what_predict_writes(system: System, tmp_path: Path):
    report = evaluate_run(system.run, system.tensors, device="cpu")
    found = predictions(system.run, system.tensors, tmp_path / "all.jsonl")
    assert len(found) == ROWS["spring"] + ROWS["autumn"]
    meta = Meta.read(system.tensors)
    assert meta.label_names == LABELS
    for name in ("spring", "autumn"):
        split = Split.open(system.tensors, name, meta, "words")
        numbers = [number.decode() for number in split.numbers.tolist()]
        truth = {(numbers[row], LABELS[label]) for row, label in zip(*split.labels(np.arange(len(split))), strict=True)}
        predicted = {(number, label) for number in numbers for label in found[number]}
        f1 = 2 * len(truth & predicted) / (len(truth) + len(predicted))
        assert report[name]["f1"] == pytest.approx(f1)
        assert report[name]["rows"] == ROWS[name]


def test_interrupted_and_resumed_equals_uninterrupted(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a system that is fitted in one go: begun again, it comes out the same."""
    network = MODELS[system.name].network()
    where, name = (network, "fit") if hasattr(network, "fit") else (train.Stepper, "__call__")
    real, calls = getattr(where, name), []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        done = real(*arguments)
        if len(calls) == (1 if name == "fit" else 5):
            signal.raise_signal(signal.SIGINT)
        return done

    monkeypatch.setattr(where, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        system.train(tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoints" / "step-00000005").is_dir() == (name == "__call__")
    system.train(tmp_path)
    same = ["model.safetensors", "labels.json", *(["metrics.jsonl"] if name == "__call__" else [])]
    for file in same:
        assert (tmp_path / file).read_bytes() == (system.run / file).read_bytes()


def test_info_counts_what_was_trained(system: System):
    found = models.info_run(system.run)["parameters"]
    assert found["total"] == system.parameters
    assert found["embedding"] <= found["total"]


@pytest.mark.parametrize("system", HUB, indirect=True)
def test_saved_for_the_hub_and_loaded(system: System, tmp_path: Path):
    run, ids = opened(system)
    run.model.save_pretrained(tmp_path)
    loaded: nn.Module = type(run.model).from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        assert torch.equal(loaded(ids), run.logits(ids))


@pytest.mark.parametrize("system", WORDS, indirect=True)
def test_a_reader_of_words_reads_any_tensors(system: System, encoded: Callable[[str], Path]):
    own, other = (evaluate_run(system.run, each, device="cpu") for each in (system.tensors, encoded("wordpiece")))
    assert own == other
