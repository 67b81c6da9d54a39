"""The preset `fast`: which recipe reaches the F1 of the paper's soonest, on held-out training rows alone.

    python benchmarks/bench_recipe.py [--rows 20000] [--layers 12] [--width 128] [--words 32] [--device cpu|cuda]
        [--tensors TENSORS] [--times 1] [--only NAME ...]

Recipes that differ from the paper's (batch 32, 2e-5 falling to 0 at once, no warm-up, 10 epochs) in a few fields are
trained on the same rows, a twentieth of them held out (a fifth of fewer than 2,000), and say how they do at the ends
of epochs, 20 times at most. The target is the last micro-F1 (threshold 0.3) of the first recipe; `examples to it` is
how many examples a recipe has seen when it is first there, and `speed` the first recipe's own count over that. Where
rows are few, --times makes every recipe's epochs so many times more.

A model of width w stands for the paper's of 768 as follows: learning rates are multiples of the paper's 2e-5 times
768/w, and weights start at its 0.02 times sqrt(768/w); so a rate that is best here is carried over as its multiple.

Prints one JSON document and writes it to benchmarks/results/recipe-sample-LAYERS.json, or, of --tensors, to
recipe-FOLDER-LAYERS.json. Without arguments it runs a few recipes on few rows, to show that it works. With --tensors,
made elsewhere, it needs no polars.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from result import keep

from ewe import progress
from ewe.batches import Meta
from ewe.train import train_model

PAPER_WIDTH, PAPER_RATE, PAPER_STD = 768, 2e-5, 0.02
QUICK = ["paper", "x4, warm-up, priors"]

# Fields of TrainConfig; "rate" is a multiple of the paper's.
RISE = {"warmup": 0.05, "prior_bias": True, "clip": 1.0, "epochs": 3}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"rate": 1, "batch_size": 32, "epochs": 10},
    "paper, 3 epochs": {"rate": 1, "batch_size": 32, "epochs": 3},
    "priors": {"rate": 1, "batch_size": 32, "epochs": 3, "prior_bias": True},
    "x4": {"rate": 4, "batch_size": 32, "epochs": 3},
    "x4, warm-up, priors": {"rate": 4, "batch_size": 32, **RISE},
    "x8, warm-up, priors": {"rate": 8, "batch_size": 32, **RISE},
    "x4, batch 128": {"rate": 4, "batch_size": 128, **RISE},
    "x8, batch 128": {"rate": 8, "batch_size": 128, **RISE},
    "x16, batch 128": {"rate": 16, "batch_size": 128, **RISE},
    "x16, batch 128, no dropout": {"rate": 16, "batch_size": 128, **RISE, "dropout": 0.0},
    "x16, batch 128, no priors": {"rate": 16, "batch_size": 128, **RISE, "prior_bias": False},
    "x16, batch 128, no warm-up": {"rate": 16, "batch_size": 128, **RISE, "warmup": 0.0},
    "x16, batch 128, no clipping": {"rate": 16, "batch_size": 128, **RISE, "clip": 0.0},
    "x16, batch 512": {"rate": 16, "batch_size": 512, **RISE},
    "x32, batch 512": {"rate": 32, "batch_size": 512, **RISE},
}


def make_tensors(folder: Path, rows: int, words: int) -> Path:
    """Tensors of a sample."""
    import datetime as dt

    from ewe.pipeline.encode import encode_folder
    from ewe.pipeline.fetch import fetch_grants
    from ewe.pipeline.local import ParquetEngine
    from ewe.pipeline.relabel import relabel_folder
    from ewe.pipeline.sample import write_sample

    write_sample(folder / "table", rows=rows)
    window = {"start": dt.date(2006, 1, 1), "end": dt.date(2015, 12, 31)}
    fetch_grants(ParquetEngine(folder / "table"), folder / "raw", **window)
    relabel_folder(folder / "raw", folder / "dataset")
    encode_folder(folder / "dataset", folder / "tensors", words=words)
    return folder / "tensors"


def learn(tensors: Path, run: Path, recipe: dict[str, Any], sizes: dict[str, Any], rows: int) -> dict[str, Any]:
    """Train by one recipe; held-out micro-F1 each time, examples between two times, seconds."""
    width = sizes["width"]
    fields = {name: value for name, value in recipe.items() if name != "rate"} | sizes
    fields["learning_rate"] = recipe["rate"] * PAPER_RATE * PAPER_WIDTH / width
    fields["init_std"] = PAPER_STD * (PAPER_WIDTH / width) ** 0.5
    fields["holdout"] = 0.05 if rows >= 2000 else 0.2
    started = time.perf_counter()
    summary = train_model(tensors, run, **fields)
    seconds = time.perf_counter() - started
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    shutil.rmtree(run)  # a gigabyte and more at the paper's width
    f1 = [round(line["holdout"]["f1"], 4) for line in lines if "holdout" in line]
    examples = summary["rows"] * summary["epochs"] // len(f1)
    return {"f1": f1, "examples_each": examples, "loss": round(summary["loss"], 5), "seconds": round(seconds)}


def soonest(found: dict[str, Any], target: float) -> int | None:
    """Examples seen the first time that it is at the target; None where it never is."""
    there = [number for number, f1 in enumerate(found["f1"], 1) if f1 >= target > 0]
    return there[0] * int(found["examples_each"]) if there else None


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500, help="of the sample")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--words", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tensors", type=Path, default=None, help="train on these instead of a sample's")
    parser.add_argument("--times", type=int, default=1, help="epochs of every recipe")
    parser.add_argument("--only", nargs="+", choices=RECIPES, help=f"without: {', '.join(QUICK)} of few rows, else all")
    options = parser.parse_args()
    progress.set_quiet(quiet=True)
    sizes = {"layers": options.layers, "width": options.width, "device": options.device}
    quick = options.rows < 2000 and options.tensors is None
    names = options.only or (QUICK if quick else list(RECIPES))
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tensors = options.tensors or make_tensors(folder, options.rows, options.words)
        meta = Meta.read(tensors)
        rows = len(np.load(tensors / "train.ids.npy", mmap_mode="r"))
        for number, recipe in enumerate(names):
            chosen = RECIPES[recipe] | {"epochs": RECIPES[recipe]["epochs"] * options.times}
            found[recipe] = learn(tensors, folder / f"run-{number}", chosen, sizes, rows)
            print(recipe, found[recipe], file=sys.stderr, flush=True)
    target = found[names[0]]["f1"][-1]
    slowest = soonest(found[names[0]], target)
    for recipe in found.values():
        recipe["examples to it"] = soonest(recipe, target)
        recipe["speed"] = round(slowest / recipe["examples to it"], 2) if slowest and recipe["examples to it"] else None
    result = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "rows": rows,
        "u": meta.u,
        "labels": len(meta.label_names),
        "times": options.times,
        "sizes": sizes,
        "recipes": {name: RECIPES[name] for name in found},
        "target": target,
        "found": found,
    }
    if quick:
        print(json.dumps(result, indent=2))
    else:
        label = options.tensors.resolve().name if options.tensors else "sample"
        keep(f"recipe-{label}-{options.layers}", result, "numpy", "torch")


if __name__ == "__main__":
    main()
