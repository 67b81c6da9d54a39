"""sql/: every file parses, runs, is described, and stays off what the two engines read differently."""

import datetime as dt
import re
from importlib import resources

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from conftest import publication
from sqlglot import exp

from ewe.pipeline import schema
from ewe.pipeline.bigquery import TABLE, BigQueryEngine, query_text
from ewe.pipeline.local import read_sql, to_duckdb

FILES = sorted(path.name for path in resources.files("ewe.sql").iterdir() if path.name.endswith(".sql"))
COLUMNS = {"grants.sql": schema.RAW, "labels.sql": schema.LABELS}
MISSING = {"FARM_FINGERPRINT", "NORMALIZE", "FORMAT"}  # on the embedded engine, or another thing there


def faults(sql: str) -> list[str]:
    """What a query holds that BigQuery and the embedded engine read differently, or that costs for nothing."""
    tree = sqlglot.parse_one(sql, read="bigquery")
    offsets = {each.args["offset"].name for each in tree.find_all(exp.Unnest) if each.args.get("offset")}
    found = [  # starts at 1 there: good for an order alone
        "WITH OFFSET"
        for column in tree.find_all(exp.Column)
        if column.name in offsets and not column.find_ancestor(exp.Ordered)
    ]
    called = {name.upper() for name in re.findall(r"(\w+)\s*\(", re.sub(r"--[^\n]*|'[^']*'", "", sql))}
    found += sorted(called & MISSING)
    found += ["SAFE. prefix"] * bool(re.search(r"\bSAFE\.", sql, re.IGNORECASE))
    found += ["UNNEST without a name"] * any(not each.args.get("alias") for each in tree.find_all(exp.Unnest))
    found += [r"\s in a pattern"] * bool(re.search(r"\br'[^']*\\s", sql))
    found += ["SELECT *"] * any(isinstance(each, exp.Star) for each in tree.find_all(exp.Star))
    found += ["DATE_TRUNC to a quarter"] * bool(re.search(r"DATE_TRUNC\([^)]*QUARTER", sql, re.IGNORECASE))
    found += ["ARRAY_AGG with a limit"] * bool(re.search(r"ARRAY_AGG\([^)]*(IGNORE NULLS|LIMIT)", sql, re.IGNORECASE))
    found += ["PARSE_DATE of a 0"] * bool(re.search(r"PARSE_DATE\([^,]*,\s*(?!NULLIF)", sql, re.IGNORECASE))
    return found


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("SELECT position FROM UNNEST([1, 2]) AS x WITH OFFSET AS position", "WITH OFFSET"),
        ("SELECT FORMAT('%08d', 7)", "FORMAT"),
        ("SELECT FARM_FINGERPRINT('a')", "FARM_FINGERPRINT"),
        ("SELECT NORMALIZE('a')", "NORMALIZE"),
        ("SELECT SAFE.SUBSTR('a', 1)", "SAFE. prefix"),
        ("SELECT 1 FROM UNNEST([1, 2])", "UNNEST without a name"),
        (r"SELECT REGEXP_REPLACE('a', r'\s', '')", r"\s in a pattern"),
        ("SELECT * FROM t", "SELECT *"),
        ("SELECT DATE_TRUNC(d, QUARTER) FROM t", "DATE_TRUNC to a quarter"),
        ("SELECT ARRAY_AGG(x IGNORE NULLS ORDER BY y LIMIT 3) FROM t", "ARRAY_AGG with a limit"),
        ("SELECT PARSE_DATE('%Y%m%d', x) FROM t", "PARSE_DATE of a 0"),
    ],
)
def test_each_construct_is_refused(sql: str, fault: str) -> None:
    assert faults(sql) == [fault]


@pytest.mark.parametrize("sql", ["SELECT x FROM UNNEST([1, 2]) AS x WITH OFFSET AS position ORDER BY position, x"])
def test_what_both_read_alike_is_not(sql: str) -> None:
    assert faults(sql) == []


def test_every_file_has_its_columns_described() -> None:
    assert set(COLUMNS) == set(FILES)
    assert all(description for columns in COLUMNS.values() for description in schema.describe(columns).values())


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_one_query_off_the_list_over_the_one_table(name: str) -> None:
    sql = read_sql(name.removesuffix(".sql"))
    (tree,) = sqlglot.parse(sql, read="bigquery")
    tables = [f"{each.catalog}.{each.db}.{each.name}" for each in tree.find_all(exp.Table) if each.catalog]

    assert faults(sql) == []
    assert tables == [TABLE]
    assert sql.count(f"`{TABLE}`") == 1  # what --table replaces
    assert sql.startswith("-- ")


@pytest.mark.parametrize("name", FILES)
def test_a_files_parameters_are_those_the_engine_binds_and_its_head_names(name: str) -> None:
    query = name.removesuffix(".sql")
    sql = read_sql(query)
    head, body = sql.split("\nWITH\n")
    used = set(re.findall(r"@(\w+)", body))

    engine = BigQueryEngine("my-project", query=query)  # type: ignore[arg-type]
    bound = engine._parameters(dt.date(2006, 1, 1), dt.date(2015, 12, 31))

    assert used == set(bound) == set(re.findall(r"@(\w+)", head))
    assert all(isinstance(day, dt.date) for day in bound.values())


@pytest.mark.parametrize("name", FILES)
def test_a_file_runs_and_gives_the_described_columns(name: str) -> None:
    query = name.removesuffix(".sql")
    engine = BigQueryEngine("my-project", query=query)  # type: ignore[arg-type]
    rows = pa.Table.from_pylist([publication(), publication("US-7-B1", grant_date=0)], schema.PUBLICATIONS)

    with duckdb.connect() as connection:
        connection.register("_publications", rows)
        window = engine._parameters(dt.date(2006, 1, 1), dt.date(2015, 12, 31))
        found = connection.sql(to_duckdb(read_sql(query)), params=window).to_arrow_table()

    schema.check(found.schema, COLUMNS[name], name, "mend it")
    assert found.column_names == COLUMNS[name].names
    assert found.cast(COLUMNS[name])["publication_number"].to_pylist() == ["US-7654321-B2"]


def test_the_query_with_abstracts_is_the_same_query_and_one_column() -> None:
    plain = query_text("grants", TABLE, with_abstract=False)
    more = query_text("grants", TABLE, with_abstract=True)
    names = sqlglot.parse_one(more, read="bigquery").named_selects

    assert faults(more) == []
    assert list(names) == schema.RAW_WITH_ABSTRACT.names
    assert [line for line in more.splitlines() if "abstract" not in line and line not in plain.splitlines()] == []
    assert plain == read_sql("grants")


def test_labels_touch_no_text() -> None:
    read = {column.name for column in sqlglot.parse_one(read_sql("labels"), read="bigquery").find_all(exp.Column)}

    assert not {name for name in read if name.endswith("_localized")}
    assert not read & {"ipc", "assignee_harmonized", "tree"}
