"""What several tests share: where the real patents are, and small folders made of them or by hand."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ewe.pipeline.schema import PUBLICATIONS

REAL = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real patents, which is not part of the repository."""
    if not REAL.is_dir():
        pytest.skip("no real patents beside this checkout (../shared/data)")
    return REAL


def publication(number: str = "US-7654321-B2", **columns: object) -> dict[str, object]:
    """A row of the publications table: a US grant of 2010 with one claim and one first-listed code."""
    code = {"code": "G06Q10/00", "first": True, "inventive": True, "tree": []}
    row = {
        "publication_number": number,
        "application_number": "",
        "country_code": "US",
        "kind_code": number[-2:],
        "application_kind": "A",
        "family_id": "1",
        "title_localized": [{"text": "A thing", "language": "en", "truncated": False}],
        "claims_localized": [{"text": "1. A thing comprising a part.", "language": "en", "truncated": False}],
        "filing_date": 0,
        "grant_date": 20100105,
        "assignee_harmonized": [],
        "ipc": [code],
        "cpc": [code],
    }
    return row | columns


def write_publications(path: Path, rows: list[dict[str, object]], schema: pa.Schema = PUBLICATIONS) -> Path:
    """Write rows in the publications table's shape."""
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


@pytest.fixture
def window() -> dict[str, dt.date]:
    """The default window of `ewe-data fetch`."""
    return {"start": dt.date(2006, 1, 1), "end": dt.date(2015, 12, 31)}
