"""Training: golden first step, exact repetition and resume, and what it refuses."""

import json
import shutil
import signal
import sys
import threading
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tiny_tensors import NAMES, write_tensors
from transformers import get_linear_schedule_with_warmup

from ewe import checkpoint, models, store, train
from ewe.batches import Batch, Meta, Split, held_out
from ewe.compute import Compute
from ewe.config import PRESETS, Sizes, TrainConfig, configure
from ewe.errors import DataError, EweError, UsageError
from ewe.run import load
from ewe.train import Stepper, adamw, learning_rate, train_model

CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")
cuda = pytest.param("cuda", marks=[pytest.mark.cuda, CARD])
# dropout is on, so that random state matters; 70 rows by 16 make 5 steps an epoch, the last one smaller
SMALL = {
    "preset": "tiny",
    "layers": 1,
    "width": 8,
    "heads": 2,
    "dropout": 0.2,
    "epochs": 3,
    "min_steps": 0,
    "batch_size": 16,
}
SIZES = Sizes(u=8, v=4, vocabulary=256, labels=6)  # of the tensors here
SMALL |= {"checkpoint_every": 4, "device": "cpu", "seed": 5}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tensors(tmp_path_factory.mktemp("data") / "tensors", {"train": 70, "test": 9})


@pytest.fixture(scope="module")
def whole(tensors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train_model(tensors, run, **SMALL)
    return run


def content(run: Path) -> dict[str, bytes]:
    """All of a run that its configuration decides."""
    return {name: (run / name).read_bytes() for name in ("model.safetensors", "metrics.jsonl", "labels.json")}


def at_batch(monkeypatch: pytest.MonkeyPatch, number: int, action: object) -> None:
    """Call `action` when training reads its batch of this number, counted from 1."""
    read, count = Split.batch, iter(range(1, 1000))

    def batch(self: Split, rows: np.ndarray) -> Batch:
        if next(count) == number:
            action()
        return read(self, rows)

    monkeypatch.setattr(Split, "batch", batch)


# -- configuration --------------------------------------------------------------------------------------------------


def test_paper_preset_is_the_papers_recipe():
    config = asdict(configure("paper"))
    assert {**config, "seed": None} == {**asdict(TrainConfig()), "seed": None}
    published = {"layers": 12, "width": 768, "epochs": 10, "batch_size": 32, "learning_rate": 2e-5, "warmup": 0.0}
    published |= {"weight_decay": 0.01, "clip": 0.0, "dropout": 0.1, "threshold": 0.3, "focus": True}
    assert {name: config[name] for name in published} == published


def test_fast_preset_is_another_recipe_for_the_papers_model():
    paper, fast = (asdict(configure(preset)) for preset in ("paper", "fast"))
    differs = {name for name, value in paper.items() if fast[name] != value}
    assert differs == {"prior_bias", "learning_rate", "warmup", "clip", "epochs"}


def test_choices_override_the_preset_and_none_does_not():
    config = configure("tiny", layers=3, width=None)
    assert (config.layers, config.width) == (3, PRESETS["tiny"]["width"])
    assert all(each.metadata["help"].endswith(".") for each in fields(TrainConfig) if each.name != "options")


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"preset": "huge"}, "no preset huge; choose from paper, fast, tiny"),
        ({"epoch": 3}, "no option epoch"),
        ({"epochs": 0}, "--epochs must be at least 1, not 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be above 0 and finite, not nan"),
        ({"holdout": 1.0}, "--holdout must be at least 0 and below 1"),
        ({"device": "tpu"}, "--device must be one of auto, cpu, cuda, not tpu"),
    ],
)
def test_what_cannot_be_is_a_usage_error(choices: dict, sentence: str):
    with pytest.raises(UsageError, match=sentence):
        configure(**choices)


def test_shapes_that_do_not_fit():
    with pytest.raises(UsageError, match="--width 10 must be a multiple of the tensors' 4 letters"):
        models.shape("bert-ewe", replace(SIZES, width=10), "whitespace")
    with pytest.raises(UsageError, match="reads tensors of --tokenizer whitespace, not wordpiece"):
        models.shape("bert-ewe", SIZES, "wordpiece")
    with pytest.raises(UsageError, match="no model bert; choose from bert-ewe"):
        models.shape("bert", SIZES, "whitespace")
    assert models.shape("bert-ewe", SIZES, "whitespace")["heads"] == 4


def test_precisions():
    assert Compute.choose("cpu").precision == "fp32"
    with pytest.raises(UsageError, match="fp16 needs a CUDA card"):
        Compute.choose("cpu", "fp16")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="use --device cpu"):
            Compute.choose("cuda")
        assert str(Compute.choose()) == "cpu fp32"


def test_learning_rate_falls_linearly_as_hugging_faces():
    config = configure("paper", learning_rate=1.0)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    peer = get_linear_schedule_with_warmup(optimizer, 0, 10)
    for step in range(10):
        assert learning_rate(config, step, 10) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        peer.step()
    warm = configure("paper", learning_rate=1.0, warmup=0.3)
    assert [learning_rate(warm, step, 10) for step in range(5)] == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 6 / 7])


# -- one step -------------------------------------------------------------------------------------------------------


def norm(tensors: list[torch.Tensor]) -> float:
    return float(torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt())


@pytest.mark.parametrize("device", ["cpu", cuda])
def test_golden_first_step(tensors: Path, device: str):
    config = configure("paper", width=64, layers=2, learning_rate=1e-3, dropout=0.0, clip=1.0)
    compute = Compute(torch.device(device), "fp32")
    torch.manual_seed(0)
    shape = models.shape("bert-ewe", replace(SIZES, layers=2, width=64, dropout=0.0), "whitespace")
    model = models.build("bert-ewe", shape).to(device)
    parameters = list(model.parameters())
    before = [p.detach().clone() for p in parameters]
    split = Split.open(tensors, "train", Meta.read(tensors))
    loss = Stepper(model, config, compute, split)(np.arange(32), config.learning_rate)
    statistics = {
        "loss": float(loss),
        "gradient": norm([p.grad for p in parameters]),
        "update": norm([p.detach() - q for p, q in zip(parameters, before, strict=True)]),
        "parameters": norm([p.detach() for p in parameters]),
    }
    golden = {"loss": 0.689100, "gradient": 0.195994, "update": 0.321176, "parameters": 19.061139}
    assert statistics == pytest.approx(golden, rel=1e-3), (
        "One training step now does something else. If you did not mean to change it, this is a bug;"
        " if you did, update the golden figures and say why in the changelog."
    )


def test_decay_spares_biases_and_layer_norm():
    model = models.build("bert-ewe", models.shape("bert-ewe", replace(SIZES, layers=1, width=8), "whitespace"))
    decayed, spared = adamw(model, configure("paper")).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    assert all(names[id(p)].endswith("bias") or "norm" in names[id(p)] for p in spared["params"])
    assert not any(names[id(p)].endswith("bias") or "norm" in names[id(p)] for p in decayed["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(names)
    assert (decayed["betas"], decayed["eps"]) == ((0.9, 0.999), 1e-8)


def test_clip_bounds_the_gradient(tensors: Path):
    model = models.build("bert-ewe", models.shape("bert-ewe", replace(SIZES, layers=1, width=8), "whitespace"))
    split = Split.open(tensors, "train", Meta.read(tensors))
    Stepper(model, configure("paper", clip=1e-3), Compute.choose("cpu"), split)(np.arange(8), 0.1)
    assert norm([p.grad for p in model.parameters()]) == pytest.approx(1e-3, rel=1e-2)


# -- a whole run ----------------------------------------------------------------------------------------------------


def test_a_run_is_whole(whole: Path, tensors: Path):
    manifest = store.read_manifest(whole, "run")
    assert set(manifest["files"]) == {"config.json", "labels.json", "metrics.jsonl", "model.safetensors"}
    assert store.verify(whole)["files"] == 4
    config, labels = json.loads((whole / "config.json").read_text()), json.loads((whole / "labels.json").read_text())
    assert (config["shape"]["u"], config["shape"]["v"], config["input"]["tokenizer"]) == (8, 4, "whitespace")
    assert (config["compute"], config["resume"], config["made_up"]) == ("cpu fp32", "bit-equal", False)
    assert (labels["names"], labels["rows"]) == (NAMES, 70)
    indices = np.load(tensors / "train.labels.indices.npy")
    assert labels["counts"] == [int((indices == label).sum()) for label in range(6)]
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 16))
    assert [line["epoch"] for line in lines] == [1] * 5 + [2] * 5 + [3] * 5
    assert manifest["summary"]["loss"] == pytest.approx(np.mean([line["loss"] for line in lines[10:]]))
    assert [path.name for path in sorted((whole / "checkpoints").iterdir())] == ["step-00000012", "step-00000015"]
    assert list((whole / "tensorboard").glob("events.out.tfevents.*"))
    kinds = {path.suffix for path in (whole / "checkpoints").rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}  # no pickle


def test_two_runs_are_equal_to_the_bit_and_seeds_differ(whole: Path, tensors: Path, tmp_path: Path):
    train_model(tensors, tmp_path / "again", **SMALL)
    assert content(tmp_path / "again") == content(whole)
    train_model(tensors, tmp_path / "other", **SMALL | {"seed": 6})
    assert content(tmp_path / "other")["model.safetensors"] != content(whole)["model.safetensors"]


def test_it_learns(tmp_path: Path):
    tensors = write_tensors(tmp_path / "tensors", {"train": 1000})
    choices = {
        "width": 32,
        "epochs": 8,
        "min_steps": 0,
        "batch_size": 16,
        "learning_rate": 5e-3,
        "device": "cpu",
        "holdout": 0.1,
    }
    summary = train_model(tensors, tmp_path / "run", preset="tiny", **choices)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [line["holdout"]["f1"] for line in lines if "holdout" in line]
    assert len(found) == 8
    assert found[-1] > 0.95
    assert summary["loss"] < 0.1 * lines[0]["loss"]


def test_prior_bias_starts_at_the_labels_shares(tensors: Path, tmp_path: Path):
    choices = SMALL | {"epochs": 1, "batch_size": 70, "learning_rate": 1e-30, "warmup": 0.0}
    train_model(tensors, tmp_path / "run", **choices)
    bias = load_file(tmp_path / "run" / "model.safetensors")["head.bias"]
    counts = np.array(json.loads((tmp_path / "run" / "labels.json").read_text())["counts"])
    np.testing.assert_allclose(bias.sigmoid(), (counts + 0.5) / 71, rtol=1e-5)


def test_mixed_precision_runs(tensors: Path, tmp_path: Path):
    summary = train_model(tensors, tmp_path / "run", **SMALL | {"precision": "bf16"})
    assert summary["compute"] == "cpu bf16"
    assert np.isfinite(summary["loss"])


@pytest.mark.cuda
@CARD
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_card_learns_the_same(whole: Path, tensors: Path, tmp_path: Path, precision: str):
    choices = SMALL | {"device": "cuda", "precision": precision, "dropout": 0.0, "deterministic": True}
    card = train_model(tensors, tmp_path / "card", **choices)
    again = train_model(tensors, tmp_path / "again", **choices)
    assert content(tmp_path / "card") == content(tmp_path / "again")
    cpu = train_model(tensors, tmp_path / "cpu", **choices | {"device": "cpu", "precision": "fp32"})
    assert card["loss"] == again["loss"] == pytest.approx(cpu["loss"], rel=1e-4 if precision == "fp32" else 0.05)


# -- interrupted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 5, 8, 13, 15])
def test_interrupted_and_resumed_equals_uninterrupted(
    whole: Path, tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    at_batch(monkeypatch, number, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train_model(tensors, tmp_path, **SMALL)
    assert (tmp_path / "checkpoints" / f"step-{number:08d}").is_dir()
    monkeypatch.undo()
    train_model(tensors, tmp_path, **SMALL)
    assert content(tmp_path) == content(whole)


def test_terminated_and_resumed_equals_uninterrupted(
    whole: Path, tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        at_batch(monkeypatch, 7, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit, match="143"):
            train_model(tensors, tmp_path, **SMALL)
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.undo()
    train_model(tensors, tmp_path, **SMALL)
    assert content(tmp_path) == content(whole)


@pytest.mark.parametrize("number", [2, 11])
def test_killed_and_resumed_equals_uninterrupted(
    whole: Path, tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    """Nothing is saved on the way out: the run goes on from its last checkpoint, of step 8 or none."""

    def die() -> None:
        raise MemoryError

    at_batch(monkeypatch, number, die)
    with pytest.raises(MemoryError):
        train_model(tensors, tmp_path, **SMALL)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')  # a line cut short
    monkeypatch.undo()
    train_model(tensors, tmp_path, **SMALL)
    assert content(tmp_path) == content(whole)


def test_finished_work_says_so(whole: Path, tensors: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    summary = train_model(tensors, whole, **SMALL)
    assert "is finished" in capsys.readouterr().err
    assert summary["loss"] == store.read_manifest(whole, "run")["summary"]["loss"]
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_another_configuration_is_refused(whole: Path, tensors: Path, tmp_path: Path):
    with pytest.raises(DataError, match="epochs was 3 and is now 4"):
        train_model(tensors, whole, **SMALL | {"epochs": 4})
    other = write_tensors(tmp_path / "tensors", {"train": 70}, seed=1)
    with pytest.raises(DataError, match="tensors_sha256"):
        train_model(other, whole, **SMALL)


def test_a_thread_may_train(tensors: Path, tmp_path: Path, whole: Path):
    thread = threading.Thread(target=train_model, args=(tensors, tmp_path / "run"), kwargs=SMALL)
    thread.start()
    thread.join()
    assert content(tmp_path / "run") == content(whole)


@pytest.mark.parametrize("name", ["config.json", "labels.json", "model.safetensors"])
@pytest.mark.parametrize("how", ["gone", "longer"])
def test_a_damaged_run_is_mended(tensors: Path, tmp_path: Path, whole: Path, name: str, how: str):
    run = shutil.copytree(whole, tmp_path / "run")
    if how == "gone":
        (run / name).unlink()
    else:
        (run / name).write_bytes((run / name).read_bytes() + b"x")
    with pytest.raises(DataError, match="missing or cut short; run the same ewe train again to mend it"):
        store.read_manifest(run, "run")
    train_model(tensors, run, **SMALL)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.name in (*content(run), "config.json")} == {
        path.name: path.read_bytes() for path in whole.iterdir() if path.name in (*content(run), "config.json")
    }
    assert store.verify(run) == store.verify(whole)


def test_a_change_that_keeps_the_size_is_named_and_mended_as_said(tensors: Path, tmp_path: Path, whole: Path):
    run = shutil.copytree(whole, tmp_path / "run")
    for name in ("config.json", "labels.json"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace("a", "b", 1))
        with pytest.raises(DataError, match=f"{name} missing or changed; remove what is left of that and run"):
            load(run)
        (run / name).unlink()
        train_model(tensors, run, **SMALL)
        assert (run / name).read_text() == text
    load(run)


def test_weights_are_as_readable_as_other_files(whole: Path, tmp_path: Path):
    modes = {path.name: path.stat().st_mode & 0o777 for path in whole.rglob("*") if path.is_file()}
    assert modes["model.safetensors"] == modes["config.json"] == modes["optimizer.safetensors"]
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    checkpoint.write_tensors({"x": torch.zeros(1)}, open_to_all / "x.safetensors")
    assert (open_to_all / "x.safetensors").stat().st_mode & 0o777 == modes["config.json"]


def test_a_full_disk_names_the_file(tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        train_model(tensors, tmp_path / "run", **SMALL)
    assert caught.value.filename == str(tmp_path / "run" / "checkpoints" / "step-00000004")


def test_training_does_without_cudnns_attention(tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[bool] = []
    at_batch(monkeypatch, 1, lambda: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))

    train_model(tensors, tmp_path / "run", **SMALL | {"epochs": 1})

    assert seen == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_checkpoints_by_the_clock(tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path):
    """Where no steps are given: the weights are the same, whenever they were kept."""
    saved: list[int] = []
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda run, step, *rest: (saved.append(step), save(run, step, *rest)))
    how = SMALL | {"checkpoint_every": 0}
    train_model(tensors, tmp_path / "never", **how)
    steps = saved.copy()
    assert len(steps) == 1  # the last
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0)
    train_model(tensors, tmp_path / "always", **how)
    assert saved[1:] == [*range(10, steps[0], 10), *steps]
    for run in ("never", "always"):
        assert (tmp_path / run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_too_little_memory_is_one_sentence(tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def out_of_memory() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    at_batch(monkeypatch, 1, out_of_memory)
    with pytest.raises(EweError, match=r"too little memory for a step of 16 texts; .* a smaller --batch-size"):
        train_model(tensors, tmp_path / "run", **SMALL)


def test_epochs_that_are_asked_for_are_meant():
    assert configure("tiny").min_steps == 1000
    assert configure("tiny", epochs=2).min_steps == 0
    assert configure("tiny", epochs=2, min_steps=7).min_steps == 7


# -- what it refuses ------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_it(tensors: Path, tmp_path: Path):
    with pytest.raises(EweError, match=r"loss of step .* is not finite") as caught:
        train_model(tensors, tmp_path, **SMALL | {"learning_rate": 1e38, "clip": 0.0, "warmup": 0.0})
    assert caught.value.exit_code == 1
    (path,) = tmp_path.glob("broken-step-*.json")
    evidence = json.loads(path.read_text())
    assert evidence["texts"][0].startswith("US-")
    assert evidence["broken_parameters"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, evidence["step"]))
    assert not (tmp_path / "model.safetensors").exists()


def test_held_out_and_test_rows_are_not_read(tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read, trained, opened = Split.batch, [], []
    load = np.load

    def batch(self: Split, rows: np.ndarray) -> Batch:
        if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            trained.extend(rows.tolist())
        return read(self, rows)

    monkeypatch.setattr(Split, "batch", batch)
    monkeypatch.setattr(np, "load", lambda path, **options: opened.append(Path(path).name) or load(path, **options))
    summary = train_model(tensors, tmp_path, **SMALL | {"holdout": 0.2})
    out = np.flatnonzero(held_out(load(tensors / "train.ids.npy"), 0.2)).tolist()
    assert summary["held_out_rows"] == len(out) > 3
    assert sorted(trained) == sorted(3 * [row for row in range(70) if row not in out])
    assert opened
    assert all(name.startswith("train.") for name in opened)


def test_a_holdout_of_no_row_is_told(tensors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train_model(tensors, tmp_path / "run", **SMALL | {"epochs": 1, "holdout": 1e-6})
    assert "--holdout 1e-06 keeps none of 70 training rows apart" in capsys.readouterr().err


def test_a_run_within_its_tensors_is_refused(tensors: Path):
    with pytest.raises(UsageError, match=r"lies in .*; choose a folder beside it"):
        train_model(tensors, tensors / "run", **SMALL)
    assert not (tensors / "run").exists()


@pytest.mark.parametrize("choice", [{"device": "gpu"}, {"precision": "fp8"}, {"precision": "FP32"}])
def test_a_device_or_precision_that_is_none_is_refused(choice: dict[str, str]):
    with pytest.raises(UsageError, match="must be one of"):
        Compute.choose(**choice)


def test_nothing_to_learn_is_refused(tmp_path: Path):
    empty = write_tensors(tmp_path / "empty", {"train": 0, "test": 3})
    with pytest.raises(DataError, match="no training rows"):
        train_model(empty, tmp_path / "run", **SMALL)
    without = write_tensors(tmp_path / "without", {"test": 3})
    with pytest.raises(UsageError, match="no split train"):
        train_model(without, tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_box_without_tensorboard_trains(
    tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train_model(tensors, tmp_path / "run", **SMALL)
    assert capsys.readouterr().err.count("pip install tensorboard") == 1
    assert not (tmp_path / "run" / "tensorboard").exists()
