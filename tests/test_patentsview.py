"""PatentsView's tables: the join, their oddities, and what a person will meet."""

import datetime as dt
import zipfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sources import COLUMNS, GRANTS, Grant, Rows, Symbol, as_tables, write_tables, write_tsv

from ewe.errors import DataError, UsageError
from ewe.pipeline import patentsview
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.patentsview import Labels, PatentsviewEngine
from ewe.store import read_manifest
from ewe.text import split_claims

DEFAULT = {"start": dt.date(2006, 1, 1), "end": dt.date(2015, 12, 31)}
Fetched = tuple[dict[str, dict[str, object]], dict[str, object]]


def fetched(folder: Path, out: Path, labels: Labels = "current", **window: dt.date) -> Fetched:
    """The rows by patent and the manifest of a fetch."""
    fetch_grants(PatentsviewEngine(folder, labels), out, **DEFAULT | window)
    rows = [row for path in sorted(out.glob("grants-*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert len({row["publication_number"] for row in rows}) == len(rows)
    return {row["patent_id"]: row for row in rows}, read_manifest(out, "raw")


def test_the_tables_become_rows(tmp_path: Path) -> None:
    rows, facts = fetched(write_tables(tmp_path / "in", as_tables([Grant()])), tmp_path / "raw")
    assert rows["7654321"] == {
        "publication_number": "US-7654321-B2",
        "patent_id": "7654321",
        "application_number": "11700001",
        "family_id": None,
        "kind_code": "B2",
        "filing_date": dt.date(2007, 3, 2),
        "grant_date": dt.date(2010, 1, 5),
        "title": "A thing & its use",
        "claims": "1. A thing comprising a part.\n2. The thing of claim 1, wherein the part is red.",
        "assignees": ["Things Inc."],
        "cpc": [
            {"code": "G06Q10/06", "first": True, "inventive": True},
            {"code": "A01B1/02", "first": False, "inventive": True},
            {"code": "A01B33/00", "first": False, "inventive": False},
        ],
        "ipc": [
            {"code": "G06Q10/00", "first": True, "inventive": True},
            {"code": "A01B1/00", "first": False, "inventive": False},
        ],
    }
    assert (facts["patents"], facts["grants"], facts["input_files"]) == (1, 1, 6)
    assert facts["made_up"] is False
    assert facts["labels"] == "current"


def test_current_and_at_issue_labels(tmp_path: Path) -> None:
    moved = (Symbol("G06N20/00"), Symbol("G06Q10/06"))
    folder = write_tables(tmp_path / "in", as_tables([Grant()], current={"7654321": moved}))
    current, _ = fetched(folder, tmp_path / "current", "current")
    at_issue, facts = fetched(folder, tmp_path / "at-issue", "at-issue")
    assert [(code["code"], code["first"]) for code in current["7654321"]["cpc"]] == [
        ("G06N20/00", True),
        ("G06Q10/06", False),
    ]
    assert [code["code"] for code in at_issue["7654321"]["cpc"]] == ["G06Q10/06", "A01B1/02", "A01B33/00"]
    assert [code["first"] for code in at_issue["7654321"]["cpc"]] == [True, False, False]
    assert facts["labels"] == "at-issue"
    with pytest.raises(DataError, match="labels was 'current' and is now 'at-issue'"):
        fetched(folder, tmp_path / "current", "at-issue")


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("spaced", ["{}. {}", "{} . {}", "{}.{}"])
def test_claims_numbered_from_0_and_from_1_in_any_order(tmp_path: Path, base: int, spaced: str) -> None:
    claims = [f"The thing number {n}." for n in range(1, 31)]
    tables = as_tables([Grant()])
    rows = [("7654321", base + n, spaced.format(n + 1, claim), "", "", 0) for n, claim in enumerate(claims)]
    tables["g_claims_2010"] = rows[::-1]
    found, _ = fetched(write_tables(tmp_path / "in", tables), tmp_path / "raw")
    assert split_claims(found["7654321"]["claims"]) == claims


def test_first_is_the_lowest_number_if_that_is_0_or_1(tmp_path: Path) -> None:
    grants = [Grant("1"), Grant("2"), Grant("3"), Grant("4")]
    tables = as_tables(grants)
    group = ("A", "A01", "A01B", "A01B1/02", "inventional")
    tables["g_cpc_current"] = [("1", n, *group) for n in (2, 0, 1)]
    tables["g_cpc_current"] += [("2", n, *group) for n in (1, 2)]
    tables["g_cpc_current"] += [("3", n, *group) for n in (3, 2)]
    tables["g_cpc_current"] += [("4", "", *group)]
    rows, _ = fetched(write_tables(tmp_path / "in", tables), tmp_path / "raw")
    flags = {number: [code["first"] for code in row["cpc"]] for number, row in rows.items()}
    assert flags == {"1": [True, False, False], "2": [True, False], "3": [False, False], "4": [None]}


def test_quotes_line_breaks_and_entities_in_claims(tmp_path: Path) -> None:
    text = '1. A "quoted" thing,\n    comprising:\n\ta tab; and\r\n2 parts &amp; more.'
    tables = as_tables([Grant()]) | {"g_claims_2010": [("7654321", 0, text, "", "00001", 1)]}
    rows, facts = fetched(write_tables(tmp_path / "in", tables), tmp_path / "raw")
    assert split_claims(rows["7654321"]["claims"]) == ['A "quoted" thing, comprising: a tab; and 2 parts & more.']
    assert facts["malformed_rows"] == 0


def test_claims_that_stand_there_twice_or_have_no_text(tmp_path: Path) -> None:
    tables = as_tables([Grant()])
    once = [("7654321", 0, "1. A.", "", "", 1), ("7654321", 1, None, "", "", 0), ("7654321", 2, "3. C.", "", "", 0)]
    tables["g_claims_2010"] = once + once
    rows, _ = fetched(write_tables(tmp_path / "in", tables), tmp_path / "raw")
    assert split_claims(rows["7654321"]["claims"]) == ["A.", "", "C."]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    tables = as_tables([Grant()])
    patent = tables["g_patent"][0]

    def like(number: str, **changed: object) -> tuple[object, ...]:
        columns = COLUMNS["g_patent"].split()
        return tuple(
            {**dict(zip(columns, patent, strict=True)), "patent_id": number, **changed}[name] for name in columns
        )

    tables["g_patent"] += [
        like("D345393", patent_type="design", wipo_kind="S1"),
        like("PP12345", patent_type="plant", wipo_kind="P2"),
        like("RE12345", patent_type="reissue", wipo_kind="E1"),
        like("2", withdrawn=1),
        like("3", withdrawn="TRUE"),
        like("4", wipo_kind="A"),
        like("5", wipo_kind=None),
        like("6", patent_date="2005-12-27"),
        like("7", patent_date="2016-01-05"),
        like("8", patent_date=None),
        like("X9"),
        like("7654321"),
        like("7654321", patent_date="2010-02-02"),
        like("10", patent_date="2006-01-01"),
        like("11", patent_date="2015-12-31"),
    ]
    tables |= {"g_claims_2006": [("10", 0, "1. A.", "", "", 1)], "g_claims_2015": []}
    rows, facts = fetched(write_tables(tmp_path / "in", tables), tmp_path / "raw")
    assert rows.keys() == {"7654321", "10", "11"}
    assert rows["7654321"]["grant_date"] == dt.date(2010, 1, 5)
    assert facts["left_out"] == {
        "design": 1,
        "plant": 1,
        "reissue": 1,
        "utility A": 1,
        "utility of no kind": 1,
        "utility of no date": 1,
        "utility B2": 1,
    }
    assert (facts["withdrawn"], facts["outside_window"], facts["repeated"], facts["grants"]) == (2, 2, 2, 3)
    known = facts["withdrawn"] + facts["outside_window"] + facts["repeated"] + facts["grants"]
    assert facts["patents"] == known + sum(facts["left_out"].values()) == 16
    assert (facts["without_claims"], facts["without_cpc"]) == (1, 2)


def test_malformed_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "in", as_tables(GRANTS))
    with zipfile.ZipFile(folder / "g_claims_2010.tsv.zip") as archive:
        text = archive.read("g_claims_2010.tsv").decode()
    with zipfile.ZipFile(folder / "g_claims_2010.tsv.zip", "w") as archive:
        archive.writestr("g_claims_2010.tsv", text + '"7654321"\t1\n"7654321"\t1\t"x"\t"y"\t"z"\t0\t"too many"\n')
    rows, facts = fetched(folder, tmp_path / "raw")
    assert facts["malformed_rows"] == 2
    assert split_claims(rows["7654321"]["claims"]) == list(GRANTS[0].claims)


def test_optional_tables_and_unpacked_ones(tmp_path: Path) -> None:
    tables = as_tables([Grant()])
    for name in ("g_application", "g_assignee_disambiguated", "g_ipc_at_issue", "g_cpc_at_issue"):
        del tables[name]
    for name, rows in tables.items():
        write_tsv(tmp_path / "in" / "deep", name, rows, zipped=False)
    (tmp_path / "in" / "g_other.tsv.zip").write_bytes(b"a table that is not read may be anything")
    rows, _ = fetched(tmp_path / "in", tmp_path / "raw")
    row = rows["7654321"]
    assert (row["application_number"], row["filing_date"], row["assignees"], row["ipc"]) == (None, None, [], [])


def test_names_of_people_and_other_assignee_tables(tmp_path: Path) -> None:
    tables = as_tables([Grant()])
    tables["g_assignee_disambiguated"] = [
        ("7654321", 1, "b", "Jane", "Doe", None, 4, "x"),
        ("7654321", 0, "a", None, None, "Things  Inc.", 2, "x"),
        ("7654321", 2, "c", None, None, None, 2, "x"),
    ]
    folder = write_tables(tmp_path / "in", tables)
    rows, _ = fetched(folder, tmp_path / "raw")
    assert rows["7654321"]["assignees"] == ["Things Inc.", "Jane Doe"]
    text = (
        "patent_id\tassignee_sequence\traw_assignee_individual_name_first\traw_assignee_individual_name_last\t"
        "raw_assignee_organization\n7654321\t0\t\t\tTHINGS\n"
    )
    (folder / "g_assignee_disambiguated.tsv.zip").unlink()
    (folder / "g_assignee_not_disambiguated.tsv").write_text(text)
    rows, _ = fetched(folder, tmp_path / "printed")
    assert rows["7654321"]["assignees"] == ["THINGS"]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "g_patent.tsv.zip").unlink(), "holds no g_patent.tsv.zip; download it"),
        (lambda folder: (folder / "g_cpc_current.tsv.zip").unlink(), "holds no g_cpc_current.tsv.zip; download it"),
        (
            lambda folder: (folder / "g_claims_2011.tsv.zip").unlink(),
            "holds no g_claims_2011.tsv.zip; download it, or narrow --start and --end.",
        ),
        (lambda folder: (folder / "g_patent.tsv").write_text("x"), "are the same table; remove one of them."),
        (
            lambda folder: (folder / "g_patent.tsv.zip").write_text("<!doctype html><HTML>Sign in"),
            r"g_patent.tsv.zip is a web page, not the file it is named after",
        ),
        (
            lambda folder: (folder / "g_patent.tsv.zip").write_bytes((folder / "g_patent.tsv.zip").read_bytes()[:-9]),
            r"g_patent.tsv.zip is cut short; download it again.",
        ),
        (
            lambda folder: write_other(folder / "g_cpc_current.tsv.zip", {"a.tsv": "a\n", "b.tsv": "b\n"}),
            r"g_cpc_current.tsv.zip holds 2 .tsv files, not one table",
        ),
        (
            lambda folder: write_other(folder / "g_cpc_current.tsv.zip", {"g_cpc_current.csv": "a\n"}),
            r"g_cpc_current.tsv.zip holds 0 .tsv files, not one table",
        ),
        (
            lambda folder: write_other(folder / "g_cpc_current.tsv.zip", {"g_cpc_current.tsv": ""}),
            r"g_cpc_current.tsv.zip is no whole table \(Empty CSV file\); download it again.",
        ),
        (
            lambda folder: write_other(folder / "g_cpc_current.tsv.zip", {"x.tsv": "patent_id\tcpc_group\n1\tA\n"}),
            r"g_cpc_current.tsv.zip: Column 'cpc_sequence' .* does not exist",
        ),
        (
            lambda folder: write_other(folder / "g_patent.tsv.zip", {"x.tsv": b"\xff\xfe" * 50}),
            r"g_patent.tsv.zip",
        ),
    ],
)
def test_one_sentence_for_each(tmp_path: Path, spoil: object, sentence: str) -> None:
    folder = write_tables(tmp_path / "in", as_tables(GRANTS))
    spoil(folder)
    with pytest.raises(DataError, match=sentence):
        fetched(folder, tmp_path / "raw")
    assert not list((tmp_path / "raw").glob("[!.]*.parquet"))


def write_other(path: Path, members: dict[str, str | bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_damage_inside_a_zip(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "in", as_tables([Grant(str(7_000_000 + n)) for n in range(2000)]))
    path = folder / "g_claims_2010.tsv.zip"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"g_claims_2010.tsv.zip is damaged \(.*\); download it again."):
        fetched(folder, tmp_path / "raw")


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder; give --input"):
        PatentsviewEngine(tmp_path / "nowhere", "current")


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".parquet", ".json")}


def test_resumed_after_any_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tables(tmp_path / "in", as_tables(GRANTS))
    fetched(folder, tmp_path / "whole")
    read_tsv, read = patentsview._read_tsv, []
    for name in ("g_cpc_current", "g_claims_2011"):

        def interrupted(path: Path, *rest: object, name: str = name) -> object:
            if path.name.startswith(name):
                raise KeyboardInterrupt
            read.append(path.name)
            return read_tsv(path, *rest)

        monkeypatch.setattr(patentsview, "_read_tsv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetched(folder, tmp_path / "resumed")
    monkeypatch.setattr(patentsview, "_read_tsv", lambda path, *rest: read.append(path.name) or read_tsv(path, *rest))
    fetched(folder, tmp_path / "resumed")
    assert sorted(read) == sorted({*read})
    assert content(tmp_path / "resumed") == content(tmp_path / "whole")


# -- the join, against a slow and obvious one --------------------------------------------------------------------------

numbers = st.sampled_from(["7000001", "7000002", "7000003", "8000001", "D500001", "x"])
sequences = st.integers(0, 4)
claims = st.tuples(numbers, sequences, st.sampled_from(["A", "B c", "", "1. D"]), st.just(""), st.just(""), st.just(0))
codes = st.tuples(
    numbers,
    sequences,
    st.just("A"),
    st.just("A01"),
    st.just("A01B"),
    st.sampled_from(["A01B1/00", "A01B2/00", "H04L9/00"]),
    st.sampled_from(["inventional", "additional"]),
)


def joined_slowly(tables: dict[str, Rows]) -> dict[str, tuple[list[str], Rows]]:
    found = {}
    for number, kind, *_ in tables["g_patent"]:
        if kind != "utility":
            continue
        texts: list[tuple[int, str]] = []
        for row in [*tables["g_claims_2010"], *tables["g_claims_2011"]]:
            if row[0] == number and row[1:3] not in texts:
                texts.append(row[1:3])
        mine = sorted((row for row in tables["g_cpc_current"] if row[0] == number), key=lambda row: row[1])
        lowest = mine[0][1] if mine else 0
        found[number] = (
            [text.removeprefix("1. ") for _, text in sorted(texts, key=lambda row: row[0])],
            [(row[5], row[1] == lowest <= 1, row[6] == "inventional") for row in mine],
        )
    return found


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    claims_2010=st.lists(claims, max_size=12),
    claims_2011=st.lists(claims, max_size=12),
    cpc=st.lists(codes, max_size=12),
)
def test_the_join(tmp_path_factory: pytest.TempPathFactory, claims_2010: Rows, claims_2011: Rows, cpc: Rows) -> None:
    folder = tmp_path_factory.mktemp("join")
    grants = [Grant("7000001"), Grant("7000002"), Grant("7000003", granted=dt.date(2010, 12, 28))]
    tables = as_tables([*grants, replace(grants[0], number="8000001", granted=dt.date(2011, 1, 4))])
    tables["g_patent"].append(("D500001", "design", "2010-01-05", "A cup", "S1", 1, 0, "x"))
    tables |= {"g_claims_2010": claims_2010, "g_claims_2011": claims_2011, "g_cpc_current": cpc}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patentsview, "BLOCK", 256)
        rows, _ = fetched(write_tables(folder / "in", tables), folder / "raw")
    expected = joined_slowly(tables)
    assert rows.keys() == expected.keys()
    for number, (texts, symbols) in expected.items():
        found = rows[number]["claims"]
        assert (split_claims(found) if found else []) == (texts if any(texts) else [])
        assert [tuple(code.values()) for code in rows[number]["cpc"]] == symbols


def test_many_days_stay_apart(tmp_path: Path) -> None:
    grants = [Grant(str(7_000_000 + n), granted=dt.date(2010, 1, 5) + dt.timedelta(weeks=n % 60)) for n in range(300)]
    rows, facts = fetched(write_tables(tmp_path / "in", as_tables(grants)), tmp_path / "raw")
    assert {number: row["grant_date"] for number, row in rows.items()} == {each.number: each.granted for each in grants}
    assert facts["rows"] == 300
    months = pl.Series([grant.granted for grant in grants]).dt.strftime("%Y-%m").unique().sort()
    assert [path.name for path in sorted((tmp_path / "raw").glob("*.parquet"))] == [
        f"grants-{month}.parquet" for month in months
    ]
