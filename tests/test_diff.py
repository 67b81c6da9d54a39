"""The drift of labels between two folders, against a slow and obvious count."""

import datetime as dt
import random
from collections import Counter
from pathlib import Path

import pytest
from conftest import publication, write_publications

from ewe.errors import DataError
from ewe.pipeline.diff import diff_labels, render_moves
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import ParquetEngine
from ewe.pipeline.relabel import relabel_folder
from ewe.store import Store

SUBCLASSES = ["A01B", "G06F", "G06N", "G06Q", "H04L"]
Labels = dict[str, tuple[str | None, set[str]]]


def codes(first: str | None, later: set[str]) -> list[dict[str, object]]:
    listed = [(first, True)] if first else []
    return [
        {"code": f"{subclass}{n}/00", "first": flag, "inventive": True, "tree": []}
        for n, (subclass, flag) in enumerate([*listed, *((each, False) for each in sorted(later))], 1)
    ]


def make_raw(folder: Path, labels: Labels, scheme: str = "cpc") -> Path:
    rows = [publication(number, **{scheme: codes(*each)}) for number, each in labels.items()]
    write_publications(folder.with_suffix(".parquet"), rows)
    window = {"start": dt.date(2006, 1, 1), "end": dt.date(2015, 12, 31)}
    fetch_grants(ParquetEngine(folder.with_suffix(".parquet")), folder, **window)
    return folder


def random_labels(seed: int, count: int = 200) -> Labels:
    draw = random.Random(seed)
    return {
        f"US-{7_000_000 + n}-B2": (
            draw.choice([*SUBCLASSES, SUBCLASSES[n % 5], SUBCLASSES[n % 5], None]),
            set(draw.sample(SUBCLASSES, draw.randrange(2))),
        )
        for n in range(count)
        if draw.random() < 0.9
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("diff")
    return make_raw(folder / "a", random_labels(1)), make_raw(folder / "b", random_labels(2))


def test_the_report_equals_a_count_by_hand(folders: tuple[Path, Path]) -> None:
    a, b = random_labels(1), random_labels(2)
    report = diff_labels(*folders)
    both = a.keys() & b.keys()
    placed = [number for number in both if a[number][0] and b[number][0]]
    kept = [number for number in placed if a[number][0] == b[number][0]]
    moves = Counter(f"{a[number][0]} > {b[number][0]}" for number in placed if number not in kept)
    assert (report["rows_a"], report["rows_b"], report["in_both"]) == (len(a), len(b), len(both))
    assert (report["only_in_a"], report["only_in_b"]) == (len(a.keys() - b), len(b.keys() - a))
    assert report["only_in_a_examples"] == sorted(a.keys() - b)[:5]
    assert report["only_in_b_examples"] == sorted(b.keys() - a)[:5]
    assert (report["first_in_both"], report["first_kept"]) == (len(placed), len(kept))
    assert report["first_only_in_a"] == sum(bool(a[number][0]) and not b[number][0] for number in both)
    assert report["first_only_in_b"] == sum(bool(b[number][0]) and not a[number][0] for number in both)
    assert report["all_kept"] == sum(a[number] == b[number] for number in placed)
    assert report["first_kept_share"] == round(len(kept) / len(placed), 4)
    assert report["all_kept_share"] == round(report["all_kept"] / len(placed), 4)
    assert report["moves"] == dict(moves.most_common(20)) or len(moves) > 20
    assert list(report["moves"].values()) == sorted(moves.values(), reverse=True)[:20]
    for subclass, row in report["subclasses"].items():
        assert row == {
            "a": sum(a[number][0] == subclass for number in placed),
            "b": sum(b[number][0] == subclass for number in placed),
            "left": sum(n for move, n in moves.items() if move.startswith(subclass)),
            "came": sum(n for move, n in moves.items() if move.endswith(subclass)),
        }
    assert report["subclasses"].keys() == set(SUBCLASSES)
    ranked = [row["left"] + row["came"] for row in report["subclasses"].values()]
    assert ranked == sorted(ranked, reverse=True)


def test_a_folder_and_itself(folders: tuple[Path, Path]) -> None:
    report = diff_labels(folders[0], folders[0])
    assert report["first_kept_share"] == report["all_kept_share"] == 1
    assert report["only_in_a"] == report["only_in_b"] == 0
    assert report["moves"] == report["subclasses"] == {}


def test_datasets_and_raw_folders_compare_alike(folders: tuple[Path, Path], tmp_path: Path) -> None:
    datasets = []
    for raw in folders:
        relabel_folder(raw, tmp_path / raw.name)
        datasets.append(tmp_path / raw.name)
    expected, relabelable = diff_labels(*folders), diff_labels(*datasets)
    for key in ("first_in_both", "first_kept", "all_kept", "moves", "subclasses"):
        assert relabelable[key] == expected[key]  # rows without any code are in raw/ alone
    assert diff_labels(folders[0], datasets[1])["moves"] == expected["moves"]


def test_by_ipc(tmp_path: Path) -> None:
    a = make_raw(tmp_path / "a", {"US-1-B2": ("A01B", set())}, "ipc")
    b = make_raw(tmp_path / "b", {"US-1-B2": ("G06F", {"A01B"})}, "ipc")
    assert diff_labels(a, b, "ipc")["moves"] == {"A01B > G06F": 1}
    assert diff_labels(a, b, "cpc")["moves"] == {}


def test_the_table(tmp_path: Path) -> None:
    a = make_raw(tmp_path / "a", {f"US-{n}-B2": ("A01B", set()) for n in range(1, 4)})
    b = make_raw(tmp_path / "b", {f"US-{n}-B2": ("G06F" if n > 1 else "A01B", set()) for n in range(1, 4)})
    assert render_moves(diff_labels(a, b)).splitlines() == [
        "First       in a      in b      left      came",
        "A01B           3         1         2         0",
        "G06F           0         2         0         2",
    ]


def test_no_common_grant(tmp_path: Path) -> None:
    a = make_raw(tmp_path / "a", {"US-1-B2": ("A01B", set())})
    b = make_raw(tmp_path / "b", {"US-2-B2": ("A01B", set())})
    report = diff_labels(a, b)
    assert (report["in_both"], report["first_kept_share"], report["only_in_a_examples"]) == (0, None, ["US-1-B2"])


@pytest.mark.parametrize("kind", ["raw", "dataset"])
def test_a_flipped_bit_is_named_or_changes_nothing(tmp_path: Path, kind: str) -> None:
    labels = random_labels(3, 40)
    a = make_raw(tmp_path / "a", labels)
    if kind == "dataset":
        relabel_folder(a, tmp_path / "dataset")
        a = tmp_path / "dataset"
    b = make_raw(tmp_path / "b", random_labels(4, 40))
    expected = diff_labels(a, b)
    (path, *_) = sorted(a.glob("relabeled/train-*" if kind == "dataset" else "*.parquet"))
    whole = path.read_bytes()
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # the footer behind them has no checksum
    refused = 0
    for place in [*range(0, pages, 23), *range(pages, len(whole), 89)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        said, found = "", {}
        try:
            found = diff_labels(a, b)
        except DataError as error:
            said = str(error)
        assert found == expected or place >= pages or (str(path) in said and "\n" not in said), place
        refused += bool(said)
    assert refused > 20


def test_other_folders_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a raw folder"):
        diff_labels(folders[0], tmp_path)
    with Store(tmp_path / "run", "run", {}) as store:
        store.finish()
    with pytest.raises(DataError, match=r"is a run folder; give a folder of ewe-data fetch or ewe-data relabel\."):
        diff_labels(tmp_path / "run", folders[0])
