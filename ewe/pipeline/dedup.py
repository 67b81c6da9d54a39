"""dataset/ -> dataset/duplicates/: near-copies, the groups they make, and what leaks from train into the test splits.

Rows of relabeled/ and of no_first/ both take part. Texts are lower-cased; equal ones collapse to one before anything is
compared. Everything that grows with the number of texts stands in hidden files: signatures of all of them, the sets of
shingles of those that share a band with another.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ewe.errors import DataError, UsageError
from ewe.parquet import read_batches
from ewe.pipeline import minhash, schema
from ewe.pipeline.links import Float64, Links, Texts, link, nearest
from ewe.pipeline.minhash import PERMUTATIONS, Int64, ShingleSets, UInt32, UInt64
from ewe.pipeline.shards import WRITTEN, open_shard
from ewe.progress import bar, say
from ewe.store import SUMS, Files, Store, read_json, read_manifest, sha256_json

FOLDER = "duplicates"
PART_ROWS = 16_384  # rows a part, so that a killed run repeats no more
BATCH_ROWS = 1_024  # rows of text in memory at a time, a worker
WORKERS = min(os.cpu_count() or 1, 8)  # parts in work at a time
DIGEST = 16  # bytes of BLAKE2b that tell texts apart

LEAKS = ("same_family", "other_family")


class Part(NamedTuple):
    """Consecutive row groups of one shard; rows are numbered through all parts, train's first."""

    shard: Path
    config: str
    split: str
    groups: tuple[int, ...]
    start: int
    rows: int

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.start + self.rows

    def read(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The part's rows, a bounded batch at a time."""
        with open_shard(self.shard, schema.DATASET) as file:
            yield from read_batches(file, BATCH_ROWS, columns, self.groups)


def dedup_folder(dataset: Path, *, jaccard: float = 0.8, pool: Executor | None = None) -> dict[str, Any]:
    """Find near-copies in DATASET and write DATASET/duplicates/; the same call again goes on where it stopped.

    pairs.parquet holds a spanning forest of each group, and beside it (`in_forest` false) for every leaking test row
    the pair that shows it, where the forest does not. groups.parquet holds the rows of all groups, leakage.json the
    counts. Similarities are exact.

    Args:
        dataset: a folder that relabel made.
        jaccard: the least similarity of two near-copies' sets of shingles.
        pool: what makes the signatures; None for threads.

    Returns:
        A summary: rows, distinct texts, pairs, groups, rows in groups, leaking test rows by split, made_up.

    Raises:
        DataError: DATASET is no dataset folder, or duplicates/ was made of another or with another threshold.
        UsageError: a threshold that 128 permutations cannot serve.
    """
    try:
        bands, rows = minhash.bands(jaccard)
    except ValueError:
        raise UsageError(f"--jaccard {jaccard} is out of reach; give a similarity from 0.04 to 1.") from None
    source = read_manifest(dataset, "dataset")
    config = {
        "dataset_sha256": _sha256(source),
        "jaccard": jaccard,
        "bands": bands,
        "rows_a_band": rows,
        "shingle_words": minhash.WORDS,
        "permutations": PERMUTATIONS,
        "scheme": minhash.SCHEME,
        "hash": minhash.HASH,
        "seed": minhash.SEED,
        "columns_sha256": sha256_json([schema.describe(schema.PAIRS), schema.describe(schema.GROUPS)]),
    }
    with Store(dataset / FOLDER, "duplicates", config) as store:
        if store.finished:
            say(f"{store.folder} is finished already.")
            return _summary(store)
        if (dataset / SUMS).is_file():  # checksums that leave a part out, or hold a former one's, are not left there
            (dataset / SUMS).unlink()
            say(f"{dataset / SUMS} is gone until ewe-data release runs again; the card follows then, too.")
        parts = _parts(dataset, source)
        total = sum(part.rows for part in parts)
        with bar("sign", total, "rows") as advance:
            store.parts(pool or WORKERS, _sign, [(part,) for part in parts], advance)
        text_of = _collapse(store, parts)
        firsts = np.flatnonzero(text_of == np.arange(total))  # of each distinct text its first row
        banded = [minhash.buckets(keys) for keys in _band_keys(store, parts, firsts, bands, rows)]
        shares = np.zeros(len(firsts), np.bool_)  # a band with another text
        for members, _ in banded:
            shares[members] = True
        compared = firsts[shares]
        with bar("read", len(compared), "texts") as advance:
            texts = _texts(store, parts, compared, advance)
        with bar("link", bands, "bands") as advance:
            index = np.cumsum(shares) - 1
            links = link(
                texts, _counted(((index[members], starts) for members, starts in banded), advance), rows, jaccard
            )
        grouped = _grouped(parts, text_of, compared, links)
        copies = np.flatnonzero(text_of != np.arange(total))
        pairs = np.concatenate([compared[links.pairs], np.stack([text_of[copies], copies], axis=1)])
        forest = np.searchsorted(grouped.row, pairs), np.concatenate([links.similarity, np.ones(len(copies))])
        _write(store, source, grouped, forest, _leaks(grouped, texts, links, jaccard))
        store.finish(rows=total, texts=len(firsts), made_up=bool(source.get("made_up", False)))
        return _summary(store)


def read_duplicates(dataset: Path) -> dict[str, Any]:
    """The manifest of DATASET/duplicates/.

    Raises:
        DataError: dedup has not run on the dataset as it is.
        IncompleteError: dedup has not finished.
    """
    manifest = read_manifest(dataset / FOLDER, "duplicates")
    if manifest["config"]["dataset_sha256"] != _sha256(read_manifest(dataset, "dataset")):
        raise DataError(f"{dataset / FOLDER} is of another dataset; remove it and run ewe-data dedup again.")
    return manifest


def leaking(dataset: Path) -> set[str]:
    """Publication numbers of the test rows of DATASET that have a near-copy in train, in relabeled/ or no_first/.

    Raises:
        DataError: dedup has not run on it as it is.
        IncompleteError: dedup has not finished.
    """
    read_duplicates(dataset)
    with open_shard(dataset / FOLDER / "groups.parquet", schema.GROUPS) as file:
        table = file.read(["publication_number", "leak"])
    return set(table.filter(table["leak"].is_valid())["publication_number"].to_pylist())


def _sha256(source: dict[str, Any]) -> str:
    """What the dataset's rows are."""
    return sha256_json({name: source["files"][name]["sha256"] for name, _, _ in _shards(source)})


def _shards(source: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, config, split) of every shard, train's first."""
    found = [
        (name, *match.groups())
        for name in source["files"]
        if (match := re.fullmatch(r"(relabeled|no_first)/(.+)-\d{5}-of-\d{5}\.parquet", name))
    ]
    return sorted(found, key=lambda shard: (shard[2] != "train", shard[1] != "relabeled", shard[0]))


def _parts(dataset: Path, source: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    for name, config, split in _shards(source):
        footer = pq.read_metadata(dataset / name)
        for group in range(footer.num_row_groups):
            rows = footer.row_group(group).num_rows
            last = parts[-1] if parts else None
            if not rows:
                continue
            if last and last.shard == dataset / name and last.rows + rows <= PART_ROWS:
                parts[-1] = last._replace(groups=(*last.groups, group), rows=last.rows + rows)
            else:
                parts.append(Part(dataset / name, config, split, (group,), last.end if last else 0, rows))
    return parts


def _in_order(work: Callable[[Part], Any], parts: list[Part]) -> Iterator[Any]:
    """What `work` gives for each part, in order, a few parts in memory at a time."""
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _counted(items: Iterable[Any], advance: Callable[..., None]) -> Iterator[Any]:
    for item in items:
        yield item
        advance()


# -- signatures of all rows, collapsed to distinct texts, and their bands ---------------------------------------------


def _part_name(part: Part) -> str:
    return f".signatures/{part.start:09d}.npy"


def _sign(out: Files, part: Part) -> None:
    """Signature and digest of each row, side by side in uint32."""
    name = _part_name(part)
    if out.has(name):
        out.advance(part.rows)
        return
    signed = np.empty((part.rows, PERMUTATIONS + DIGEST // 4), np.uint32)
    at = 0
    for batch in part.read(["text"]):
        rows = signed[at : at + batch.num_rows]
        lowered = minhash.lower(batch.column(0))
        rows[:, :PERMUTATIONS] = minhash.signatures(lowered)
        digests = b"".join(blake2b(text.as_buffer(), digest_size=DIGEST).digest() for text in lowered)
        rows[:, PERMUTATIONS:] = np.frombuffer(digests, np.uint32).reshape(-1, DIGEST // 4)
        at += batch.num_rows
        out.advance(batch.num_rows)
    with out.write(name, {"rows": part.rows}) as temporary, temporary.open("wb") as file:
        np.save(file, signed)


def _signed(store: Store, part: Part) -> UInt32:
    return np.load(store.folder / _part_name(part), mmap_mode="r")  # type: ignore[no-any-return]


def _collapse(store: Store, parts: list[Part]) -> Int64:
    """Of each row the first row whose lower-cased text is the same."""
    empty = np.empty((0, DIGEST // 4), np.uint32)
    digests = np.concatenate([empty, *(_signed(store, part)[:, PERMUTATIONS:].copy() for part in parts)])
    digests = digests.view(np.uint64)
    order = np.lexsort(digests.T)  # stable: the first row comes first
    new = np.ones(len(order), np.bool_)
    new[1:] = (digests[order[1:]] != digests[order[:-1]]).any(axis=1)
    text_of = np.empty(len(order), np.int64)
    text_of[order] = order[np.flatnonzero(new)][np.cumsum(new) - 1]
    return text_of


def _band_keys(store: Store, parts: list[Part], firsts: Int64, bands: int, rows: int) -> UInt64:
    keys = np.empty((bands, len(firsts)), np.uint64)
    for part, chosen in _chosen(parts, firsts):
        signatures = _signed(store, part)[firsts[chosen] - part.start, :PERMUTATIONS]
        keys[:, chosen] = minhash.band_keys(signatures, bands, rows)
    return keys


def _chosen(parts: list[Part], rows: Int64) -> Iterator[tuple[Part, slice]]:
    """Each part with its stretch of these rows (sorted)."""
    for part in parts:
        yield part, slice(*np.searchsorted(rows, [part.start, part.end]).tolist())


def _texts(store: Store, parts: list[Part], chosen: Int64, advance: Callable[..., None]) -> Texts:
    """Signatures and sets of these rows' texts (sorted); the sets stay on the disk until they are asked for."""
    names = ".sets/hashes", ".sets/indptr.npy"

    def collect(part: Part) -> tuple[UInt64, Int64]:
        """Hashes, text after text, and how many each text has."""
        wanted = np.zeros(part.rows, np.bool_)
        wanted[chosen[stretches[part]] - part.start] = True
        sets = []
        at = 0
        for batch in part.read(["text"]):
            texts = batch.column(0).filter(pa.array(wanted[at : at + batch.num_rows]))
            sets.append(minhash.shingle_sets(minhash.lower(texts)))
            at += batch.num_rows
        return np.concatenate([each.hashes for each in sets]), np.concatenate([np.diff(each.indptr) for each in sets])

    signatures = np.empty((len(chosen), PERMUTATIONS), np.uint32)
    stretches = {part: stretch for part, stretch in _chosen(parts, chosen) if stretch.start < stretch.stop}
    for part, stretch in stretches.items():
        signatures[stretch] = _signed(store, part)[chosen[stretch] - part.start, :PERMUTATIONS]
    if not all(map(store.has, names)):
        indptr = np.zeros(len(chosen) + 1, np.int64)
        with store.write(names[0]) as temporary, temporary.open("wb") as file:
            for stretch, (hashes, sizes) in zip(stretches.values(), _in_order(collect, list(stretches)), strict=True):
                file.write(hashes)
                indptr[1:][stretch] = sizes
                advance(len(sizes))
        with store.write(names[1]) as temporary, temporary.open("wb") as file:
            np.save(file, np.cumsum(indptr))
    indptr = np.load(store.folder / names[1])

    def read(numbers: Int64) -> ShingleSets:
        """By plain reads: of a memory map whatever stands around a page counts as memory too."""
        own = np.concatenate([[0], np.cumsum(indptr[numbers + 1] - indptr[numbers])])
        hashes = np.empty(own[-1], np.uint64)
        with (store.folder / names[0]).open("rb", buffering=0) as file:
            for place, start, end in zip(
                (indptr[numbers] * 8).tolist(), own[:-1].tolist(), own[1:].tolist(), strict=True
            ):
                file.seek(place)
                file.readinto(hashes[start:end].data)
        return ShingleSets(hashes, own)

    return Texts(signatures, read)


# -- groups, leaks and what is written ---------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows of all groups, sorted by number; arrays (G,)."""

    row: Int64
    group: Int64
    text: Int64
    """index in Texts; beyond it where the text shares no band"""
    family: Int64
    """-1 where unknown"""
    columns: pa.Table
    """publication_number, family_id, config, split"""


def _grouped(parts: list[Part], text_of: Int64, compared: Int64, links: Links) -> Rows:
    """The rows whose text is not alone: it is another row's too, or linked.

    `text_of` names for each row the first one with its text; `compared` are the first rows of the texts that were
    compared, and what `links` counts from 0.
    """
    root = np.arange(len(text_of))
    root[compared] = compared[links.roots]  # the group's first row, as texts stand in the order of rows
    root = root[text_of]
    row = np.flatnonzero(np.bincount(root, minlength=len(root))[root] > 1)
    index = np.arange(len(text_of)) + len(compared)
    index[compared] = np.arange(len(compared))
    columns = _columns(parts, row)
    families = columns["family_id"].combine_chunks().dictionary_encode().indices
    return Rows(
        row,
        np.unique(root[row], return_inverse=True)[1],
        index[text_of[row]],
        families.fill_null(-1).to_numpy().astype(np.int64),
        columns,
    )


def _columns(parts: list[Part], rows: Int64) -> pa.Table:
    """What groups.parquet says of these rows (sorted)."""
    columns = pa.schema([schema.GROUPS.field(name) for name in ("publication_number", "family_id", "config", "split")])
    tables = [columns.empty_table()]
    for part, stretch in _chosen(parts, rows):
        if stretch.start < stretch.stop:
            table = pa.Table.from_batches(part.read(["publication_number", "family_id"]))
            table = table.take(pa.array(rows[stretch] - part.start)).select(["publication_number", "family_id"])
            table = table.append_column("config", pa.repeat(part.config, table.num_rows))
            table = table.append_column("split", pa.repeat(part.split, table.num_rows))
            tables.append(table.cast(columns))
    return pa.concat_tables(tables)


def _leaks(rows: Rows, texts: Texts, links: Links, jaccard: float) -> tuple[Int64, Int64, Float64]:
    """Test rows with a near-copy in train, that copy's row (both as indices in Rows), and how similar it is."""
    in_train = np.asarray(pc.equal(rows.columns["split"], "train"))
    test, train = np.flatnonzero(~in_train), np.flatnonzero(in_train)
    degree = np.bincount(links.pairs.ravel(), minlength=int(rows.text.max(initial=0)) + 1)[rows.text[train]]
    train = train[np.lexsort((-degree, rows.group[train]))]  # what most texts link to is tried first
    near, similarity = nearest(
        texts,
        jaccard,
        (rows.group[test], rows.text[test], rows.family[test]),
        (rows.group[train], rows.text[train], np.where(rows.family[train] < 0, -2, rows.family[train])),
    )
    found = near >= 0
    return test[found], train[near[found]], similarity[found]


def _write(
    store: Store, source: dict[str, Any], rows: Rows, forest: tuple[Int64, Float64], leaks: tuple[Int64, Int64, Float64]
) -> None:
    """Write pairs.parquet, groups.parquet and leakage.json.

    `forest` holds pairs (E, 2), as indices in Rows, and their similarity; `leaks` is what `_leaks` gave.
    """
    test, train, similarity = leaks
    pairs = np.concatenate([forest[0], np.stack([train, test], axis=1)])
    similarity = np.concatenate([forest[1], similarity])
    pairs, kept = np.unique(pairs, axis=0, return_index=True)  # of two alike the forest's
    order = np.argsort(rows.group[pairs[:, 0]], kind="stable")
    (a, b), kept = pairs[order].T, kept[order]
    numbers = rows.columns["publication_number"]
    sides = [numbers.take(pa.array(side)) for side in (a, b)]
    columns = [rows.group[a], *sides, similarity[kept], kept < len(forest[0])]
    _write_table(store, "pairs.parquet", pa.table(columns, schema=schema.PAIRS))

    leak = np.full(len(rows.row), None, object)
    leak[test] = np.where((rows.family[test] >= 0) & (rows.family[test] == rows.family[train]), *LEAKS)
    table = rows.columns.append_column("group", [rows.group]).append_column("leak", [pa.array(leak, pa.string())])
    table = table.take(pa.array(np.argsort(rows.group, kind="stable")))
    _write_table(store, "groups.parquet", table.select(schema.GROUPS.names).cast(schema.GROUPS))

    seen = Counter(zip(rows.columns["split"].to_pylist(), leak.tolist(), strict=True))
    leakage = {}
    for split in source["config"]["splits"]:
        if split != "train":
            total = sum(source["files"][name]["rows"] for name, _, each in _shards(source) if each == split)
            by_family = {kind: seen[split, kind] for kind in LEAKS}
            leakage[split] = {"rows": total, "leaking": sum(by_family.values()), **by_family}
    store.write_json("leakage.json", leakage)


def _write_table(store: Store, name: str, table: pa.Table) -> None:
    with store.write(name, {"rows": table.num_rows}) as temporary:
        pq.write_table(table, temporary, **WRITTEN)


def _summary(store: Store) -> dict[str, Any]:
    groups = pq.read_table(store.folder / "groups.parquet", columns=["group"])["group"]
    return {
        "out": str(store.folder),
        "rows": store.manifest["rows"],
        "texts": store.manifest["texts"],
        "groups": len(groups.unique()),
        "rows_in_groups": len(groups),
        "pairs": store.rows("pairs.parquet"),
        "leaking": {split: counts["leaking"] for split, counts in read_json(store.folder / "leakage.json").items()},
        "made_up": store.manifest["made_up"],
    }
