"""Growth: the whole way on made-up patents of true length, each step as the command a user types.

    python benchmarks/bench_growth.py [--rows 10000 20000] [--folder DIR]
    python benchmarks/bench_growth.py --full          100,000, 400,000 and 1,950,000 rows: half an hour, 60 GB of disk

Of each size: sample, fetch, relabel, encode, dedup, one after the other, each a process of its own, with its wall time,
processor time and peak memory (the kernel's count of resident bytes, page cache that is mapped included). A folder that
no later step reads is removed. Then, from the smallest to the largest size:

    linear          seconds a row over those of the largest size; 1 is linear, 2 to 3 s of start-up weigh on small ones
    growing         the same of the rows by which a size exceeds the one before it, so that start-up falls out
    memory          peak over that of the smallest size
    the whole way   seconds from raw shards to tensors and duplicates (relabel, encode, dedup)

Prints one JSON document and writes it to benchmarks/results/growth.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from result import keep

FULL = [100_000, 400_000, 1_950_000]
WARM_UP = 500  # rows, before all: kernels are compiled and kept
COMMAND = Path(sys.executable).parent / "ewe-data"
MEGABYTE = 1 << 20 if sys.platform == "darwin" else 1 << 10  # in the unit of ru_maxrss
WAY = ("relabel", "encode", "dedup")  # raw shards to tensors and duplicates
STEPS = {  # the command's arguments, and the folder that nothing reads after it
    "sample": (["--rows", "{rows}", "--out", "table"], None),
    "fetch": (["--source", "parquet", "--input", "table", "--out", "raw"], "table"),
    "relabel": (["raw", "--out", "dataset"], "raw"),
    "encode": (["dataset", "--out", "tensors"], "tensors"),
    "dedup": (["dataset"], "dataset"),
}


def run(arguments: list[str], folder: Path) -> dict[str, Any]:
    """One command to its end: seconds, processor seconds, peak MB and its own summary."""
    started = time.perf_counter()
    with subprocess.Popen([COMMAND, *arguments, "--json", "--quiet"], cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"ewe-data {' '.join(arguments)} ended with {process.returncode}")
    return {
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_memory_mb": round(used.ru_maxrss / MEGABYTE),
        "summary": json.loads(printed),
    }


def whole_way(rows: int, folder: Path) -> dict[str, Any]:
    """Every step for this many rows of the sample."""
    found: dict[str, Any] = {}
    for step, (arguments, unread) in STEPS.items():
        found[step] = run([step, *(each.format(rows=rows) for each in arguments)], folder)
        summary = found[step].pop("summary")
        if step == "fetch":
            found["rows"] = summary["rows"]
        left = [path for path in folder.rglob("*") if path.is_file()]
        found[step]["disk_gb"] = round(sum(path.stat().st_size for path in left) / 1e9, 2)
        if unread:
            shutil.rmtree(folder / unread)
        print(f"{rows:,} {step}: {found[step]}", file=sys.stderr, flush=True)
    found["the whole way"] = round(sum(found[step]["seconds"] for step in WAY), 1)
    return found


def _growing(before: dict[str, Any], after: dict[str, Any], step: str) -> float:
    """Seconds a row of those that `before` did not have."""
    return float((after[step]["seconds"] - before[step]["seconds"]) / (after["rows"] - before["rows"]))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 20_000], help="of the sample, ascending")
    parser.add_argument("--full", action="store_true", help=f"--rows {' '.join(map(str, FULL))}")
    parser.add_argument("--folder", type=Path, default=None, help="where all is written")
    options = parser.parse_args()
    sizes = FULL if options.full else sorted(options.rows)
    runs = {}
    for rows in (WARM_UP, *sizes):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            runs[rows] = whole_way(rows, Path(folder))
    del runs[WARM_UP]
    first, last = runs[sizes[0]], runs[sizes[-1]]
    result = {
        "runs": runs,
        "linear": {
            step: {
                rows: round(each[step]["seconds"] / each["rows"] / (last[step]["seconds"] / last["rows"]), 3)
                for rows, each in runs.items()
            }
            for step in STEPS
        },
        "growing": {
            step: {
                rows: round(_growing(runs[before], each, step) / _growing(runs[sizes[-2]], last, step), 3)
                for (before, _), (rows, each) in pairwise(runs.items())
            }
            for step in STEPS
        },
        "memory": {step: round(last[step]["peak_memory_mb"] / first[step]["peak_memory_mb"], 2) for step in STEPS},
        "the whole way": {rows: each["the whole way"] for rows, each in runs.items()},
    }
    keep("growth", result, "ewe-patents", "polars", "pyarrow", "duckdb", "numba")


if __name__ == "__main__":
    main()
