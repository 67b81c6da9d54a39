"""Encoding: Arrow text in memory to a memory map, beside its peers and beside writing the pages alone.

    python benchmarks/bench_encode.py [--rows 40000] [--rounds 5] [--folder DIR]

The same made-up texts (Zipf-distributed words, 742 a text, 4.9K characters) for all, u=128, v=16:

    ours            ewe.elements.encode_buffers on all cores, a block at a time, written to the .npy that readers
                    map, as `ewe-data encode` does
    ours, mapped    the same straight into a fresh np.memmap
    bare map        a fresh np.memmap of that size filled with one byte, by one thread and by two: the limit
    bare writes     blocks of 4 MB written to a fresh file, nothing encoded: the limit of writing without a map
    list(bytes)     the paper's idiom: split, cut, list(word.encode()), pad, np.array
    WordPiece       Hugging Face tokenizers (Rust, all cores), on the text cut to its first 126 words beforehand

Rounds go in turn and the best of each counts. Before each the file is filled and removed once, untimed: a
virtual machine hands pages long free back to its host, and who writes first would pay for fetching them.
Peers see a slice of the rows: their time a row is constant. Prints one JSON document and writes it to
benchmarks/results/encode.json. Ratios are of wall-clock
time; CPU time a row (all threads) is what a busy machine leaves comparable.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from result import keep
from tokenizers import BertWordPieceTokenizer

from ewe.elements import CLS, SEP, encode_buffers

U, V = 128, 16
PEER_ROWS = 2000


def make_texts(rows: int, seed: int = 0) -> pa.Array:
    """Texts of the length of real claims (median 736 words), words of Zipf's frequencies and lengths."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    sizes = np.maximum(1, random.lognormal(np.log(1.2 + 0.68 * np.log(np.arange(20_000) + 2)), 0.35)).astype(int)
    words = ["".join(random.choice(letters, size)) + ("," if random.random() < 0.1 else "") for size in sizes]
    chances = 1 / (np.arange(len(words)) + 2.7)
    lengths = np.clip(random.lognormal(np.log(736), 0.53, rows), 20, 6000).astype(int)
    chosen = np.split(random.choice(len(words), lengths.sum(), p=chances / chances.sum()), lengths.cumsum()[:-1])
    return pa.array([" ".join([words[k] for k in text.tolist()]) for text in chosen], pa.large_string())


def list_of_bytes(texts: list[str]) -> np.ndarray:
    """The paper's idiom: a Python list of every word's bytes."""
    rows = []
    for text in texts:
        row = [[CLS], *([byte + 4 for byte in list(word.encode())[:V]] for word in text.split()[: U - 2]), [SEP]]
        row += [[]] * (U - len(row))
        rows.append([material + [0] * (V - len(material)) for material in row])
    return np.array(rows, np.uint8)


def fill(mapped: np.ndarray, threads: int) -> None:
    """Touch every page of a mapping."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: part.fill(7), np.array_split(mapped, threads)))


def encode_slice(data: np.ndarray, offsets: np.ndarray, rows: int) -> np.ndarray:
    """Our encoding of the first rows."""
    out = np.empty((rows, U, V), np.uint8)
    encode_buffers(data, offsets[: rows + 1], out)
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where the memory maps are written")
    options = parser.parse_args()
    N = options.rows
    texts = make_texts(N)
    _, offsets, data = texts.buffers()
    data, offsets = np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64)[: N + 1]
    peer = texts.slice(0, PEER_ROWS).to_pylist()
    cut = [" ".join(text.split()[: U - 2]) for text in peer]
    wordpiece = BertWordPieceTokenizer()
    wordpiece.train_from_iterator(cut, vocab_size=30_522, show_progress=False)
    wordpiece.enable_truncation(U)
    wordpiece.enable_padding(length=U)
    assert (encode_slice(data, offsets, PEER_ROWS) == list_of_bytes(peer)).all()

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "bytes.npy"

        def fresh() -> np.ndarray:
            return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(N, U, V))

        def written(work: Callable[[int, np.ndarray], object]) -> None:
            """Blocks made by two threads, written by a third, as encode does."""
            blocks = np.empty((4, 2048, U, V), np.uint8)
            waiting: deque[tuple[np.ndarray, Future[object]]] = deque()
            with ThreadPoolExecutor(2) as pool, path.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (N, U, V)})
                for number, start in enumerate(range(0, N, 2048)):
                    if len(waiting) == 3:
                        rows, made = waiting.popleft()
                        made.result()
                        file.write(rows.data)
                    rows = blocks[number % 4][: min(2048, N - start)]
                    waiting.append((rows, pool.submit(work, start, rows)))
                for rows, made in waiting:
                    made.result()
                    file.write(rows.data)

        def encode(start: int, rows: np.ndarray) -> None:
            encode_buffers(data, offsets[start : start + len(rows) + 1], rows, threads=1)

        cases: dict[str, tuple[int, Callable[[], object]]] = {
            "ours": (N, lambda: written(encode)),
            "bare writes": (N, lambda: written(lambda _start, _rows: None)),
            "ours, mapped": (N, lambda: encode_buffers(data, offsets, fresh())),
            "bare map, 1 thread": (N, lambda: fill(fresh(), 1)),
            "bare map, 2 threads": (N, lambda: fill(fresh(), 2)),
            "list(bytes)": (PEER_ROWS, lambda: list_of_bytes(peer)),
            "WordPiece": (PEER_ROWS, lambda: wordpiece.encode_batch(cut)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(options.rounds):
            for name, (_, work) in cases.items():
                fill(fresh(), 1)
                path.unlink()
                started, cpu_started = time.perf_counter(), time.process_time()
                work()
                seconds[name].append(time.perf_counter() - started)
                cpu_seconds[name].append(time.process_time() - cpu_started)
    rates = {name: rows / min(seconds[name]) for name, (rows, _) in cases.items()}
    bare = max(rates["bare map, 1 thread"], rates["bare map, 2 threads"])
    result = {
        "rows": N,
        "bytes_a_text": round(data.size / N),
        "rows_a_second": {name: round(rate) for name, rate in rates.items()},
        "cpu_microseconds_a_row": {
            name: round(min(cpu_seconds[name]) / rows * 1e6, 2) for name, (rows, _) in cases.items()
        },
        "seconds": {name: [round(each, 4) for each in times] for name, times in seconds.items()},
        "ratios": {
            "speed over list(bytes)": round(rates["ours"] / rates["list(bytes)"], 1),
            "speed over WordPiece": round(rates["ours"] / rates["WordPiece"], 1),
            "time over the bare map": round(bare / rates["ours"], 2),
            "time over bare writes": round(rates["bare writes"] / rates["ours"], 2),
            "mapped: time over the bare map": round(bare / rates["ours, mapped"], 2),
        },
    }
    keep("encode", result, "numpy", "numba", "pyarrow", "tokenizers")


if __name__ == "__main__":
    main()
