"""Speed of ByT5 with merged tokens against ByT5 without, beside what the paper prints of it.

    python benchmarks/bench_byt5.py [--device cpu|cuda] [--rounds 3] [--bytes 128 2016] [--batch 12]
        [--layers 18] [--width 1536] [--precision auto]

One random model a variant, the same made-up texts for all, ids on the device as training has them. A case runs once to
warm up, then in turn with the others, and the best of its rounds counts:
    inference       forward in eval mode, without gradients
    training        forward, backward and AdamW
Rates are texts a second on a card and texts a CPU second on a CPU, which neighbours on a busy machine do not change.
`bound` is what the blocks' linear work alone would allow, layers / (after + (layers - after) * ratio): attention, which
falls with the square of the length, may pass it; head, embedding and the merge cost. On a card, the memory that a
training step takes beside weights and moments is measured too. Without sizes a CPU gets small ones, a card ByT5-base.

The published speeds are of inference on SST-2's sentences, batch 12, one A100, the merge on the CPU.
Prints one JSON document and writes it to benchmarks/results/byt5-DEVICE.json.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from result import keep

from ewe import elements
from ewe.byt5 import MERGES, ByT5, ByT5Config
from ewe.compute import Compute
from ewe.config import Sizes

PUBLISHED = {  # Table 2: iterations a second; the last ratio is printed 1.15
    "none": {"it/s": 4.88, "speed over none": 1.0},
    "attention after 2": {"it/s": 8.67, "speed over none": 1.78},
    "attention after 4": {"it/s": 7.12, "speed over none": 1.46},
    "attention after 12": {"it/s": 5.12, "speed over none": 1.05},
}
VARIANTS = {
    "none": {},
    **{f"attention after {after}": {"merge": "attention", "after": after} for after in (2, 4, 6, 12)},
    "random after 2": {"merge": "random", "after": 2},
    "spaces after 2": {"merge": "spaces", "after": 2},
    "extraction after 2": {"merge": "extraction", "after": 2},
}
SMALL = {"layers": 18, "width": 128, "batch": 2, "bytes": [128, 512]}
BASE = {"layers": 18, "width": 1536, "batch": 12, "bytes": [128, 2016]}
LABELS, v = 1328, 16


def made_up(batch: int, length: int) -> np.ndarray:
    """Texts of words of 1 to 9 letters, each exactly so many bytes: uint8 ids (batch, u, v)."""
    random = np.random.default_rng(0)
    letters = random.integers(ord("a"), ord("z") + 1, (batch, length), dtype=np.uint8)
    for row in letters:
        ends = np.cumsum(random.integers(1, 10, length) + 1) - 1
        row[ends[ends < length]] = ord(" ")
    return elements.encode([row.tobytes().decode() for row in letters], -(-length // v) + 2, v, "bytes")


class Case:
    """One variant, and its two works."""

    def __init__(self, options: dict[str, Any], sizes: Sizes, ids: torch.Tensor, compute: Compute) -> None:
        torch.manual_seed(0)
        self.model = ByT5(ByT5Config.of(sizes, **options)).to(compute.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-5, fused=True)
        self.ids, self.compute = ids, compute
        self.goal = torch.zeros(len(ids), LABELS, device=compute.device)

    def inference(self) -> None:
        """Logits."""
        self.model.eval()
        with torch.inference_mode(), self.compute.autocast():
            self.model(self.ids)

    def training(self) -> None:
        """One step."""
        self.model.train()
        with self.compute.autocast():
            logits = self.model(self.ids)
        self.optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), self.goal).backward()
        self.optimizer.step()


def best(works: dict[str, Callable[[], None]], rounds: int, device: torch.device) -> dict[str, float]:
    """Least seconds of each, in turn; each time as often as fills a fifth of a second."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()

    repeats = {}
    for name, work in works.items():
        if device.type == "cuda":
            torch.cuda.empty_cache()  # all variants lie on the card at once
        work()
        started = clock()
        work()
        repeats[name] = max(1, int(0.2 / (clock() - started)))
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            started = clock()
            for _ in range(repeats[name]):
                work()
            seconds[name] = min(seconds[name], (clock() - started) / repeats[name])
    return seconds


def needed(work: Callable[[], None], device: torch.device) -> int:
    """Megabytes of the card that the work takes beyond what stands before it."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return round((torch.cuda.max_memory_allocated(device) - before) / 1e6)


def measure(length: int, sizes: dict[str, Any], rounds: int, compute: Compute) -> dict[str, Any]:
    """All variants on texts of one length."""
    batch, layers = sizes["batch"], sizes["layers"]
    ids = torch.from_numpy(made_up(batch, length)).to(compute.device)
    shape = Sizes(ids.shape[1], v, 256, LABELS, layers=layers, width=sizes["width"])
    variants = {name: options for name, options in VARIANTS.items() if options.get("after", 0) < layers}
    cases = {name: Case(options, shape, ids, compute) for name, options in variants.items()}
    works = ("inference", "training")
    rates = {}
    for work in works:
        seconds = best({name: getattr(case, work) for name, case in cases.items()}, rounds, compute.device)
        rates[work] = {name: batch / each for name, each in seconds.items()}
    rate = "texts a second" if compute.device.type == "cuda" else "texts a CPU second"
    found = {}
    for name, case in cases.items():
        config = case.model.config
        found[name] = {
            rate: {work: round(rates[work][name], 2) for work in works},
            "speed over none": {work: round(rates[work][name] / rates[work]["none"], 2) for work in works},
        }
        if "ratio" in MERGES[config.merge]:
            found[name]["bound"] = round(layers / (config.after + (layers - config.after) * config.ratio), 2)
        if name in PUBLISHED:
            found[name]["published"] = PUBLISHED[name]["speed over none"]
        if compute.device.type == "cuda":
            found[name]["MB of a training step"] = needed(case.training, compute.device)
    return found


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", default="auto", help="auto, fp32 or bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, nargs="+", help="of each text")
    for name in ("layers", "width", "batch"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    compute = Compute.choose(options.device, options.precision)
    given = {name: getattr(options, name) for name in SMALL if getattr(options, name) is not None}
    sizes = (BASE if compute.device.type == "cuda" else SMALL) | given
    by_bytes = {}
    for length in sizes["bytes"]:
        by_bytes[str(length)] = measure(length, sizes, options.rounds, compute)
        gc.collect()
    result = {
        "compute": str(compute),
        "threads": torch.get_num_threads(),
        "sizes": {name: sizes[name] for name in ("layers", "width", "batch")},
        "published": PUBLISHED,
        "by bytes a text": by_bytes,
    }
    keep(f"byt5-{compute.device.type}", result, "torch", "transformers", "numpy", "numba")


if __name__ == "__main__":
    main()
