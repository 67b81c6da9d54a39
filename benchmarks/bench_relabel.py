"""Relabel: raw month shards to dataset/, beside pandas and DuckDB, and beside reading and writing alone.

    python benchmarks/bench_relabel.py [--rows 20000] [--rounds 3] [--raw RAW] [--folder DIR]

Made-up patents of true length (`ewe-data sample`), or those of RAW. All write the same rows, labels and files' settings
(zstd 1, row groups of 4,096, page index, page checksums); peers' labels and texts must equal ours.

    ours            relabel.relabel_folder as `ewe-data relabel` runs it: disk syncs, hashes, Table 2
    bare            raw/ read and the finished files written with the same settings, no other work; one thread and two
    pandas          read_parquet, ewe.text.join_claims a row, labels by explode and group-by, to_parquet
    pandas, kernel  the same with ewe.text.join_claims_batch, our compiled loop, over the whole column
    duckdb          one SQL query, claims by an Arrow function over join_claims_batch, COPY to each file; two threads

    claims alone    join_claims_batch over Arrow text in memory: MB of published claims a second, a thread and two
    labels alone    relabel.first_later on a frame in memory, beside explode and group-by in pandas

Each run has a process of its own, warmed up with a few rows, and 2 GB of memory are touched and given back before the
clock starts: a virtual machine hands pages long free back to its host, and who writes first would pay for fetching
them. Rounds go in turn, the best of each counts, and memory is the largest peak. Processor seconds (all threads, what
is read or made before the clock starts included) are what a busy machine leaves comparable. Prints one JSON document
and writes it to benchmarks/results/relabel.json; times are seconds.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import multiprocessing
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from result import keep

from ewe.pipeline import schema
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import ParquetEngine
from ewe.pipeline.relabel import CONFIGS, ROW_GROUP, first_later, relabel_folder
from ewe.pipeline.sample import write_sample
from ewe.pipeline.shards import WRITTEN
from ewe.pipeline.split import PAPER
from ewe.text import join_claims, join_claims_batch

WINDOW = {"start": dt.date(2006, 1, 1), "end": dt.date(2015, 12, 31)}
TOUCHED = 2 << 30  # bytes
COMPARED = ["publication_number", "text", "n_claims", "label_names", "labels", "unordered_labels"]


def make_raw(folder: Path, rows: int) -> Path:
    """FOLDER/raw of a sample."""
    write_sample(folder / "table", rows=rows)
    fetch_grants(ParquetEngine(folder / "table"), folder / "raw", **WINDOW)
    shutil.rmtree(folder / "table")
    return folder / "raw"


def write_finished(table: pa.Table, path: Path) -> None:
    """Write a file of dataset/ with relabel's settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    order = [pq.SortingColumn(schema.DATASET.get_field_index(name)) for name in ("grant_date", "publication_number")]
    pq.write_table(
        table,
        path,
        row_group_size=ROW_GROUP,
        **WRITTEN,
        use_content_defined_chunking=True,
        sorting_columns=order,
    )


def joined(claims: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Text, claim_offsets and n_claims of a column by our compiled loop."""
    claims = claims.combine_chunks() if isinstance(claims, pa.ChunkedArray) else claims
    claims = claims.cast(pa.large_string())
    _, offsets, data = claims.buffers()
    offsets = np.frombuffer(offsets, np.int64)[claims.offset : claims.offset + len(claims) + 1]
    done = join_claims_batch(np.frombuffer(data or b"", np.uint8), offsets, 20)
    buffers = [pa.py_buffer(done.text_offsets), pa.py_buffer(done.text)]
    text = pa.LargeStringArray.from_buffers(len(claims), *buffers)
    return text, pa.LargeListArray.from_arrays(done.claim_indptr, pa.array(done.claim_offsets)), done.n_claims


# -- what is measured; each returns seconds ----------------------------------------------------------------------------


def ours(raw: Path, out: Path) -> float:
    """The command's function."""
    started = time.perf_counter()
    relabel_folder(raw, out)
    return time.perf_counter() - started


def bare(raw: Path, finished: Path, out: Path, threads: int) -> float:
    """Read all of raw/ and write all of the dataset, whose tables wait in memory."""
    tables = {path: pq.read_table(path) for path in sorted(finished.glob("*/*.parquet"))}
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        shards = sorted(raw.glob("*.parquet"))
        checked = {"page_checksum_verification": True}
        assert sum(pool.map(lambda path: pq.read_table(path, use_threads=threads > 1, **checked).num_rows, shards))
        list(pool.map(lambda path: write_finished(tables[path], out / path.relative_to(finished)), tables))
        return time.perf_counter() - started


def pandas_labels(rows: Any, scheme: str = "cpc") -> Any:
    """first, later, label_names and subclasses of each row by explode and group-by."""
    import pandas as pd

    exploded = rows[[scheme]].explode(scheme).dropna()
    codes = pd.DataFrame(exploded[scheme].tolist(), index=exploded.index)
    codes["code"] = codes["code"].str.replace(r"\s+", "", regex=True)
    codes["row"] = codes.index
    codes = codes[codes["code"] != ""]
    for flag in ("first", "inventive"):
        codes[flag] = codes[flag].fillna(value=False).astype(bool)
    merged = codes.groupby(["row", "code"], as_index=False)[["first", "inventive"]].max()
    merged["subclass"] = merged["code"].str[:4]
    flagged = merged[merged["first"]].sort_values(["row", "inventive", "code"], ascending=[True, False, True])
    listed = flagged.drop_duplicates("row").set_index("row")
    others = merged[merged["row"].isin(listed.index)]
    others = others[others["code"] != others["row"].map(listed["code"])]
    out = pd.DataFrame(index=rows.index)
    out["first"] = listed["subclass"]
    out["later"] = others.groupby("row")["subclass"].agg(lambda each: sorted(set(each)))
    out["subclasses"] = merged.groupby("row")["subclass"].agg(lambda each: sorted(set(each)))
    pairs = zip(out["first"], out["later"], strict=True)
    out["label_names"] = [
        [f"First-{first}", *(f"Later-{each}" for each in (later if isinstance(later, list) else []))]
        if isinstance(first, str)
        else None
        for first, later in pairs
    ]
    return out


def pandas_whole(raw: Path, out: Path, *, kernel: bool) -> float:
    """The whole step in pandas."""
    import pandas as pd

    started = time.perf_counter()
    rows = pd.concat([pd.read_parquet(path) for path in sorted(raw.glob("*.parquet"))], ignore_index=True)
    if kernel:
        text, offsets, n_claims = joined(pa.array(rows["claims"].fillna(""), pa.large_string()))
        rows["text"], rows["claim_offsets"], rows["n_claims"] = text.to_pandas(), offsets.to_pandas(), n_claims
    else:
        done = [join_claims(claims) for claims in rows["claims"].fillna("")]
        rows["text"] = [each.text for each in done]
        rows["claim_offsets"] = [each.offsets for each in done]
        rows["n_claims"] = [each.n_claims for each in done]
    rows = rows.drop(columns="claims")
    rows["split"] = None
    for name, (first, last) in PAPER.items():
        rows.loc[rows["grant_date"].between(first, last), "split"] = name
    rows = rows.join(pandas_labels(rows))
    rows = rows[rows["split"].notna() & (rows["text"] != "") & rows["subclasses"].notna()]
    rows = rows.sort_values(["grant_date", "publication_number"])
    has_first = rows["first"].notna()
    in_train = rows["split"] == "train"
    known = sorted({each for row in rows.loc[has_first & in_train, "subclasses"] for each in row})
    position = {f"{rank}-{each}": i for i, (rank, each) in enumerate(itertools.product(("First", "Later"), known))}
    unordered = {each: i for i, each in enumerate(sorted({*itertools.chain(*rows.loc[in_train, "subclasses"])}))}
    rows["later"] = [
        (later if isinstance(later, list) else []) if first else None
        for later, first in zip(rows["later"], has_first, strict=True)
    ]
    rows["labels"] = [indices(names, position) for names in rows["label_names"]]
    rows["unordered_labels"] = [indices(names, unordered) for names in rows["subclasses"]]
    for config, chosen in zip(CONFIGS, (has_first, ~has_first), strict=True):
        for split in PAPER:
            part = rows.loc[chosen & (rows["split"] == split), schema.DATASET.names]
            table = pa.Table.from_pandas(part, schema.DATASET, preserve_index=False)
            write_finished(table.replace_schema_metadata(None).cast(schema.DATASET), out / config / f"{split}.parquet")
    return time.perf_counter() - started


def indices(names: Iterable[str] | None, known: dict[str, int]) -> list[int] | None:
    """Indices of label names; those that train does not know have none."""
    return None if names is None else [known[name] for name in names if name in known]


QUERY = r"""
CREATE TEMP TABLE kept AS
WITH source AS (SELECT * FROM read_parquet('{raw}/*.parquet')),
codes AS (
  SELECT publication_number, regexp_replace(c.code, '\s+', '', 'g') AS code,
    bool_or(coalesce(c.first, false)) AS first, bool_or(coalesce(c.inventive, false)) AS inventive
  FROM (SELECT publication_number, unnest(cpc) AS c FROM source) GROUP BY ALL
),
listed AS (
  SELECT publication_number, arg_min(code, (NOT inventive, code)) AS code FROM codes
  WHERE first AND code <> '' GROUP BY publication_number
),
labels AS (
  SELECT codes.publication_number, any_value(listed.code)[:4] AS first,
    list_sort(list_distinct(list(codes.code[:4]) FILTER (codes.code <> listed.code))) AS later,
    list_sort(list_distinct(list(codes.code[:4]))) AS subclasses
  FROM codes LEFT JOIN listed USING (publication_number) WHERE codes.code <> '' GROUP BY ALL
)
SELECT source.* EXCLUDE (claims),
  CASE {cases} END AS split, claimed.text AS text, claimed.claim_offsets AS claim_offsets, claimed.n_claims AS n_claims,
  first, CASE WHEN first IS NOT NULL THEN coalesce(later, []) END AS later,
  CASE WHEN first IS NOT NULL
    THEN list_prepend('First-' || first, list_transform(coalesce(later, []), lambda x: 'Later-' || x))
  END AS label_names,
  subclasses
FROM (SELECT *, joined(coalesce(claims, '')) AS claimed FROM source) AS source
JOIN labels USING (publication_number)
WHERE claimed.text <> '' AND split IS NOT NULL;
"""


def duckdb_whole(raw: Path, out: Path) -> float:
    """The whole step in DuckDB, claims by an Arrow function."""
    import duckdb

    def split(claims: pa.ChunkedArray) -> pa.Array:
        columns = [[], [], []]
        for chunk in claims.chunks:
            for column, array in zip(columns, joined(chunk), strict=True):
                column.append(pa.array(array) if isinstance(array, np.ndarray) else array)
        kinds = [pa.string(), pa.list_(pa.int32()), pa.int16()]
        arrays = [
            pa.chunked_array(column).combine_chunks().cast(kind) for column, kind in zip(columns, kinds, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, ["text", "claim_offsets", "n_claims"])

    started = time.perf_counter()
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        kind = connection.type("STRUCT(text VARCHAR, claim_offsets INTEGER[], n_claims SMALLINT)")
        connection.create_function("joined", split, [connection.type("VARCHAR")], kind, type="arrow")
        cases = " ".join(
            f"WHEN grant_date BETWEEN '{first}' AND '{last}' THEN '{name}'" for name, (first, last) in PAPER.items()
        )
        connection.execute(QUERY.format(raw=raw, cases=cases))
        connection.execute(
            "CREATE TEMP TABLE known AS SELECT list_sort(list(DISTINCT x)) AS names FROM "
            "(SELECT unnest(subclasses) AS x FROM kept WHERE split = 'train' AND first IS NOT NULL)"
        )
        connection.execute(
            "CREATE TEMP TABLE names AS SELECT list_transform(names, lambda x: 'First-' || x) || "
            "list_transform(names, lambda x: 'Later-' || x) AS position, (SELECT list_sort(list(DISTINCT x)) FROM "
            "(SELECT unnest(subclasses) AS x FROM kept WHERE split = 'train')) AS unordered FROM known"
        )
        place = (
            "list_transform(list_filter(list_transform({0}, lambda x: list_position({1}, x)), "
            "lambda i: i IS NOT NULL), lambda i: (i - 1)::SMALLINT)"
        )
        labels = f"{place.format('label_names', 'position')} AS labels"
        unordered = f"{place.format('subclasses', 'unordered')} AS unordered_labels"
        columns = ", ".join(name for name in schema.DATASET.names if name not in ("labels", "unordered_labels"))
        for config, where in zip(CONFIGS, ("first IS NOT NULL", "first IS NULL"), strict=True):
            (out / config).mkdir(parents=True)
            for name in PAPER:
                chosen = f"FROM kept, names WHERE split = '{name}' AND {where} ORDER BY grant_date, publication_number"
                connection.execute(
                    f"COPY (SELECT {columns}, {labels}, {unordered} {chosen}) TO '{out / config / name}.parquet' "
                    f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE {ROW_GROUP})"
                )
    return time.perf_counter() - started


def claims_alone(raw: Path, threads: int) -> float:
    """Megabytes a second."""
    chunks = [
        batch.column("claims")
        for path in sorted(raw.glob("*.parquet"))
        for batch in pq.read_table(path, columns=["claims"]).combine_chunks().to_batches(2048)
    ]
    size = sum(int(np.frombuffer(each.buffers()[1], np.int32)[each.offset + len(each)]) for each in chunks)
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(joined, chunks))
        return size / 1e6 / (time.perf_counter() - started)


def labels_alone(raw: Path, *, pandas: bool) -> float:
    """Rows a second, of the second call."""
    import polars as pl

    if pandas:
        rows = pq.read_table(sorted(raw.glob("*.parquet")), columns=["cpc"]).to_pandas()
    else:
        rows = pl.read_parquet(raw / "*.parquet", columns=["cpc"])
    label = pandas_labels if pandas else first_later
    label(rows)
    started = time.perf_counter()
    label(rows)
    return len(rows) / (time.perf_counter() - started)


# -- in turn, each in a process of its own -----------------------------------------------------------------------------


def in_process(work: Callable[..., float], arguments: tuple[Any, ...], options: dict[str, Any], warm: Path) -> Any:
    """What `work` gives, its processor seconds, and the process's peak memory in MB (Linux); all is imported before."""
    import ewe.progress

    ewe.progress.set_quiet(quiet=True)
    with tempfile.TemporaryDirectory() as folder:
        relabel_folder(warm, Path(folder) / "dataset")
    np.ones(TOUCHED, np.uint8)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget that peak
    started = time.process_time()
    gained = work(*arguments, **options)
    used = time.process_time() - started
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return gained, used, int(peak[1]) / 1024 if peak else 0


def measure(work: Callable[..., float], warm: Path, *arguments: Any, **options: Any) -> tuple[float, float, float]:
    """Run in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(in_process, work, arguments, options, warm).result()


def assert_equal(finished: Path, other: Path) -> None:
    """A peer's files hold what ours do."""
    for config in CONFIGS:
        for split in PAPER:
            paths = sorted((finished / config).glob(f"{split}-*.parquet"))
            mine = pa.concat_tables([pq.read_table(path, columns=COMPARED) for path in paths])
            theirs = pq.read_table(other / config / f"{split}.parquet", columns=COMPARED).cast(mine.schema)
            for name in COMPARED:
                assert mine[name].to_pylist() == theirs[name].to_pylist(), (config, split, name)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="of the sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", type=Path, default=None, help="a raw folder instead of a sample's")
    parser.add_argument("--folder", type=Path, default=None, help="where all is written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        raw = options.raw or make_raw(folder, options.rows)
        (folder / "small").mkdir()
        warm = make_raw(folder / "small", 300)
        finished, out = folder / "finished", folder / "out"
        relabel_folder(raw, finished)
        cases: dict[str, tuple[Any, ...]] = {
            "ours": (ours, raw, out),
            "bare, 1 thread": (bare, raw, finished, out, 1),
            "bare, 2 threads": (bare, raw, finished, out, 2),
            "duckdb": (duckdb_whole, raw, out),
            "pandas, kernel": (pandas_whole, raw, out),
            "pandas": (pandas_whole, raw, out),
        }
        seconds: dict[str, list[float]] = {each: [] for each in cases}
        processor: dict[str, list[float]] = {each: [] for each in cases}
        memory: dict[str, list[float]] = {each: [] for each in cases}
        for number in range(options.rounds):
            for case, (work, *arguments) in cases.items():
                extra = {"kernel": case == "pandas, kernel"} if work is pandas_whole else {}
                gained, used, peak = measure(work, warm, *arguments, **extra)
                seconds[case].append(gained)
                processor[case].append(used)
                memory[case].append(peak)
                if number == 0 and case in ("duckdb", "pandas", "pandas, kernel"):
                    assert_equal(finished, out)
                shutil.rmtree(out)
        rates = {
            f"claims alone, {threads} threads": [
                measure(claims_alone, warm, raw, threads)[0] for _ in range(options.rounds)
            ]
            for threads in (1, 2)
        }
        rates |= {
            f"labels alone, {who}": [
                measure(labels_alone, warm, raw, pandas=who == "pandas")[0] for _ in range(options.rounds)
            ]
            for who in ("ours", "pandas")
        }
        rows = sum(pq.read_metadata(path).num_rows for path in raw.glob("*.parquet"))
    best = {case: min(times) for case, times in seconds.items()}
    fastest = {name: max(found) for name, found in rates.items()}
    result = {
        "rows": rows,
        "seconds": {case: [round(each, 3) for each in times] for case, times in seconds.items()},
        "processor_seconds": {case: round(min(each), 3) for case, each in processor.items()},
        "peak_memory_mb": {case: round(max(peaks)) for case, peaks in memory.items()},
        "rows_a_second": {case: round(rows / time) for case, time in best.items()},
        "claims_mb_a_second": {name: round(rate) for name, rate in fastest.items() if name.startswith("claims")},
        "labels_rows_a_second": {name: round(rate) for name, rate in fastest.items() if name.startswith("labels")},
        "ratios": {
            "speed over pandas": round(best["pandas"] / best["ours"], 2),
            "speed over pandas, kernel": round(best["pandas, kernel"] / best["ours"], 2),
            "speed over duckdb": round(best["duckdb"] / best["ours"], 2),
            "time over bare, 1 thread": round(best["ours"] / best["bare, 1 thread"], 2),
            "time over bare, 2 threads": round(best["ours"] / best["bare, 2 threads"], 2),
            "labels: speed over pandas": round(fastest["labels alone, ours"] / fastest["labels alone, pandas"], 1),
        },
    }
    keep("relabel", result, "numpy", "numba", "pyarrow", "polars", "pandas", "duckdb")


if __name__ == "__main__":
    main()
