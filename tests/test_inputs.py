"""Sources of texts: what each suffix means, what is refused, and that damage is never read in silence."""

import bz2
import gzip
import io
import json
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ewe.errors import DataError
from ewe.inputs import STDIN, read_texts
from ewe.parquet import open_parquet
from ewe.pipeline.shards import WRITTEN
from ewe.store import Store

TEXTS = ["A plough with a blade.", "", "Ein Verfahren für Halbleiter", "a lever"]


def read(source: Path) -> list[str]:
    return [text for _, text in read_texts(source)[1]]


def write_lines(path: Path) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.JSONL", "x.NdJson", "x.Json"])
def test_json_lines_in_any_case(tmp_path: Path, name: str) -> None:
    assert read(write_lines(tmp_path / name)) == TEXTS


@pytest.mark.parametrize("name", ["x.parquet", "x.PARQUET", "x.Parquet"])
def test_parquet_in_any_case_alone_and_in_a_folder(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / name)
    (tmp_path / "._x.parquet").write_bytes(b"what a Mac leaves beside it")

    assert read(tmp_path / name) == read(tmp_path) == TEXTS


def packed(how: str) -> bytes:
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
    if how == "gzip":
        return gzip.compress(lines)
    if how == "parquet":
        pq.write_table(pa.table({"text": TEXTS}), stream := io.BytesIO())
        return stream.getvalue()
    if how == "zip":
        with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
            archive.writestr("x.jsonl", lines)
        return stream.getvalue()
    if how == "zstd":
        return bytes(pa.compress(lines, "zstd", asbytes=True))
    if how == "bzip2":
        return bz2.compress(lines)
    return "A plough.\n".encode("utf-16")


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl.gz", "x.jsonl", "x"])
@pytest.mark.parametrize("how", ["gzip", "parquet", "zip", "zstd", "bzip2", "utf-16"])
def test_what_is_packed_or_binary_is_no_text(tmp_path: Path, name: str, how: str) -> None:
    (tmp_path / name).write_bytes(packed(how))

    with pytest.raises(DataError, match="is no UTF-8 text but packed or binary; unpack it") as refused:
        read_texts(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)


@pytest.mark.parametrize("how", ["gzip", "parquet", "utf-16"])
def test_nor_is_it_on_standard_input(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed(how)), encoding="utf-8"))

    with pytest.raises(DataError, match="standard input is no UTF-8 text"):
        read_texts(STDIN)


def test_a_dataset_folder_says_where_its_texts_are(tmp_path: Path) -> None:
    with Store(tmp_path / "dataset", "dataset", {}) as store:
        with store.write("relabeled/train-00000-of-00001.parquet", {"rows": 4}) as path:
            pq.write_table(pa.table({"text": TEXTS}), path)
        with store.write("dropped.parquet", {"rows": 1}) as path:
            pq.write_table(pa.table({"publication_number": ["US-1-B2"], "reason": ["no_codes"]}), path)
        store.finish()

    with pytest.raises(DataError, match=r"dataset is a dataset folder; name .*relabeled .* ewe-data encode"):
        read_texts(tmp_path / "dataset")
    assert read(tmp_path / "dataset" / "relabeled") == TEXTS


def test_invalid_utf8_in_parquet_is_one_sentence(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([b"a", b"\xff\xfe"]).view(pa.string())}), tmp_path / "x.parquet")

    with pytest.raises(DataError, match=r"x\.parquet cannot be read as Parquet \(.*UTF8.*\); copy it") as refused:
        read(tmp_path / "x.parquet")
    assert "\n" not in str(refused.value)


def test_a_flipped_bit_is_named_or_changes_nothing(tmp_path: Path) -> None:
    """Pages have checksums; the footer has none, so of it only what decides the texts can be asked for."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "text": TEXTS}), path, **WRITTEN)
    whole = path.read_bytes()
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        said = ""
        try:
            found = read(path)
        except DataError as error:
            said = str(error)
        if said:
            assert str(path) in said, place
            assert "\n" not in said, place
            refused += 1
        else:
            assert found == TEXTS or place >= pages, place
    assert refused > len(whole) // 10


@pytest.mark.parametrize("name", ["x.csv", "x.TSV"])
def test_a_table_is_no_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text,label_names\na,x\n")
    with pytest.raises(DataError, match=r"is a table, not lines of text; give it as \.jsonl or \.parquet"):
        read_texts(tmp_path / name)


def test_missing_and_broken_texts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"claims": ["1. A plough.", None, None]}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text('{"text": null}\n{"text": ""}\n')
    (tmp_path / "x.txt").write_bytes("caf\xe9\nna\xefve\n\n".encode("latin-1"))
    found = {name: [text for _, text in read_texts(tmp_path / name)[1]] for name in ("x.parquet", "x.jsonl", "x.txt")}
    assert found == {"x.parquet": ["A plough.", "", ""], "x.jsonl": ["", ""], "x.txt": ["caf\ufffd", "na\ufffdve", ""]}
    assert capsys.readouterr().err.splitlines() == [
        f"warning: {tmp_path / 'x.parquet'}: 2 texts are missing, and read as empty.",
        f"warning: {tmp_path / 'x.jsonl'}: 1 texts are missing, and read as empty.",
        f"warning: {tmp_path / 'x.txt'}: 2 texts hold U+FFFD, which stands for what is no UTF-8.",
    ]


def test_a_missing_file_and_the_next_step_are_named(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"no\.parquet .*; export it again\.$"),
        open_parquet(tmp_path / "no.parquet", "export it again"),
    ):
        pass
