"""Memory and speed of reading a result month by month, as the result grows tenfold in one and the same month.

    python benchmarks/bench_bigquery.py [--rows 20000]

A loopback service holds the result, already scanned, of made-up grants of true length (about 8 KB each); the
fetch runs in a process of its own, whose peak resident memory is asked of the kernel. One month holds all
rows, which is the worst case: spread over ten years the same rows would sort in smaller pieces.

    import     a process that only imports what a fetch imports
    1x, 10x    a fetch of so many rows

Prints one JSON document and writes it to benchmarks/results/bigquery.json; fails where ten times the rows
take more than 1.25 times the memory. The smaller size is more than is sorted in memory at once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fake_bigquery import FakeBigQuery
from result import keep

from ewe.pipeline import schema

CHARACTERS = 8_000  # of claims a grant
ALLOWED = 1.25  # times the memory for ten times the rows

CHILD = """
import datetime as dt, pathlib, re, sys
from ewe.pipeline.bigquery import BigQueryEngine
from ewe.pipeline.fetch import fetch_grants
if len(sys.argv) > 1:
    day = dt.date(2010, 1, 1), dt.date(2010, 1, 31)
    fetch_grants(BigQueryEngine("my-project"), pathlib.Path(sys.argv[1]), start=day[0], end=day[1])
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])  # ru_maxrss holds the parent's
"""


def publications(rows: int) -> pa.Table:
    """Grants of one month, in no order, with claims cut from one long text of words of Zipf's frequencies."""
    chance = np.random.default_rng(5)
    words = np.array(["".join(chance.choice(list("etaoinshrdlu"), 1 + index % 9)) for index in range(5_000)])
    text = " ".join(words[chance.zipf(1.3, 2_000_000) % len(words)])
    starts = chance.integers(0, len(text) - CHARACTERS, rows)
    code = {"code": "G06Q10/00", "inventive": True, "first": True, "tree": []}
    row = {
        "publication_number": pa.array([f"US-{7_000_000 + number}-B2" for number in chance.permutation(rows)]),
        "country_code": pa.array(["US"] * rows),
        "kind_code": pa.array(["B2"] * rows),
        "application_kind": pa.array(["A"] * rows),
        "grant_date": pa.array(20100101 + np.arange(rows) % 31, pa.int64()),
        "filing_date": pa.array(np.zeros(rows, np.int64)),
        "claims_localized": pa.array(
            [[{"text": text[start : start + CHARACTERS], "language": "en", "truncated": False}] for start in starts],
            schema.PUBLICATIONS.field("claims_localized").type,
        ),
        "cpc": pa.array([[code] * 12] * rows, schema.PUBLICATIONS.field("cpc").type),
    }
    empty = {field.name: pa.nulls(rows, field.type) for field in schema.PUBLICATIONS if field.name not in row}
    return pa.table(row | empty).select(schema.PUBLICATIONS.names)


def run(*arguments: str) -> tuple[float, float]:
    """Seconds and peak resident MB of a child."""
    start = time.perf_counter()
    child = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - start, int(child.stdout) / 1024


def measure(rows: int) -> dict[str, Any]:
    """A fetch of so many rows."""
    with FakeBigQuery(publications(rows), streams=4, batch_rows=500) as fake, tempfile.TemporaryDirectory() as folder:
        seconds, peak = run(str(Path(folder) / "raw"))
        (result,) = (table for name, table in fake.tables.items() if "ewe_us" in name)
        assert len(fake.billed) == 1
        return {
            "rows": rows,
            "result_mb": round(result.nbytes / 1e6),
            "seconds": round(seconds, 1),
            "peak_mb": round(peak),
        }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows
    report: dict[str, Any] = {"import_mb": round(run()[1]), "1x": measure(rows), "10x": measure(10 * rows)}
    report["memory_10x_over_1x"] = round(report["10x"]["peak_mb"] / report["1x"]["peak_mb"], 2)
    keep("bigquery", report, "google-cloud-bigquery", "google-cloud-bigquery-storage", "pyarrow", "polars")
    assert report["memory_10x_over_1x"] <= ALLOWED, "memory grows with the result"


if __name__ == "__main__":
    main()
