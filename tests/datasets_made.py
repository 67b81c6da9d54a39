"""Datasets for tests, of made-up publications, through fetch and relabel."""

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import publication

from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import MADE_UP, ParquetEngine
from ewe.pipeline.relabel import relabel_folder
from ewe.pipeline.schema import PUBLICATIONS

SUBCLASSES = ["A01B", "A61K", "B60L", "C07D", "D01F", "E04B", "F16H", "G06F", "G06Q", "H01L", "H04L", "Y02E"]
WORDS = ["a", "the", "comprising", "wherein", "said", "unit", "café", "1,2-dichlorotetrafluoroethane", "module", "of"]


def some_patents(count: int = 160) -> list[dict[str, object]]:
    """Patents of 2006-2015 with 1 to 30 claims; some without a first code, claims or codes; some near-copies."""
    chance = random.Random(0)
    patents = []
    opening = text = ""
    for n in range(count):
        half_year = 20 * n // count  # few months, few shards
        day = dt.date(2006 + half_year // 2, 1 + 6 * (half_year % 2), 1 + n % 28)
        symbols = chance.sample(SUBCLASSES, chance.choice([1, 2, 2, 3, 4]))
        codes = [
            {"code": f"{symbol}{chance.randint(1, 9)}/00", "first": place == 0 and n % 20 != 7, "inventive": True}
            for place, symbol in enumerate(symbols)
        ]
        if n % 9 != 8 and n != count - 2:  # else the text of the one before, or, in the last split, of the very first
            claims = chance.choice([1, 5, 12, 25, 30])
            text = "\n".join(
                f"{k}. A {' '.join(chance.choices(WORDS, k=chance.randint(3, 15)))} {n} {k}."
                for k in range(1, claims + 1)
            )
        opening = opening or text
        patents.append(
            publication(
                f"US-{7000000 + n}-B2",
                grant_date=int(day.strftime("%Y%m%d")),
                family_id=str(n // 2),
                cpc=[] if n % 40 == 3 else codes,
                claims_localized=[]
                if n % 40 == 5
                else [{"text": opening if n == count - 2 else text, "language": "en", "truncated": False}],
            )
        )
    return patents


def make_raw(folder: Path, patents: list[dict[str, object]], *, made_up: bool = False) -> Path:
    """FOLDER/raw."""
    table = pa.Table.from_pylist(patents, PUBLICATIONS)
    pq.write_table(table.replace_schema_metadata({MADE_UP: b"1"} if made_up else {}), folder / "table.parquet")
    window = {"start": dt.date(2006, 1, 1), "end": dt.date(2015, 12, 31)}
    fetch_grants(ParquetEngine(folder / "table.parquet"), folder / "raw", **window)
    return folder / "raw"


def make_dataset(folder: Path, patents: list[dict[str, object]], *, made_up: bool = False) -> Path:
    """FOLDER/dataset, with the paper's splits."""
    relabel_folder(make_raw(folder, patents, made_up=made_up), folder / "dataset")
    return folder / "dataset"
