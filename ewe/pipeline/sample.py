"""Made-up patents in the publications table's shape, with the irregularities of real data in them.

A row is a function of the seed and its number alone: a larger sample begins with a smaller one's rows, shards are
independent, and a killed run goes on with the next shard. A near-copy is its original's text, made again with edits.
"""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ewe import __version__
from ewe.pipeline import prose, schema
from ewe.pipeline.local import MADE_UP, SEED
from ewe.progress import bar, say
from ewe.store import Store

SHARD_ROWS = 10_000  # some 60 MB of text
ROW_GROUP = 2_500  # rows
WORKERS = 2  # shards in work at a time

SUBCLASSES = np.array(  # by frequency, as the office's grants have it, more or less
    [
        *("G06F", "H01L", "H04L", "A61K", "G06Q", "H04N", "A61B", "H04W", "G01N", "C07D", "A61F", "B65D"),
        *("G02B", "A61M", "C12N", "H01M", "B29C", "F16H", "H04B", "B60R", "G11C", "B32B", "H05K", "B01D"),
        *("E21B", "G03G", "A63F", "C08L", "F02D", "C07K", "B41J", "H01R", "F16L", "B62D", "A01N", "C23C"),
        *("B23K", "G05B", "G09G", "E05B", "F01D", "A47J", "F21V", "E04B", "D06F", "A01B", "F28D", "D21H"),
    ]
)
CHEMISTRY = [symbol for symbol in SUBCLASSES if symbol[0] == "C" or symbol in ("A61K", "A01N", "B01D")]
GRANTS = {  # US utility grants by year
    2006: 173_772,
    2007: 157_282,
    2008: 157_772,
    2009: 167_349,
    2010: 219_614,
    2011: 224_505,
    2012: 253_155,
    2013: 277_835,
    2014: 300_678,
    2015: 298_407,
}
FIRST_NUMBER = 90_000_000  # far from any that the office has given
SLOTS = sum(GRANTS.values())
STRIDE = 1_378_453  # rows go through the ten years in steps of this; SLOTS / 1.618, and no factor in common

# What a row is, in shares of all rows. Everything but grants the query must leave out.
ROLES = {
    "grant": 0.940,
    "undated": 0.010,
    "outside": 0.010,
    "design": 0.010,
    "plant": 0.002,
    "reissue": 0.003,
    "application": 0.012,
    "registration": 0.001,
    "EP": 0.006,
    "DE": 0.002,
    "JP": 0.002,
    "CN": 0.002,
}
COPIES = 0.03  # of the rows are near-copies of an earlier grant
EDITS = np.array([0, 300, 1500, 3000])  # of 65,536 content words; the last leaves 5-word shingles 0.8 alike

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Dice:
    """Random numbers of rows: each call draws the next one for every row, from SplitMix64 of seed, row and call."""

    def __init__(self, seed: int, rows: Ints, stream: int = 0) -> None:
        self.rows = rows
        start = _mix(np.array([seed], np.uint64) * np.uint64(prose.MIX2) + np.uint64(stream))
        self._keys = _mix(rows.astype(np.uint64) * np.uint64(prose.GOLDEN) ^ start)
        self._calls = 0

    def bits(self) -> NDArray[np.uint64]:
        """(N,) 64 random bits."""
        self._calls += 1
        return _mix(self._keys + np.uint64(self._calls * prose.GOLDEN % 2**64))

    def below(self, n: int) -> Ints:
        """(N,) integers from 0 to n-1."""
        return ((self.bits() >> np.uint64(11)) % np.uint64(n)).astype(np.int64)

    def chance(self, share: float) -> Bools:
        """(N,) True in this share of the rows."""
        return self.bits() >> np.uint64(11) < np.uint64(int(share * 2**53))

    def among(self, shares: list[float]) -> Ints:
        """(N,) an index of `shares`, as often as it says."""
        edges = (np.cumsum(shares) / np.sum(shares) * 2**53).astype(np.uint64)
        return np.searchsorted(edges[:-1], self.bits() >> np.uint64(11), side="right")

    def from_table(self, table: NDArray[Any]) -> NDArray[Any]:
        """(N,) entries of a table."""
        return table[self.below(len(table))]


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(prose.MIX1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(prose.MIX2)
    return z ^ (z >> np.uint64(31))


def _log_normal(median: float, spread: float, low: int, high: int) -> NDArray[np.uint16]:
    """4,096 quantiles of a log-normal variable, rounded and kept within bounds."""
    normal = NormalDist()
    values = [median * np.exp(spread * normal.inv_cdf((i + 0.5) / 4096)) for i in range(4096)]
    return np.clip(np.rint(values), low, high).astype(np.uint16)


CLAIMS_TABLE = _log_normal(15, 0.49, 2, 60)
WORDS_TABLE = _log_normal(38, 0.5, 8, 280)
LATER_SHARES = [0.12, 0.38, 0.33, 0.17]  # of rows with 0, 1, 2, 3 later topics other than the first
AGAIN = 0.45  # of rows have the first topic among the later ones, too


def write_sample(out: Path, *, rows: int = 5000, seed: int = 0) -> dict[str, Any]:
    """Write TABLE: shards of SHARD_ROWS made-up publications; the same call again goes on where it stopped.

    Args:
        out: folder to write.
        rows: of the whole table, documents that are no US utility grants included.
        seed: another seed, other patents; the same seed, the same bytes.

    Returns:
        A summary: out, rows, shards, subclasses, bytes, made_up.
    """
    with Store(out, "table", {"rows": rows, "seed": seed, "ewe-patents": __version__}) as store:
        if store.finished:
            say(f"{out} is finished already.")
        else:
            starts = range(0, rows, SHARD_ROWS)

            def write_shard(start: int) -> int:
                stop = min(start + SHARD_ROWS, rows)
                name = f"publications-{start // SHARD_ROWS:05d}.parquet"
                if not store.has(name):
                    with store.write(name, {"rows": stop - start}) as path:
                        _write_parquet(publications(start, stop, seed), path)
                return stop - start

            with bar("sample", rows, "rows") as advance, ThreadPoolExecutor(WORKERS) as pool:
                for written in pool.map(write_shard, starts):
                    advance(written)
            store.finish(rows=rows, made_up=True)
        files = store.manifest["files"].values()
        return {
            "out": str(out),
            "rows": rows,
            "shards": len(files),
            "subclasses": len(SUBCLASSES),
            "bytes": sum(record["size"] for record in files),
            "made_up": True,
        }


def _write_parquet(table: pa.Table, path: Path) -> None:
    repeated = ["country_code", "kind_code", "application_kind"]
    pq.write_table(
        table, path, row_group_size=ROW_GROUP, compression="zstd", compression_level=1, use_dictionary=repeated
    )


def publications(start: int, stop: int, seed: int) -> pa.Table:
    """Rows [start, stop) of the sample as a table of schema.PUBLICATIONS."""
    rows = np.arange(start, stop)
    own = Dice(seed, rows)
    role, copied = _roles(own)
    originals = own.below(2**40) % np.maximum(rows, 1)
    original_role, original_copied = _roles(Dice(seed, originals))
    copied &= (original_role == 0) & ~original_copied & (role == 0) & (rows > 0)
    origin = np.where(copied, originals, rows)

    named = {name: role == i for i, name in enumerate(ROLES)}
    plan = _plan(Dice(seed, origin, stream=1), own, copied, named)
    dates = _dates(own, named, seed)
    columns = [
        *_numbers(own, dates, named),
        pa.array(origin + 30_000_000).cast(pa.string()),
        _titles(own, plan),
        _claims(own, plan),
        pa.array(dates.filing),
        pa.array(dates.grant),
        _assignees(own),
        *_codes(Dice(seed, origin, stream=2), own, plan),
    ]
    metadata = {MADE_UP: b"true", SEED: str(seed).encode()}
    return pa.Table.from_arrays(columns, schema=schema.PUBLICATIONS.with_metadata(metadata))


def _roles(own: Dice) -> tuple[Ints, Bools]:
    """What each row is (an index of ROLES), and whether it copies another; the first draws of a row."""
    return own.among(list(ROLES.values())), own.chance(COPIES)


def _topics(dice: Dice) -> NDArray[np.int8]:
    """(N, 5) different topics, drawn one after the other, the r-th as often as 1 / (r + 8) says.

    So come the five first of a race in which topic r waits for an exponential time of mean r + 8.
    """
    luck = np.stack([dice.bits() >> np.uint64(11) for _ in range(prose.TOPICS)], axis=1)
    waits = -np.log((luck + 0.5) / 2**53) * (np.arange(prose.TOPICS) + 8)
    return np.argsort(waits, axis=1)[:, :5].astype(np.int8)


def _plan(dice: Dice, own: Dice, copied: Bools, named: dict[str, Bools]) -> prose.Plan:
    """What the texts are about: of `dice` all that a near-copy shares with its original, of `own` what it does not."""
    topics = _topics(dice)
    claims = np.where(dice.chance(0.006), 40 + dice.below(161), dice.from_table(CLAIMS_TABLE))
    claims = np.where(dice.chance(0.015), 1, claims)
    spaced = dice.chance(0.6)
    style = (
        spaced * prose.SPACED
        | (spaced & dice.chance(0.5)) * prose.GLUED
        | dice.chance(0.10) * prose.ENTITIES
        | dice.chance(0.12) * prose.NON_ASCII
        | np.isin(SUBCLASSES[topics[:, 0]], CHEMISTRY) * prose.CHEMISTRY
    )
    return prose.Plan(
        seed=dice.bits(),
        edit_seed=own.bits(),
        edits=np.where(copied, EDITS[own.below(len(EDITS))], 0).astype(np.uint16),
        topics=topics,
        later=dice.among(LATER_SHARES).astype(np.uint8),
        again=dice.chance(AGAIN),
        claims=np.where(named["design"], prose.DESIGN_CLAIM, claims).astype(np.uint16),
        words=dice.from_table(WORDS_TABLE),
        style=style.astype(np.uint8),
        preamble=dice.below(len(prose.PREAMBLES)).astype(np.uint8),
        kind=dice.below(len(prose.KINDS)).astype(np.uint8),
    )


# -- dates and numbers ------------------------------------------------------------------------------------------------


class Dates(NamedTuple):
    """When each row was filed and granted; yyyymmdd, 0 where unknown."""

    slot: Ints
    """Place among all grants of the ten years, in the order of time; another for every row."""
    year: Ints
    """Of grant, whether or not it is known."""
    grant: Ints
    filing: Ints


def _tuesdays(year: int) -> list[dt.date]:
    days = [dt.date(year, 1, 1) + dt.timedelta(i) for i in range(366)]
    return [day for day in days if day.weekday() == 1 and day.year == year]


def _dates(own: Dice, named: dict[str, Bools], seed: int) -> Dates:
    """Grants fall on Tuesdays, over the years as the office's do."""
    slot = (own.rows % SLOTS * STRIDE + seed * 7_919) % SLOTS
    ends = np.cumsum(list(GRANTS.values()))
    index = np.searchsorted(ends, slot, side="right")
    within = slot - np.concatenate([[0], ends])[index]
    granted = np.empty(len(slot), "datetime64[D]")
    for i, (issued, count) in enumerate(GRANTS.items()):
        days = np.array(_tuesdays(issued), "datetime64[D]")
        granted[index == i] = days[within[index == i] * len(days) // count]
    ten_years = np.timedelta64(3653, "D")
    granted = np.where(named["outside"], np.where(own.chance(0.5), granted - ten_years, granted + ten_years), granted)
    filed = granted - (500 + own.below(1200)).astype("timedelta64[D]")
    undated = named["undated"] | named["application"]
    year = granted.astype("datetime64[Y]").astype(np.int64) + 1970
    return Dates(
        slot=slot + own.rows // SLOTS * 2_300_000,
        year=year,
        grant=np.where(undated, 0, _yyyymmdd(granted)),
        filing=np.where(own.chance(0.08), 0, _yyyymmdd(filed)),
    )


def _yyyymmdd(days: NDArray[np.datetime64]) -> Ints:
    months = days.astype("datetime64[M]")
    year, month = np.divmod(months.astype(np.int64), 12)
    return np.asarray((year + 1970) * 10_000 + (month + 1) * 100 + (days - months).astype(np.int64) + 1)


def _numbers(own: Dice, dates: Dates, named: dict[str, Bools]) -> list[pa.Array]:
    """publication_number, application_number, country_code, kind_code, application_kind."""
    foreign = ["EP", "DE", "JP", "CN"]
    country = pa.array(np.select([named[name] for name in foreign], foreign, "US")).cast(pa.string())
    forms = {  # kind code, letters before the number
        "design": ("S1", "D0"),
        "plant": ("P2", "PP"),
        "reissue": ("E1", "RE0"),
        "registration": ("H1", "H0"),
        "application": ("A1", ""),
        "EP": ("B1", ""),
        "DE": ("B4", ""),
        "JP": ("B2", ""),
        "CN": ("B", ""),
    }
    those = [named[name] for name in forms]
    kind = np.select(those, [kind for kind, _ in forms.values()], np.where(own.chance(0.15), "B1", "B2"))
    letters = np.select(those, [letters for _, letters in forms.values()], "")
    number = np.where(letters == "", FIRST_NUMBER, 500_000) + dates.slot
    number = np.where(named["application"], dates.year * 10_000_000 + dates.slot, number)
    kind = pa.array(kind).cast(pa.string())
    publication = _join(country, _join(pa.array(letters).cast(pa.string()), number), kind, by="-")
    application = _join(country, dates.filing // 10_000 * 100_000_000 + 10_000_000 + dates.slot, "A", by="-")
    unknown = pa.array((dates.filing == 0) | own.chance(0.05))
    application_kind = pa.array(np.select([named["design"], named["plant"]], ["F", "V"], "A")).cast(pa.string())
    return [publication, pc.if_else(unknown, "", application), country, kind, application_kind]


def _join(*parts: Any, by: str = "") -> pa.Array:
    texts = [part if isinstance(part, str | pa.Array) else pa.array(part) for part in parts]
    return pc.binary_join_element_wise(
        *[text if isinstance(text, str) else text.cast(pa.string()) for text in texts], by
    )


# -- texts and names --------------------------------------------------------------------------------------------------


def _strings(letters: NDArray[np.uint8], offsets: Ints) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(letters)]
    return pa.StringArray.from_buffers(len(offsets) - 1, *buffers[1:])


def _lists(counts: Ints, null: Bools, items: dict[str, pa.Array], column: str) -> pa.Array:
    """list<struct> of a column of the table: `counts` structs a row, end to end in `items`."""
    fields = list(schema.PUBLICATIONS.field(column).type.value_type)
    structs = pa.StructArray.from_arrays([items[field.name] for field in fields], fields=fields)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, structs, mask=pa.array(null))


def _localized(texts: pa.Array, there: Bools, null: Bools, column: str) -> pa.Array:
    """One text a row in English, where there is one."""
    texts = texts.filter(pa.array(there))
    items = {
        "text": texts,
        "language": pa.repeat("en", len(texts)),
        "truncated": pa.repeat(pa.scalar(value=False), len(texts)),
    }
    return _lists(there.astype(np.int64), null, items, column)


def _titles(own: Dice, plan: prose.Plan) -> pa.Array:
    missing = own.chance(0.02)
    return _localized(_strings(*prose.write_titles(plan)), ~missing, missing & own.chance(0.5), "title_localized")


def _claims(own: Dice, plan: prose.Plan) -> pa.Array:
    """One string a row; where it is missing, by turns: null, no entry, '', a null text."""
    missing = np.where(own.chance(0.012), 1 + own.below(4), 0)
    texts = _strings(*prose.write_claims(plan._replace(claims=np.where(missing, 0, plan.claims).astype(np.uint16))))
    texts = pc.if_else(pa.array(missing == 4), pa.scalar(None, pa.string()), texts)
    there = (missing != 1) & (missing != 2)
    return _localized(texts, there, missing == 1, "claims_localized")


ASSIGNEES = [  # name, country
    (f"{prose.FIRST[i % 16]}{prose.MIDDLE[i // 16]}{prose.LAST[7 * i % 16]} {form}".upper(), country)
    for i in range(256)
    for form, country in [(("corp", "US"), ("inc", "US"), ("kk", "JP"), ("gmbh", "DE"), ("co ltd", "KR"))[i % 5]]
]
ASSIGNEE_TABLE = prose.zipf(len(ASSIGNEES), 1 << 14, shift=4.0)


def _assignees(own: Dice) -> pa.Array:
    counts = own.among([0.05, 0.87, 0.08])
    chosen = np.stack([own.from_table(ASSIGNEE_TABLE) for _ in range(2)], axis=1)
    who = pa.array(chosen[np.arange(2) < counts[:, None]])
    names, countries = (pa.array(values).take(who) for values in zip(*ASSIGNEES, strict=True))
    return _lists(
        counts, np.zeros(len(counts), bool), {"name": names, "country_code": countries}, "assignee_harmonized"
    )


# -- codes ------------------------------------------------------------------------------------------------------------

SUBGROUPS = pa.array([f"{i:02d}" for i in range(0, 100, 2)] + [f"{i}{5 * (i % 19) + 10}" for i in range(10, 40)])


class Entries:
    """The code arrays of N rows, place by place, until `column` puts each row's in an order without meaning."""

    def __init__(self, family: Dice, own: Dice) -> None:
        self.family, self.own = family, own
        self.places: list[dict[str, NDArray[Any]]] = []

    def add(self, there: Bools, topic: Ints, group: Ints, subgroup: Ints, first: Ints, inventive: Ints) -> None:
        """One code a row where it is `there`; first and inventive are 1, 0, or -1 for null."""
        values = {"there": there, "topic": topic, "group": group, "subgroup": subgroup}
        self.places.append(values | {"first": first, "inventive": inventive})

    def repeat(self, there: Bools, place: int, first: Ints, inventive: Ints) -> None:
        """A duplicate of another place's code, with flags of its own."""
        old = self.places[place]
        self.add(there & old["there"], old["topic"], old["group"], old["subgroup"], first, inventive)

    def column(self, name: str, missing: Bools) -> pa.Array:
        """The column `name`; a missing one is an empty list or null."""
        there = np.stack([place["there"] for place in self.places], axis=1) & ~missing[:, None]
        turns = np.stack([self.own.bits() for _ in self.places], axis=1)
        order = np.argsort(np.where(there, turns >> np.uint64(1), np.uint64(2**64 - 1)), axis=1)
        kept = np.take_along_axis(there, order, axis=1)

        def flat(key: str) -> NDArray[Any]:
            values = np.stack([place[key] for place in self.places], axis=1)
            return np.take_along_axis(values, order, axis=1)[kept]

        gap = np.repeat(np.where(self.own.chance(0.02), " ", ""), kept.sum(axis=1))
        code = _join(
            pa.array(SUBCLASSES[flat("topic")]),
            pa.array(gap),
            flat("group"),
            "/",
            SUBGROUPS.take(pa.array(flat("subgroup"))),
        )
        flags = {key: pa.array(flat(key) == 1, mask=flat(key) < 0) for key in ("first", "inventive")}
        tree = pa.ListArray.from_arrays(np.zeros(len(code) + 1, np.int32), pa.array([], pa.string()))
        items = {"code": code, "tree": tree, **flags}
        return _lists(kept.sum(axis=1), missing & self.own.chance(0.5), items, name)


def _codes(family: Dice, own: Dice, plan: prose.Plan) -> list[pa.Array]:
    """The ipc and cpc columns: their subclasses are the text's topics, the same in a family; flags are a row's own."""
    return [_ipc(family, own, plan), _cpc(family, own, plan)]


def _cpc(family: Dice, own: Dice, plan: prose.Plan) -> pa.Array:
    entries = Entries(family, own)
    topics, later = plan.topics.astype(np.int64), plan.later
    group = family.below(99)
    no_first = own.chance(0.03)
    several = own.chance(0.04)
    other = np.where(own.chance(0.05), -1, 0)  # of the flag first, of codes that are not
    always = np.ones(len(group), bool)

    def subgroup() -> Ints:
        return family.below(len(SUBGROUPS))

    def inventive(share: float) -> Ints:
        return np.where(own.chance(share), 1, 0)

    first = np.where(no_first, other, 1)
    entries.add(always, topics[:, 0], 1 + group, subgroup(), first, inventive(0.95))
    for i in (1, 2):  # the first topic again; groups differ by less than 99, so codes do
        there = plan.again & (family.chance(0.3) if i > 1 else always)
        flag = np.where(several & ~no_first & (i == 1), 1, other)
        entries.add(there, topics[:, 0], 1 + (group + 7 * i) % 99, subgroup(), flag, inventive(0.8))
    for place in (1, 2, 3):
        for i in range(3):
            there = (later >= place) & (family.chance((1.0, 0.4, 0.15)[i]))
            groups = 1 + (group + 31 * place + 7 * i) % 99
            entries.add(there, topics[:, place], groups, subgroup(), other, inventive(0.7))
    entries.repeat(own.chance(0.08), 0, np.where(own.chance(0.5), first, other), inventive(0.5))
    entries.repeat(own.chance(0.08), 3, other, np.where(own.chance(0.5), -1, 0))
    return entries.column("cpc", own.chance(0.015))


def _ipc(family: Dice, own: Dice, plan: prose.Plan) -> pa.Array:
    """Parallel to CPC: fewer codes, often none flagged first, in one row of ten another subclass in front."""
    entries = Entries(family, own)
    topics, later = plan.topics.astype(np.int64), plan.later
    group = family.below(99)
    always = np.ones(len(group), bool)
    front = np.where(family.chance(0.1), topics[:, 4], topics[:, 0])
    flagged = np.where(own.chance(0.75), 1, 0)
    other = np.where(own.chance(0.1), -1, 0)
    entries.add(always, front, 1 + group, family.below(len(SUBGROUPS)), flagged, np.ones_like(group))
    entries.add(
        plan.again, topics[:, 0], 1 + (group + 7) % 99, family.below(len(SUBGROUPS)), other, np.ones_like(group)
    )
    for place in (1, 2, 3):
        there = (later >= place) & family.chance(0.8)
        inventive = np.where(own.chance(0.8), 1, 0)
        entries.add(
            there, topics[:, place], 1 + (group + 31 * place) % 99, family.below(len(SUBGROUPS)), other, inventive
        )
    entries.repeat(own.chance(0.03), 0, other, np.zeros_like(group))
    return entries.column("ipc", own.chance(0.03))
