"""Start-up: what a user waits for before a command says anything.

    python benchmarks/bench_start.py [--rounds 5]

`ewe-data --help`, `ewe --help` and a command's own help, each a fresh process; the best round counts. Beside them the
interpreter alone, which is the limit. Prints one JSON document and writes it to benchmarks/results/start.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from result import keep

HERE = Path(sys.executable).parent
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import typer": [sys.executable, "-c", "import typer"],
    "ewe-data --help": [HERE / "ewe-data", "--help"],
    "ewe --help": [HERE / "ewe", "--help"],
    "ewe-data relabel --help": [HERE / "ewe-data", "relabel", "--help"],
    "ewe train --help": [HERE / "ewe", "train", "--help"],
    "ewe --version": [HERE / "ewe", "--version"],
}


def seconds(command: list[str | Path]) -> float:
    """Of one run."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds + 1):  # the first fills caches
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    keep("start", {"seconds": {name: round(min(each[1:]), 3) for name, each in times.items()}}, "typer")


if __name__ == "__main__":
    main()
