"""raw/ -> dataset/: the first claims joined, and CPC (or IPC) codes labelled by their position.

Position comes from each code's `first` flag, never from the array's order, which means nothing in the
source. `first_later` holds the rule; `relabel_folder` runs it over month shards in flat memory:

    raw month shard --> hidden part, its rows keyed by config, split and day --> final shards
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ewe.errors import DataError
from ewe.pipeline import card, schema, stats
from ewe.pipeline.parts import FLAT, read_keys, read_parts, write_parts
from ewe.pipeline.runs import row_groups
from ewe.pipeline.split import PAPER, Splits, assign_split
from ewe.progress import bar, say, warn
from ewe.store import Store, read_json, read_manifest, sha256_json
from ewe.text import join_claims_batch

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)
Scheme = Literal["cpc", "ipc"]

CONFIGS = ("relabeled", "no_first")  # folders of dataset/: rows with a code flagged first, and rows without one
SHARD_ROWS = 250_000  # about 500 MB of Parquet
ROW_GROUP = 4096  # rows
WORKERS = 2  # months and shards in work at a time; more would multiply the memory


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
    symbol = pl.element().struct
    code = symbol.field("code").str.replace_all(r"\s+", "")
    known = code.is_not_null() & (code != "")
    subclass = pl.element().str.slice(0, 4)
    return (
        frame.with_columns(
            _codes=pl.col(scheme).list.eval(code.filter(known).unique()).fill_null([]),
            _first=pl.col(scheme).list.eval(code.filter(known & symbol.field("first")).unique()).fill_null([]),
            _inventive=pl.col(scheme).list.eval(code.filter(known & symbol.field("inventive"))).fill_null([]),
        )
        .with_columns(
            _listed=pl.coalesce(
                pl.col("_first").list.set_intersection("_inventive").list.eval(pl.element().min()).list.first(),
                pl.col("_first").list.eval(pl.element().min()).list.first(),
            )
        )
        .with_columns(
            first=pl.col("_listed").str.slice(0, 4),
            later=pl.when(pl.col("_listed").is_not_null()).then(
                pl.col("_codes").list.set_difference(pl.concat_list("_listed")).list.eval(subclass.unique().sort())
            ),
            subclasses=pl.col("_codes").list.eval(subclass.unique().sort()),
            several_first=pl.col("_first").list.len() > 1,
        )
        .with_columns(
            label_names=pl.concat_list("First-" + pl.col("first"), pl.col("later").list.eval("Later-" + pl.element()))
        )
        .drop("_codes", "_first", "_inventive", "_listed")
    )


def first_claims(frame: pl.DataFrame, max_claims: int = 20) -> pl.DataFrame:
    """Replace `claims` (one string as published, null allowed) by the first claims, cleaned and joined.

    Returns:
        The frame with `text` (string, claims joined by one space), `claim_offsets` (list<int32>, where
        each starts in text, in characters) and `n_claims` (int16, of the whole patent).
    """
    claims = frame["claims"].fill_null("").rechunk().to_arrow()
    _, offsets, data = claims.buffers()
    joined = join_claims_batch(
        np.frombuffer(data or b"", np.uint8),
        np.frombuffer(offsets, np.int64)[claims.offset : claims.offset + len(claims) + 1],
        max_claims,
    )
    text = pa.LargeStringArray.from_buffers(len(claims), pa.py_buffer(joined.text_offsets), pa.py_buffer(joined.text))
    starts = pa.LargeListArray.from_arrays(joined.claim_indptr, pa.array(joined.claim_offsets))
    return frame.drop("claims").with_columns(
        pl.Series("text", text), pl.Series("claim_offsets", starts), pl.Series("n_claims", joined.n_claims, pl.Int16)
    )


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
        months = sorted(name for name in source["files"] if name.startswith("grants-"))

        def write_part(month: str) -> int:
            _write_part(store, raw / month, max_claims, scheme, splits)
            return int(source["files"][month]["rows"])

        with bar("relabel", source["rows"], "rows") as advance, ThreadPoolExecutor(WORKERS) as pool:
            for finished in pool.map(write_part, months):
                advance(finished)
        parts = Parts(store, months)
        labels = _vocabularies(parts, scheme, splits)
        shards = [shard for config_name in CONFIGS for split in splits for shard in _shards(parts, config_name, split)]
        with bar("write", len(shards), "shards") as advance, ThreadPoolExecutor(WORKERS) as pool:
            for _ in pool.map(lambda shard: _write_shard(store, parts, labels, *shard), shards):
                advance()
        _write_dropped(store, parts)
        _assert_nothing_lost(store, source["rows"])
        for split in [split for split in splits if not parts.rows("relabeled", split)]:
            warn(f"no row in split {split}; its shard is empty and load_dataset is not offered it.")
        counts = stats.count_labels(store, labels, list(splits))
        store.write_json("labels.json", {"scheme": scheme, **_with_counts(labels, counts)})
        several_first = parts.fact("several_first")
        store.write_json(
            "stats.json",
            stats.summarize(store, counts, list(splits), several_first=several_first, max_claims=max_claims),
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


def relabel_frame(frame: pl.DataFrame, max_claims: int, scheme: Scheme, splits: Splits) -> pl.DataFrame:
    """One chunk of raw/ on its way to dataset/: split, text, labels, and `reason` where the row is dropped."""
    reason = (
        pl.when(pl.col("split").is_null())
        .then(pl.lit("outside_split"))
        .when(pl.col("text") == "")
        .then(pl.lit("no_claims"))
        .when(pl.col("subclasses").list.len() == 0)
        .then(pl.lit("no_codes"))
    )
    return (
        frame.pipe(assign_split, splits)
        .pipe(first_claims, max_claims)
        .pipe(first_later, scheme)
        .with_columns(reason=reason)
    )


# -- hidden parts: a month's rows, keyed config/split/day (or dropped/reason) ----------------------------------------

PART = pa.schema(
    [field.with_nullable(nullable=True) for field in schema.DATASET if field.name not in ("labels", "unordered_labels")]
    + [pa.field("subclasses", pa.list_(pa.string()))]
)


def _write_part(store: Store, path: Path, max_claims: int, scheme: Scheme, splits: Splits) -> None:
    name = _part_name(path.name)
    if store.has(name):
        return
    facts: dict[str, Any] = {"several_first": 0}

    def chunks() -> Iterator[tuple[pa.Table, pa.Array]]:
        with pq.ParquetFile(path, **FLAT) as file:
            for batch in file.iter_batches(ROW_GROUP):
                frame = relabel_frame(pl.DataFrame(batch), max_claims, scheme, splits)
                config = pl.when(pl.col("first").is_null()).then(pl.lit("no_first")).otherwise(pl.lit("relabeled"))
                day = pl.col("grant_date").cast(pl.String)
                kept = pl.concat_str(config, "split", day, separator="/")
                keys = frame.select(pl.coalesce("dropped/" + pl.col("reason"), kept)).to_series()
                facts["several_first"] += int((frame["several_first"] & frame["reason"].is_null()).sum())
                yield frame.select(PART.names).to_arrow(), keys.to_arrow().cast(pa.string())

    with store.write(name, facts) as temporary:
        facts["rows"] = write_parts(temporary, PART, chunks())


def _part_name(shard: str) -> str:
    return f".parts/{shard.removeprefix('grants-').removesuffix('.parquet')}.arrow"


class Parts:
    """The finished hidden parts of all months, in the order of time."""

    def __init__(self, store: Store, months: list[str]) -> None:
        self.facts = [store.manifest["files"][_part_name(month)] for month in months]
        self.paths = [store.folder / _part_name(month) for month in months]
        self.keys = [read_keys(path) for path in self.paths]

    def fact(self, name: str) -> int:
        """A count, summed over the months."""
        return sum(fact[name] for fact in self.facts)

    def rows(self, config: str, split: str) -> int:
        """Rows of one split of one config."""
        return sum(self._rows_by_month(f"{config}/{split}/"))

    def _rows_by_month(self, prefix: str) -> list[int]:
        return [sum(rows for key, rows in fact["rows"].items() if key.startswith(prefix)) for fact in self.facts]

    def read(
        self, prefix: str, start: int = 0, stop: int | None = None, columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows [start, stop) of the keys with this prefix, by (grant_date, publication_number)."""
        position = 0
        for path, keys, rows in zip(self.paths, self.keys, self._rows_by_month(prefix), strict=True):
            if position + rows > start and (stop is None or position < stop):
                at = position
                for key in sorted({key for key in keys if key.startswith(prefix)}):
                    for batch in read_parts(path, keys, key, columns):
                        low = max(start - at, 0)
                        high = batch.num_rows if stop is None else min(stop - at, batch.num_rows)
                        if low < high:
                            yield batch.slice(low, high - low)
                        at += batch.num_rows
            position += rows


# -- labels: the training split's subclasses -------------------------------------------------------------------------


def _vocabularies(parts: Parts, scheme: Scheme, splits: Splits) -> dict[str, list[str]]:
    """Label names by kind: position (First-* sorted, then Later-* sorted) and unordered (spec, section 4)."""
    relabeled, no_first = (_subclasses(parts, f"{config}/train/") for config in CONFIGS)
    if not relabeled:
        start, end = splits["train"]
        raise DataError(
            f"No row of the train split ({start} to {end}) has claims and a first-listed {scheme} code; "
            "give other --split windows, another --scheme, or fetch other years."
        )
    position = [f"{rank}-{subclass}" for rank in ("First", "Later") for subclass in sorted(relabeled)]
    return {"position": position, "unordered": sorted(relabeled | no_first)}


def _subclasses(parts: Parts, prefix: str) -> set[str]:
    found: set[str] = set()
    for batch in parts.read(prefix, columns=["subclasses"]):
        found.update(batch.column("subclasses").flatten().unique().to_pylist())
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


def _shards(parts: Parts, config: str, split: str) -> Iterator[tuple[str, str, int, int]]:
    """(name, prefix of keys, first row, row after the last) of each shard; an empty split has one, of no row."""
    rows = parts.rows(config, split)
    shards = max(1, -(-rows // SHARD_ROWS))
    for index in range(shards):
        name = f"{config}/{split}-{index:05d}-of-{shards:05d}.parquet"
        yield name, f"{config}/{split}/", index * SHARD_ROWS, min(rows, (index + 1) * SHARD_ROWS)


def _write_shard(
    store: Store, parts: Parts, labels: dict[str, list[str]], name: str, prefix: str, start: int, stop: int
) -> None:
    if store.has(name):
        return
    order = [schema.DATASET.get_field_index(column) for column in ("grant_date", "publication_number")]
    facts = {"rows": stop - start, "arrow_bytes": 0}
    with (
        store.write(name, facts) as temporary,
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
        batches = parts.read(prefix, start, stop)
        for table in row_groups((pa.Table.from_batches([batch]) for batch in batches), ROW_GROUP):
            labelled = _add_labels(table, labels)
            facts["arrow_bytes"] += _arrow_bytes(labelled)
            writer.write_table(labelled, row_group_size=ROW_GROUP)


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
    reasons = sorted({key for keys in parts.keys for key in keys if key.startswith("dropped/")})
    rows = [
        (number, key.removeprefix("dropped/"))
        for key in reasons
        for batch in parts.read(key, columns=["publication_number"])
        for number in batch.column(0).to_pylist()
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
