"""Sorting in flat memory, against Python's sorted."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ewe.errors import DataError
from ewe.pipeline import runs


def table(keys: list[str]) -> pa.Table:
    return pa.table({runs.KEY: pa.array(keys, pa.string()), "copy": pa.array(keys, pa.string())})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.text(max_size=3), max_size=9), max_size=9), st.sampled_from([1, 200, 10**6]), st.integers(1, 7)
)
def test_rows_come_out_sorted_whatever_their_order_and_pieces(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[list[str]], run_bytes: int, rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "RUN_BYTES", run_bytes)
        patch.setattr(runs, "RUN_BATCH", 2)
        sorted_runs = runs.sorted_runs(map(table, pieces), tmp_path_factory.mktemp("runs"))
        groups = list(runs.row_groups(runs.merge(sorted_runs), rows))

    keys = [key for group in groups for key in group[runs.KEY].to_pylist()]
    assert keys == sorted(key for piece in pieces for key in piece)
    assert keys == [key for group in groups for key in group["copy"].to_pylist()]
    assert all(group.num_rows == rows for group in groups[:-1])
    assert all(0 < group.num_rows <= rows for group in groups[-1:])


@given(st.lists(st.text(max_size=1), min_size=1, max_size=8), st.integers(1, 4))
def test_a_key_twice_is_refused_within_a_table_and_across(keys: list[str], rows: int) -> None:
    ordered = sorted(keys)
    last = None
    try:
        for start in range(0, len(ordered), rows):
            last = runs.refuse_twice(pa.chunked_array([ordered[start : start + rows]]), last)
    except DataError as error:
        twice = [key for key, count in Counter(keys).items() if count > 1]
        assert str(error).split(" stands ")[0] in twice  # noqa: PT017
    else:
        assert len(set(keys)) == len(keys)
        assert last == pa.scalar(ordered[-1])
