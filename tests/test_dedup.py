import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st

from ewe.errors import DataError, IncompleteError, UsageError
from ewe.pipeline import dedup, links, minhash, schema
from ewe.pipeline.dedup import dedup_folder, leaking
from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.local import ParquetEngine
from ewe.pipeline.relabel import relabel_folder
from ewe.store import Store, verify

SPLITS = {
    "train": ["2006-01-01", "2014-12-31"],
    "test_a": ["2015-01-01", "2015-06-30"],
    "test_b": ["2015-07-01", "2015-12-31"],
}
VOCABULARY = [f"w{i}" for i in range(3000)]


# -- oracles: slow, obvious -------------------------------------------------------------------------------------------


def definition(text: str) -> MinHash:
    sketch = MinHash(num_perm=128, seed=1, scheme="affine32", hashfunc=zlib.crc32)
    sketch.update_batch([shingle.encode() for shingle in minhash.shingles(text)])
    return sketch


def jaccard(a: str, b: str) -> float:
    left, right = set(minhash.shingles(a)), set(minhash.shingles(b))
    return len(left & right) / len(left | right)


def components(nodes, edges):
    """Connected components by relabeling, as sets; single nodes left out."""
    part = {node: {node} for node in nodes}
    for a, b in edges:
        if part[a] is not part[b]:
            part[a] |= part[b]
            for node in part[b]:
                part[node] = part[a]
    return {frozenset(each) for each in part.values() if len(each) > 1}


def candidates(texts: list[str], bands: int, rows: int):
    """Pairs of texts (indices) that datasketch's index returns."""
    assert len(set(texts)) == len(texts)
    index = MinHashLSH(num_perm=128, params=(bands, rows))
    sketches = [definition(text) for text in texts]
    for i, sketch in enumerate(sketches):
        index.insert(i, sketch)
    return {(i, j) for i, sketch in enumerate(sketches) for j in index.query(sketch) if i < j}


# -- made-up texts and datasets ---------------------------------------------------------------------------------------


def words(chance: random.Random, count: int = 200) -> list[str]:
    return chance.choices(VOCABULARY, k=count)


def edited(chance: random.Random, text: str, edits: int) -> str:
    """The text with some words replaced, dropped or put in."""
    changed = text.split(" ")
    for _ in range(edits):
        at = chance.randrange(len(changed))
        dropped, put_in = chance.choice(((1, 1), (1, 0), (0, 1)))
        changed[at : at + dropped] = chance.choices(VOCABULARY, k=put_in)
    return " ".join(changed)


def write_dataset(folder: Path, rows: list[dict[str, object]], row_group: int = 64) -> Path:
    """A dataset folder of rows with text, split and perhaps publication_number, family_id, config."""
    shards = defaultdict(list)
    for i, row in enumerate(rows):
        full = {
            "publication_number": f"US-{7_000_000 + i}-B2",
            "kind_code": "B2",
            "grant_date": dt.date(2010, 1, 5),
            "claim_offsets": [0],
            "n_claims": 1,
        }
        config = row.get("config", "relabeled")
        shards[config, row["split"]].append({**full, **{k: v for k, v in row.items() if k != "config"}})
    with Store(folder, "dataset", {"splits": SPLITS}) as store:
        for config in ("relabeled", "no_first"):
            for split in SPLITS:
                table = pa.Table.from_pylist(shards[config, split], schema.DATASET)
                name = f"{config}/{split}-00000-of-00001.parquet"
                with store.write(name, {"rows": table.num_rows}) as temporary:
                    pq.write_table(table, temporary, row_group_size=row_group)
        store.finish(rows=len(rows), made_up=True)
    return folder


def read(folder: Path, name: str) -> list[dict[str, object]]:
    return pq.read_table(folder / "duplicates" / f"{name}.parquet").to_pylist()


def groups(folder: Path) -> set[frozenset[str]]:
    found = defaultdict(set)
    for row in read(folder, "groups"):
        found[row["group"]].add(row["publication_number"])
    return {frozenset(each) for each in found.values()}


# -- signatures -------------------------------------------------------------------------------------------------------

LETTERS = st.text(st.sampled_from("aZ éÉßẞİıΣσςΔµ™KÅǅﬀ€𝔘𐐀\u00a0\t\n"), max_size=60)
LINES = st.lists(st.text("abcXYZ é-", max_size=14), max_size=30).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(LETTERS, LINES, st.text(max_size=40)), max_size=8))
def test_signatures_are_datasketchs(texts):
    lowered = minhash.lower(pa.array(texts, pa.string()))
    assert lowered.to_pylist() == [text.lower() for text in texts]
    found = minhash.signatures(lowered)
    assert found.dtype == np.uint32
    assert found.shape == (len(texts), 128)
    for text, signature in zip(texts, found, strict=True):
        np.testing.assert_array_equal(signature, definition(text).hashvalues)


def test_signatures_of_long_words_and_slices():
    texts = ["skipped É", "", "x" * 100_000, "a b", " ".join("y" * n for n in range(300)), "A B C D E F", "skipped"]
    for kind in (pa.string(), pa.large_string()):
        found = minhash.signatures(minhash.lower(pa.array(texts, kind)[1:-1]))
        for text, signature in zip(texts[1:-1], found, strict=True):
            np.testing.assert_array_equal(signature, definition(text).hashvalues)


def test_no_letter_with_case_is_overlooked():
    letters = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    changed = [letter for letter in letters if letter != letter.lower()]
    assert minhash.lower(pa.array(changed)).to_pylist() == [letter.lower() for letter in changed]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(LETTERS, LINES), max_size=6))
def test_sets_hold_the_distinct_shingles(texts):
    hashes, indptr = minhash.shingle_sets(minhash.lower(pa.array(texts, pa.string())))
    sets = [set(hashes[a:b].tolist()) for a, b in pairwise(indptr)]
    truth = [set(minhash.shingles(text)) for text in texts]
    for a, b in pairwise(indptr):
        assert (np.diff(hashes[a:b].astype(object)) > 0).all()
    for i in range(len(texts)):
        for j in range(len(texts)):
            assert len(sets[i] & sets[j]) == len(truth[i] & truth[j])
    for shingle in truth[0] if truth else ():
        assert zlib.crc32(shingle.encode()) in {each >> 32 for each in sets[0]}


def test_bands_find_pairs_at_the_threshold():
    assert minhash.bands(0.8) == (21, 6)
    for percent in range(4, 101):
        count, rows = minhash.bands(percent / 100)
        assert count * rows <= 128
        assert 1 - (1 - (percent / 100) ** rows) ** count >= 0.98
    with pytest.raises(ValueError, match="too few pairs"):
        minhash.bands(0.03)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_buckets_are_datasketchs(threshold):
    chance = random.Random(3)
    originals = [" ".join(words(chance, 120)) for _ in range(60)]
    texts = originals + [edited(chance, text, n) for n in range(1, 9) for text in originals]
    count, rows = minhash.bands(threshold)
    signatures = minhash.signatures(minhash.lower(pa.array(texts)))
    found = set()
    for keys in minhash.band_keys(signatures, count, rows):
        members, starts = minhash.buckets(keys)
        for a, b in pairwise(starts):
            assert b - a >= 2
            found.update(combinations(members[a:b].tolist(), 2))
    assert found == candidates(texts, count, rows)
    assert len(found) > 100


@pytest.mark.parametrize("n", [0, 1, 2])
def test_buckets_of_hardly_any_text(n):
    members, starts = minhash.buckets(np.full(n, 7, np.uint64))
    assert members.tolist() == ([0, 1] if n == 2 else [])
    assert starts.tolist() == ([0, 2] if n == 2 else [0])


# -- links ------------------------------------------------------------------------------------------------------------


def compared(texts: list[str]) -> links.Texts:
    lowered = minhash.lower(pa.array(texts))
    return links.Texts(minhash.signatures(lowered), lambda some: minhash.shingle_sets(lowered.take(pa.array(some))))


def linked(texts: list[str], threshold: float) -> links.Links:
    count, rows = minhash.bands(threshold)
    sketched = compared(texts)
    banded = [minhash.buckets(keys) for keys in minhash.band_keys(sketched.signatures, count, rows)]
    return links.link(sketched, banded, rows, threshold)


def star(chance: random.Random) -> list[str]:
    """Copies that all link to the last one, hardly to each other."""
    original = " ".join(words(chance))
    return [edited(chance, original, 4) for _ in range(30)] + [original]


def chain(chance: random.Random) -> list[str]:
    """Each links to its neighbours alone."""
    texts = [" ".join(words(chance))]
    for _ in range(30):
        texts.append(edited(chance, texts[-1], 3))
    return texts


def strangers(chance: random.Random) -> list[str]:
    """Half of each is the same: they share bands and never link."""
    shared = words(chance, 120)
    return [" ".join(shared + words(chance, 50)) for _ in range(30)]


@pytest.mark.parametrize("threshold", [0.6, 0.8])
@pytest.mark.parametrize("seed", range(2))
def test_groups_are_the_components_of_all_verified_candidates(threshold, seed):
    chance = random.Random(seed)
    texts = [text for shape in (star, chain, strangers) * 2 for text in shape(chance)]
    chance.shuffle(texts)
    texts = list(dict.fromkeys(texts))
    true_links = {
        pair: similarity
        for pair in candidates(texts, *minhash.bands(threshold))
        if (similarity := jaccard(texts[pair[0]], texts[pair[1]])) >= threshold
    }
    found = linked(texts, threshold)
    assert components(range(len(texts)), true_links) == components(range(len(texts)), enumerate(found.roots.tolist()))
    pairs = [tuple(pair) for pair in found.pairs.tolist()]
    assert components(range(len(texts)), pairs) == components(range(len(texts)), true_links)
    assert len(pairs) == len(texts) - len(np.unique(found.roots))  # a forest
    for pair, similarity in zip(pairs, found.similarity.tolist(), strict=True):
        assert similarity == true_links[pair]
    for root in np.unique(found.roots):
        assert root == np.flatnonzero(found.roots == root).min()
    assert len(true_links) > 50


def test_links_of_thousands_of_near_copies_are_found_without_comparing_all():
    chance = random.Random(5)
    original = " ".join(words(chance, 100))
    family = list(dict.fromkeys(edited(chance, original, 1) for _ in range(25_000)))[:20_000]
    found = linked(family, 0.8)  # 200 million pairs, were all compared
    assert (found.roots == 0).all()
    assert len(found.pairs) == len(family) - 1
    for (a, b), similarity in list(zip(found.pairs.tolist(), found.similarity.tolist(), strict=True))[::1000]:
        assert similarity == jaccard(family[a], family[b]) >= 0.8


@settings(max_examples=300, deadline=None)
@given(
    st.sets(st.integers(0, 40), min_size=1),
    st.sets(st.integers(0, 40), min_size=1),
    st.sampled_from([0.04, 0.5, 2 / 3, 0.8, 1.0]),
)
def test_similarity_is_exact_at_the_threshold(a, b, threshold):
    sets = minhash.ShingleSets(np.array(sorted(a) + sorted(b), np.uint64), np.array([0, len(a), len(a) + len(b)]))
    same = links.Texts(np.zeros((2, 128), np.uint32), lambda _: sets)  # signatures that rule nothing out
    rows = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    near, similarity = links.nearest(same, threshold, rows, (rows[0], rows[1] + 1, rows[2]))
    exact = len(a & b) / len(a | b)
    assert near.tolist() == [0 if exact >= threshold else -1]
    assert similarity.tolist() == [exact if exact >= threshold else 0]


def test_agreement_of_signatures_rules_out_no_true_link():
    for threshold in (0.04, 0.5, 0.8, 0.99):
        least = links.least_agreement(threshold)
        drawn = np.random.default_rng(0).binomial(128, threshold, 1_000_000)
        assert drawn.min() >= least
        assert least > 128 * threshold - 11 * (128 * threshold * (1 - threshold)) ** 0.5 - 1
    assert links.least_agreement(1.0) == 128


# -- the folder -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A dataset of texts with planted copies, what its rows are, and the summary of dedup."""
    chance = random.Random(11)
    rows = []
    for family in range(150):
        original = " ".join(words(chance, 150))
        kin = [original, *(edited(chance, original, chance.randrange(8)) for _ in range(chance.randrange(4)))]
        rows += [
            {
                "text": text.upper() if chance.random() < 0.2 else text,
                "split": chance.choice(["train", "train", "test_a", "test_b"]),
                "family_id": str(family) if chance.random() < 0.5 else chance.choice([None, "x", "y"]),
                "config": chance.choice(["relabeled", "relabeled", "no_first"]),
            }
            for text in kin
        ]
    rows += [
        {"text": text, "split": split} for text in ("two words", "TWO words", "two words more") for split in SPLITS
    ]
    chance.shuffle(rows)
    for i, row in enumerate(rows):
        row["publication_number"] = f"US-{7_000_000 + i}-B1"
    folder = write_dataset(tmp_path_factory.mktemp("planted") / "dataset", rows)
    return folder, {row["publication_number"]: row for row in rows}, dedup_folder(folder)


def true_pairs(rows):
    """Every pair of rows at or above 0.8, by brute force over pairs that share a shingle."""
    holders = defaultdict(set)
    for number, row in rows.items():
        for shingle in set(minhash.shingles(row["text"])):
            holders[shingle].add(number)
    near = {tuple(sorted(pair)) for each in holders.values() for pair in combinations(each, 2)}
    return {pair for pair in near if jaccard(rows[pair[0]]["text"], rows[pair[1]]["text"]) >= 0.8}


def test_planted_copies_are_found(planted):
    folder, rows, summary = planted
    truth = true_pairs(rows)
    together = {pair for group in groups(folder) for pair in combinations(sorted(group), 2)}
    assert len(truth & together) >= 0.98 * len(truth) > 100
    pairs = read(folder, "pairs")
    for pair in pairs:
        a, b = pair["publication_number_a"], pair["publication_number_b"]
        assert pair["similarity"] == jaccard(rows[a]["text"], rows[b]["text"]) >= 0.8
    forest = [(pair["publication_number_a"], pair["publication_number_b"]) for pair in pairs if pair["in_forest"]]
    assert components(rows, forest) == groups(folder)
    assert len(forest) == sum(len(group) - 1 for group in groups(folder))
    assert len({frozenset((pair["publication_number_a"], pair["publication_number_b"])) for pair in pairs}) == len(
        pairs
    )
    assert summary == {
        "out": str(folder / "duplicates"),
        "rows": len(rows),
        "texts": len({row["text"].lower() for row in rows.values()}),
        "groups": len(groups(folder)),
        "rows_in_groups": sum(map(len, groups(folder))),
        "pairs": len(pairs),
        "leaking": summary["leaking"],
        "made_up": True,
    }


def test_leaks_are_counted_and_shown(planted):
    folder, rows, summary = planted
    truth = true_pairs(rows)
    near = defaultdict(set)
    for a, b in truth:
        near[a].add(b)
        near[b].add(a)
    counts = {}
    told = {row["publication_number"]: row for row in read(folder, "groups")}
    for split in ("test_a", "test_b"):
        numbers = [number for number, row in rows.items() if row["split"] == split]
        copies = {number: [rows[each] for each in near[number] if rows[each]["split"] == "train"] for number in numbers}
        kin = {
            number
            for number in numbers
            for copy in copies[number]
            if copy.get("family_id") and copy["family_id"] == rows[number].get("family_id")
        }
        leaks = {number for number in numbers if copies[number]}
        assert {number for number in numbers if number in told and told[number]["leak"] == "same_family"} == kin
        assert {number for number in numbers if number in told and told[number]["leak"]} == leaks
        counts[split] = {
            "rows": len(numbers),
            "leaking": len(leaks),
            "same_family": len(kin),
            "other_family": len(leaks - kin),
        }
        assert len(kin) > 5 < len(leaks - kin)
    assert json.loads((folder / "duplicates/leakage.json").read_text()) == counts
    assert summary["leaking"] == {split: count["leaking"] for split, count in counts.items()}
    leaks = {number for number, row in told.items() if row["leak"]}
    assert leaking(folder) == leaks
    shown = {
        pair["publication_number_b"]
        for pair in read(folder, "pairs")
        if rows[pair["publication_number_a"]]["split"] == "train" != rows[pair["publication_number_b"]]["split"]
    }
    assert leaks <= shown


def test_a_test_row_far_from_train_does_not_leak_through_its_group(tmp_path):
    claim = words(random.Random(0), 100)
    near = " ".join(claim)
    middle = " ".join([*claim[:30], "here", *claim[31:]])
    far = " ".join([*claim[:30], "here", *claim[31:60], "there", *claim[61:97], "far", *claim[98:]])
    assert jaccard(near, far) < 0.8 <= min(jaccard(near, middle), jaccard(middle, far))
    texts = {"train": near, "test_a": middle, "test_b": far}
    folder = write_dataset(tmp_path / "d", [{"split": split, "text": text} for split, text in texts.items()])
    assert dedup_folder(folder)["leaking"] == {"test_a": 1, "test_b": 0}
    assert len(groups(folder)) == 1
    assert len(leaking(folder)) == 1


def test_twenty_thousand_equal_texts(tmp_path):
    text = " ".join(words(random.Random(1)))
    rows = [{"split": split, "text": text} for split in SPLITS for _ in range(20_000 // 3)]
    folder = write_dataset(tmp_path / "d", rows, row_group=5_000)
    summary = dedup_folder(folder)
    assert (summary["texts"], summary["groups"], summary["pairs"]) == (1, 1, len(rows) - 1)
    assert summary["leaking"] == {"test_a": 6_666, "test_b": 6_666}
    assert len(leaking(folder)) == 13_332


def test_nothing_alike(tmp_path):
    chance = random.Random(2)
    folder = write_dataset(tmp_path / "d", [{"split": "train", "text": " ".join(words(chance))} for _ in range(5)])
    summary = dedup_folder(folder)
    assert (summary["groups"], summary["pairs"], summary["leaking"]) == (0, 0, {"test_a": 0, "test_b": 0})
    assert pq.read_schema(folder / "duplicates/pairs.parquet").equals(schema.PAIRS)
    assert pq.read_schema(folder / "duplicates/groups.parquet").equals(schema.GROUPS)
    assert leaking(folder) == set()


def result(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "duplicates").iterdir() if path.name[0] != "."}


@pytest.mark.parametrize("workers", [1, 3])
def test_bytes_do_not_depend_on_threads(planted, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(dedup, "WORKERS", workers)
    monkeypatch.setattr(dedup, "PART_ROWS", 100)
    folder = tmp_path / "dataset"
    copy_dataset(planted[0], folder)
    dedup_folder(folder)
    assert result(folder) == result(planted[0])
    assert verify(folder / "duplicates")["files"] == 3
    assert sorted(path.name for path in (folder / "duplicates").iterdir() if path.name != ".lock") == [
        "groups.parquet",
        "leakage.json",
        "manifest.json",
        "pairs.parquet",
    ]


def copy_dataset(source: Path, to: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file() and "duplicates" not in path.parts:
            (to / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (to / path.relative_to(source)).write_bytes(path.read_bytes())


@pytest.mark.parametrize("killed", ["minhash.buckets", "link", "_leaks", "_write"])
def test_a_killed_run_goes_on(planted, tmp_path, monkeypatch, killed):
    folder = tmp_path / "dataset"
    copy_dataset(planted[0], folder)
    code = (
        "import os, signal, sys; from pathlib import Path; from ewe.pipeline import dedup\n"
        "dedup.PART_ROWS = 100\n"
        f"dedup.{killed} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "dedup.dedup_folder(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], env={**os.environ, "PYTHONPATH": "."}, check=False)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(IncompleteError, match="ewe-data dedup again"):
        leaking(folder)
    monkeypatch.setattr(dedup, "PART_ROWS", 100)
    monkeypatch.setattr(minhash, "signatures", None)  # all parts are there
    if killed != "minhash.buckets":
        monkeypatch.setattr(minhash, "shingle_sets", None)
    dedup_folder(folder)
    assert result(folder) == result(planted[0])
    assert dedup_folder(folder) == planted[2] | {"out": str(folder / "duplicates")}  # finished: says so


def test_one_part_is_redone(planted, tmp_path, monkeypatch):
    folder = tmp_path / "dataset"
    copy_dataset(planted[0], folder)
    monkeypatch.setattr(dedup, "PART_ROWS", 64)
    monkeypatch.setattr(dedup, "WORKERS", 1)
    true = minhash.signatures
    calls = []

    def failing(lowered):
        calls.append(len(lowered))
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return true(lowered)

    monkeypatch.setattr(minhash, "signatures", failing)
    with pytest.raises(OSError, match="space"):
        dedup_folder(folder)
    dedup_folder(folder)
    assert sum(calls) - calls[2] == len(planted[1])
    assert result(folder) == result(planted[0])


def test_errors(planted, tmp_path):
    with pytest.raises(DataError, match="not a dataset folder"):
        dedup_folder(tmp_path)
    for threshold in (0.0, 0.02, 1.01, -1.0, float("nan")):
        with pytest.raises(UsageError, match=r"0\.04 to 1"):
            dedup_folder(planted[0], jaccard=threshold)
    with pytest.raises(DataError, match=r"jaccard was 0\.8 and is now 0\.9.*; remove it") as refused:
        dedup_folder(planted[0], jaccard=0.9)
    assert "--out" not in str(refused.value)
    folder = write_dataset(tmp_path / "dataset", [{"split": "train", "text": "a"}])
    with pytest.raises(DataError, match="ewe-data dedup"):
        leaking(folder)
    dedup_folder(folder)
    (folder / "manifest.json").unlink()
    for path in folder.glob("*/*-of-*"):
        path.unlink()
    (folder / "duplicates").rename(tmp_path / "kept")
    for path in folder.iterdir():
        if path.is_dir():
            path.rmdir()
    write_dataset(folder, [{"split": "train", "text": "b"}])
    (tmp_path / "kept").rename(folder / "duplicates")
    with pytest.raises(DataError, match="another dataset"):
        leaking(folder)


@pytest.fixture(scope="module")
def real_dataset(real, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    window = {"start": dt.date(2005, 1, 1), "end": dt.date(2017, 12, 31)}
    fetch_grants(ParquetEngine(real / "publications.parquet"), folder / "raw", **window)
    splits = {"train": (dt.date(2005, 1, 1), dt.date(2012, 12, 31)), "test": (dt.date(2013, 1, 1), window["end"])}
    relabel_folder(folder / "raw", folder / "dataset", splits=splits)
    return folder / "dataset"


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_real_patents(real_dataset, tmp_path, threshold):
    folder = tmp_path / "dataset"
    copy_dataset(real_dataset, folder)
    tables = [pq.read_table(path, columns=["publication_number", "text"]) for path in folder.glob("*/*-of-*.parquet")]
    texts = {row["publication_number"]: row["text"] for table in tables for row in table.to_pylist()}
    assert len(texts) > 1_000
    by_text = defaultdict(list)
    for number, text in texts.items():
        by_text[text.lower()].append(number)
    distinct = sorted(by_text)
    edges = [
        (by_text[distinct[i]][0], by_text[distinct[j]][0])
        for i, j in candidates(distinct, *minhash.bands(threshold))
        if jaccard(distinct[i], distinct[j]) >= threshold
    ]
    edges += [(numbers[0], number) for numbers in by_text.values() for number in numbers[1:]]
    summary = dedup_folder(folder, jaccard=threshold)
    assert groups(folder) == components(texts, edges)
    assert (summary["rows"], summary["texts"]) == (len(texts), len(distinct))
    for pair in read(folder, "pairs"):
        a, b = texts[pair["publication_number_a"]], texts[pair["publication_number_b"]]
        assert pair["similarity"] == jaccard(a, b) >= threshold
