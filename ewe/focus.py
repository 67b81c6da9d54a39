"""What a trained model makes of one text: the paper's Figure 5, its claim measured, and each letter's part in a label.

Three questions, each answered on the model itself:

- which words each head attends to, in every layer
- whether head n sees the n-th letters: the share of its gradient that falls on each letter, against chance 1/v
- what each letter does for a label's logit, by integrated gradients (Sundararajan and others, 2017)
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu

from ewe import models, page, progress, published, store
from ewe.bert import BertConfig, EweBert
from ewe.elements import SHIFT, encode
from ewe.errors import DataError, UsageError
from ewe.run import Run, load

PROBES = 4  # random signs a head; its shares are then exact to a few per cent of themselves
POINTS = (32, 64, 128, 256, 512)  # of the path's quadrature, until it closes
TOLERANCE = 0.001  # logits, or of what the letters add without their signs: closed enough
BATCH = 16  # points at once
TOP = 8  # words and labels that the page lists


@dataclass(frozen=True)
class Focus:
    """A model's view of one text of n materials, [CLS] and [SEP] counted."""

    materials: list[bytes]
    """what was read of each word, as bytes; [CLS] and [SEP] are empty"""
    cut: bool
    """whether the text goes on where the model stops reading"""
    attention: Tensor
    """(layers, h, n, n): what each material gives each other, head by head; the last axis sums to 1"""
    alignment: Tensor
    """(layers, h, v): share of each head's gradient on each letter; the last axis sums to 1"""
    logits: Tensor
    """(L,)"""
    label: int
    """which logit the letters are held responsible for"""
    attribution: Tensor
    """(n, v): what each letter adds to that logit"""
    rise: float
    """that logit, less the one of the same text in average letters; the attribution's sum, if it is right"""


# -- measures ---------------------------------------------------------------------------------------------------------


def forward(model: Any, e: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The model's own forward pass, nothing of it hidden, on embedded materials (B, n, w) without padding.

    Args:
        model: an EweBert, in evaluation mode.
        e: what its embedding makes of ids.

    Returns:
        Of each layer the attention (B, h, n, n) and the heads' outputs (B, h, n, w/h); the logits (B, L).
    """
    attentions, outputs = [], []
    x = model.norm(e)
    for layer in model.encoder.layers:
        heads = layer.attention.heads
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in layer.attention.qkv(x).chunk(3, -1))
        attention = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        y = attention @ v
        x = layer.norm1(x + layer.attention.out(y.transpose(1, 2).flatten(-2)))
        x = layer.norm2(x + layer.down(gelu(layer.up(x))))
        attentions.append(attention)
        outputs.append(y)
    return attentions, outputs, model.head(torch.tanh(model.pooler(x[:, 0])))


def align(model: Any, e: Tensor) -> Tensor:
    """Share of each head's gradient that falls on each letter: (layers, h, v), the last axis sums to 1.

    Of head n in a layer it is the squared Frobenius norm of the Jacobian of its outputs by the j-th letters' vectors,
    over all materials, divided by its sum over j. Chance is 1/v; were head n to see nothing but the n-th letters,
    it would be 1 at j = n. The norm is estimated by random signs (Hutchinson), always the same ones.

    Args:
        model: an EweBert, in evaluation mode.
        e: embedded materials (1, n, w) without padding.
    """
    config: BertConfig = model.config
    signs = torch.Generator().manual_seed(0)
    x = e.detach().expand(config.heads, -1, -1).clone().requires_grad_()  # copy n of the text is head n's own
    _, outputs, _ = forward(model, x)
    energy = torch.zeros(config.layers, config.heads, config.v, device=e.device)
    with progress.bar("alignment", PROBES * config.layers, "layers") as advance:
        for _ in range(PROBES):
            for i, y in enumerate(outputs):
                own = y.diagonal(dim1=0, dim2=1)
                probe = torch.randint(0, 2, own.shape, generator=signs).mul(2).sub(1).to(own)
                (gradient,) = torch.autograd.grad(own, x, probe, retain_graph=True)
                energy[i] += gradient.view(config.heads, -1, config.v, config.c).square().sum((1, 3))
                advance()
    return energy / energy.sum(-1, keepdim=True)


def attribute(model: Any, ids: Tensor, label: int) -> tuple[Tensor, float]:
    """What each letter adds to a label's logit, by integrated gradients.

    [decided] The path starts at the same text with every letter replaced by the average of its letters' vectors, [CLS]
    and [SEP] kept. From zero vectors, LayerNorm would make a model without focus embeddings jump at once.

    Args:
        model: an EweBert, in evaluation mode.
        ids: (1, n, v) without padding.
        label: index of the logit.

    Returns:
        (n, v), zero where there is no letter, and what it must sum to: the logit less the one at the path's start.
    """
    with torch.no_grad():
        e, blank = model.embedding(ids), model.embedding(torch.zeros_like(ids))
        letters = ids >= SHIFT
        vectors = (e - blank).view(*ids.shape, -1)
        average = torch.where(letters[..., None], vectors[letters].mean(0), vectors)
        start = blank + average.view_as(e)
        way = e - start
        end, begin = forward(model, torch.cat([e, start]))[2][:, label].tolist()
    for points in POINTS:
        places, weights = (torch.from_numpy(each).to(e) / 2 for each in np.polynomial.legendre.leggauss(points))
        total = torch.zeros_like(e)
        for i in range(0, points, BATCH):
            x = (start + (0.5 + places[i : i + BATCH, None, None]) * way).requires_grad_()
            (gradient,) = torch.autograd.grad(forward(model, x)[2][:, label], x, weights[i : i + BATCH])
            total += gradient.sum(0)
        parts = (total * way).view_as(vectors).sum(-1)[0]
        if abs(parts.sum().item() - (end - begin)) <= TOLERANCE * max(1, parts.abs().sum().item()):
            break
    else:
        progress.warn(f"The letters' parts do not add up to the logit even at {POINTS[-1]} points; read them as rough.")
    return parts, end - begin


def look(run: Run, text: str, label: str | None = None) -> Focus:
    """Measure all of it.

    Args:
        run: as `ewe.run.load` opens it, in fp32.
        text: the first claims of a patent joined by a space, as training's were.
        label: a name of the run's labels; None for the most probable.

    Raises:
        UsageError: the run is not BERT over letters with a head a letter, has no such label, or the text has no word.
    """
    if not isinstance(run.model, EweBert):
        able = ", ".join(name for name, each in models.MODELS.items() if each.home == "ewe.bert:EweBert")
        raise UsageError(f"{run.folder} is a run of {run.config['model']}; choose one of {able}.")
    model: Any = run.model
    config: BertConfig = model.config
    if config.heads != config.v:
        raise UsageError(f"{run.folder} has {config.heads} heads for {config.v} letters; train one without --heads.")
    if label is not None and label not in run.names:
        close = difflib.get_close_matches(label, run.names, 3) or run.names[:3]
        raise UsageError(f"{run.folder} has no label {label}; it has labels such as {', '.join(close)}.")
    ids = torch.from_numpy(run.encode([text])).to(run.compute.device)
    n = int((ids[0, :, 0] != 0).sum())
    ids = ids[:, :n]
    if not (ids >= SHIFT).any():
        raise UsageError("The text has no word to look at; give it some.")
    longer = encode([text], config.u + 1, config.v, run.input["tokenizer"])
    with torch.no_grad():
        e = model.embedding(ids)
        attentions, _, logits = forward(model, e)
    index = run.names.index(label) if label is not None else int(logits[0].argmax())
    attribution, rise = attribute(model, ids, index)
    return Focus(
        materials=[bytes((each[each >= SHIFT] - SHIFT).tolist()) for each in ids[0].cpu()],
        cut=bool((longer[0, :, 0] != 0).sum() > config.u),
        attention=torch.cat(attentions).cpu(),
        alignment=align(model, e).cpu(),
        logits=logits[0].cpu(),
        label=index,
        attribution=attribution.cpu(),
        rise=rise,
    )


# -- the page ---------------------------------------------------------------------------------------------------------


def glyphs(material: bytes) -> list[str]:
    """What stands for each byte: its letter at the letter's first byte, nothing at the others; `�` where it was cut."""
    shown = [""] * len(material)
    i = 0
    while i < len(material):
        size = 1 + sum(material[i] >= lead for lead in (0xC0, 0xE0, 0xF0))
        letter = material[i : i + size].decode(errors="replace")[0]
        shown[i] = "␣" if letter == " " else letter if letter.isprintable() else "�"
        i += size
    return shown


def draw(focus: Focus, run: Run) -> str:
    """The text of the page; the same focus makes the same bytes."""
    layers, _, v = focus.alignment.shape
    n = len(focus.materials)
    shown = focus.logits.argsort(descending=True, stable=True)[:TOP].tolist()
    shown += [focus.label] if focus.label not in shown else []
    own = focus.alignment.diagonal(dim1=1, dim2=2)
    # what [CLS] gives, and what all give on average: (layers, 2, n, h)
    views = torch.stack([focus.attention[:, :, 0], focus.attention.mean(2)], 1).mT
    shares = torch.cat([focus.alignment.mean(0, keepdim=True), focus.alignment])
    rows = -(-n // min(3, -(-n // 18)))  # of long texts three blocks, side by side where there is room
    letters = _letters(focus)
    facts = {
        "run": run.folder,
        "model": run.config["model"],
        "made_up": run.config["made_up"],
        "caveat": published.ATTENTION,
        "bytewise": run.input["tokenizer"] == "bytes",
        "grams": run.model.embedding.s is not None,
        "cut": focus.cut,
        "read": sum(map(bool, focus.materials)),
        "layers": layers,
        "v": v,
        "n": n,
        "label": run.names[focus.label],
        "logit": focus.logits[focus.label].item(),
        "rise": focus.rise,
        "total": focus.attribution.sum().item(),
        "peak": max(abs(part) for word in letters for _, part in word) or 1,
        "probability": focus.logits[focus.label].sigmoid().item(),
        "labels": [(run.names[i], focus.logits[i].sigmoid().item()) for i in shown],
        "alignment": own.mean().item(),
        "strongest": int((focus.alignment.argmax(2) == torch.arange(v)).sum()),
        "probes": PROBES,
        "blocks": [range(start, min(start + rows, n)) for start in range(0, n, rows)],
        "glyphs": [glyphs(each) for each in focus.materials],
        "letters": letters,
        "words": _words(focus),
        "data": {
            "n": n,
            "v": v,
            "words": [_shown(each) for each in focus.materials],
            "attention": _whole(views.flatten(2)),
            "alignment": _whole(shares.flatten(1)),
        },
    }
    return page.render("focus.html.jinja", {"percent": percent, "signed": signed, "sha256": _sha256}, facts)


def _whole(shares: Tensor) -> Any:
    """In hundred-thousandths: short in the page's data, and exact enough to read."""
    return (shares * 100_000).round().int().tolist()


def _shown(material: bytes) -> str:
    return "".join(glyphs(material))


def _letters(focus: Focus) -> list[list[tuple[str, float]]]:
    """Each material's letters with their parts of the logit; a letter of several bytes has the sum of theirs."""
    found = []
    for material, parts in zip(focus.materials, focus.attribution.tolist(), strict=True):
        letters: list[tuple[str, float]] = []
        for glyph, part in zip(glyphs(material), parts, strict=False):
            if glyph:
                letters.append((glyph, part))
            else:
                letters[-1] = letters[-1][0], letters[-1][1] + part
        found.append(letters)
    return found


def _words(focus: Focus) -> list[tuple[str, int, float]]:
    """The words that move the logit most: (word, how often it occurs, what it adds in all)."""
    found: dict[bytes, tuple[int, float]] = {}
    for material, part in zip(focus.materials, focus.attribution.sum(1).tolist(), strict=True):
        if material:
            count, total = found.get(material, (0, 0.0))
            found[material] = count + 1, total + part
    ranked = sorted(found.items(), key=lambda each: -abs(each[1][1]))[:TOP]
    return [(_shown(material), count, total) for material, (count, total) in ranked]


def percent(share: float) -> str:
    """A share in three digits: 6.25%, 97.1%, 100%."""
    return f"{100 * share:.3g}%"


def signed(value: float) -> str:
    """A number with its sign: +1.25, −0.40, +0.0031."""
    return f"{value:+.{2 if abs(value) >= 0.1 else 4}f}".replace("-", "−")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def read_text(text: str) -> str:
    """The text itself; `-`: standard input; a file's name, or what ends in .txt: that file."""
    if text == "-":
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace")  # type: ignore[union-attr]
        return sys.stdin.read()
    named = len(text.encode(errors="replace")) < 256 and Path(text).is_file()  # longer names are none
    if not named and not text.lower().endswith(".txt"):
        return text
    if not named:
        raise DataError(f"{text} does not exist; name a text file, give the text itself, or - for standard input.")
    return Path(text).read_text(encoding="utf-8-sig", errors="replace")


def focus_text(run: Path, text: str, out: Path, label: str | None = None, device: str = "auto") -> dict[str, Any]:
    """Show what a run makes of one text, as one page that needs nothing else.

    Args:
        run: folder that train made, of BERT over letters.
        text: the text itself, a file that holds it, or `-` for standard input.
        out: an .html file.
        label: what the letters are held responsible for; None for the most probable label.
        device: auto, cpu or cuda; in fp32 on each.

    Returns:
        A summary: label, its probability, the share of a head's gradient on its own letter (mean, and of each head
        over all layers), and chance.

    Raises:
        UsageError: see `look`; or `out` has another ending.
        DataError: the run or the text file does not stand.
    """
    if out.suffix != ".html":
        raise UsageError(f"--out {out} must end in .html.")
    opened = load(run, device, "fp32")
    focus = look(opened, read_text(text), label)
    store.publish_text(out, draw(focus, opened))
    own = focus.alignment.diagonal(dim1=1, dim2=2)
    return {
        "out": str(out),
        "label": opened.names[focus.label],
        "probability": focus.logits[focus.label].sigmoid().item(),
        "words": sum(map(bool, focus.materials)),
        "alignment": own.mean().item(),
        "chance": 1 / focus.alignment.shape[-1],
        "alignment_by_head": {str(i): share for i, share in enumerate(own.mean(0).tolist(), 1)},
        "made_up": opened.config["made_up"],
    }
