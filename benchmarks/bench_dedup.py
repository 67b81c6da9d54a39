"""Near-duplicates: signatures from text, the join, and the whole step, beside datasketch and rensa.

    python benchmarks/bench_dedup.py [--rounds 5] [--growth 100000 400000] [--folder DIR]

Made-up texts of true length for all (median 736 words, Zipf's frequencies), five-word shingles, 128 permutations.

Signatures, from Arrow text in memory:
    ours            minhash.lower and minhash.signatures, on one thread and on all cores by blocks of rows
    datasketch      MinHash.bulk with zlib.crc32, in one process and in two; ours must equal it bit for bit
    rensa           its flat matrix, fed shingle hashes that Polars and numpy make of the text; and that stage alone
Join, from signatures; a twentieth of the rows has a near-copy:
    ours            minhash.band_keys and minhash.buckets
    polars          the same keys, a frame a band, kept where duplicated, sorted by key
    datasketch      MinHashLSH of the same bands: every row inserted and asked for
    Memory is what the process grows by beyond the signatures, each in a process of its own.
Family: one text and its copies with a word changed, all linked and verified (ours), or all asked for (datasketch);
    CPU seconds.
Growth: dedup_folder on made-up datasets in a process of its own: seconds and peak memory.

Rounds go in turn and the best of each counts. Peers see fewer rows where their time a row is constant.
Prints one JSON document and writes it to benchmarks/results/dedup.json; times are seconds.
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
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasketch import MinHash, MinHashLSH
from result import keep

from ewe.pipeline import links, minhash, schema
from ewe.pipeline.dedup import dedup_folder
from ewe.store import Store

SIGNED, PEER_SIGNED = 20_000, 1_000
JOINED, PEER_JOINED = 1_000_000, 50_000
FAMILY, PEER_FAMILY = (5_000, 10_000, 20_000), (1_250, 2_500, 5_000)
BANDS, ROWS = minhash.bands(0.8)
Signatures = np.ndarray


def best(
    cases: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Least seconds of each case, measured in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, work in cases.items():
            started = clock()
            work()
            seconds[name].append(clock() - started)
    return {name: min(times) for name, times in seconds.items()}


# -- made-up texts ----------------------------------------------------------------------------------------------------


class Words:
    """Words of Zipf's frequencies and lengths like those of claims."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random = np.random.default_rng(seed)
        letters = np.array(list("etaoinshrdlcumwfgypbvk"))
        sizes = np.maximum(1, random.lognormal(np.log(1.2 + 0.68 * np.log(np.arange(20_000) + 2)), 0.35)).astype(int)
        words = ["".join(random.choice(letters, size)) + ("," if random.random() < 0.1 else "") for size in sizes]
        self.words = pa.array(words)
        chances = 1 / (np.arange(len(words)) + 2.7)
        self.kept: list[np.ndarray] = []
        self.drawn = random.choice(len(words), 1 << 22, p=chances / chances.sum()).astype(np.int32)

    def texts(self, rows: int, copies: float = 0.0) -> pa.Array:
        """Rows of text; a share of them copies, with up to 20 words changed, of rows that an earlier call made."""
        lengths = np.clip(self.random.lognormal(np.log(736), 0.53, rows), 20, 6000).astype(np.int64)
        copied = np.flatnonzero(self.random.random(rows) < (copies if self.kept else 0))
        originals = [self.kept[k] for k in self.random.integers(0, max(len(self.kept), 1), len(copied))]
        lengths[copied] = [len(original) for original in originals]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        ids = self.drawn[self.random.integers(0, len(self.drawn), starts[-1], dtype=np.int32)]
        for to, original in zip(copied, originals, strict=True):
            row = ids[starts[to] : starts[to + 1]]
            row[:] = original
            changed = self.random.integers(0, len(row), self.random.integers(0, 21))
            row[changed] = self.random.integers(0, len(self.words), len(changed))
        self.kept = [*self.kept[-3000:], *(row.copy() for row in np.split(ids, starts[1:-1])[:1000])]
        return pc.binary_join(pa.ListArray.from_arrays(starts.astype(np.int32), self.words.take(pa.array(ids))), " ")


def make_signatures(rows: int) -> Signatures:
    """Random ones, a twentieth of them near-copies of others."""
    random = np.random.default_rng(0)
    made = random.integers(0, 1 << 32, (rows, 128), dtype=np.uint32)
    copies = rows // 20
    made[-copies:] = made[:copies]
    for k in range(20):
        made[-copies:, random.integers(128)] = random.integers(0, 1 << 32, copies) * (k > 0)
    return made


# -- signatures -------------------------------------------------------------------------------------------------------


def ours_signed(texts: pa.Array, threads: int, block: int = 512) -> Signatures:
    """Blocks of rows, shared out between threads."""
    blocks = [texts.slice(start, block) for start in range(0, len(texts), block)]
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda each: minhash.signatures(minhash.lower(each)), blocks)))


def datasketch_signed(texts: list[str]) -> Signatures:
    """As its documentation advises: bulk, with a faster hash than SHA-1."""
    shingled = []
    for text in texts:
        words = text.lower().encode().split(b" ")
        shingled.append([b" ".join(words[i : i + 5]) for i in range(max(len(words) - 4, 1))])
    return np.array([each.hashvalues for each in MinHash.bulk(shingled, num_perm=128, hashfunc=zlib.crc32)])


def hashed(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of five-word shingles by Polars (words) and numpy (five of them), and where each row starts."""
    words = pl.Series(texts).str.to_lowercase().str.split(" ")
    counts = words.list.len().to_numpy().astype(np.int64)
    word = words.explode(empty_as_null=False, keep_nulls=False).hash(1).to_numpy()
    five = word[: len(word) - 4].copy()
    for ahead in range(1, 5):
        five *= np.uint64(0x9E3779B97F4A7C15)
        five += word[ahead : len(word) - 4 + ahead]
    inside = np.ones(len(word), np.bool_)
    ends = np.cumsum(counts)
    for back in range(1, 5):
        inside[ends - back] = False
    return five[inside[: len(five)]], np.concatenate([[0], np.cumsum(counts - 4)]).astype(np.uint64)


def signatures(rounds: int) -> dict[str, Any]:
    """Texts a second."""
    from rensa import RMinHash

    texts = Words().texts(SIGNED)
    few = texts.slice(0, PEER_SIGNED).to_pylist()
    np.testing.assert_array_equal(ours_signed(texts.slice(0, PEER_SIGNED), 2), datasketch_signed(few))
    hashes, starts = hashed(texts)
    with ProcessPoolExecutor(2) as pool:
        halves = [few[: PEER_SIGNED // 2], few[PEER_SIGNED // 2 :]]
        list(pool.map(datasketch_signed, [half[:2] for half in halves]))
        cases = {
            "ours, 1 thread": (SIGNED, lambda: ours_signed(texts, 1)),
            "ours, all cores": (SIGNED, lambda: ours_signed(texts, os.cpu_count() or 1)),
            "datasketch bulk, 1 process": (PEER_SIGNED, lambda: datasketch_signed(few)),
            "datasketch bulk, 2 processes": (PEER_SIGNED, lambda: list(pool.map(datasketch_signed, halves))),
            "rensa from text": (
                SIGNED,
                lambda: RMinHash.digest_matrix_from_flat_token_hashes(*hashed(texts), 128, 1),
            ),
            "rensa from hashes": (
                SIGNED,
                lambda: RMinHash.digest_matrix_from_flat_token_hashes(hashes, starts, 128, 1),
            ),
        }
        seconds = best({name: work for name, (_, work) in cases.items()}, rounds)
    alone = ("ours, 1 thread", "datasketch bulk, 1 process", "rensa from text")
    cpu = best({name: cases[name][1] for name in alone}, rounds, time.process_time)
    rates = {name: round(rows / seconds[name]) for name, (rows, _) in cases.items()}
    cpu_rates = {name: round(cases[name][0] / each) for name, each in cpu.items()}
    ours, theirs = rates["ours, all cores"], rates["datasketch bulk, 2 processes"]
    return {
        "bytes a text": round(pc.mean(pc.binary_length(texts)).as_py()),
        "texts a second": rates,
        "texts a CPU second": cpu_rates,
        "speed over datasketch, 2 processes": round(ours / theirs, 1),
        "speed over rensa from text": round(ours / rates["rensa from text"], 1),
        "CPU time over ours": {name: round(cpu_rates[alone[0]] / cpu_rates[name], 1) for name in alone[1:]},
    }


# -- join -------------------------------------------------------------------------------------------------------------


def ours_joined(made: Signatures) -> int:
    """How many members the buckets have."""
    return sum(len(minhash.buckets(keys)[0]) for keys in minhash.band_keys(made, BANDS, ROWS))


def polars_joined(made: Signatures) -> int:
    """The same by Polars."""
    members = 0
    for keys in minhash.band_keys(made, BANDS, ROWS):
        frame = pl.DataFrame({"key": keys}).with_row_index()
        members += frame.filter(pl.col("key").is_duplicated()).sort("key", "index").height
    return members


def datasketch_joined(made: Signatures) -> int:
    """How many row numbers its queries return beside the row's own."""
    permutations = MinHash(num_perm=128).permutations
    index = MinHashLSH(num_perm=128, params=(BANDS, ROWS))
    sketches = (MinHash(hashvalues=row, permutations=permutations, scheme="affine32") for row in made)
    for number, sketch in enumerate(sketches):
        index.insert(number, sketch, check_duplication=False)
    sketches = (MinHash(hashvalues=row, permutations=permutations, scheme="affine32") for row in made)
    return sum(len(index.query(sketch)) - 1 for sketch in sketches)


JOINS = {
    "ours": (ours_joined, JOINED),
    "polars": (polars_joined, JOINED),
    "datasketch": (datasketch_joined, PEER_JOINED),
}


def join_alone(name: str) -> dict[str, float]:
    """One join in this process: seconds and bytes a row."""
    work, rows = JOINS[name]
    work(make_signatures(1000))
    made = make_signatures(rows)
    before = peak(again=True)
    started = time.perf_counter()
    work(made)
    seconds = time.perf_counter() - started
    return {"rows": rows, "seconds": seconds, "bytes a row": (peak() - before) / rows}


def join(rounds: int) -> dict[str, Any]:
    """Rows a second and bytes a row."""
    found = {name: [apart("join", name) for _ in range(min(rounds, 3))] for name in JOINS}
    rates = {name: round(runs[0]["rows"] / min(run["seconds"] for run in runs)) for name, runs in found.items()}
    grown = {name: round(min(run["bytes a row"] for run in runs)) for name, runs in found.items()}
    return {
        "rows a second": rates,
        "bytes a row": grown,
        "speed over datasketch": round(rates["ours"] / rates["datasketch"]),
        "speed over polars": round(rates["ours"] / rates["polars"], 1),
        "memory of datasketch's": round(grown["ours"] / grown["datasketch"], 3),
    }


# -- one family -------------------------------------------------------------------------------------------------------


def make_family(size: int) -> pa.Array:
    """One text and its copies, each with a word changed."""
    words = Words(1).texts(1)[0].as_py().split(" ")
    random = np.random.default_rng(1)
    copies = [[*words[: (at := random.integers(len(words)))], f"new{k}", *words[at + 1 :]] for k in range(size - 1)]
    return pa.array([" ".join(each) for each in (words, *copies)])


def family() -> dict[str, Any]:
    """CPU seconds by the family's size."""
    made = minhash.lower(make_family(max(FAMILY)))
    signed = minhash.signatures(made)
    hashes, indptr = minhash.shingle_sets(made)

    def read(numbers: np.ndarray) -> minhash.ShingleSets:
        stretches = [hashes[start:end] for start, end in zip(indptr[numbers], indptr[numbers + 1], strict=True)]
        sizes = indptr[numbers + 1] - indptr[numbers]
        return minhash.ShingleSets(np.concatenate([hashes[:0], *stretches]), np.concatenate([[0], np.cumsum(sizes)]))

    def linked(size: int) -> None:
        banded = [minhash.buckets(keys) for keys in minhash.band_keys(signed[:size], BANDS, ROWS)]
        assert len(links.link(links.Texts(signed[:size], read), banded, ROWS, 0.8).pairs) == size - 1

    linked(100)
    ours = best({str(size): lambda size=size: linked(size) for size in FAMILY}, 5, time.process_time)
    theirs = best(
        {str(size): lambda size=size: datasketch_joined(signed[:size]) for size in PEER_FAMILY}, 1, time.process_time
    )
    return {
        "ours, from signatures and sets to verified links": {size: round(each, 3) for size, each in ours.items()},
        "datasketch, from signatures to candidates": {size: round(each, 2) for size, each in theirs.items()},
    }


# -- the whole step ---------------------------------------------------------------------------------------------------


def write_dataset(folder: Path, rows: int, chunk: int = 4096, shard: int = 65_536) -> None:
    """A dataset folder of made-up texts, a tenth of them copies."""
    words = Words(2)
    counts = {"train": rows - rows // 6, "test_2015a": rows // 12, "test_2015b": rows // 6 - rows // 12}
    number = 0
    with Store(folder, "dataset", {"splits": dict.fromkeys(counts)}) as store:
        for split, count in counts.items():
            shards = max(1, -(-count // shard))
            for index in range(shards):
                left = min(shard, count - index * shard)
                name = f"relabeled/{split}-{index:05d}-of-{shards:05d}.parquet"
                with (
                    store.write(name, {"rows": left}) as path,
                    pq.ParquetWriter(path, NARROW, compression="zstd") as writer,
                ):
                    for start in range(0, left, chunk):
                        texts = words.texts(min(chunk, left - start), 0.1)
                        numbers = [f"US-{number + k}-B2" for k in range(len(texts))]
                        families = pa.array([str((number + k) // 2) for k in range(len(texts))])
                        number += len(texts)
                        table = pa.table([numbers, families, texts.cast(pa.string())], schema=NARROW)
                        writer.write_table(table, row_group_size=chunk)
        store.finish(rows=rows, made_up=True)


NARROW = pa.schema([schema.DATASET.field(name) for name in ("publication_number", "family_id", "text")])


def dedup_alone(folder: str) -> dict[str, Any]:
    """The step in this process."""
    started = time.perf_counter()
    summary = dedup_folder(Path(folder))
    seconds, cpu = time.perf_counter() - started, time.process_time()
    return {"seconds": round(seconds, 1), "CPU seconds": round(cpu, 1), "peak MB": round(peak() / 1e6), **summary}


def growth(sizes: list[int], folder: Path | None) -> dict[str, Any]:
    """Seconds, peak memory and what was found, by rows."""
    found = {}
    for rows in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            write_dataset(Path(inside) / "dataset", rows)
            found[str(rows)] = run = apart("dedup", f"{inside}/dataset")
            run["rows a second"] = round(rows / run["seconds"])
            shutil.rmtree(inside + "/dataset")
    keys = (
        "seconds",
        "CPU seconds",
        "rows a second",
        "peak MB",
        "texts",
        "groups",
        "rows_in_groups",
        "pairs",
        "leaking",
    )
    return {rows: {key: run[key] for key in keys} for rows, run in found.items()}


def peak(again: bool = False) -> int:
    """Most bytes this process held since its start, or since the last call with `again` (Linux counts them)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    if again:
        Path("/proc/self/clear_refs").write_text("5")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS" if again else "VmHWM"))


def apart(*command: str) -> dict[str, Any]:
    """This script's --alone command in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--alone", *command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--growth", type=int, nargs="*", default=[100_000, 400_000])
    parser.add_argument("--folder", type=Path, default=None, help="where made-up datasets are written")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        work = {"join": join_alone, "dedup": dedup_alone}[options.alone[0]]
        print(json.dumps(work(options.alone[1])))
        return
    result = {
        "signatures": signatures(options.rounds),
        "join": join(options.rounds),
        "family": family(),
        "growth": growth(options.growth, options.folder),
    }
    keep("dedup", result, "datasketch", "rensa", "polars", "numpy", "numba", "pyarrow")


if __name__ == "__main__":
    main()
