"""raw/ -> dataset/: the first claims joined, and CPC (or IPC) codes labelled by their position.

Position comes from each code's `first` flag, never from the array's order, which means nothing in the
source. `first_later` holds the rule; `relabel_folder` runs it over month shards in flat memory:

    raw month shards --> hidden part, its rows keyed by config and split --> final shards

Texts and codes stay in Arrow's buffers; Polars sees what decides where a row goes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ewe.errors import DataError
from ewe.pipeline import card, codes, schema, stats
from ewe.pipeline.parts import FLAT, read_keys, read_part, read_parts, write_parts
from ewe.pipeline.runs import row_groups
from ewe.pipeline.split import PAPER, Splits, assign_split
from ewe.progress import bar, say, warn
from ewe.store import Store, read_json, read_manifest, sha256_json
from ewe.text import join_claims_batch

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)
Scheme = Literal["cpc", "ipc"]

LABELS: dict[str, pl.DataType] = {  # what `first_later` adds
    "first": pl.String(),
    "later": pl.List(pl.String),
    "subclasses": pl.List(pl.String),
    "several_first": pl.Boolean(),
    "label_names": pl.List(pl.String),
}
CONFIGS = ("relabeled", "no_first")  # folders of dataset/: rows with a code flagged first, and rows without one
SHARD_ROWS = 250_000  # about 500 MB of Parquet
ROW_GROUP = 4096  # rows
CHUNK = 2048  # rows relabeled at once: some 7 MB of claims
SLICE = 8192  # rows that are worth a thread where labels alone are asked for
PART_ROWS = 8192  # small months share a hidden part, whose commit costs some disk syncs
WORKERS = 2  # parts and shards in work at a time; more would multiply the memory


def first_later(frame: Frame, scheme: Scheme = "cpc") -> Frame:
    """Label each row by the position of its codes (paper, section 5.3; the flags' rule is [decided]).

    Of the distinct full codes (white space removed; a duplicate is first or inventive if any copy is),
    the first-listed one is flagged first; of several, inventive goes before not, then the
    lexicographically smallest. Its subclass (4 characters) is First, the subclass of every other full
    code is Later, each once; Later may repeat First's symbol.

    Args:
        frame: with a column named as the scheme, list<struct<code, first, inventive>>.
        scheme: which classification to read.

    Returns:
        The frame with `first` (string) | `later` (list, sorted) | `label_names` (list, First before
        Later), all three null where no code is flagged first; `subclasses` (list, sorted; without
        position) and `several_first` (bool: the rule had to choose).
    """
    if isinstance(frame, pl.LazyFrame):
        columns = {**frame.collect_schema(), **LABELS}
        return frame.map_batches(lambda part: first_later(part, scheme), schema=columns, streamable=True)
    step = max(SLICE, -(-len(frame) // (os.cpu_count() or 1)))
    slices = [frame[scheme].slice(start, step) for start in range(0, max(len(frame), 1), step)]
    with ThreadPoolExecutor() as pool:
        labelled = list(pool.map(lambda part: codes.label(part.rechunk().to_arrow()), slices))
    columns = {name: pa.chunked_array([part[name] for part in labelled]) for name in LABELS}
    return frame.with_columns(pl.Series(name, columns[name], dtype) for name, dtype in LABELS.items())


def first_claims(frame: pl.DataFrame, max_claims: int = 20) -> pl.DataFrame:
    """Replace `claims` (one string as published, null allowed) by the first claims, cleaned and joined.

    Returns:
        The frame with `text` (string, claims joined by one space), `claim_offsets` (list<int32>, where
        each starts in text, in characters) and `n_claims` (int16, of the whole patent).
    """
    columns = _first_claims(frame["claims"].rechunk().to_arrow(), max_claims)
    return frame.drop("claims").with_columns(pl.Series(name, column) for name, column in columns.items())


def _first_claims(claims: pa.StringArray | pa.LargeStringArray, max_claims: int) -> dict[str, pa.Array]:
    """text, claim_offsets and n_claims of claims as published; a null holds no bytes, so it reads as ''."""
    _, offsets, data = claims.buffers()
    kind = np.int32 if pa.types.is_string(claims.type) else np.int64
    joined = join_claims_batch(
        np.frombuffer(data or b"", np.uint8),
        np.frombuffer(offsets, kind)[claims.offset : claims.offset + len(claims) + 1].astype(np.int64),
        max_claims,
    )
    buffers = [pa.py_buffer(joined.text_offsets), pa.py_buffer(joined.text)]
    return {
        "text": pa.LargeStringArray.from_buffers(len(claims), *buffers),
        "claim_offsets": pa.LargeListArray.from_arrays(joined.claim_indptr, pa.array(joined.claim_offsets)),
        "n_claims": pa.array(joined.n_claims),
    }


def relabel_folder(
    raw: Path,
    out: Path,
    *,
    max_claims: int = 20,
    scheme: Scheme = "cpc",
    splits: Splits = PAPER,
) -> dict[str, Any]:
    """Make dataset/ of raw/; the same call again goes on where it stopped.

    Returns:
        A summary: rows by config and split, dropped rows by reason, labels, made_up.

    Raises:
        DataError: RAW is no raw folder, or no row of the train split can be relabeled.
        IncompleteError: RAW is unfinished.
    """
    source = read_manifest(raw, "raw")
    config = {
        "raw_sha256": sha256_json([source["config"], source["files"]]),
        "max_claims": max_claims,
        "scheme": scheme,
        "splits": {name: [start.isoformat(), end.isoformat()] for name, (start, end) in splits.items()},
    }
    with Store(out, "dataset", config) as store:
        if store.finished:
            say(f"{out} is finished already.")
            return _summary(store)
        months = {name: each["rows"] for name, each in source["files"].items() if name.startswith("grants-")}
        groups = _groups(months)

        def write_part(group: list[str]) -> int:
            _write_part(store, [raw / month for month in group], max_claims, scheme, splits)
            return sum(months[month] for month in group)

        with bar("relabel", source["rows"], "rows") as advance, ThreadPoolExecutor(WORKERS) as pool:
            for finished in pool.map(write_part, groups):
                advance(finished)
        parts = Parts(store, groups)
        labels = _vocabularies(parts, scheme, splits)
        shards = [shard for config_name in CONFIGS for split in splits for shard in _shards(parts, config_name, split)]
        tallies = {split: stats.Tally(labels) for split in splits}
        with bar("write", len(shards), "shards") as advance, ThreadPoolExecutor(WORKERS) as pool:
            for shard, tally in zip(
                shards, pool.map(lambda shard: _write_shard(store, parts, labels, shard), shards), strict=True
            ):
                tallies[shard.split].merge(tally)
                advance()
        _write_dropped(store, parts)
        _assert_nothing_lost(store, source["rows"])
        for split in [split for split in splits if not parts.rows(f"relabeled/{split}")]:
            warn(f"no row in split {split}; its shard is empty and load_dataset is not offered it.")
        counts = stats.count_labels(tallies)
        store.write_json("labels.json", {"scheme": scheme, **_with_counts(labels, counts)})
        several_first = parts.fact("several_first")
        store.write_json(
            "stats.json",
            stats.summarize(store, tallies, several_first=several_first, max_claims=max_claims),
        )
        facts = {
            "rows": source["rows"],
            "made_up": bool(source["made_up"]),
            "source": _source(source),
            "made_with": {name: version(name) for name in ("ewe-patents", "polars", "pyarrow", "numba")},
        }
        store.write_text("README.md", card.write_card({**store.manifest, **facts}, labels))
        store.finish(**facts)
        return _summary(store)


# -- hidden parts: whole months' rows, keyed config/split (or dropped/reason) -----------------------------------------

PART = pa.schema(
    [field.with_nullable(nullable=True) for field in schema.DATASET if field.name not in ("labels", "unordered_labels")]
    + [pa.field("subclasses", pa.list_(pa.string()))]
)


def _groups(months: Mapping[str, int]) -> list[list[str]]:
    """Month shards in the order of time, small neighbours together; `months` holds their rows."""
    groups: list[list[str]] = []
    for month in sorted(months):
        if groups and sum(months[each] for each in groups[-1]) + months[month] <= PART_ROWS:
            groups[-1].append(month)
        else:
            groups.append([month])
    return groups


def _write_part(store: Store, paths: Sequence[Path], max_claims: int, scheme: Scheme, splits: Splits) -> None:
    name = _part_name([path.name for path in paths])
    if store.has(name):
        return
    facts: dict[str, Any] = {"several_first": 0}

    def chunks() -> Iterator[tuple[pa.Table, pa.Array]]:
        for raw in row_groups(_read(paths), CHUNK):
            table, keys, several_first = relabel_table(raw, max_claims, scheme, splits)
            facts["several_first"] += several_first
            yield table.select(PART.names), keys

    with store.write(name, facts) as temporary:
        facts["rows"] = write_parts(temporary, PART, chunks())


def _read(paths: Sequence[Path]) -> Iterator[pa.Table]:
    for path in paths:
        with pq.ParquetFile(path, **FLAT) as file:
            for batch in file.iter_batches(CHUNK, use_threads=False):
                yield pa.Table.from_batches([batch])


def _part_name(months: Sequence[str]) -> str:
    first, last = (month.removeprefix("grants-").removesuffix(".parquet") for month in (months[0], months[-1]))
    return f".parts/{first}-to-{last}.arrow"


def relabel_table(raw: pa.Table, max_claims: int, scheme: Scheme, splits: Splits) -> tuple[pa.Table, pa.Array, int]:
    """One chunk of raw/ (columns in one piece each) on its way to dataset/: split, text and labels.

    Returns:
        The rows by key and grant date, their keys (config/split, or dropped/ and the reason), and how many of the kept
        ones have several codes flagged first.
    """
    columns = _first_claims(raw["claims"].chunk(0), max_claims) | codes.label(raw[scheme].chunk(0))
    facts = {
        "grant_date": raw["grant_date"],
        "characters": pc.binary_length(columns["text"]),
        "codes": pc.list_value_length(columns["subclasses"]),
        "listed": columns["first"].is_valid(),
        "several_first": columns["several_first"],
    }
    reason = (
        pl.when(pl.col("split").is_null())
        .then(pl.lit("outside_split"))
        .when(pl.col("characters") == 0)
        .then(pl.lit("no_claims"))
        .when(pl.col("codes") == 0)
        .then(pl.lit("no_codes"))
    )
    config = pl.when("listed").then(pl.lit("relabeled")).otherwise(pl.lit("no_first"))
    key = pl.coalesce("dropped/" + reason, pl.concat_str(config, "split", separator="/"))
    frame = pl.DataFrame(pa.table(facts)).pipe(assign_split, splits).with_columns(key=key)
    several = frame.select((pl.col("several_first") & ~pl.col("key").str.starts_with("dropped/")).sum()).item()
    order = frame.select(pl.arg_sort_by("key", "grant_date", maintain_order=True)).to_series().to_arrow()
    kept = {name: raw[name] for name in raw.column_names if name != "claims"}
    table = pa.table({**kept, **columns, "split": frame["split"].to_arrow()})
    return table.take(order), frame["key"].gather(pl.Series(order)).to_arrow().cast(pa.string()), int(several)


class Parts:
    """The finished hidden parts of all months, in the order of time."""

    def __init__(self, store: Store, groups: list[list[str]]) -> None:
        names = [_part_name(group) for group in groups]
        self.facts = [store.manifest["files"][name] for name in names]
        self.paths = [store.folder / name for name in names]
        self.keys = [read_keys(path) for path in self.paths]

    def fact(self, name: str) -> int:
        """A count, summed over the parts."""
        return sum(fact[name] for fact in self.facts)

    def rows(self, key: str) -> int:
        """Rows of one key."""
        return sum(fact["rows"].get(key, 0) for fact in self.facts)

    def column(self, key: str, column: str) -> Iterator[pa.Array]:
        """A column of one key's rows, in no order."""
        for path, keys in zip(self.paths, self.keys, strict=True):
            for batch in read_parts(path, keys, key, [column]):
                yield batch.column(0)

    def read(self, key: str, start: int, stop: int) -> Iterator[pa.Table]:
        """Rows [start, stop) of one key by (grant_date, publication_number)."""
        for path, keys, fact in zip(self.paths, self.keys, self.facts, strict=True):
            rows = fact["rows"].get(key, 0)
            if stop > 0 and start < rows:
                for batch in _by_date(path, keys, key):
                    low, high = max(start, 0), min(stop, batch.num_rows)
                    if low < high:
                        yield pa.Table.from_batches([batch.slice(low, high - low)])
                    start, stop, rows = start - batch.num_rows, stop - batch.num_rows, rows - batch.num_rows
            start, stop = start - rows, stop - rows


def _by_date(path: Path, keys: list[str], key: str) -> Iterator[pa.RecordBatch]:
    """Rows of one key of a part, whose every batch is sorted by date; a batch at a time is in memory.

    Batches follow each other in time as numbers do, nearly always: then each is read once, whole.
    """
    stretches: list[tuple[Any, int, int, int]] = []  # date, batch, first row, row after the last
    indices = [index for index, each in enumerate(keys) if each == key]
    for index, batch in zip(indices, read_parts(path, keys, key, ["grant_date"]), strict=True):
        days = batch.column(0).to_numpy(zero_copy_only=False)
        starts = np.flatnonzero(np.append(True, days[1:] != days[:-1])).tolist()
        ends = [*starts[1:], len(days)]
        stretches += [(days[start], index, start, end) for start, end in zip(starts, ends, strict=True)]
    runs: list[tuple[int, int, int]] = []
    for _, index, start, end in sorted(stretches):
        if runs and (runs[-1][0], runs[-1][2]) == (index, start):
            runs[-1] = index, runs[-1][1], end
        else:
            runs.append((index, start, end))
    held: tuple[int, pa.RecordBatch] | None = None
    for index, start, end in runs:
        if held is None or held[0] != index:
            held = index, read_part(path, index)
        whole = end - start == held[1].num_rows
        yield held[1] if whole else held[1].take(np.arange(start, end))  # a slice would keep all of it in memory


# -- labels: the training split's subclasses -------------------------------------------------------------------------


def _vocabularies(parts: Parts, scheme: Scheme, splits: Splits) -> dict[str, list[str]]:
    """Label names by kind: position (First-* sorted, then Later-* sorted) and unordered (spec, section 4)."""
    relabeled, no_first = (_subclasses(parts, f"{config}/train") for config in CONFIGS)
    if not relabeled:
        start, end = splits["train"]
        raise DataError(
            f"No row of the train split ({start} to {end}) has claims and a first-listed {scheme} code; "
            "give other --split windows, another --scheme, or fetch other years."
        )
    position = [f"{rank}-{subclass}" for rank in ("First", "Later") for subclass in sorted(relabeled)]
    return {"position": position, "unordered": sorted(relabeled | no_first)}


def _subclasses(parts: Parts, key: str) -> set[str]:
    found: set[str] = set()
    for lists in parts.column(key, "subclasses"):
        found.update(lists.flatten().unique().to_pylist())
    return found


def _with_counts(labels: dict[str, list[str]], counts: stats.Counts) -> dict[str, Any]:
    return {
        kind: {
            "names": names,
            "counts": {split: counts[kind, split].tolist() for each, split in counts if each == kind},
            "sha256": sha256_json(names),
        }
        for kind, names in labels.items()
    }


# -- final shards ----------------------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """A final file: rows [start, stop) of a split of a config."""

    config: str
    split: str
    name: str
    start: int
    stop: int


def _shards(parts: Parts, config: str, split: str) -> Iterator[Shard]:
    """The shards of a split; an empty one has one, of no row."""
    rows = parts.rows(f"{config}/{split}")
    shards = max(1, -(-rows // SHARD_ROWS))
    for index in range(shards):
        name = f"{config}/{split}-{index:05d}-of-{shards:05d}.parquet"
        yield Shard(config, split, name, index * SHARD_ROWS, min(rows, (index + 1) * SHARD_ROWS))


def _write_shard(store: Store, parts: Parts, labels: dict[str, list[str]], shard: Shard) -> stats.Tally:
    """Write a shard and count what is in it; of one that an earlier run has written, count alone."""
    tally = stats.Tally(labels)
    if store.has(shard.name):
        with pq.ParquetFile(store.folder / shard.name, **FLAT) as file:
            for batch in file.iter_batches(ROW_GROUP, columns=stats.COLUMNS, use_threads=False):
                tally.add(pa.Table.from_batches([batch]), shard.config)
        return tally
    order = [schema.DATASET.get_field_index(column) for column in ("grant_date", "publication_number")]
    facts = {"rows": shard.stop - shard.start, "arrow_bytes": 0}

    def tables() -> Iterator[pa.Table]:
        for table in row_groups(parts.read(f"{shard.config}/{shard.split}", shard.start, shard.stop), ROW_GROUP):
            labelled = _add_labels(table, labels)
            facts["arrow_bytes"] += _arrow_bytes(labelled)
            tally.add(labelled, shard.config)
            yield labelled

    with (
        store.write(shard.name, facts) as temporary,
        pq.ParquetWriter(
            temporary,
            schema.DATASET,
            compression="zstd",
            compression_level=1,
            write_page_index=True,
            use_content_defined_chunking=True,
            sorting_columns=[pq.SortingColumn(index) for index in order],
        ) as writer,
    ):
        for table in _ahead(tables()):
            writer.write_table(table, row_group_size=ROW_GROUP)
    return tally


def _ahead(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same tables, the next one made in a thread while one is in use: a lone shard has two cores, too."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, tables, None)
        while (table := coming.result()) is not None:
            coming = pool.submit(next, tables, None)
            yield table


def _arrow_bytes(table: pa.Table) -> int:
    """About the bytes in memory when `datasets` opens it, for the card: there labels are int64, here they are int16."""
    labels = sum(len(pc.list_flatten(table[column])) for column in ("labels", "unordered_labels"))
    return int(table.combine_chunks().nbytes + 6 * labels)


def _add_labels(table: pa.Table, labels: dict[str, list[str]]) -> pa.Table:
    """Name -> index; a name that train does not know has none (spec, section 4)."""
    indices = {
        column: pl.col(source).list.eval(
            pl.element().cast(pl.Enum(labels[kind]), strict=False).to_physical().cast(pl.Int16).drop_nulls()
        )
        for column, source, kind in (
            ("labels", "label_names", "position"),
            ("unordered_labels", "subclasses", "unordered"),
        )
    }
    frame = pl.DataFrame(table.select(["label_names", "subclasses"])).select(**indices)
    table = table.drop_columns(["subclasses"])
    for column in indices:
        table = table.append_column(column, frame[column].to_arrow())
    return table.cast(schema.DATASET)


def _write_dropped(store: Store, parts: Parts) -> None:
    name = "dropped.parquet"
    if store.has(name):
        return
    keys = sorted({key for keys in parts.keys for key in keys if key.startswith("dropped/")})
    rows = [
        (number, key.removeprefix("dropped/"))
        for key in keys
        for numbers in parts.column(key, "publication_number")
        for number in numbers.to_pylist()
    ]
    table = pl.DataFrame(sorted(rows), schema=schema.DROPPED.names, orient="row").cast(pl.String).to_arrow()
    with store.write(name, {"rows": len(rows)}) as temporary:
        pq.write_table(table.cast(schema.DROPPED), temporary, compression="zstd", write_page_index=True)


def _assert_nothing_lost(store: Store, rows: int) -> None:
    files = store.manifest["files"]
    kept = sum(record["rows"] for name, record in files.items() if name.endswith(".parquet"))
    if kept != rows:
        raise DataError(f"{store.folder}: {rows} rows came in and {kept} went out; remove it and run again.")


def _source(raw: dict[str, Any]) -> dict[str, Any]:
    """What raw/'s manifest says of where the rows come from, without who paid for them."""
    own = ("kind", "complete", "config", "config_sha256", "manifest_sha256", "files", "job_id")
    config = {name: value for name, value in raw["config"].items() if name != "project"}
    return {**config, **{name: value for name, value in raw.items() if name not in own}}


def _summary(store: Store) -> dict[str, Any]:
    files = store.manifest["files"]
    rows = {
        config: {
            split: sum(record["rows"] for name, record in files.items() if name.startswith(f"{config}/{split}-"))
            for split in store.manifest["config"]["splits"]
        }
        for config in CONFIGS
    }
    return {
        "out": str(store.folder),
        "rows": store.manifest["rows"],
        **rows,
        "dropped": read_json(store.folder / "stats.json")["rows"]["dropped"],
        "made_up": store.manifest["made_up"],
    }
