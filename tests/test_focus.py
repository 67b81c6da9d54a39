"""The page of one text: its figures against slow readings of the model, and the file as a browser sees it."""

import base64
import hashlib
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import chromium
from tiny_tensors import NAMES, write_tensors
from torch import nn
from torch.autograd.functional import jacobian
from typer.testing import CliRunner

from ewe import focus, published
from ewe.bert import BertConfig, EweBert
from ewe.elements import SHIFT, encode
from ewe.errors import DataError, UsageError
from ewe.focus import align, attribute, focus_text, forward, glyphs, look
from ewe.run import Run, load
from ewe.train import train_model

TEXT = "A naïve plough, <b>with</b> a &amp; blade"
KINDS = {
    "focus": {},
    "no focus": {"focus": False},
    "gradient": {"focus": False, "gradient": True},
    "both": {"gradient": True},
}


def tiny(kind: str = "focus", **sizes: Any) -> EweBert:
    torch.manual_seed(3)
    shape = {"u": 16, "v": 4, "c": 8, "layers": 2, "heads": 4, "ffn": 64, "labels": 5, "init_std": 0.2, "dropout": 0.5}
    return EweBert(BertConfig(**{**shape, **KINDS[kind], **sizes})).eval().requires_grad_(requires_grad=False)


def ids_of(text: str, v: int = 4, *, padded: bool = False) -> torch.Tensor:
    ids = torch.from_numpy(encode([text], 16, v))
    return ids if padded else ids[:, : int((ids[0, :, 0] != 0).sum())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("focus")
    tensors = write_tensors(home / "tensors", {"train": 64}, u=16, made_up=True)
    train_model(tensors, home / "run", preset="tiny", width=32, epochs=1, min_steps=0, device="cpu")
    return home / "run"


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load(folder, "cpu", "fp32")


# -- measures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_pass_that_shows_itself_is_the_models_own(kind: str) -> None:
    model, ids = tiny(kind), ids_of(TEXT)
    attentions, _, logits = forward(model, model.embedding(ids))

    torch.testing.assert_close(logits, model(ids))
    torch.testing.assert_close(logits, model(ids_of(TEXT, padded=True)))
    assert [each.shape for each in attentions] == [(1, 4, ids.shape[1], ids.shape[1])] * 2


def test_attention_is_each_heads_softmax() -> None:
    """The first layer's, one head, query and key at a time."""
    model, ids = tiny(), ids_of(TEXT)
    e = model.embedding(ids)
    ((found, *_), _, _), x = forward(model, e), model.norm(e)[0]
    linear = model.encoder.layers[0].attention.qkv
    for head in range(4):
        q, k = (
            x @ linear.weight[start : start + 8].T + linear.bias[start : start + 8]
            for start in (8 * head, 32 + 8 * head)
        )
        for i in range(len(x)):
            scores = [math.exp(float(q[i] @ k[j]) / math.sqrt(8)) for j in range(len(x))]
            expected = torch.tensor([score / sum(scores) for score in scores])
            torch.testing.assert_close(found[0, head, i].detach(), expected, rtol=1e-4, atol=1e-6)


def test_alignment_is_the_jacobians(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny(), ids_of("abc d")
    e = model.embedding(ids).detach()
    monkeypatch.setattr(focus, "PROBES", 400)

    found = align(model, e)
    for layer in range(2):
        J = jacobian(lambda x, layer=layer: forward(model, x)[1][layer][0], e)  # (h, n, 8, 1, n, w)
        energy = J.unflatten(-1, (4, 8)).square().sum((1, 2, 3, 4, 6))
        torch.testing.assert_close(found[layer], energy / energy.sum(1, keepdim=True), rtol=0.05, atol=0.003)


def test_alignment_of_heads_that_see_their_own_letters_alone_is_whole() -> None:
    """The paper's reading made true: block-diagonal projections, and no normalisation before them."""
    model, ids = tiny(), ids_of(TEXT)
    model.norm = nn.Identity()
    with torch.no_grad():
        for weight in model.encoder.layers[0].attention.qkv.weight.chunk(3):
            weight *= torch.block_diag(*[torch.ones(8, 8)] * 4)

    found = align(model, model.embedding(ids))
    torch.testing.assert_close(found[0], torch.eye(4))
    assert found[1].diagonal().max() < 0.7  # the layer above mixes them again


def test_alignment_of_dense_projections_is_chance() -> None:
    found = align(model := tiny(v=8, heads=8, layers=3), model.embedding(ids_of(TEXT, 8)))

    torch.testing.assert_close(found.sum(-1), torch.ones(3, 8))
    assert found.diagonal(dim1=1, dim2=2).mean().item() == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_letters_parts_add_up_to_the_logit(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, ids = tiny(kind), ids_of(TEXT)
    parts, rise = attribute(model, ids, 2)

    assert parts.shape == ids.shape[1:]
    assert parts.sum().item() == pytest.approx(rise, abs=focus.TOLERANCE * max(1, parts.abs().sum().item()))
    assert parts.abs().sum() > 0.02
    assert capsys.readouterr().err == ""
    if "gradient" not in KINDS[kind]:  # there [CLS] stands for the letters behind it, too
        assert (parts[ids[0] < SHIFT] == 0).all()


def test_letters_parts_are_the_integral_of_the_gradient() -> None:
    """A thousand midpoints, one at a time, from a start that a loop over the letters makes."""
    model, ids = tiny(), ids_of("abc de")
    with torch.no_grad():
        table, e = model.embedding.elements, model.embedding(ids)
        read = [table[i] for i in ids.flatten().tolist() if i >= SHIFT]
        start = e.clone()
        for i, material in enumerate(ids[0].tolist()):
            for j, letter in enumerate(material):
                if letter >= SHIFT:
                    start[0, i, 8 * j : 8 * j + 8] += sum(read) / len(read) - table[letter]
    total = torch.zeros_like(e)
    for step in range(1000):
        x = (start + (step + 0.5) / 1000 * (e - start)).requires_grad_()
        total += torch.autograd.grad(forward(model, x)[2][0, 1], x)[0] / 1000
    expected = (total * (e - start)).unflatten(-1, (4, 8)).sum(-1)[0]

    found, rise = attribute(model, ids, 1)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)
    at_start = forward(model, start)[2][0, 1].item()
    assert rise == pytest.approx(model(ids)[0, 1].item() - at_start, abs=1e-5)


def test_one_letter_alone_has_no_part(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = look(run, "aa a")

    assert found.attribution.abs().max() < 1e-5
    assert "<html" in focus.draw(found, run)
    assert capsys.readouterr().err == ""


def test_look_tells_what_the_run_reads(run: Run) -> None:
    found = look(run, TEXT, "Later-G06Q")

    assert found.materials == [b"", b"A", "naïv".encode()[:4], b"plou", b"<b>w", b"a", b"&amp", b"blad", b""]
    assert found.label == NAMES.index("Later-G06Q")
    torch.testing.assert_close(found.logits, run.logits(run.encode([TEXT]))[0])
    torch.testing.assert_close(found.attention.sum(-1), torch.ones(found.attention.shape[:-1]))
    assert not found.cut
    assert not look(run, "x " * 14).cut
    assert look(run, "x " * 15).cut
    assert look(run, TEXT).label == int(found.logits.argmax())


@pytest.mark.parametrize(
    ("material", "shown"),
    [
        (b"word", ["w", "o", "r", "d"]),
        ("né€".encode(), ["n", "é", "", "€", "", ""]),
        ("𝛼".encode(), ["𝛼", "", "", ""]),
        ("ab€".encode()[:4], ["a", "b", "�", ""]),  # cut inside of a letter
        ("€a".encode()[1:], ["�", "�", "a"]),  # the tokenizer bytes goes on in the next piece
        (b"a b\x01", ["a", "␣", "b", "�"]),
        (b"", []),
    ],
)
def test_each_byte_has_what_stands_for_it(material: bytes, shown: list[str]) -> None:
    assert glyphs(material) == shown


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_runs_its_own_script_alone(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "focus.html"
    summary = focus_text(folder, TEXT, out, "Later-G06Q", "cpu")
    page = out.read_text(encoding="utf-8")
    first = page.encode()
    focus_text(folder, TEXT, out, "Later-G06Q", "cpu")

    assert out.read_bytes() == first
    assert len(first) < 200_000
    *_, script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:" in page
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]
    assert not re.search(r"url\(|@import|https?:", page)
    assert "<b>w" not in page.replace("<b></b>", "")  # the text's own markup stays text
    assert published.ATTENTION in page.replace("&#39;", "'")
    assert "made-up patents" in page
    assert summary["made_up"]
    assert list(summary) == [
        "out", "label", "probability", "words", "alignment", "chance", "alignment_by_head", "made_up",
    ]  # fmt: skip


def test_the_page_shows_what_was_measured(folder: Path, run: Run, tmp_path: Path) -> None:
    summary = focus_text(folder, TEXT, tmp_path / "focus.html", device="cpu")
    page = (tmp_path / "focus.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    found = look(run, TEXT)

    assert (data["n"], data["v"]) == (9, 4)
    for layer in range(2):
        for k in range(9):
            for head in range(4):
                cls, every = (data["attention"][layer][view][4 * k + head] / 1e5 for view in (0, 1))
                assert cls == pytest.approx(found.attention[layer, head, 0, k].item(), abs=1e-5)
                assert every == pytest.approx(found.attention[layer, head, :, k].mean().item(), abs=1e-5)
    assert torch.tensor(data["alignment"][2]) / 1e5 == pytest.approx(found.alignment[1].flatten(), abs=1e-5)
    assert torch.tensor(data["alignment"][0]) / 1e5 == pytest.approx(found.alignment.mean(0).flatten(), abs=1e-5)
    assert summary["label"] == run.names[int(found.logits.argmax())]
    assert summary["probability"] == pytest.approx(found.logits.max().sigmoid().item())
    own = [found.alignment[:, head, head].mean().item() for head in range(4)]
    assert list(summary["alignment_by_head"].values()) == pytest.approx(own)
    assert summary["alignment"] == pytest.approx(sum(own) / 4)
    assert summary["chance"] == 0.25
    for shown in (focus.percent(summary["probability"]), focus.percent(summary["alignment"]), "25%"):
        assert shown in page


def test_text_may_be_a_file_or_standard_input(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "claims.txt", tmp_path / "focus.html"
    file.write_text(TEXT + "\n", encoding="utf-8")
    focus_text(folder, TEXT, out, device="cpu")
    expected = out.read_bytes()
    focus_text(folder, str(file), out, device="cpu")
    assert out.read_bytes() == expected
    file.rename(tmp_path / "claims.md")  # any file that is there, rather than a text of its name
    focus_text(folder, str(tmp_path / "claims.md"), out, device="cpu")
    assert out.read_bytes() == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    focus_text(folder, "-", out, device="cpu")
    assert out.read_bytes() == expected


def test_what_cannot_be_shown_is_one_sentence(folder: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "focus.html"
    for error, told, choices in (
        (UsageError, "must end in .html", {"out": tmp_path / "focus.pdf"}),
        (UsageError, "no label First-G06X; it has labels such as First-G06Q", {"label": "First-G06X"}),
        (UsageError, "no word", {"text": " \n"}),
        (DataError, "missing.txt does not exist", {"text": str(tmp_path / "missing.txt")}),
    ):
        with pytest.raises(error, match=re.escape(told)):
            focus_text(**{"run": folder, "text": TEXT, "out": out, "device": "cpu", **choices})
    assert not out.exists()

    other = load(folder, "cpu", "fp32")
    other.model = nn.Linear(1, 1)
    with pytest.raises(UsageError, match="choose one of bert-ewe"):
        look(other, TEXT)
    other.model = tiny(heads=2)
    with pytest.raises(UsageError, match="2 heads for 4 letters"):
        look(other, TEXT)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    from ewe.cli import ewe

    out = tmp_path / "focus.html"
    done = CliRunner().invoke(ewe, ["focus", str(folder), TEXT, "--out", str(out), "--device", "cpu", "--json"])

    assert done.exit_code == 0
    assert json.loads(done.stdout)["chance"] == 0.25
    assert out.is_file()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_chromium_shows_it_and_its_controls_work(folder: Path, tmp_path: Path, width: int, dark: bool) -> None:
    out = tmp_path / "focus.html"
    focus_text(folder, TEXT + " of many words" * 4, out, device="cpu")
    choose = "{0}.value = '{1}'; {0}.dispatchEvent(new Event('change')); 1"
    layer, head = (f"document.getElementById('{name}')" for name in ("layer", "head"))
    shades = "[...document.querySelectorAll('.read i')].map(each => each.style.getPropertyValue('--a')).join()"
    with chromium(tmp_path / "profile") as page:
        page.open(out, width=width, dark=dark)

        wide = page.value("document.documentElement.scrollWidth")
        background = page.value("getComputedStyle(document.body).backgroundColor")
        last = page.value(shades)
        page.value(choose.format(layer, 0))
        first = page.value(shades)
        page.value(choose.format(head, 2))
        faded = page.value("document.querySelectorAll('.read .off').length")
        page.value("document.querySelectorAll('.read i')[4].click(); 1")
        told = page.value("document.getElementById('told').textContent")
        asked = [event["request"]["url"] for event in page.heard("Network.requestWillBeSent")]
        said = [
            *page.heard("Log.entryAdded"),
            *page.heard("Runtime.consoleAPICalled"),
            *page.heard("Runtime.exceptionThrown"),
        ]

    assert [url for url in asked if not url.startswith("data:")] == [out.as_uri()]
    assert said == []
    assert wide <= width
    assert (background == "rgb(255, 255, 255)") is not dark
    assert first != last
    assert faded == 3 * 16
    assert re.fullmatch(r"Head 1 gives “A” \d+\.\d+% of its attention; letter 1 is A\.", told)
