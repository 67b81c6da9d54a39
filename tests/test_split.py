import datetime as dt
import json
import re
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewe.errors import DataError, UsageError
from ewe.pipeline.labelled import open_source
from ewe.pipeline.split import PAPER, assign_split, parse_splits, wrong_name


@given(st.lists(st.dates(dt.date(2004, 1, 1), dt.date(2017, 1, 1)), max_size=30))
def test_the_papers_splits(days: list[dt.date]) -> None:
    def expected(day: dt.date) -> str | None:
        if 2006 <= day.year <= 2014:
            return "train"
        if day.year == 2015:
            return "test_2015a" if day.month <= 6 else "test_2015b"
        return None

    frame = assign_split(pl.DataFrame({"grant_date": days}, schema={"grant_date": pl.Date}))

    assert frame["split"].to_list() == [expected(day) for day in days]


def test_lazy_frames_are_as_welcome() -> None:
    frame = pl.LazyFrame({"grant_date": [dt.date(2015, 7, 1)]})

    assert assign_split(frame).collect()["split"].to_list() == ["test_2015b"]


def test_given_splits_are_inclusive() -> None:
    splits = parse_splits(["train=2005-01-01:2010-12-31", "test=2011-01-01:2011-01-01"])
    days = [dt.date(2010, 12, 31), dt.date(2011, 1, 1), dt.date(2011, 1, 2)]

    assert assign_split(pl.DataFrame({"grant_date": days}), splits)["split"].to_list() == ["train", "test", None]


def test_no_split_given_means_the_papers() -> None:
    assert parse_splits([]) == PAPER


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "not NAME=FROM:TO"),
        (["train=2006:2014"], "not NAME=FROM:TO"),
        (["../x=2006-01-01:2014-12-31"], "not NAME=FROM:TO"),
        (["train.extra=2006-01-01:2014-12-31"], "not NAME=FROM:TO"),
        (["train=2006-02-30:2014-12-31"], "write dates as"),
        (["train=2014-12-31:2006-01-01"], "ends before it starts"),
        (["test=2006-01-01:2014-12-31"], "named train"),
        (["train=2006-01-01:2014-12-31", "test=2014-12-31:2015-12-31"], "overlap"),
        (["train=2006-01-01:2006-12-31", "train=2007-01-01:2007-12-31"], "given twice"),
        (["train=2006-01-01:2006-12-31", "Train=2007-01-01:2007-12-31"], "given twice"),
        (["train=2006-01-01:2006-12-31", "holdout=2007-01-01:2007-12-31"], "rows of train that ewe train keeps apart"),
        (["train=2006-01-01:2006-12-31", "all=2007-01-01:2007-12-31"], "every split to load_dataset"),
    ],
)
def test_what_is_no_split_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_splits(arguments)


def write_rows(folder: Path, kind: str, splits: list[str]) -> Path:
    rows = [{"text": "a", "label_names": ["x"], "split": split} for split in splits]
    path = folder / f"own.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.extra", "letters"),  # SPLIT.PART.npy: its files would be taken for train's
        ("train.text", "letters"),
        ("a-00000-of", "letters"),
        ("../x", "letters"),
        ("", "letters"),
        ("\u0661", "letters"),
        ("Train", "case alone"),
        ("holdout", "rows of train that ewe train keeps apart"),
        ("all", "every split to load_dataset"),
    ],
)
def test_anyones_own_splits_follow_the_same_rule(tmp_path: Path, kind: str, name: str, message: str) -> None:
    assert re.search(message, wrong_name(name, ["train"]) or "")
    path = write_rows(tmp_path, kind, ["train", name])

    with pytest.raises(DataError, match=f"split '{re.escape(name)}' .*{message}.*; rename that split") as refused:
        open_source(path).survey()
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", ["test_2015a", "dev", "2016", "_"])
def test_other_names_are_welcome(tmp_path: Path, name: str) -> None:
    _, splits = open_source(write_rows(tmp_path, "jsonl", ["train", name])).survey()

    assert list(splits) == ["train", name]
