"""Inference: `ewe predict` of tensors/, beside Hugging Face's pipeline from text and its compiled model fed tensors.

    python benchmarks/bench_predict.py [--device cpu|cuda] [--rows 145000] [--texts 20000] [--piped 2000] [--rounds 3]
        [--layers 12] [--width 768] [--compiled]

One architecture for all (u=128, v=16, L=1,328; bf16 on a card, fp32 on a CPU), random weights, some three labels a row.
    ours              predict_file as `ewe predict` runs it: from the files of tensors/ to labels by name in a .jsonl
    ours, compiled    the same, BERT compiled however few the texts are; on a card alone
    ours, from text   the same from a .jsonl of texts of true length (median 736 words)
    pipeline          transformers.pipeline from those texts, cut to 128 WordPiece tokens, over BERT with a token table;
                      five labels a text; in bf16 altogether on a card
    compiled          the library's BERT over nn.Embedding, compiled, fed from the memory map through pinned memory, its
                      five best labels left on the device until all is done: with autocast, as ours has it; and in bf16
                      altogether, whose arithmetic is coarser; on a CPU, where it takes long, with --compiled alone
    eager             the same, nothing compiled
Warm-up, loading and compiling are not timed; cases go in turn and the best round counts. Rates are texts a second on a
card and texts a CPU second on a CPU. `share of the limit` is arithmetic alone over 790 TFLOP/s, measured on one H200.
Prints one JSON document and writes it to benchmarks/results/predict-DEVICE.json. Needs no polars.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_train import PEAK, L, Peer, flops, made_up, u, v
from result import keep
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

from ewe import bert, fast, predict, progress
from ewe import run as trained
from ewe.compute import Compute
from ewe.config import TrainConfig
from ewe.store import Store, sha256_json

NAMES = [f"{rank}-{n:04}" for rank in ("First", "Later") for n in range(L // 2)]
DEFAULTS = {
    "cuda": {"layers": 12, "width": 768, "rows": 145_000, "texts": 20_000, "piped": 2_000, "rounds": 3},
    "cpu": {"layers": 2, "width": 256, "rows": 1_024, "texts": 640, "piped": 128, "rounds": 2},
}
WARM_UP = 2  # batches that are not timed


# -- made-up runs, tensors and texts -----------------------------------------------------------------------------------


def write_run(folder: Path, layers: int, w: int) -> Path:
    """A run of random weights whose head lets three labels through."""
    torch.manual_seed(0)
    config = bert.BertConfig(u, v, w // v, layers, v, 4 * w, L)
    model = bert.EweBert(config)
    with torch.no_grad():
        model.head.bias.fill_(-6)
        model.head.bias[torch.randperm(L)[:3]] = 1
    with Store(folder, "run", {}) as out:
        read = {"tokenizer": "whitespace", "u": u, "v": v, "max_claims": 20}
        facts = {"model": "bert-ewe", "shape": asdict(config), "input": read, "training": asdict(TrainConfig())}
        out.write_json("config.json", {**facts, "made_up": True})
        out.write_json("labels.json", {"names": NAMES, "sha256": sha256_json(NAMES)})
        with out.write("model.safetensors") as path:
            save_file(model.state_dict(), path)
        out.finish(summary={})
    return folder


def write_tensors(folder: Path, rows: int) -> Path:
    """tensors/ of random letters."""
    split = made_up(rows)
    arrays = {"bytes": split.ids, "labels.indptr": split.indptr, "labels.indices": split.indices, "ids": split.numbers}
    with Store(folder, "tensors", {}) as out:
        for name, array in arrays.items():
            with out.write(f"test.{name}.npy") as path, path.open("wb") as file:
                np.save(file, array)
        meta = {"u": u, "v": v, "tokenizer": "whitespace", "vocabulary": 256, "max_claims": 20, "made_up": True}
        labels = {"label_names": NAMES, "labels_sha256": sha256_json(NAMES)}
        out.write_json("meta.json", {**meta, **labels, "splits": {"test": {"rows": rows}}})
        out.finish()
    return folder


def write_texts(count: int) -> tuple[list[str], list[str]]:
    """Texts of Zipf's frequencies and true length, and their words."""
    random = np.random.default_rng(0)
    lengths = np.maximum(1, random.lognormal(1.7, 0.4, 20_000)).astype(int)
    letters = random.choice(list("etaoinshrdlcumwfgypbvk"), lengths.sum())
    words = ["".join(each) for each in np.split(letters, np.cumsum(lengths)[:-1])]
    chances = 1 / (np.arange(len(words)) + 2.7)
    sizes = np.clip(random.lognormal(np.log(736), 0.53, count), 20, 6000).astype(int)
    drawn = random.choice(len(words), sizes.sum(), p=chances / chances.sum())
    return [" ".join(words[i] for i in each) for each in np.split(drawn, np.cumsum(sizes)[:-1])], words


def wordpiece(words: list[str]) -> PreTrainedTokenizerFast:
    """BERT's tokenizer over these words and all letters."""
    letters = sorted(set("".join(words)))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{each}" for each in letters), *words]
    vocabulary = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=u, **special)


# -- the cases: each gives texts a second of steady state --------------------------------------------------------------


def clock(device: torch.device) -> float:
    """Seconds on the wall beside a card; CPU seconds without one."""
    return time.perf_counter() if device.type == "cuda" else time.process_time()


def ours(run: Path, source: Path, compute: Compute, many: int | float) -> float:
    """predict_file, whose own bar tells when each batch's labels have been written."""
    at: list[tuple[int, float]] = []

    @contextmanager
    def bar(*_: Any, **__: Any) -> Iterator[Callable[[int], None]]:
        yield lambda rows: at.append((rows, clock(compute.device)))

    before = progress.bar, trained.MANY
    progress.bar, trained.MANY = bar, many
    try:
        with tempfile.TemporaryDirectory() as folder:
            predict.predict_file(run, source, Path(folder) / "out.jsonl", device=compute.device.type)
    finally:
        progress.bar, trained.MANY = before
    begun, timed = at[WARM_UP - 1][1], at[WARM_UP:-1]  # the last is computed before the one before it is written
    return sum(rows for rows, _ in timed) / (timed[-1][1] - begun)


def piped(pipe: Any, texts: list[str], batch: int, device: torch.device) -> float:
    """The pipeline."""
    options = {"batch_size": batch, "top_k": 5, "function_to_apply": "sigmoid", "truncation": True, "max_length": u}
    pipe(texts[:batch], **options)
    begun = clock(device)
    pipe(texts, **options)
    return len(texts) / (clock(device) - begun)


@torch.inference_mode()
def fed(model: Any, ids: np.ndarray, batch: int, compute: Compute, *, autocast: bool) -> float:
    """The library's model, from the memory map; every batch whole."""
    found: list[Tensor] = []
    rows = len(ids) // batch * batch
    card = compute.device.type == "cuda"

    def read(start: int) -> None:
        x = torch.from_numpy(ids[start : start + batch].copy())
        x = x.pin_memory().to(compute.device, non_blocking=True) if card else x
        with torch.autocast(compute.device.type, torch.bfloat16, enabled=autocast):
            found.append(model(x).logits.float().sigmoid().topk(5).indices)

    for _ in range(WARM_UP):
        read(0)
    torch.cat(found).cpu()
    found.clear()
    begun = clock(compute.device)
    for start in range(0, rows, batch):
        read(start)
    torch.cat(found).cpu()
    return rows / (clock(compute.device) - begun)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--compiled", action="store_true", help="on a CPU too, where compiling takes long")
    for name in DEFAULTS["cpu"]:
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    compute = Compute.choose(options.device)
    card = compute.device.type == "cuda"
    defaults = DEFAULTS[compute.device.type]
    sizes = defaults | {name: getattr(options, name) for name in defaults if getattr(options, name) is not None}
    layers, w, batch = sizes["layers"], sizes["width"], trained.ON_CARD if card else trained.BATCH_SIZE
    progress.set_quiet(True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = write_run(folder / "run", layers, w)
        tensors = write_tensors(folder / "tensors", sizes["rows"])
        texts, words = write_texts(sizes["texts"])
        lines = folder / "texts.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        ids = np.load(tensors / "test.bytes.npy", mmap_mode="r")

        torch.manual_seed(0)
        tokenizer = wordpiece(words)
        config = BertConfig(
            vocab_size=30_522,
            hidden_size=w,
            num_hidden_layers=layers,
            num_attention_heads=w // 64,
            intermediate_size=4 * w,
            num_labels=L,
        )
        whole = torch.bfloat16 if card else torch.float32
        orig = BertForSequenceClassification(config).to(compute.device, whole).eval()
        pipe = pipeline("text-classification", model=orig, tokenizer=tokenizer, device=compute.device)
        peer = Peer(layers, w).to(compute.device).eval()
        works: dict[str, Callable[[], float]] = {
            "ours": lambda: ours(run, tensors, compute, trained.MANY),
            "ours, from text": lambda: ours(run, lines, compute, trained.MANY),
            "pipeline from text": lambda: piped(pipe, texts[: sizes["piped"]], batch, compute.device),
            "eager": lambda: fed(peer, ids, batch, compute, autocast=card),
        }
        if card:
            works["ours, compiled"] = lambda: ours(run, tensors, compute, 0)
            coarse = torch.compile(Peer(layers, w).to(compute.device, whole).eval(), dynamic=False)
            works["compiled, bf16 altogether"] = lambda: fed(coarse, ids, batch, compute, autocast=False)
        if card or options.compiled:
            same = torch.compile(peer, dynamic=False)
            works["compiled"] = lambda: fed(same, ids, batch, compute, autocast=card)
        rates: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(sizes["rounds"]):
            for name, work in works.items():
                rates[name].append(work())
                print(f"{name}: {rates[name][-1]:,.1f} texts/s", file=sys.stderr, flush=True)
        calls = {"eager": float("inf"), **({"compiled": 0.0} if card else {})}
        for name, many in calls.items():
            torch.compiler.reset()
            begun = time.perf_counter()
            ours(run, tensors, compute, many)
            calls[name] = round(time.perf_counter() - begun, 1)
    best = {name: max(each) for name, each in rates.items()}
    mine = best["ours"]
    limit = PEAK / flops(layers, w)
    result = {
        "compute": str(compute),
        "compiled": card and fast.compiles(compute.device),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
        "sizes": {**sizes, "batch": batch, "u": u, "v": v, "labels": L},
        "texts a second" if card else "texts a CPU second": {name: round(rate, 1) for name, rate in best.items()},
        "all rounds": {name: [round(rate, 1) for rate in each] for name, each in rates.items()},
        "speed over": {name: round(mine / rate, 2) for name, rate in best.items() if not name.startswith("ours")},
        "seconds of a whole call, loading and compiling (its files cached) included": calls,
    }
    if card:
        result["share of the limit"] = {name: round(rate / limit, 3) for name, rate in best.items()}
    keep(f"predict-{compute.device.type}", result, "torch", "transformers", "tokenizers", "numpy", "numba")


if __name__ == "__main__":
    main()
