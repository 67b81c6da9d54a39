"""labels.sql against relabel.first_later, and both against the rule in plain Python."""

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import publication
from hypothesis import given, settings
from hypothesis import strategies as st

from ewe.pipeline import schema
from ewe.pipeline.local import read_sql, to_duckdb
from ewe.pipeline.relabel import first_later
from ewe.pipeline.split import PAPER, assign_split

SQL = to_duckdb(read_sql("labels"))
GRANTS = to_duckdb(read_sql("grants"))
WINDOW = {"start_date": dt.date(2005, 1, 1), "end_date": dt.date(2017, 12, 31)}
SPLITS = {
    f"{name}_{side}": day for name, days in PAPER.items() for side, day in zip(("start", "end"), days, strict=True)
}
SPACES = "".join(chr(point) for point in range(0x3001) if chr(point).isspace())


def run(sql: str, publications: pa.Table, parameters: dict[str, dt.date]) -> pl.DataFrame:
    with duckdb.connect() as connection:
        connection.register("_publications", publications)
        return pl.DataFrame(connection.sql(sql, params=parameters).to_arrow_table()).sort("publication_number")


def labels(publications: pa.Table) -> pl.DataFrame:
    return run(SQL, publications, WINDOW | SPLITS)


def relabeled(publications: pa.Table) -> pl.DataFrame:
    """The same columns by the pipeline's own way; an array on BigQuery is never null."""
    return (
        run(GRANTS, publications, WINDOW)
        .pipe(assign_split)
        .pipe(first_later)
        .with_columns(pl.col("later").fill_null([]))
        .select(schema.LABELS.names)
    )


def slow(codes: list[dict[str, Any]] | None) -> tuple[str | None, list[str]]:
    """The rule of the specification, step by step."""
    merged: dict[str, list[bool]] = {}
    for each in codes or []:
        full = "".join((each["code"] or "").split())
        if full:
            flags = merged.setdefault(full, [False, False])
            flags[0] |= bool(each["first"])
            flags[1] |= bool(each["inventive"])
    candidates = [full for full, (first, _) in merged.items() if first]
    if not candidates:
        return None, []
    inventive = [full for full in candidates if merged[full][1]]
    listed = min(inventive or candidates)
    return listed[:4], sorted({full[:4] for full in merged if full != listed})


def table(rows: list[list[dict[str, Any]] | None]) -> pa.Table:
    made = [publication(f"US-{7_000_000 + index}-B2", cpc=codes) for index, codes in enumerate(rows)]
    return pa.Table.from_pylist(made, schema.PUBLICATIONS)


@pytest.mark.parametrize(
    ("codes", "first", "later"),
    [
        (["G06Q10/00*", "G06Q20/00", "A01B1/00"], "G06Q", ["A01B", "G06Q"]),  # the paper's three examples,
        (["A01B1/00*", "G06Q10/00", "A01B3/00"], "A01B", ["A01B", "G06Q"]),  # read as full codes
        (["G06Q10/00*", "A01B1/00"], "G06Q", ["A01B"]),
        (["A01N 53/12*", "A01N53/12"], "A01N", []),
        (["G06Q10/00", "A01B1/00"], None, []),
        (["H04L1/00*", "G06F1/00*"], "G06F", ["H04L"]),
        ([], None, []),
    ],
)
def test_worked_examples(codes: list[str], first: str | None, later: list[str]) -> None:
    row = [{"code": code.rstrip("*"), "first": code.endswith("*"), "inventive": None, "tree": []} for code in codes]

    assert labels(table([row])).select("first", "later").rows() == [(first, later)]


CODE = st.fixed_dictionaries(
    {
        "code": st.none()
        | st.builds(
            lambda subclass, gap, group: f"{subclass}{gap}{group}",
            st.sampled_from(["A01B", "A01N", "G06Q", "H04L", "B1", ""]),
            st.text(SPACES, max_size=2),
            st.sampled_from(["1/00", "53/12", "2/00", ""]),
        ),
        "first": st.none() | st.booleans(),
        "inventive": st.none() | st.booleans(),
        "tree": st.just([]),
    }
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.none() | st.lists(CODE, max_size=6), min_size=1, max_size=30))
def test_any_codes_give_the_rules_labels_and_the_pipelines(rows: list[list[dict[str, Any]] | None]) -> None:
    publications = table(rows)
    found = labels(publications)

    assert found.select("first", "later").rows() == [slow(codes) for codes in rows]
    assert found.equals(relabeled(publications))


@pytest.mark.parametrize(
    ("day", "split"),
    [
        (20051231, None),
        (20060101, "train"),
        (20141231, "train"),
        (20150101, "test_2015a"),
        (20150630, "test_2015a"),
        (20150701, "test_2015b"),
        (20151231, "test_2015b"),
        (20160101, None),
    ],
)
def test_splits_hold_both_their_days(day: int, split: str | None) -> None:
    rows = pa.Table.from_pylist([publication(grant_date=day)], schema.PUBLICATIONS)

    assert labels(rows)["split"].to_list() == [split]


def test_what_is_no_utility_grant_or_undated_has_no_labels() -> None:
    left_out = [
        publication("US-1-A1", kind_code="A1"),
        publication("US-2-S", kind_code="S1"),
        publication("DE-3-B2", country_code="DE"),
        publication("US-4-B2", application_kind="D"),
        publication("US-5-B2", grant_date=0),
        publication("US-6-B2", grant_date=20180101),
    ]

    assert labels(pa.Table.from_pylist(left_out, schema.PUBLICATIONS)).is_empty()


def test_real_patents_have_the_pipelines_labels(real: Path) -> None:
    publications = pq.read_table(real / "publications.parquet")
    found = labels(publications)

    assert found.equals(relabeled(publications))
    assert found["first"].count() > 500


def test_the_sample_has_the_pipelines_labels(tmp_path: Path) -> None:
    sample = pytest.importorskip("ewe.pipeline.sample", reason="the made-up table is not here yet")
    sample.write_sample(tmp_path / "table", rows=500, seed=3)
    publications = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "table").glob("*.parquet"))
    found = labels(publications)

    assert found.equals(relabeled(publications))
    assert found["later"].list.len().max() > 1
