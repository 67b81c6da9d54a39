"""PatentsView's tables of granted patents (g_patent, g_claims_YYYY, g_cpc_current, ...) as a source of grants.

Each table is read once, as a stream from its zip, cut down to the wanted grants and set aside by day of grant in a
hidden part of RAW; the join is then made a day at a time, so memory never holds a table.

What is odd in the tables, and what becomes of it:

- g_cpc_current numbers a patent's codes from 0, g_cpc_at_issue from 1, and claims do either: the order counts. The
  first-listed code is the one of the patent's lowest number, where that is 0 or 1.
- Combination sets' codes are not in g_cpc_at_issue (they are in the office's XML).
- `wipo_kind` is the kind code; utility grants of another kind than B1 and B2 are left out and counted.
- Some claims stand there twice (one is kept), some have no text (they count, as empty ones), many hold line breaks
  (white space like any other). Rows of too many or too few columns are dropped and counted as malformed.
- Assignees are the disambiguated ones where that table is there: other spellings than those printed.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from polars.dataframe.group_by import GroupBy
from pyarrow import csv

from ewe.errors import DataError, UsageError
from ewe.pipeline import schema
from ewe.pipeline.archive import find_files, fingerprint, members, open_member
from ewe.pipeline.claims import write_claims
from ewe.pipeline.parts import read_keys, read_parts, write_parts
from ewe.progress import bar
from ewe.store import Store
from ewe.text import clean

Labels = Literal["current", "at-issue"]

BLOCK = 16 << 20  # bytes parsed at once; no row is longer
KINDS = ["B1", "B2"]
PATENT, APPLICATION, IPC = "g_patent", "g_application", "g_ipc_at_issue"
CPC = {"current": "g_cpc_current", "at-issue": "g_cpc_at_issue"}
ASSIGNEES = {"g_assignee_disambiguated": "disambig", "g_assignee": "disambig", "g_assignee_not_disambiguated": "raw"}
CLAIMS = "g_claims_"  # and the year

LEFT_OUT = "left_out "  # a count's name begins so
_NO_DAY = int(np.iinfo(np.int32).min)  # the day of grant of what is not wanted
_NUMBER = pa.field("number", pa.int32())  # patent_id as a number: utility patents have no letters


# A table's rows -> their days of grant since 1970, null for those not wanted; may count what it sees.
_Days = Callable[[pl.DataFrame, Counter[str]], pl.Series]


@dataclass(frozen=True)
class _Table:
    """What is read of a published table beside patent_id, and what is kept of it beside the number."""

    columns: tuple[str, ...]
    kept: pa.Schema
    keep: tuple[pl.Expr, ...]


def _table(name: str) -> _Table:
    """How to read a table, by its name."""
    if name == PATENT:
        kept = pa.schema([_NUMBER, ("kind_code", pa.string()), ("title", pa.string())])
        keep = (_kind().alias("kind_code"), pl.col("patent_title").alias("title"))
        return _Table(("patent_type", "patent_date", "patent_title", "wipo_kind", "withdrawn"), kept, keep)
    if name == APPLICATION:
        kept = pa.schema([_NUMBER, ("application_number", pa.string()), ("filing_date", pa.date32())])
        number = pl.col("application_id").str.replace_all("/", "").alias("application_number")
        return _Table(("application_id", "filing_date"), kept, (number, _date("filing_date")))
    if name.startswith(CLAIMS):
        return _texts("claim_sequence", "claim_text")
    if name in ASSIGNEES:
        owner = f"{ASSIGNEES[name]}_assignee"
        return _texts(
            "assignee_sequence",
            f"{owner}_organization",
            f"{owner}_individual_name_first",
            f"{owner}_individual_name_last",
        )
    if name == IPC:
        group = pl.concat_str("main_group", pl.lit("/"), "subgroup", ignore_nulls=False)
        code = pl.concat_str("section", "ipc_class", "subclass", group, ignore_nulls=True)
        parts = ("section", "ipc_class", "subclass", "main_group", "subgroup", "classification_value")
        return _symbols("ipc_sequence", parts, code, pl.col("classification_value") == "I")
    code = pl.coalesce("cpc_group", "cpc_subclass").str.replace_all(" ", "")
    return _symbols(
        "cpc_sequence", ("cpc_subclass", "cpc_group", "cpc_type"), code, pl.col("cpc_type") == "inventional"
    )


def _texts(sequence: str, *columns: str) -> _Table:
    kept = pa.schema([_NUMBER, ("sequence", pa.int32()), ("text", pa.string())])
    text = pl.concat_str(*columns, separator=" ", ignore_nulls=True)
    return _Table((sequence, *columns), kept, (_number(sequence).alias("sequence"), text.alias("text")))


def _symbols(sequence: str, columns: tuple[str, ...], code: pl.Expr, inventive: pl.Expr) -> _Table:
    kept = pa.schema([_NUMBER, ("sequence", pa.int32()), ("code", pa.string()), ("inventive", pa.bool_())])
    keep = (_number(sequence).alias("sequence"), code.alias("code"), inventive.alias("inventive"))
    return _Table((sequence, *columns), kept, keep)


def _kind() -> pl.Expr:
    return pl.col("wipo_kind").str.strip_chars()


def _number(column: str) -> pl.Expr:
    return pl.col(column).str.strip_chars().cast(pl.Int32, strict=False)


def _date(column: str) -> pl.Expr:
    return pl.col(column).str.to_date("%Y-%m-%d", strict=False)


class PatentsviewEngine:
    """Grants from a folder of PatentsView's tables, zipped as published or unpacked.

    Args:
        folder: with g_patent, g_claims_YYYY for every year of the window, and g_cpc_current or g_cpc_at_issue;
            g_application (filing dates), an assignee table and g_ipc_at_issue are read where they are there.
        labels: CPC codes of today, or those printed on the grant.
    """

    columns = schema.RAW

    def __init__(self, folder: Path, labels: Labels) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder; give --input the folder of your PatentsView tables.")
        self.folder = folder
        self.labels = labels
        self.tables: dict[str, Path] = {}
        for path in find_files(folder, ".tsv"):
            other = self.tables.setdefault(path.name.split(".")[0], path)
            if other is not path:
                raise DataError(f"{other} and {path} are the same table; remove one of them.")
        for name in (PATENT, CPC[labels]):
            if name not in self.tables:
                raise DataError(f"{folder} holds no {name}.tsv.zip; download it from PatentsView.")
        assignees = next((name for name in ASSIGNEES if name in self.tables), PATENT)
        optional = [name for name in (assignees, IPC, APPLICATION) if name in self.tables and name != PATENT]
        self._claims = sorted(name for name in self.tables if name.startswith(CLAIMS))
        self._used = [PATENT, CPC[labels], *optional, *self._claims]
        for name in self._used:
            _member(self.tables[name])
        self._parts: dict[str, tuple[Path, list[str]]] = {}  # a table's part and the day of each of its batches
        self._granted = np.empty(0, np.int32)  # by patent number, the day of grant or _NO_DAY
        self._facts: dict[str, Any] = {}

    def config(self) -> dict[str, Any]:
        """What decides the result: which labels, and the tables, by the checksums in their zips."""
        files = [self.tables[name] for name in self._used]
        return {"source": "patentsview", "labels": self.labels, "input_sha256": fingerprint(files, ".tsv")}

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the source.

        patents = grants + repeated + left_out + withdrawn + outside_window
        """
        return {"made_up": False, "labels": self.labels, "input_files": len(self._used), **self._facts}

    def scan(self, store: Store, start: dt.date, end: dt.date) -> None:
        """Read each table once, into a hidden part of RAW; a killed run repeats one table."""
        with bar("scan", len(self._used), "tables") as advance:
            self._set_aside(store, PATENT, partial(_days_of_utility, start, end))
            advance()
            self._granted = self._days_of_grants()
            others = [name for name in self._used[1:] if name not in self._claims]
            for name in [*others, *self._claims_needed()]:
                self._set_aside(store, name, partial(_days_of_wanted, self._granted))
                advance()
        self._facts = self._count(store)

    def read(self, store: Store, month: str) -> Iterator[pa.Table]:  # noqa: ARG002  the parts are known by path
        """The grants of one month ("2006-01"), a day of grant at a time."""
        for day in sorted(set(self._parts[PATENT][1])):
            if day.startswith(month):
                yield self._join(day)

    def _set_aside(self, store: Store, name: str, days: _Days) -> None:
        """Write a table's wanted rows to its part, keyed by day of grant."""
        part = f".scan/{name}.arrow"
        if not store.has(part):
            counts = Counter(malformed_rows=0)
            table = _table(name)
            with store.write(part, {"counts": counts}) as temporary:
                write_parts(temporary, table.kept, _by_day(self.tables[name], table, days, counts))
        self._parts[name] = (store.folder / part, read_keys(store.folder / part))

    def _days_of_grants(self) -> NDArray[np.int32]:
        """By patent number, the day of grant of those wanted, _NO_DAY of all others."""
        found = [(dt.date.fromisoformat(day), numbers) for day, numbers in self._numbers(PATENT)]
        granted = np.full(1 + max((numbers.max() for _, numbers in found), default=0), _NO_DAY, np.int32)
        for day, numbers in reversed(found):  # of a patent that stands there twice, the first counts
            granted[numbers] = _days(day)
        return granted

    def _numbers(self, name: str) -> Iterator[tuple[str, NDArray[np.int32]]]:
        """The day and the patent numbers of each batch of a part."""
        path, keys = self._parts[name]
        for day in sorted(set(keys)):
            for batch in read_parts(path, keys, day, ["number"]):
                yield day, batch.column(0).to_numpy()

    def _claims_needed(self) -> list[str]:
        """The claims tables of the years with a grant in the window."""
        needed = sorted({CLAIMS + day[:4] for day in self._parts[PATENT][1]})
        for name in needed:
            if name not in self._claims:
                raise DataError(f"{self.folder} holds no {name}.tsv.zip; download it, or narrow --start and --end.")
        return needed

    def _count(self, store: Store) -> dict[str, Any]:
        """The facts, from what each part's making counted and from what the parts hold."""
        counts: Counter[str] = Counter()
        for name in self._parts:
            counts.update(store.manifest["files"][f".scan/{name}.arrow"]["counts"])
        wanted = self._granted != _NO_DAY
        grants = int(wanted.sum())
        left_out = {why.removeprefix(LEFT_OUT): n for why, n in sorted(counts.items()) if why.startswith(LEFT_OUT)}
        return {
            "patents": counts["patents"],
            "grants": grants,
            "repeated": counts["wanted"] - grants,
            "withdrawn": counts["withdrawn"],
            "outside_window": counts["outside_window"],
            "left_out": left_out,
            "without_claims": self._missing(wanted, [name for name in self._parts if name.startswith(CLAIMS)]),
            "without_cpc": self._missing(wanted, [CPC[self.labels]]),
            "malformed_rows": counts["malformed_rows"],
        }

    def _missing(self, wanted: NDArray[np.bool_], names: list[str]) -> int:
        """How many wanted patents have no row in these tables."""
        missing = wanted.copy()
        for name in names:
            for _, numbers in self._numbers(name):
                missing[numbers] = False
        return int(missing.sum())

    def _join(self, day: str) -> pa.Table:
        """A day's grants in schema.RAW."""
        granted = dt.date.fromisoformat(day)
        grants = self._rows(day, _table(PATENT), [PATENT]).unique("number", keep="first", maintain_order=True)
        grants = grants.filter(pl.Series(self._granted[grants["number"].to_numpy()] == _days(granted)))
        for side in (
            _claims(self._rows(day, _table(CLAIMS), self._claims)),
            _assignees(self._rows(day, _table(next(iter(ASSIGNEES))), ASSIGNEES)),
            _codes(self._rows(day, _table(CPC[self.labels]), [CPC[self.labels]]), "cpc"),
            _codes(self._rows(day, _table(IPC), [IPC]), "ipc"),
            _applications(self._rows(day, _table(APPLICATION), [APPLICATION])),
        ):
            grants = grants.join(side, on="number", how="left", maintain_order="left")
        rows = grants.select(
            pl.format("US-{}-{}", "number", "kind_code").alias("publication_number"),
            pl.col("number").cast(pl.String).alias("patent_id"),
            "application_number",
            pl.lit(None, pl.String).alias("family_id"),
            "kind_code",
            "filing_date",
            pl.lit(granted).alias("grant_date"),
            pl.Series("title", [clean(title or "") or None for title in grants["title"]], pl.String),
            "claims",
            *(pl.col(name).fill_null([]) for name in ("assignees", "cpc", "ipc")),
        )
        return rows.to_arrow().cast(schema.RAW)

    def _rows(self, day: str, table: _Table, names: Iterable[str]) -> pl.DataFrame:
        """What is kept for a day of the published tables that are read as `table`; no row of those not there."""
        batches = [batch for name in names if name in self._parts for batch in read_parts(*self._parts[name], day)]
        return pl.DataFrame(pa.Table.from_batches(batches, table.kept))


# -- a day's rows -> one row a patent ---------------------------------------------------------------------------------


def _ordered(rows: pl.DataFrame) -> GroupBy:
    return rows.sort("number", "sequence", nulls_last=True, maintain_order=True).group_by("number", maintain_order=True)


def _claims(rows: pl.DataFrame) -> pl.DataFrame:
    patents = _ordered(rows.unique(maintain_order=True)).agg("text")
    return patents.select(
        "number", pl.Series("claims", [write_claims(each) for each in patents["text"].to_list()], pl.String)
    )


def _assignees(rows: pl.DataFrame) -> pl.DataFrame:
    patents = _ordered(rows).agg("text")
    names = [[name for name in map(clean, each) if name] for each in patents["text"].to_list()]
    return patents.select("number", pl.Series("assignees", names, pl.List(pl.String)))


def _codes(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    lowest = pl.col("sequence").min().over("number")
    first = (pl.col("sequence") == lowest) & (lowest <= 1)
    return _ordered(rows.with_columns(first=first)).agg(pl.struct("code", "first", "inventive").alias(name))


def _applications(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("application_number").unique("number", keep="first", maintain_order=True)


# -- a published table -> its part ------------------------------------------------------------------------------------


def _by_day(path: Path, table: _Table, days: _Days, counts: Counter[str]) -> Iterator[tuple[pa.Table, pa.Array]]:
    """What is kept of a table and the days of grant, a bounded number of rows at a time."""
    for frame in _read_tsv(path, ("patent_id", *table.columns), counts):
        kept = frame.select(_number("patent_id").alias("number"), *table.keep, days(frame, counts).alias("day"))
        kept = kept.filter(pl.col("day").is_not_null())
        if kept.height:
            keys = kept["day"].cast(pl.Date).dt.to_string("%Y-%m-%d")
            yield kept.drop("day").to_arrow(), keys.to_arrow().cast(pa.string())


def _days_of_utility(start: dt.date, end: dt.date, frame: pl.DataFrame, counts: Counter[str]) -> pl.Series:
    """The days of grant of g_patent's rows, null for those not wanted; counts why not."""
    kind, granted = _kind(), _date("patent_date")
    withdrawn = pl.col("withdrawn").str.to_lowercase().is_in(["1", "true"])
    why = (
        pl.when(pl.col("patent_type").ne_missing("utility"))
        .then(pl.format(LEFT_OUT + "{}", pl.col("patent_type").fill_null("of no type")))
        .when(withdrawn)
        .then(pl.lit("withdrawn"))
        .when(~kind.is_in(KINDS).fill_null(value=False) | _number("patent_id").is_null())
        .then(pl.format(LEFT_OUT + "utility {}", kind.fill_null("of no kind")))
        .when(granted.is_null())
        .then(pl.lit(LEFT_OUT + "utility of no date"))
        .when(~granted.is_between(start, end))
        .then(pl.lit("outside_window"))
        .otherwise(pl.lit("wanted"))
    )
    rows = frame.select(why.alias("why"), granted.to_physical().alias("day"))
    counts.update(patents=rows.height, **dict(rows["why"].value_counts().iter_rows()))
    return rows.select(pl.when(pl.col("why") == "wanted").then("day")).to_series()


def _days_of_wanted(granted: NDArray[np.int32], frame: pl.DataFrame, _: Counter[str]) -> pl.Series:
    """The days of grant of the patents that rows belong to, null for those not wanted."""
    number = frame.select(_number("patent_id").fill_null(-1)).to_series().to_numpy()
    day = granted[np.where((number >= 0) & (number < len(granted)), number, 0)]  # no patent has number 0
    return pl.Series(day).to_frame("day").select(pl.when(pl.col("day") != _NO_DAY).then("day")).to_series()


def _read_tsv(path: Path, columns: tuple[str, ...], counts: Counter[str]) -> Iterator[pl.DataFrame]:
    """These columns of a table, as strings, null where empty, a bounded number of rows at a time."""

    def skip(_: csv.InvalidRow) -> str:
        counts["malformed_rows"] += 1
        return "skip"

    options = {
        "read_options": csv.ReadOptions(block_size=BLOCK),
        "parse_options": csv.ParseOptions(delimiter="\t", newlines_in_values=True, invalid_row_handler=skip),
        "convert_options": csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
        ),
    }
    try:
        with open_member(path, _member(path)) as stream, csv.open_csv(stream, **options) as reader:
            for batch in reader:
                yield pl.DataFrame(batch)
    except pa.ArrowKeyError as error:
        raise DataError(f"{path}: {error.args[0]}; download the table as PatentsView publishes it.") from None
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is no whole table ({str(error).splitlines()[0]}); download it again.") from None


def _member(path: Path) -> str:
    found = members(path, ".tsv")
    if len(found) != 1:
        raise DataError(
            f"{path} holds {len(found)} .tsv files, not one table; download it as PatentsView publishes it."
        )
    return found[0]


def _days(day: dt.date) -> int:
    return (day - dt.date(1970, 1, 1)).days
