"""Grant date -> split: by default the paper's train (2006-2014), test_2015a and test_2015b (section 5.1)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ewe.config import HOLDOUT
from ewe.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

Frame = TypeVar("Frame", "pl.DataFrame", "pl.LazyFrame")
Splits = Mapping[str, tuple[dt.date, dt.date]]  # name -> first and last grant date, both inclusive

_NAME = r"\w+"  # with re.ASCII
_RESERVED = {HOLDOUT: "the rows of train that ewe train keeps apart", "all": "every split to load_dataset"}

PAPER: Splits = {
    "train": (dt.date(2006, 1, 1), dt.date(2014, 12, 31)),
    "test_2015a": (dt.date(2015, 1, 1), dt.date(2015, 6, 30)),
    "test_2015b": (dt.date(2015, 7, 1), dt.date(2015, 12, 31)),
}


def parse_splits(arguments: Sequence[str]) -> Splits:
    """`["train=2005-01-01:2010-12-31", ...]` -> splits; the paper's three where there are none.

    Raises:
        UsageError: not NAME=FROM:TO, a name twice, a window that ends before it starts, two that
            overlap, a name that means something else, or none named train (labels come from it).
    """
    splits: dict[str, tuple[dt.date, dt.date]] = {}
    for argument in arguments:
        name, start, end = _parse(argument)
        if why := wrong_name(name, splits):
            raise UsageError(f"--split {name} {why}; choose another name.")
        for other, (first, last) in splits.items():
            if start <= last and first <= end:
                raise UsageError(f"--split {name} and {other} overlap; give windows that share no day.")
        splits[name] = start, end
    if splits and "train" not in splits:
        raise UsageError("No --split is named train, which the labels come from; name one train=FROM:TO.")
    return splits or PAPER


def wrong_name(name: str, others: Iterable[str]) -> str | None:
    """Why a split beside these others cannot be called so, to stand behind the name; None where it can."""
    if not re.fullmatch(_NAME, name, re.ASCII):  # SPLIT.PART.npy and SPLIT-N-of-M.parquet must tell the split
        return "is not of letters (a to z), digits and _ alone, and files are named after it"
    if name in _RESERVED:
        return f"means {_RESERVED[name]}"
    if name.lower() in (other.lower() for other in others):  # files of one name where case does not count
        return "is given twice, or differs from another in case alone"
    return None


def _parse(argument: str) -> tuple[str, dt.date, dt.date]:
    found = re.fullmatch(rf"({_NAME})=(\d{{4}}-\d\d-\d\d):(\d{{4}}-\d\d-\d\d)", argument, re.ASCII)
    if not found:
        raise UsageError(f"--split {argument!r} is not NAME=FROM:TO; write it like train=2006-01-01:2014-12-31.")
    try:
        start, end = dt.date.fromisoformat(found[2]), dt.date.fromisoformat(found[3])
    except ValueError as error:
        raise UsageError(f"--split {argument!r}: {error}; write dates as YYYY-MM-DD.") from None
    if end < start:
        raise UsageError(f"--split {argument!r} ends before it starts; swap its dates.")
    return found[1], start, end


def assign_split(frame: Frame, splits: Splits = PAPER) -> Frame:
    """Add `split` by `grant_date` (date); null where no split holds the date."""
    import polars as pl  # here, as encode, which asks for names alone, does without it

    column = pl.lit(None, pl.String)
    for name, (start, end) in splits.items():
        column = pl.when(pl.col("grant_date").is_between(start, end)).then(pl.lit(name)).otherwise(column)
    return frame.with_columns(split=column)
