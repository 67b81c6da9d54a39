"""What fetched shards must and should hold."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import publication, write_publications

from ewe.errors import DataError
from ewe.pipeline import checks, schema
from ewe.pipeline.checks import check_shards
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import ParquetEngine

WINDOW = {"start": dt.date(2010, 1, 1), "end": dt.date(2011, 12, 31)}


def fetch(folder: Path, rows: list[dict[str, object]]) -> list[Path]:
    fetch_grants(ParquetEngine(write_publications(folder / "table.parquet", rows)), folder / "raw", **WINDOW)
    return sorted((folder / "raw").glob("grants-*.parquet"))


def codes(*flagged: str) -> list[dict[str, object]]:
    return [{"code": code, "first": True, "inventive": None, "tree": []} for code in flagged]


def test_years_and_rows_with_several_first_codes_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        publication("US-1-B2", grant_date=20100105),
        publication("US-2-B2", grant_date=20110104, cpc=codes("A01B1/00", "A01B1/00")),
        publication("US-3-B2", grant_date=20110104, cpc=codes("A01B1/00", "A01B3/00")),
        publication("US-4-B2", grant_date=20110201, cpc=[*codes("A01B1/00", " A01B 1/00", " "), *codes("")]),
        publication("US-5-B2", grant_date=20110201, cpc=[]),
    ]
    facts = check_shards(fetch(tmp_path, rows), schema.RAW, **WINDOW)

    assert facts == {"years": {"2010": 1, "2011": 4}, "several_first": 1}
    assert "Grants with several CPC codes flagged first: 1" in capsys.readouterr().err


def test_a_number_in_two_months_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="US-1-B2 stands more than once"):
        fetch(tmp_path, [publication("US-1-B2"), publication("US-1-B2", grant_date=20100202)])


def test_other_columns_and_dates_are_refused(tmp_path: Path) -> None:
    (shard,) = fetch(tmp_path, [publication()])
    with pytest.raises(DataError, match="1 grants lie outside"):
        check_shards([shard], schema.RAW, dt.date(2010, 1, 6), dt.date(2010, 1, 31))
    pq.write_table(pq.read_table(shard).drop_columns("title"), shard)
    with pytest.raises(DataError, match="other columns"):
        check_shards([shard], schema.RAW, **WINDOW)


def test_a_year_that_is_not_the_offices_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "SAMPLE", 2)
    monkeypatch.setattr(checks, "GRANTED", {2009: 9, 2010: 3, 2011: 3})
    rows = [publication(f"US-{number}-B2") for number in range(3)]
    rows += [publication(f"US-{number}-B2", grant_date=20110104) for number in range(3, 5)]
    fetch(tmp_path, rows)

    warnings = capsys.readouterr().err
    assert "2011 holds 2 grants where the office counts 3" in warnings
    assert "2010" not in warnings


def test_the_offices_figures_sum_to_the_papers_training_split() -> None:
    assert sum(checks.GRANTED[year] for year in range(2006, 2015)) == pytest.approx(1.93e6, rel=0.002)


def test_shards_of_labels_are_checked_too(tmp_path: Path) -> None:
    row = {"publication_number": "US-1-B2", "grant_date": dt.date(2010, 1, 5), "later": []}
    pq.write_table(pa.Table.from_pylist([row], schema.LABELS), tmp_path / "labels-2010-01.parquet")

    assert check_shards([tmp_path / "labels-2010-01.parquet"], schema.LABELS, **WINDOW) == {"years": {"2010": 1}}
