"""One corpus, three sources: raw shards agree wherever the sources do, and differ only where it is said here."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from conftest import publication, write_publications
from sources import GRANTS, Grant, Symbol, as_tables, as_xml, write_tables, write_week

from ewe.pipeline.diff import diff_labels
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import ParquetEngine
from ewe.pipeline.patentsview import PatentsviewEngine
from ewe.pipeline.relabel import first_later
from ewe.pipeline.uspto import UsptoEngine
from ewe.text import split_claims

TODAY = {"7654321": (Symbol("G06N20/00", first=True), Symbol("G06Q10/06"))}  # reclassified since its grant
LADDER = " \n     \n         \n       "


def as_publication(grant: Grant) -> dict[str, object]:
    """A row of the publications table: codes of today, claims in one string, names in capitals."""

    def codes(symbols: tuple[Symbol, ...]) -> list[dict[str, object]]:
        return [{"code": s.code, "first": s.first, "inventive": s.inventive, "tree": []} for s in symbols]

    claims = LADDER.join(f"{n} . {claim}" for n, claim in enumerate(grant.claims, 1))
    return publication(
        grant.publication_number,
        application_number=f"US-{grant.application}-A",
        family_id="123",
        title_localized=[{"text": grant.title, "language": "en", "truncated": False}],
        claims_localized=[{"text": f"What is claimed is:{LADDER}{claims}", "language": "en", "truncated": False}],
        filing_date=int(f"{grant.filed:%Y%m%d}"),
        grant_date=int(f"{grant.granted:%Y%m%d}"),
        assignee_harmonized=[{"name": name.upper(), "country_code": "US"} for name in grant.assignees],
        cpc=codes(TODAY.get(grant.number, grant.cpc)),
        ipc=codes(grant.ipc),
    )


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The raw folder of each source."""
    folder = tmp_path_factory.mktemp("sources")
    weeks = folder / "weeks"
    for granted in sorted({grant.granted for grant in GRANTS}):
        write_week(weeks, [as_xml(grant) for grant in GRANTS if grant.granted == granted], f"ipg{granted:%y%m%d}")
    tables = write_tables(folder / "tables", as_tables(GRANTS, current=TODAY))
    publications = write_publications(folder / "publications.parquet", list(map(as_publication, GRANTS)))
    engines: dict[str, Callable[[], object]] = {
        "publications": lambda: ParquetEngine(publications),
        "uspto": lambda: UsptoEngine(weeks),
        "patentsview current": lambda: PatentsviewEngine(tables, "current"),
        "patentsview at-issue": lambda: PatentsviewEngine(tables, "at-issue"),
    }
    for name, engine in engines.items():
        fetch_grants(engine(), folder / name, start=dt.date(2006, 1, 1), end=dt.date(2015, 12, 31))
    return {name: folder / name for name in engines}


@pytest.fixture(scope="module")
def frames(raw: dict[str, Path]) -> dict[str, pl.DataFrame]:
    return {name: pl.read_parquet(folder / "grants-*.parquet") for name, folder in raw.items()}


def test_shards_have_one_shape(raw: dict[str, Path], frames: dict[str, pl.DataFrame]) -> None:
    shards = {name: [path.name for path in sorted(folder.glob("*.parquet"))] for name, folder in raw.items()}
    assert all(each == shards["publications"] for each in shards.values())
    assert all(frame.schema == frames["publications"].schema for frame in frames.values())


@pytest.mark.parametrize(
    "column", ["publication_number", "patent_id", "kind_code", "filing_date", "grant_date", "title", "ipc"]
)
def test_every_source_agrees(frames: dict[str, pl.DataFrame], column: str) -> None:
    expected = frames["publications"][column].to_list()
    assert {name: frame[column].to_list() for name, frame in frames.items()} == dict.fromkeys(frames, expected)
    assert len(expected) == len(GRANTS)


def test_the_office_s_own_files_agree_in_all(frames: dict[str, pl.DataFrame]) -> None:
    assert frames["uspto"].equals(frames["patentsview at-issue"])


def test_claims_agree_but_where_one_string_hides_them(frames: dict[str, pl.DataFrame]) -> None:
    known = dict(
        zip((grant.publication_number for grant in GRANTS), (list(grant.claims) for grant in GRANTS), strict=True)
    )
    for name, frame in frames.items():
        found = {number: split_claims(claims) for number, claims in frame.select("publication_number", "claims").rows()}
        misread = {number for number, claims in found.items() if claims != known[number]}
        # "1. A method: 1. heat; 2. cool 3. serve.": nobody can tell from one string that this is a single claim
        assert misread == ({"US-8000001-B2"} if name == "publications" else set())


def test_cpc_is_today_s_or_that_at_issue(frames: dict[str, pl.DataFrame]) -> None:
    labels = {
        name: dict(first_later(frame).select("publication_number", "label_names").rows())
        for name, frame in frames.items()
    }
    assert labels["publications"] == labels["patentsview current"]
    assert labels["uspto"] == labels["patentsview at-issue"]
    moved = {number for number, names in labels["uspto"].items() if names != labels["publications"][number]}
    assert moved == {"US-7654321-B2"}
    assert labels["uspto"]["US-7654321-B2"] == ["First-G06Q", "Later-A01B"]
    assert labels["publications"]["US-7654321-B2"] == ["First-G06N", "Later-G06Q"]


def test_what_only_one_source_knows(frames: dict[str, pl.DataFrame]) -> None:
    assert frames["publications"]["family_id"].to_list() == ["123"] * len(GRANTS)
    assert frames["publications"]["application_number"][0] == "US-11700001-A"
    assert frames["publications"]["assignees"][0].to_list() == ["THINGS INC."]
    for name in ("uspto", "patentsview current"):
        assert frames[name]["family_id"].null_count() == len(GRANTS)
        assert frames[name]["application_number"][0] == "11700001"
        assert frames[name]["assignees"][0].to_list() == ["Things Inc."]


def test_the_drift_between_them(raw: dict[str, Path]) -> None:
    report = diff_labels(raw["uspto"], raw["publications"])
    assert (report["in_both"], report["first_in_both"], report["first_kept"]) == (6, 5, 4)
    assert report["moves"] == {"G06Q > G06N": 1}
