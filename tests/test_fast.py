"""The fast path against the plain one: the same steps, to rounding; what it cannot serve takes the plain one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_tensors import write_tensors

from ewe import fast, metrics, models
from ewe.batches import Meta, Split
from ewe.compute import Compute
from ewe.config import Sizes, configure
from ewe.distributed import ALONE, World
from ewe.fast import Graphed, Resident
from ewe.train import Stepper, adamw, exact_attention, train_model

CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, CARD])]
TORCHS_OWN = pytest.mark.filterwarnings(  # what torch says of its own compiling
    "ignore:.*should not be instantiated:DeprecationWarning", "ignore:.*script_method:DeprecationWarning"
)
SIZES = Sizes(u=8, v=4, vocabulary=256, labels=6, layers=2, width=32, dropout=0.0, init_std=0.1)


def tiny_bert() -> torch.nn.Module:
    return models.build("bert-ewe", models.shape("bert-ewe", SIZES, "whitespace"))


@pytest.fixture(autouse=True)
def attention() -> Iterator[None]:
    """As training has it."""
    with exact_attention():
        yield


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = write_tensors(tmp_path_factory.mktemp("data") / "tensors", {"train": 70})
    return Split.open(folder, "train", Meta.read(folder))


@given(st.integers(1, 5), st.integers(1, 7), st.data())
def test_loss_from_padded_positives_is_the_loss(B: int, L: int, data: st.DataObject):
    truth = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=L, max_size=L), min_size=B, max_size=B)))
    rows, columns = np.nonzero(truth)
    padded = np.full((B, L), L)
    for row in range(B):
        padded[row, : truth[row].sum()] = np.flatnonzero(truth[row])
    logits = torch.linspace(-9, 9, B * L).view(B, L)

    found = fast.cross_entropy(logits, torch.from_numpy(padded).int())

    assert torch.isclose(found, metrics.cross_entropy(logits, torch.from_numpy(rows), torch.from_numpy(columns)))


@pytest.mark.parametrize("device", DEVICES)
def test_resident_rows_are_the_splits(split: Split, device: str):
    data = Resident(split, 6, torch.device(device))

    rows = np.array([5, 0, 69, 5])
    batch = split.batch(rows)
    assert torch.equal(data.ids[rows].cpu(), batch.ids)
    found = [(i, label) for i, row in enumerate(data.columns[rows].tolist()) for label in row if label < 6]
    assert found == list(zip(batch.rows.tolist(), batch.columns.tolist(), strict=True))
    assert Resident.size(split) == data.ids.nbytes + data.columns.nbytes


@pytest.mark.parametrize(
    ("device", "backend"), [("cpu", None), ("cpu", "aot_eager"), pytest.param("cuda", None, marks=DEVICES[1].marks)]
)
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("bf16", 1e-3)])
@TORCHS_OWN
def test_steps_equal_the_plain_ones(
    split: Split, device: str, backend: str | None, clip: float, precision: str, error: float
):
    config = configure("paper", batch_size=16, clip=clip)
    compute = Compute(torch.device(device), precision)
    shape = models.shape("bert-ewe", SIZES, "whitespace")
    torch.manual_seed(0)
    plain = models.build("bert-ewe", shape).to(device)
    quick = models.build("bert-ewe", shape).to(device)
    quick.load_state_dict(plain.state_dict())
    steppers = [
        Stepper(plain, config, compute, split),
        Graphed(quick, adamw(quick, config, graphed=True), config, compute, Resident(split, 6, compute.device)),
    ]
    if backend:  # on a card it is compiled as it stands
        steppers[1]._loss = torch.compile(fast._loss, backend=backend, dynamic=False)

    losses = [
        [float(stepper(np.arange(start, min(start + 16, 70)), 1e-3)) for start in (*range(0, 70, 16), 0, 16)]
        for stepper in steppers
    ]

    assert losses[1] == pytest.approx(losses[0], rel=error)
    assert (steppers[1]._graph is not None) == (device == "cuda")
    ids = split.batch(np.arange(70)).ids.to(device)
    torch.testing.assert_close(quick(ids), plain(ids), rtol=10 * error, atol=error if precision == "bf16" else 1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("last", ["backward", "step"])
def test_where_capturing_fails_training_goes_on_without(
    split: Split, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], precision: str, last: str
):
    """From the weights, moments and random state there were, and without a gradient."""

    def fails(self: Graphed) -> None:
        if last == "step":
            self._step(self.rows)
        fast._loss(self.narrow, self.compute, self.data.ids[self.rows], self.data.columns[self.rows]).backward()
        raise RuntimeError("no Triton today\nand more")

    monkeypatch.setattr(Graphed, "_warm_up", fails)
    config, compute = configure("paper", batch_size=16), Compute.choose("cpu", precision)
    losses = []
    for on_card in (False, True):
        torch.manual_seed(0)
        model = models.build("bert-ewe", models.shape("bert-ewe", replace(SIZES, dropout=0.1), "whitespace"))
        stepper = Graphed(
            model, adamw(model, config, graphed=True), config, compute, Resident(split, 6, compute.device)
        )
        losses.append([float(stepper(np.arange(0, 16), 1e-3))])  # moments, which must be put back, too
        stepper.on_card = on_card
        losses[-1] += [float(stepper(np.arange(start, min(start + 16, 70)), 1e-3)) for start in range(0, 70, 16)]
    assert losses[0] == losses[1]
    said = capsys.readouterr().err
    assert said == ("warning: Without torch.compile and the CUDA graph, which failed here: slower (no Triton today).\n")


def test_narrowed_is_what_autocast_computes_with(split: Split):
    model, ids = tiny_bert(), split.batch(np.arange(9)).ids

    narrow = fast.narrowed(model, torch.bfloat16)

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(narrow(ids), model(ids))
    linear = {id(p) for m in model.modules() if isinstance(m, torch.nn.Linear) for p in m.parameters()}
    for wide, other in zip(model.parameters(), narrow.parameters(), strict=True):
        assert wide.dtype == torch.float32
        assert (other is wide) == (id(wide) not in linear)


def test_a_cpu_takes_the_plain_path(split: Split):
    assert not fast.fits(configure("paper"), Compute.choose("cpu"), split, tiny_bert(), ALONE)


@CARD
@pytest.mark.cuda
def test_what_the_card_serves_and_what_not(split: Split):
    compute = Compute.choose("cuda", "fp32")
    assert fast.fits(configure("paper"), compute, split, tiny_bert(), ALONE)
    for config, precision, model, world in (
        (configure("paper", plain=True), "fp32", tiny_bert(), ALONE),
        (configure("paper", deterministic=True), "fp32", tiny_bert(), ALONE),
        (configure("paper"), "fp16", tiny_bert(), ALONE),
        (configure("paper"), "fp32", torch.nn.Linear(2, 2), ALONE),
        (configure("paper"), "fp32", tiny_bert(), World(0, 2)),
    ):
        assert not fast.fits(config, replace(compute, precision=precision), split, model, world)


@CARD
@pytest.mark.cuda
@TORCHS_OWN
def test_resume_on_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tensors = write_tensors(tmp_path / "tensors", {"train": 70})
    how = {"preset": "tiny", "layers": 1, "width": 8, "heads": 2, "dropout": 0.2, "epochs": 3, "min_steps": 0}
    how |= {"batch_size": 16, "checkpoint_every": 4, "device": "cuda", "precision": "fp32"}
    whole = train_model(tensors, tmp_path / "whole", **how)
    step, count = Graphed.__call__, iter(range(1, 1000))

    def dies(self: Graphed, rows: np.ndarray, rate: float) -> torch.Tensor:
        if next(count) == 7:
            raise KeyboardInterrupt
        return step(self, rows, rate)

    monkeypatch.setattr(Graphed, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        train_model(tensors, tmp_path / "halves", **how)
    resumed = train_model(tensors, tmp_path / "halves", **how)
    assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-5)
