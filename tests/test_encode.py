"""tensors/ against what plain Python makes of the same rows."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_made import make_dataset, some_patents

from ewe import elements, store, tokens
from ewe.errors import DataError, EweError, IncompleteError, UsageError
from ewe.pipeline import dedup, encode, labelled, schema
from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.encode import GrowingArray, encode_folder
from ewe.store import Store, read_json, read_manifest, sha256_json

POSITION = ["First-A01B", "First-G06Q", "First-H04L", "Later-A01B", "Later-G06Q", "Later-H04L"]
UNORDERED = ["A01B", "G06Q", "H04L"]
SPLITS = {
    "train": ["2006-01-01", "2014-12-31"],
    "test-a": ["2015-01-01", "2015-06-30"],
    "test": ["2016-01-01", "2016-12-31"],
}


def patent(
    number: int, split: str, text: str, labels: list[int] | None, unordered: list[int], unknown: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A row of a dataset; `unknown` are subclasses of Later codes that no row of train has."""
    names = [f"Later-{subclass}" for subclass in unknown]
    subclasses = [*(UNORDERED[label] for label in unordered), *unknown]
    return {
        "publication_number": f"US-{number}-B2",
        "kind_code": "B2",
        "grant_date": 12345,
        "split": split,
        "text": text,
        "claim_offsets": [0],
        "n_claims": 1,
        "cpc": [{"code": f"{subclass}{n}/ 00"} for subclass in subclasses for n in (1, 2)] + [{"code": None}],
        "label_names": None if labels is None else [POSITION[label] for label in sorted(set(labels))] + names,
        "labels": labels,
        "unordered_labels": unordered,
    }


RELABELED = [
    patent(7000001, "train", "A plough, comprising a blade and " + "a handle " * 300, [0, 4, 3], [0, 1]),
    patent(
        7000002, "train", "Méthode\u2003pour 支付  of incomprehensibilities\xa0electroencephalographically", [1], [1]
    ),
    patent(7000003, "train", "A\0pay\0ment \0 system", [], [1, 2]),
    patent(7000004, "train", "", [2, 5], [2]),
    patent(10000005, "test", "A network of ploughs.", [0], [0]),
]
NO_FIRST = [patent(7000006, "train", "Of no first code", None, [2, 0]), patent(7000007, "test", "the same", None, [])]


def write_dataset(
    folder: Path,
    relabeled: list[dict[str, Any]] = RELABELED,
    no_first: list[dict[str, Any]] = NO_FIRST,
    shards: int = 2,
    **facts: Any,
) -> Path:
    """A dataset folder as relabel lays it out, train's rows in several shards."""
    with Store(folder, "dataset", {"splits": SPLITS, "max_claims": 20}) as out:
        for config, rows in (("relabeled", relabeled), ("no_first", no_first)):
            for split in SPLITS:
                mine = [row for row in rows if row["split"] == split]
                total = shards if split == "train" else 1
                for shard in range(total):
                    part = mine[len(mine) * shard // total : len(mine) * (shard + 1) // total]
                    with out.write(f"{config}/{split}-{shard:05d}-of-{total:05d}.parquet", {"rows": len(part)}) as path:
                        pq.write_table(pa.Table.from_pylist(part, schema.DATASET), path, row_group_size=2)
        names = {"position": POSITION, "unordered": UNORDERED}
        out.write_json(
            "labels.json",
            {"scheme": "cpc", **{k: {"names": v, "counts": {}, "sha256": sha256_json(v)} for k, v in names.items()}},
        )
        out.finish(**{"made_up": False, **facts})
    return folder


def slow_ids(folder: Path, texts: list[str], u: int, v: int | None, tokenizer: str) -> dict[str, np.ndarray]:
    """The file of ids, by what tests of elements and tokens have proved."""
    if tokenizer == "wordpiece":
        return {"tokens": tokens.WordPiece.load(folder / "tokenizer.json").encode(texts, u)}
    if tokenizer == "codepoints":
        return {"codepoints": tokens.codepoints(texts, u)}
    return {"bytes": elements.encode(texts, u, v or 16, tokenizer)}


def expected(
    folder: Path, rows: list[dict[str, Any]], labels: str, u: int, v: int | None, tokenizer: str
) -> dict[str, np.ndarray]:
    """The six files of a split, made of Python objects."""
    sets = [sorted(set(row[labels])) for row in rows]
    kept = []
    for row in rows:
        ends = [match.end() for match in re.finditer(r"\S+", row["text"].replace("\0", "\x01"))]
        words = [end for end in ends if row["text"][:end].replace("\0", "").split() != []]
        full = len(row["text"].replace("\0", "").split()) > 512
        kept.append((row["text"][: words[511]] if full else row["text"]).encode())
    return {
        **slow_ids(folder, [row["text"] for row in rows], u, v, tokenizer),
        "labels.indptr": np.cumsum([0, *map(len, sets)]).astype(np.int64),
        "labels.indices": np.array([label for row in sets for label in row], np.uint16),
        "ids": np.array([row["publication_number"].encode() for row in rows]) if rows else np.empty(0, "S1"),
        "text": np.frombuffer(b"".join(kept), np.uint8),
        "text.indptr": np.cumsum([0, *map(len, kept)]).astype(np.int64),
    }


def assert_split(folder: Path, split: str, wanted: dict[str, np.ndarray]) -> None:
    for part, array in wanted.items():
        found = np.load(folder / f"{split}.{part}.npy", mmap_mode="r")
        assert found.dtype == array.dtype, part
        np.testing.assert_array_equal(found, array, part)


@pytest.mark.parametrize("labels", ["position", "unordered"])
@pytest.mark.parametrize(
    ("words", "letters", "tokenizer"),
    [
        (128, None, "whitespace"),
        (5, 3, "whitespace"),
        (9, 8, "bytes"),
        (128, None, "wordpiece"),
        (128, None, "codepoints"),
    ],
)
def test_a_dataset_becomes_tensors(tmp_path, words, letters, tokenizer, labels):
    dataset = write_dataset(tmp_path / "dataset", made_up=True)

    summary = encode_folder(
        dataset, tmp_path / "tensors", words=words, letters=letters, tokenizer=tokenizer, labels=labels
    )

    column, names = ("labels", POSITION) if labels == "position" else ("unordered_labels", UNORDERED)
    everything = RELABELED if labels == "position" else RELABELED + NO_FIRST
    for split in SPLITS:
        rows = [row for row in everything if row["split"] == split]
        assert summary["rows"][split] == len(rows)
        assert_split(
            tmp_path / "tensors", split, expected(tmp_path / "tensors", rows, column, words, letters, tokenizer)
        )
    meta = read_json(tmp_path / "tensors" / "meta.json")
    assert meta["splits"] == {
        split: {
            "rows": len(rows),
            "labels": sum(len(set(row[column])) for row in rows),
            "labels_left_out": 0,
            "leaks_dropped": 0,
        }
        for split in SPLITS
        for rows in [[row for row in everything if row["split"] == split]]
    }
    assert list(meta["splits"]) == list(SPLITS)
    letters_a_material = (letters or 16) if tokenizer in ("whitespace", "bytes") else 1
    keys = ("u", "v", "tokenizer", "label_names", "labels_sha256", "max_claims", "made_up")
    assert [meta[key] for key in keys] == [
        words,
        letters_a_material,
        tokenizer,
        names,
        sha256_json(names),
        20,
        True,
    ]
    if tokenizer == "wordpiece":
        pieces = tokens.WordPiece.load(tmp_path / "tensors" / "tokenizer.json")
        assert meta["vocabulary"] == summary["vocabulary"] == pieces.size
    else:
        assert meta["vocabulary"] == (0x110000 if tokenizer == "codepoints" else 256)
        assert "vocabulary" not in summary
    assert summary["made_up"] is True
    assert summary["labels"] == len(names)
    assert store.verify(tmp_path / "tensors")["bytes"] == summary["bytes"]


def test_the_summary_says_what_was_cut(tmp_path):
    summary = encode_folder(write_dataset(tmp_path / "dataset"), tmp_path / "tensors", words=6, letters=8)

    words = [row["text"].replace("\0", "").split() for row in RELABELED]
    kept = [word for row in words for word in row[:4]]
    assert summary["words_cut"] == round(sum(len(word.encode()) > 8 for word in kept) / len(kept), 6)
    assert summary["texts_cut"] == 2 / 5


def test_the_summary_says_which_tokens_are_unknown(tmp_path):
    rows = [patent(7000001, "train", "ab " * 9, [0], [0]), patent(10000002, "test", "ab ξ ab ab", [0], [0])]

    summary = encode_folder(
        write_dataset(tmp_path / "dataset", rows, []), tmp_path / "tensors", words=6, tokenizer="wordpiece"
    )

    assert (summary["unknown_tokens"], summary["texts_cut"]) == (1 / 8, 1 / 2)
    assert "words_cut" not in summary


@pytest.mark.parametrize(("labels", "left_out"), [("position", 3), ("unordered", 5)])
def test_labels_that_train_does_not_know_are_counted(tmp_path, labels, left_out, capsys):
    relabeled = [
        *RELABELED,
        patent(10000006, "test", "a", [0, 4], [0, 1], ("Y02E", "Z99Z")),
        patent(10000007, "test", "b", [1], [1], ("Y02E",)),
    ]
    no_first = [*NO_FIRST, patent(10000008, "test", "c", None, [1], ("Y02E", "H99Z"))]

    summary = encode_folder(
        write_dataset(tmp_path / "dataset", relabeled, no_first), tmp_path / "tensors", labels=labels
    )

    meta = read_json(tmp_path / "tensors" / "meta.json")
    assert {split: part["labels_left_out"] for split, part in meta["splits"].items()} == {
        "train": 0,
        "test-a": 0,
        "test": left_out,
    }
    assert summary["labels_left_out"] == left_out
    assert f"{left_out} in test" in capsys.readouterr().err


def test_an_empty_split_can_be_mapped(tmp_path):
    encode_folder(write_dataset(tmp_path / "dataset"), tmp_path / "tensors")

    mapped = np.load(tmp_path / "tensors" / "test-a.bytes.npy", mmap_mode="r")

    assert mapped.shape == (0, 128, 16)
    assert np.load(tmp_path / "tensors" / "test-a.labels.indptr.npy", mmap_mode="r").tolist() == [0]


def test_batches_and_threads_change_nothing(tmp_path, monkeypatch):
    rows = [
        patent(7000000 + n, "train", f"row {n} " * (n % 90) + "é" * (n % 7), [n % 6, n % 3], [n % 3])
        for n in range(1000)
    ]
    dataset = write_dataset(tmp_path / "dataset", rows, [])
    encode_folder(dataset, tmp_path / "whole", words=16)

    monkeypatch.setattr(encode, "MOST_ROWS", 7)
    encode_folder(dataset, tmp_path / "small", words=16)

    whole, small = (read_manifest(tmp_path / name, "tensors")["files"] for name in ("whole", "small"))
    assert whole == small
    assert_split(tmp_path / "small", "train", expected(tmp_path, rows, "labels", 16, 16, "whitespace"))


# -- anyone's own files ----------------------------------------------------------------------------------------------

TABLE = [
    {"text": "some words here", "label_names": ["b", "a", "b"], "split": "train", "id": "one"},
    {"text": "others", "label_names": ["z", "a"], "split": "dev", "id": "number two"},
    {"text": "", "label_names": ["c"], "split": "train", "id": "3"},
    {"text": "no label", "label_names": [], "split": "dev", "id": "vier"},
    {"text": "only a strange one", "label_names": ["y"], "split": "dev", "id": "5"},
]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


@pytest.mark.parametrize("name", ["own.parquet", "own.jsonl", "own.json", "own.ndjson"])
def test_own_texts_become_tensors(tmp_path, name, capsys):
    summary = encode_folder(write_table(tmp_path / name, TABLE), tmp_path / "tensors", words=6, letters=4)

    meta = read_json(tmp_path / "tensors" / "meta.json")
    assert meta["label_names"] == ["a", "b", "c"]
    assert meta["labels_sha256"] == sha256_json(["a", "b", "c"])
    assert meta["max_claims"] is None
    assert meta["splits"]["dev"]["labels_left_out"] == 2
    assert summary["rows"] == {"train": 2, "dev": 3}
    assert summary["labels_left_out"] == 2
    assert "2 in dev" in capsys.readouterr().err
    for split in ("train", "dev"):
        rows = [
            {
                "text": row["text"],
                "publication_number": row["id"],
                "labels": ["abc".index(each) for each in row["label_names"] if each in "abc"],
            }
            for row in TABLE
            if row["split"] == split
        ]
        assert_split(tmp_path / "tensors", split, expected(tmp_path, rows, "labels", 6, 4, "whitespace"))


@pytest.mark.parametrize("name", ["own.parquet", "own.jsonl"])
@pytest.mark.parametrize(
    ("columns", "ids"),
    [
        ({"publication_number": "US-1-B2", "id": "x"}, [b"US-1-B2"] * 11),
        ({"id": 12}, [b"12"] * 11),
        ({}, [str(n).encode() for n in range(11)]),
    ],
)
def test_a_row_is_named_by_its_number_where_nothing_else_does(tmp_path, name, columns, ids):
    rows = [{"text": "a", "label_names": ["x"]} | columns] * 11

    summary = encode_folder(write_table(tmp_path / name, rows), tmp_path / "tensors")

    assert summary["rows"] == {"train": 11}
    assert np.load(tmp_path / "tensors" / "train.ids.npy").tolist() == ids


def test_a_folder_of_parquet_is_one_table(tmp_path):
    (tmp_path / "own").mkdir()
    for n in range(3):
        write_table(tmp_path / "own" / f"{n}.parquet", [{"text": f"file {n}", "label_names": ["x"]}])

    encode_folder(tmp_path / "own", tmp_path / "tensors", words=4)

    found = np.load(tmp_path / "tensors" / "train.bytes.npy")
    assert (found == elements.encode(["file 0", "file 1", "file 2"], 4)).all()
    assert np.load(tmp_path / "tensors" / "train.ids.npy").tolist() == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_every_arrow_string_is_a_string(tmp_path, kind):
    text = pa.string() if pa.types.is_dictionary(kind) else kind
    table = pa.table(
        {
            "text": pa.array(["a b", "c"], text),
            "label_names": pa.array([["x"], []], pa.large_list(text)),
            "split": pa.array(["train", "dev"]).cast(kind),
            "id": pa.array(["one", "two"]).cast(kind),
        }
    )
    pq.write_table(table, tmp_path / "own.parquet")

    encode_folder(tmp_path / "own.parquet", tmp_path / "tensors", words=4)

    assert elements.decode(np.load(tmp_path / "tensors" / "dev.bytes.npy")[0]) == [b"c"]
    assert np.load(tmp_path / "tensors" / "dev.ids.npy").tolist() == [b"two"]


def test_a_lone_surrogate_in_json_becomes_the_replacement_character(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"text": "a\\ud800b \\ud83d\\ude00", "label_names": ["x"]}\n')

    encode_folder(tmp_path / "own.jsonl", tmp_path / "tensors")

    found = np.load(tmp_path / "tensors" / "train.bytes.npy")[0]
    assert elements.decode(found) == ["a\ufffdb".encode(), "😀".encode()]


ROW = {"text": "a", "label_names": ["x"]}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "no row of the split train"),
        ('{"text": "a"', "line 1 is not valid JSON"),
        ("[" * 100_000, "line 1 is not valid JSON"),
        ('{"text": "a", "label_names": ["x"]}\n\n["a"]', "line 3 is not a JSON object"),
        ('{"text": null, "label_names": []}', "line 1 has no string text"),
        ('{"label_names": []}', "line 1 has no string text"),
        ('{"text": "a"}', "line 1: label_names is not a list of strings"),
        ('{"text": "a", "label_names": [1]}', "line 1: label_names is not a list of strings"),
        ('{"text": "a", "label_names": ["x"], "split": 1}', "line 1: split is not a string"),
        ('{"text": "a", "label_names": ["x"], "id": true}', "line 1: publication_number or id is neither"),
        (
            '{"text": "a", "label_names": ["x"]}\n{"text": "a", "label_names": [], "split": "b"}',
            "do not all have split",
        ),
        ('{"text": "a", "label_names": ["x"], "split": "dev"}', "no row of the split train"),
        ('{"text": "a", "label_names": []}', "no row of the split train has a label"),
        (
            '{"text": "", "label_names": ["x"], "split": "train"}\n{"text": "", "label_names": [], "split": "a/b"}',
            "split 'a/b'",
        ),
        (
            '{"text": "", "label_names": ["x"], "split": "train"}\n{"text": "", "label_names": [], "split": "holdout"}',
            "rename that split",
        ),
    ],
)
def test_json_that_does_not_hold_what_it_must(tmp_path, lines, message):
    (tmp_path / "own.jsonl").write_text(lines)

    with pytest.raises(DataError, match=re.escape(message)):
        encode_folder(tmp_path / "own.jsonl", tmp_path / "tensors")

    assert not (tmp_path / "tensors").exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"label_names": [["x"]]}, "no column text"),
        ({"text": ["a"]}, "no column label_names"),
        ({"text": [1], "label_names": [["x"]]}, "column text is int64"),
        ({"text": ["a"], "label_names": ["x"]}, "column label_names is string"),
        ({"text": ["a"], "label_names": [["x"]], "split": [1]}, "column split is int64, not string"),
        ({"text": ["a"], "label_names": [["x"]], "id": [1.5]}, "column id is double, not string or integer"),
        ({"text": ["a", None], "label_names": [["x"], ["x"]]}, "row 1 (from 0) has no text"),
        ({"text": ["a", "b"], "label_names": [["x"], None]}, "row 1 (from 0) has no label_names"),
        ({"text": ["a", "b"], "label_names": [["x"], ["x", None]]}, "a list in label_names holds a null"),
        ({"text": ["a", "b"], "label_names": [["x"], ["x"]], "split": ["train", None]}, "row 1 (from 0) has no split"),
        ({"text": ["a"], "label_names": [["x"]], "split": ["dev"]}, "no row of the split train"),
        (
            {"text": ["a"], "label_names": pa.array([[]], pa.list_(pa.string()))},
            "no row of the split train has a label",
        ),
        (
            {"text": pa.array([], pa.string()), "label_names": pa.array([], pa.list_(pa.string()))},
            "no row of the split train",
        ),
        (
            {"text": pa.array([b"\xff\xfe"]).view(pa.string()), "label_names": [["x"]]},
            "Invalid UTF8",
        ),
    ],
)
def test_parquet_that_does_not_hold_what_it_must(tmp_path, table, message):
    pq.write_table(pa.table(table), tmp_path / "own.parquet")

    with pytest.raises(DataError, match=re.escape(message)):
        encode_folder(tmp_path / "own.parquet", tmp_path / "tensors")

    assert not (tmp_path / "tensors").exists()


def test_files_of_a_table_must_agree(tmp_path):
    (tmp_path / "own").mkdir()
    write_table(tmp_path / "own" / "a.parquet", [ROW])
    write_table(tmp_path / "own" / "b.parquet", [ROW | {"split": "test"}])

    with pytest.raises(DataError, match="do not both have split"):
        encode_folder(tmp_path / "own", tmp_path / "tensors")


def test_a_truncated_parquet_file(tmp_path):
    path = write_table(tmp_path / "own.parquet", TABLE)
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(DataError, match="cannot be read as Parquet"):
        encode_folder(path, tmp_path / "tensors")


@pytest.mark.parametrize("name", ["none", "none.jsonl", "own.txt", "folder"])
def test_what_is_no_input(tmp_path, name):
    (tmp_path / "own.txt").write_text("a text")
    (tmp_path / "folder").mkdir()

    with pytest.raises(DataError, match=name):
        encode_folder(tmp_path / name, tmp_path / "tensors")


def test_more_labels_than_uint16_counts(tmp_path):
    write_table(tmp_path / "own.parquet", [{"text": "a", "label_names": [str(n) for n in range(65_535)]}])
    write_table(tmp_path / "many.parquet", [{"text": "a", "label_names": [str(n) for n in range(65_536)]}])

    encode_folder(tmp_path / "own.parquet", tmp_path / "tensors")

    assert np.load(tmp_path / "tensors" / "train.labels.indices.npy").tolist() == list(range(65_535))
    with pytest.raises(DataError, match="65,536 labels, more than the 65,535"):
        encode_folder(tmp_path / "many.parquet", tmp_path / "many")


@pytest.mark.parametrize("bad", [{"labels": [6]}, {"labels": [-1]}, {"labels": None}])
def test_a_dataset_with_labels_it_does_not_know(tmp_path, bad):
    dataset = write_dataset(tmp_path / "dataset", [RELABELED[0] | bad])

    with pytest.raises(DataError, match="make the dataset again"):
        encode_folder(dataset, tmp_path / "tensors")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": 2}, "2 materials"),
        ({"words": 2, "tokenizer": "codepoints"}, "2 materials"),
        ({"letters": 0}, "0 letters"),
        ({"letters": 16, "tokenizer": "codepoints"}, "--letters is for"),
        ({"letters": 16, "tokenizer": "wordpiece"}, "--letters is for"),
        ({"tokenizer": "sentencepiece"}, "no tokenizer 'sentencepiece'"),
        ({"vocabulary": 1000}, "--vocabulary is for"),
        ({"vocabulary": 0, "tokenizer": "wordpiece"}, "vocabulary of 0"),
        ({"vocabulary": 65_537, "tokenizer": "wordpiece"}, "vocabulary of 65,537"),
        ({"vocabulary": Path("none.txt"), "tokenizer": "wordpiece"}, "none.txt does not exist"),
    ],
)
def test_usage(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        encode_folder(write_dataset(tmp_path / "dataset"), tmp_path / "tensors", **options)

    assert not (tmp_path / "tensors").exists()


def test_unordered_labels_are_a_dataset_s(tmp_path):
    with pytest.raises(UsageError, match="no dataset folder"):
        encode_folder(write_table(tmp_path / "own.parquet", TABLE), tmp_path / "tensors", labels="unordered")


def test_row_groups_already_read_are_let_go(tmp_path):
    """Arrow's default keeps every row group's bytes until a file is closed."""
    random = np.random.default_rng(0)
    texts = [random.bytes(500_000).hex() for _ in range(40)]
    table = pa.table({"text": texts, "label_names": [["x"]] * 40})
    pq.write_table(table, tmp_path / "own.parquet", row_group_size=1)
    source = labelled.open_source(tmp_path / "own.parquet")
    source.survey()
    before = pa.total_allocated_bytes()

    held = [pa.total_allocated_bytes() - before for _ in source.read("train", 1)]

    assert len(held) == 40
    assert max(held) < 10e6 < (tmp_path / "own.parquet").stat().st_size


# -- resume ----------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def test_finished_work_is_left_alone(tmp_path, monkeypatch, capsys):
    dataset = write_dataset(tmp_path / "dataset")
    summary = encode_folder(dataset, tmp_path / "tensors")
    monkeypatch.setattr(encode, "_encode_split", None)

    assert encode_folder(dataset, tmp_path / "tensors") == summary
    assert "finished already" in capsys.readouterr().err


@pytest.mark.parametrize("tokenizer", ["whitespace", "wordpiece"])
def test_interrupted_work_goes_on(tmp_path, monkeypatch, tokenizer):
    """Killed within a split, between two files' publication and between two splits."""
    dataset = write_dataset(tmp_path / "dataset")
    encode_folder(dataset, tmp_path / "whole", tokenizer=tokenizer)
    wanted = contents(tmp_path / "whole")
    writes: list[str] = []
    record = Store.record

    def die(self, name, facts=None):
        if len(writes) == dead:
            raise KeyboardInterrupt
        writes.append(name)
        record(self, name, facts)

    for dead in (0, 1, 3, 6, 10, 18):
        writes.clear()
        out = tmp_path / str(dead)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "record", die)
            with pytest.raises(KeyboardInterrupt):
                encode_folder(dataset, out, tokenizer=tokenizer)
        if (out / "manifest.json").is_file():
            with pytest.raises(IncompleteError):
                read_manifest(out, "tensors")

        encode_folder(dataset, out, tokenizer=tokenizer)

        assert contents(out) == wanted


def test_finished_splits_are_not_encoded_again(tmp_path, monkeypatch):
    dataset = write_dataset(tmp_path / "dataset")
    read = labelled.Dataset.read
    seen = []

    def fail_on(split_to_fail):
        def reading(self, split, rows):
            seen.append(split)
            if split == split_to_fail:
                raise EweError("the power went out")
            return read(self, split, rows)

        return reading

    monkeypatch.setattr(labelled.Dataset, "read", fail_on("test"))
    with pytest.raises(EweError, match="power"):
        encode_folder(dataset, tmp_path / "tensors")
    monkeypatch.setattr(labelled.Dataset, "read", fail_on(None))
    encode_folder(dataset, tmp_path / "tensors")

    assert seen == ["train", "test-a", "test", "test"]


@pytest.mark.parametrize(
    "options",
    [{"words": 64}, {"letters": 8}, {"tokenizer": "bytes"}, {"tokenizer": "codepoints"}, {"labels": "unordered"}],
    ids=str,
)
def test_another_configuration_is_refused(tmp_path, options):
    dataset = write_dataset(tmp_path / "dataset")
    encode_folder(dataset, tmp_path / "tensors")

    with pytest.raises(DataError, match=f"{next(iter(options))} was"):
        encode_folder(dataset, tmp_path / "tensors", **options)


def test_another_source_is_refused(tmp_path):
    encode_folder(write_dataset(tmp_path / "dataset"), tmp_path / "tensors")

    with pytest.raises(DataError, match="source: sha256"):
        encode_folder(write_dataset(tmp_path / "other", RELABELED[:1]), tmp_path / "tensors")


# -- vocabularies ----------------------------------------------------------------------------------------------------


def vocabulary_of(tensors: Path) -> dict[str, int]:
    return json.loads((tensors / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]


def test_a_vocabulary_is_learned_from_train_alone(tmp_path):
    rows = [patent(7000001, "train", "plough plough", [0], [0]), patent(10000002, "test", "weaving weaving", [0], [0])]

    encode_folder(write_dataset(tmp_path / "dataset", rows, []), tmp_path / "tensors", tokenizer="wordpiece")

    vocabulary = vocabulary_of(tmp_path / "tensors")
    assert "plough" in vocabulary
    assert not set("weavin") & set(vocabulary)


def test_a_large_split_is_sampled_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "SAMPLE", 4)
    monkeypatch.setattr(encode, "MOST_ROWS", 3)
    seen = []
    train = tokens.WordPiece.train
    monkeypatch.setattr(tokens.WordPiece, "train", lambda texts, size: seen.extend(texts) or train(texts, size))
    rows = [{"text": f"row{n} " + "b " * 600, "label_names": ["x"]} for n in range(10)]

    encode_folder(write_table(tmp_path / "own.jsonl", rows), tmp_path / "tensors", tokenizer="wordpiece")

    assert [text.split()[0] for text in seen] == ["row2", "row4", "row7", "row9"]
    assert {len(text.split()) for text in seen} == {512}


def test_a_vocabulary_of_one_s_own(tmp_path):
    dataset = write_dataset(tmp_path / "dataset")
    pieces = [*tokens.SPECIAL, "a", "net", "##work", "of"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    how = {"tokenizer": "wordpiece", "words": 6}

    summary = encode_folder(dataset, tmp_path / "tensors", vocabulary=tmp_path / "vocab.txt", **how)

    assert summary["vocabulary"] == 9
    assert np.load(tmp_path / "tensors" / "test.tokens.npy").tolist() == [[2, 5, 6, 7, 8, 3]]
    encode_folder(dataset, tmp_path / "again", vocabulary=tmp_path / "tensors" / "tokenizer.json", **how)
    for name in ("tokenizer.json", "train.tokens.npy", "test.tokens.npy"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "tensors" / name).read_bytes()
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces, "more"]))
    for other in (tmp_path / "vocab.txt", 500, None):
        with pytest.raises(DataError, match="vocabulary was 'sha256"):
            encode_folder(dataset, tmp_path / "tensors", vocabulary=other, **how)


def test_a_vocabulary_that_is_none_leaves_nothing_behind(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n")

    with pytest.raises(DataError, match=r"vocab\.txt has no \[PAD\]"):
        encode_folder(
            write_dataset(tmp_path / "dataset"),
            tmp_path / "tensors",
            tokenizer="wordpiece",
            vocabulary=tmp_path / "vocab.txt",
        )

    assert not (tmp_path / "tensors").exists()


def test_without_tokenizers_the_command_names_the_extra(tmp_path):
    dataset = write_dataset(tmp_path / "dataset")
    call = ["encode", str(dataset), "--out", str(tmp_path / "tensors"), "--tokenizer", "wordpiece"]
    code = f"import sys; sys.modules['tokenizers'] = None; from ewe.cli import data; data({call})"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == UsageError.exit_code
    assert "error: This needs tokenizers; run: pip install 'ewe-patents[models]'." in done.stderr
    assert not (tmp_path / "tensors").exists()


# -- leaks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deduped(tmp_path_factory) -> Path:
    dataset = make_dataset(tmp_path_factory.mktemp("leaks"), some_patents())
    dedup_folder(dataset)
    return dataset


@pytest.mark.parametrize("labels", ["position", "unordered"])
def test_leaking_test_rows_are_left_out(tmp_path, deduped, labels):
    configs = ["relabeled"] if labels == "position" else ["relabeled", "no_first"]
    rows = {config: pq.read_table(deduped / config).to_pylist() for config in ("relabeled", "no_first")}
    train = {row["text"].lower() for config in rows for row in rows[config] if row["split"] == "train"}
    copies = {  # this dataset's near-copies are exact ones
        split: {
            row["publication_number"]
            for config in configs
            for row in rows[config]
            if row["split"] == split != "train" and row["text"].lower() in train
        }
        for split in ("train", "test_2015a", "test_2015b")
    }
    assert copies["test_2015b"]

    summary = encode_folder(deduped, tmp_path / "clean", labels=labels, drop_leaks=True, words=20)
    whole = encode_folder(deduped, tmp_path / "whole", labels=labels, words=20)

    meta = read_json(tmp_path / "clean" / "meta.json")
    for split, copied in copies.items():
        all_ids, kept_ids = (np.load(tmp_path / each / f"{split}.ids.npy") for each in ("whole", "clean"))
        keep = np.array([each.decode() not in copied for each in all_ids.tolist()], np.bool_)
        assert kept_ids.tolist() == all_ids[keep].tolist()
        assert meta["splits"][split]["leaks_dropped"] == len(copied) == int((~keep).sum())
        all_letters, letters = (np.load(tmp_path / each / f"{split}.bytes.npy") for each in ("whole", "clean"))
        np.testing.assert_array_equal(letters, all_letters[keep])
    assert summary["leaks_dropped"] == {split: len(copies[split]) for split in ("test_2015a", "test_2015b")}
    assert "leaks_dropped" not in whole


def test_with_and_without_leaks_do_not_mix(tmp_path, deduped):
    encode_folder(deduped, tmp_path / "whole", words=20)
    encode_folder(deduped, tmp_path / "clean", words=20, drop_leaks=True)

    with pytest.raises(DataError, match="drop_leaks was None and is now"):
        encode_folder(deduped, tmp_path / "whole", words=20, drop_leaks=True)
    with pytest.raises(DataError, match="drop_leaks was '"):
        encode_folder(deduped, tmp_path / "clean", words=20)


def test_a_split_may_leak_as_a_whole(tmp_path, monkeypatch):
    dataset = write_dataset(tmp_path / "dataset")
    (dataset / "duplicates").mkdir()
    monkeypatch.setattr(dedup, "read_duplicates", lambda _: {"files": {"groups.parquet": {"sha256": "0"}}})
    monkeypatch.setattr(dedup, "leaking", lambda _: {"US-10000005-B2"})

    summary = encode_folder(dataset, tmp_path / "tensors", drop_leaks=True)

    assert summary["rows"] == {"train": 4, "test-a": 0, "test": 0}
    assert summary["leaks_dropped"] == {"test-a": 0, "test": 1}
    assert np.load(tmp_path / "tensors" / "test.bytes.npy").shape == (0, 128, 16)


def test_leaks_must_be_known(tmp_path):
    with pytest.raises(DataError, match=r"run ewe-data dedup .*dataset first"):
        encode_folder(write_dataset(tmp_path / "dataset"), tmp_path / "tensors", drop_leaks=True)
    with pytest.raises(UsageError, match="leave --drop-leaks out"):
        encode_folder(write_table(tmp_path / "own.parquet", TABLE), tmp_path / "tensors", drop_leaks=True)

    assert not (tmp_path / "tensors").exists()


# -- the format ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 9, 10, 99_999, 100_000])
@pytest.mark.parametrize(("dtype", "tail"), [(np.uint8, (2, 3)), (np.int64, ()), ("S13", ()), ("S1", (7,))], ids=str)
def test_a_growing_array_is_what_numpy_saves(tmp_path, rows, dtype, tail):
    whole = np.arange(rows * int(np.prod(tail))).reshape(rows, *tail).astype(dtype)
    with (tmp_path / "a.npy").open("wb") as file:
        growing = GrowingArray(file, dtype, tail)
        for part in np.array_split(whole, 3):
            growing.append(part)
        growing.finish()

    saved = io.BytesIO()
    np.save(saved, whole)

    assert (tmp_path / "a.npy").read_bytes() == saved.getvalue()


def test_encode_needs_neither_torch_nor_polars():
    heavy = "('torch', 'polars', 'duckdb', 'tokenizers')"
    code = f"import sys, ewe.pipeline.encode; print([m for m in {heavy} if m in sys.modules])"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
