"""raw/ -> dataset/: the first claims joined, and CPC (or IPC) codes labelled by their position.

Position comes from each code's `first` flag, never from the array's order, which means nothing in the
source. `first_later` holds the rule; `relabel_folder` runs it over month shards in flat memory, twice:

    codes alone      --> the labels that train has
    all, shard by shard: months by day of grant --> claims joined, codes labelled --> relabeled/, no_first/, dropped

A final shard is whole months of one split, so that each is made alone and a killed run repeats no more.
Texts and codes stay in Arrow's buffers; Polars sees what decides where a row goes.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ewe.errors import DataError
from ewe.parquet import read_batches
from ewe.pipeline import card, codes, schema, stats
from ewe.pipeline.buffers import text_buffers
from ewe.pipeline.runs import KEY, RowGroups, merge, row_groups
from ewe.pipeline.shards import WRITTEN, open_shard
from ewe.pipeline.split import PAPER, Splits
from ewe.progress import bar, say, warn
from ewe.store import Files, Store, read_json, read_manifest, refuse_inside, sha256_json
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
SHARD_ROWS = 100_000  # of raw/ at most, but a month at least; about 200 MB of Parquet
ROW_GROUP = 4096  # rows
CHUNK = 2048  # rows relabeled at once: some 7 MB of claims
SLICE = 8192  # rows that are worth a thread where labels alone are asked for
WORKERS = 2  # shards in work at a time; more would multiply the memory


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
    """text, claim_offsets and n_claims of claims as published, null as ''."""
    joined = join_claims_batch(*text_buffers(claims), max_claims)
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
    pool: Executor | None = None,
) -> dict[str, Any]:
    """Make dataset/ of raw/; the same call again goes on where it stopped.

    Args:
        raw: folder that fetch made.
        out: the folder to make.
        max_claims: how many of a patent's claims make its text.
        scheme: which classification the labels are of.
        splits: windows of grant dates by name.
        pool: what makes the shards; None for two threads.

    Returns:
        A summary: rows by config and split, dropped rows by reason, labels, made_up.

    Raises:
        DataError: RAW is no raw folder, or no row of the train split can be relabeled.
        IncompleteError: RAW is unfinished.
        UsageError: `out` lies in RAW.
    """
    refuse_inside(out, raw)
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
        months = {raw / name: each["rows"] for name, each in source["files"].items() if name.startswith("grants-")}
        how = How(max_claims, scheme, splits)
        labels = _vocabularies(_of_split(months, splits["train"]), how)
        if odd := codes.no_symbols(labels["unordered"]):
            which = f"{', '.join(odd[:5])}{', ...' if len(odd) > 5 else ''}"
            warn(
                f"{len(odd):,} subclasses are no {scheme.upper()} symbols ({which}); they stay, as the source has them."
            )
        shards = [shard for split, window in splits.items() for shard in _shards(split, _of_split(months, window))]
        tallies = {split: stats.Tally(labels) for split in splits}
        rows = sum(shard.rows for shard in shards)
        work = [(shard, how, labels) for shard in shards]
        with bar("relabel", rows, "rows") as advance:
            made = store.parts(pool or WORKERS, _write_shard, work, advance)
        for shard, tally in zip(shards, made, strict=True):
            tallies[shard.split].merge(tally)
        _write_dropped(store, shards, months, splits)
        _assert_nothing_lost(store, source["rows"])
        for split in [split for split in splits if not tallies[split].rows]:
            warn(f"no row in split {split}; its shard is empty and load_dataset is not offered it.")
        counts = stats.count_labels(tallies)
        store.write_json("labels.json", {"scheme": scheme, **_with_counts(labels, counts)})
        records = [store.manifest["files"][shard.name("relabeled")] for shard in shards]
        several_first = sum(record["several_first"] for record in records)
        store.write_json(
            "stats.json", stats.summarize(store, tallies, several_first=several_first, max_claims=max_claims)
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


class How(NamedTuple):
    """What decides how rows are relabeled."""

    max_claims: int
    scheme: Scheme
    splits: Splits


# -- reading raw/ ----------------------------------------------------------------------------------------------------


def _of_split(months: Mapping[Path, int], window: tuple[dt.date, dt.date]) -> dict[Path, int]:
    """The month shards that may hold a day of the window, in the order of time, as their names are, with their rows."""
    first, last = (f"grants-{day.isoformat()[:7]}.parquet" for day in window)
    return {month: months[month] for month in sorted(months) if first <= month.name <= last}


def _holds(window: tuple[dt.date, dt.date], month: Path) -> bool:
    """Whether every day of a month shard is within the window."""
    first = dt.date.fromisoformat(f"{month.stem.removeprefix('grants-')}-01")
    last = (first + dt.timedelta(days=31)).replace(day=1) - dt.timedelta(days=1)
    return window[0] <= first and last <= window[1]


def _by_date(month: Path) -> Iterator[pa.Table]:
    """A month shard, which is sorted by publication number, by day and number; a batch at a time is in memory.

    Numbers follow each other in time, nearly always: what does not (reissues, whose numbers are their own) is read
    first and held until its day has come. At worst that is nearly the month: of June 2018, where 10000000 stands
    before 9990000.
    """
    with open_shard(month, schema.RAW) as file:
        days = file.read(["grant_date"], use_threads=False).column(0).cast(pa.int32()).to_numpy()
        late = days < np.maximum.accumulate(days)
        order = np.argsort(days[late], kind="stable")
        held, held_days = _rows(file, late).take(order), days[late][order]
        begin = out = 0
        for batch in read_batches(file, CHUNK, schema.RAW.names):
            here = slice(begin, begin + batch.num_rows)
            begin = here.stop
            table = pa.Table.from_batches([batch])
            if late[here].any():
                table = table.filter(pa.array(~late[here]))
            on_time = days[here][~late[here]]
            done = 0
            while out < len(held_days) and done < len(on_time):
                place = int(np.searchsorted(on_time, held_days[out], "right"))
                if place == len(on_time):
                    break
                end = int(np.searchsorted(held_days, held_days[out], "right"))
                yield table.slice(done, place - done)
                yield held.slice(out, end - out)
                done, out = place, end
            yield table.slice(done)
        yield held.slice(out)


def _rows(file: pq.ParquetFile, wanted: NDArray[np.bool_]) -> pa.Table:
    """Some rows of a file (N,), in its order; row groups without any are not read."""
    columns = [name for name in file.schema_arrow.names if name in schema.RAW.names]
    tables = [file.schema_arrow.empty_table().select(columns)]
    begin = 0
    for group in range(file.num_row_groups):
        end = begin + file.metadata.row_group(group).num_rows
        if wanted[begin:end].any():
            table = file.read_row_group(group, columns=columns, use_threads=False)
            tables.append(table.filter(pa.array(wanted[begin:end])))
        begin = end
    return pa.concat_tables(tables)


# -- labels: the training split's subclasses -------------------------------------------------------------------------


def _vocabularies(months: Iterable[Path], how: How) -> dict[str, list[str]]:
    """Label names by kind: position (First-* sorted, then Later-* sorted) and unordered (spec, section 4)."""
    relabeled: set[str] = set()
    no_first: set[str] = set()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda month: _add_subclasses(month, how, relabeled, no_first), months))
    if not relabeled:
        start, end = how.splits["train"]
        raise DataError(
            f"No row of the train split ({start} to {end}) has claims and a first-listed {how.scheme} code; "
            "give other --split windows, another --scheme, or fetch other years."
        )
    position = [f"{rank}-{subclass}" for rank in ("First", "Later") for subclass in sorted(relabeled)]
    return {"position": position, "unordered": sorted(relabeled | no_first)}


def _add_subclasses(month: Path, how: How, relabeled: set[str], no_first: set[str]) -> None:
    """Add the subclasses of a month's training rows to those known, of rows with a code flagged first and of others.

    A row without claims counts for nothing, so claims are read where a row has a subclass that is new. Threads share
    what is known without a lock: who sees it too late reads more than need be.
    """
    with open_shard(month, schema.RAW) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["grant_date", how.scheme], use_threads=False)
            if codes.subclasses(table[how.scheme].combine_chunks()) <= relabeled:
                continue
            labelled = codes.label(table[how.scheme].combine_chunks())
            train, listed = _within(table, how.splits["train"]), _flags(labelled["first"].is_valid())
            subclasses = labelled["subclasses"]
            of_row = np.repeat(np.arange(len(subclasses)), pc.list_value_length(subclasses).to_numpy())
            values = subclasses.flatten()
            claims = None
            for known, rows in ((relabeled, train & listed), (no_first, train & ~listed)):
                new = rows[of_row] & ~_flags(pc.is_in(values, pa.array(list(known), values.type)))
                if not new.any():
                    continue
                if claims is None:
                    claims = file.read_row_group(group, columns=["claims"], use_threads=False)["claims"]
                chosen = np.unique(of_row[new])
                texts = _first_claims(claims.take(chosen).combine_chunks(), how.max_claims)["text"]
                filled = chosen[_flags(pc.greater(pc.binary_length(texts), 0))]
                known.update(values.filter(pa.array(new & np.isin(of_row, filled))).to_pylist())


def _within(table: pa.Table, window: tuple[dt.date, dt.date]) -> NDArray[np.bool_]:
    """Which rows (N,) were granted in the window."""
    days = table["grant_date"]
    return _flags(pc.and_(pc.greater_equal(days, window[0]), pc.less_equal(days, window[1])))


def _flags(values: pa.Array) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return flags


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
    """Whole months of a split: a final file of each config, and a hidden one of what is dropped."""

    split: str
    number: int
    shards: int
    """of the split"""
    months: Mapping[Path, int]
    """with their rows"""

    @property
    def rows(self) -> int:
        """Of its months, whatever split they are of."""
        return sum(self.months.values())

    def name(self, config: str) -> str:
        """The file of this config's rows."""
        return f"{config}/{self.split}-{self.number:05d}-of-{self.shards:05d}.parquet"

    @property
    def dropped(self) -> str:
        """The file of the rows that have no claims or no codes."""
        return f".dropped/{self.split}-{self.number:05d}.parquet"


def _shards(split: str, months: Mapping[Path, int]) -> list[Shard]:
    """The shards of a split, cut where raw/'s manifest says, so that no row need be read to know them."""
    groups: list[dict[Path, int]] = [{}]
    for month, rows in months.items():
        if groups[-1] and sum(groups[-1].values()) + rows > SHARD_ROWS:
            groups.append({})
        groups[-1][month] = rows
    return [Shard(split, number, len(groups), group) for number, group in enumerate(groups)]


def _write_shard(out: Files, shard: Shard, how: How, labels: dict[str, list[str]]) -> stats.Tally:
    """Write a shard's files and count what is in them; of files that an earlier run has written, count alone."""
    tally = stats.Tally(labels)
    names = {config: shard.name(config) for config in CONFIGS}
    if all(map(out.has, (*names.values(), shard.dropped))):
        for config, name in names.items():
            with open_shard(out.folder / name, schema.DATASET) as file:
                for batch in read_batches(file, ROW_GROUP, stats.COLUMNS):
                    tally.add(pa.Table.from_batches([batch]), config)
        out.advance(shard.rows)
        return tally
    facts = {config: {"rows": 0, "arrow_bytes": 0} for config in CONFIGS}
    facts["relabeled"]["several_first"] = 0
    dropped: list[pa.Table] = [schema.DROPPED.empty_table()]

    def rows() -> Iterator[tuple[str, pa.Table]]:
        for raw in row_groups(itertools.chain.from_iterable(map(_by_date, shard.months)), CHUNK):
            out.advance(raw.num_rows)
            mine = _within(raw, how.splits[shard.split])
            if not mine.any():
                continue
            raw = raw if mine.all() else raw.filter(pa.array(mine)).combine_chunks()
            tables, without, several_first = relabel_table(raw, how.max_claims, how.scheme)
            dropped.append(without)
            facts["relabeled"]["several_first"] += several_first
            for config in CONFIGS:
                yield config, tables[config].append_column("split", pa.repeat(shard.split, tables[config].num_rows))

    def groups() -> Iterator[tuple[str, pa.Table]]:
        for config, table in _row_groups(rows()):
            labelled = _add_labels(table, labels)
            facts[config]["rows"] += labelled.num_rows
            facts[config]["arrow_bytes"] += _arrow_bytes(labelled)
            tally.add(labelled, config)
            yield config, labelled

    with ExitStack() as stack:
        files = {config: stack.enter_context(_final(out, names[config], facts[config])) for config in CONFIGS}
        for config, table in _ahead(groups()):
            files[config].write_table(table, row_group_size=ROW_GROUP)
    with out.write(shard.dropped) as temporary:
        pq.write_table(pa.concat_tables(dropped).sort_by(KEY), temporary, row_group_size=ROW_GROUP, **WRITTEN)
    return tally


@contextmanager
def _final(out: Files, name: str, facts: dict[str, int]) -> Iterator[pq.ParquetWriter]:
    order = [schema.DATASET.get_field_index(column) for column in ("grant_date", "publication_number")]
    with (
        out.write(name, facts) as temporary,
        pq.ParquetWriter(
            temporary,
            schema.DATASET,
            **WRITTEN,
            use_content_defined_chunking=True,
            sorting_columns=[pq.SortingColumn(index) for index in order],
        ) as writer,
    ):
        yield writer


def relabel_table(raw: pa.Table, max_claims: int, scheme: Scheme) -> tuple[dict[str, pa.Table], pa.Table, int]:
    """One chunk of raw/ (columns in one piece each) on its way to dataset/.

    Returns:
        By config its rows, with text and labels; the others' numbers and why they are dropped (schema.DROPPED); and how
        many of those that are kept have several codes flagged first.
    """
    columns = _first_claims(raw["claims"].chunk(0), max_claims) | codes.label(raw[scheme].chunk(0))
    has_text = pc.greater(pc.binary_length(columns["text"]), 0)
    has_codes = pc.greater(pc.list_value_length(columns["subclasses"]), 0)
    listed = columns["first"].is_valid()
    kept = pc.and_(has_text, has_codes)
    rows = {"relabeled": pc.and_(kept, listed), "no_first": pc.and_(kept, pc.invert(listed))}
    several_first = pc.sum(pc.and_(columns["several_first"], kept)).as_py()
    table = pa.table({name: raw[name] for name in raw.column_names if name != "claims"} | columns)
    lost = pc.invert(kept)
    reasons = pc.if_else(has_text, "no_codes", "no_claims").filter(lost)
    dropped = pa.table([raw["publication_number"].filter(lost), reasons], schema=schema.DROPPED)
    tables = {config: table if pc.all(chosen).as_py() else table.filter(chosen) for config, chosen in rows.items()}
    return tables, dropped, several_first


def _row_groups(tables: Iterable[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """The same rows by config, ROW_GROUP at a time."""
    pending = {config: RowGroups(ROW_GROUP) for config in CONFIGS}
    for config, table in tables:
        yield from ((config, group) for group in pending[config].add(table))
    for config, groups in pending.items():
        yield from ((config, group) for group in groups.rest() if group.num_rows)


def _ahead(tables: Iterator[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """The same tables, the next one made in a thread while one is in use: a lone shard has two cores, too."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, tables, None)
        while (made := coming.result()) is not None:
            coming = pool.submit(next, tables, None)
            yield made


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
    for column in indices:
        table = table.append_column(column, frame[column].to_arrow())
    return table.select(schema.DATASET.names).cast(schema.DATASET)


def _write_dropped(store: Store, shards: list[Shard], months: Iterable[Path], splits: Splits) -> None:
    name = "dropped.parquet"
    if store.has(name):
        return
    outside = [month for month in months if not any(_holds(window, month) for window in splits.values())]
    runs = [
        *(_dropped(store.folder / shard.dropped) for shard in shards),
        *(_outside(each, splits) for each in outside),
    ]
    facts = {"rows": 0}
    with store.write(name, facts) as temporary, pq.ParquetWriter(temporary, schema.DROPPED, **WRITTEN) as writer:
        for table in row_groups(merge(runs), ROW_GROUP):
            writer.write_table(table)
            facts["rows"] += table.num_rows


def _dropped(path: Path) -> Iterator[pa.Table]:
    """The rows that a shard's months drop, by number."""
    with open_shard(path, schema.DROPPED) as file:
        for batch in read_batches(file, ROW_GROUP):
            yield pa.Table.from_batches([batch])


def _outside(month: Path, splits: Splits) -> Iterator[pa.Table]:
    """A month's rows that are in no split, as dropped ones, by number."""
    with open_shard(month, schema.RAW) as file:
        for batch in read_batches(file, ROW_GROUP, ["publication_number", "grant_date"]):
            within = np.logical_or.reduce([_within(pa.Table.from_batches([batch]), each) for each in splits.values()])
            numbers = batch.column("publication_number").filter(pa.array(~within))
            if len(numbers):
                yield pa.table([numbers, pa.repeat("outside_split", len(numbers))], schema=schema.DROPPED)


def _assert_nothing_lost(store: Store, rows: int) -> None:
    files = store.manifest["files"]
    kept = sum(files[name]["rows"] for name in files if name.endswith(".parquet") and not name.startswith("."))
    if kept != rows:
        raise DataError(f"{store.folder}: {rows} rows came in and {kept} went out; remove it and run again.")


def _source(raw: dict[str, Any]) -> dict[str, Any]:
    """What raw/'s manifest says of where the rows come from, without who paid for them."""
    own = ("kind", "complete", "config", "config_sha256", "version", "manifest_sha256", "files", "job_id")
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
