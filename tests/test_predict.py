"""Prediction: raw claims and tensors/ give the same, every source is read whole, and the bare box suffices."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_tensors import NAMES, write_tensors

import ewe
from ewe import predict, store
from ewe.elements import encode
from ewe.errors import DataError, UsageError
from ewe.predict import predict_file
from ewe.run import BATCH_SIZE, Run, load
from ewe.text import join_claims
from ewe.train import train_model

TEXTS = ["A plough with a blade.", "", "Ein Verfahren für Halbleiter, naïve Wörter", "word " * 20, "\ud800 x"]
CLAIMS = [
    "What is claimed is: 1 . A plough, comprising: a blade of  claim 0 , wherein\n\n 2 . The plough of  claim 1 .",
    "A single claim without a number.",
    "1. A method. 2. The method of claim 1, wherein &#39;x&#39;.",
]


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {"train": 80, "test_2015a": 20, "test_2015b": 300}
    return write_tensors(tmp_path_factory.mktemp("data") / "tensors", rows, made_up=True)


@pytest.fixture(scope="module")
def run(tensors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    train_model(
        tensors, out, preset="tiny", width=8, epochs=2, min_steps=0, batch_size=16, learning_rate=1e-2, device="cpu"
    )
    return out


def read_json(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def slow_probabilities(run: Path, texts: list[str]) -> np.ndarray:
    """Probabilities (N, L) one text at a time."""
    opened = load(run)
    return np.array([opened.logits(encode([text], 8, 4)).sigmoid().numpy()[0] for text in texts])


def expected(probabilities: np.ndarray, top_k: int | None) -> list[list[str]]:
    ranked = [sorted(range(6), key=lambda label: -row[label]) for row in probabilities]
    if top_k is not None:
        return [[NAMES[label] for label in row[:top_k]] for row in ranked]
    return [[NAMES[label] for label in row if p[label] > 0.3] for row, p in zip(ranked, probabilities, strict=True)]


@pytest.mark.parametrize("top_k", [1, 5, 99, None])
def test_predict_equals_one_text_at_a_time(run: Path, top_k: int | None):
    found = ewe.load(run).predict(TEXTS, top_k=top_k)
    probabilities = slow_probabilities(run, TEXTS)
    assert [list(each) for each in found] == expected(probabilities, top_k)
    for each, row in zip(found, probabilities, strict=True):
        assert list(each.values()) == pytest.approx([row[NAMES.index(name)] for name in each], abs=1e-6)


def test_labels_whose_probabilities_are_all_one_are_ranked(run: Path):
    opened = load(run, "cpu")
    logits = torch.tensor([[20.0, 40, -30, 30, -40, -20]])
    for top_k, expected in ((2, [1, 3]), (6, [1, 3, 0, 5, 2, 4]), (None, [1, 3, 0])):
        (found,) = opened.choose(logits, top_k)
        assert found == ([NAMES[label] for label in expected], logits[0, expected].sigmoid().tolist())


def test_predicting_nothing(run: Path):
    assert load(run).predict([]) == []
    with pytest.raises(TypeError):
        load(run).predict("one string")


def test_raw_claims_and_tensors_give_equal_logits(run: Path, tmp_path: Path):
    """The same patents: as published through predict, and encoded into a tensors/ folder."""
    claims = CLAIMS * 50
    tensors = write_tensors(tmp_path / "tensors", {"train": 1, "test": len(claims)})
    ids = encode([join_claims(each).text for each in claims], 8, 4)
    np.save(tensors / "test.bytes.npy", ids)
    np.save(tensors / "test.ids.npy", np.array([str(row + 1) for row in range(len(claims))], "S16"))
    pq.write_table(pa.table({"claims": claims}), tmp_path / "raw.parquet")
    for top_k in (None, 6):
        for source, name in ((tensors, "a"), (tmp_path / "raw.parquet", "b")):
            predict_file(run, source, tmp_path / f"{name}.parquet", top_k=top_k)
        assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "b.parquet"))  # to the bit
    opened = load(run)
    batch = opened.logits(ids[:BATCH_SIZE])
    assert torch.equal(batch, opened.logits(np.load(tensors / "test.bytes.npy")[:BATCH_SIZE]))
    torch.testing.assert_close(batch[:5], opened.logits(ids[:5]), rtol=1e-5, atol=1e-6)  # another batch, same logits


def test_predictions_of_tensors(run: Path, tensors: Path, tmp_path: Path):
    summary = predict_file(run, tensors, tmp_path / "all.jsonl", top_k=2)
    assert (summary["rows"], summary["labels_a_row"], summary["made_up"]) == (320, 2, True)
    rows = read_json(tmp_path / "all.jsonl")
    ids = [*np.load(tensors / "test_2015a.ids.npy"), *np.load(tensors / "test_2015b.ids.npy")]
    assert [row["id"] for row in rows] == [each.decode() for each in ids]
    probabilities = load(run).logits(np.load(tensors / "test_2015a.bytes.npy")).sigmoid().numpy()
    assert [row["label_names"] for row in rows[:20]] == expected(probabilities, 2)
    assert predict_file(run, tensors, tmp_path / "train.jsonl", split="train")["rows"] == 80
    alone = write_tensors(tmp_path / "alone", {"train": 7})
    assert predict_file(run, alone, tmp_path / "alone.jsonl")["rows"] == 7
    other = write_tensors(tmp_path / "other", {"train": 7}, u=9)
    with pytest.raises(DataError, match="encode with --words 8"):
        predict_file(run, other, tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_batches_padded_to_one_size_give_the_same(run: Path, tensors: Path, tmp_path: Path):
    ids = np.load(tensors / "test_2015a.bytes.npy")  # 20 rows
    plain, padded = load(run, "cpu"), load(run, "cpu")
    padded.one_size = True  # as on a card, where many rows are read
    seen: list[tuple[int, ...]] = []
    padded.model.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    found = padded.logits(ids)
    assert seen == [(BATCH_SIZE, 8, 4)]
    torch.testing.assert_close(found, plain.logits(ids), rtol=1e-5, atol=1e-6)
    assert list(padded.choose(found, 3)) == list(plain.choose(found, 3))


def test_every_source_gives_the_same(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    texts = ["A plough.", "", "Zwei Wörter", "x" * 100] * 40
    names = [f"US-{n}-B2" for n in range(len(texts))]
    sources = {name: tmp_path / name for name in ("t.txt", "t.jsonl", "t.parquet", "folder")}
    sources["t.txt"].write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    records = [json.dumps({"publication_number": n, "text": t, "more": 1}) for n, t in zip(names, texts, strict=True)]
    sources["t.jsonl"].write_text("\n".join(records) + "\n\n")
    table = pa.table({"publication_number": names, "text": pa.array([t or None for t in texts], pa.large_string())})
    pq.write_table(table, sources["t.parquet"])
    sources["folder"].mkdir()
    pq.write_table(table.slice(0, 70), sources["folder"] / "a.parquet")
    pq.write_table(table.slice(70), sources["folder"] / "b.parquet")
    found = {}
    for name, source in sources.items():
        assert predict_file(run, source, tmp_path / "out.jsonl")["rows"] == 160
        found[name] = read_json(tmp_path / "out.jsonl")
    for name in ("t.txt", "t.jsonl"):
        stream = io.TextIOWrapper(io.BytesIO(sources[name].read_bytes()), encoding="ascii")
        monkeypatch.setattr(sys, "stdin", stream)
        predict_file(run, Path("-"), tmp_path / "out.jsonl")
        found[f"- {name}"] = read_json(tmp_path / "out.jsonl")
    labels = [[row["label_names"], row["probabilities"]] for row in found["t.txt"]]
    for name, rows in found.items():
        assert [[row["label_names"], row["probabilities"]] for row in rows] == labels, name
        assert [row["id"] for row in rows] == ([str(n + 1) for n in range(160)] if name.endswith("txt") else names)
    predict_file(run, sources["t.parquet"], tmp_path / "out.parquet")
    out = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["id"] for row in out] == names
    assert [[row["label_names"], [round(p, 6) for p in row["probabilities"]]] for row in out] == labels


def test_claims_in_json_lines(run: Path, tmp_path: Path):
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"id": n, "claims": c}) + "\n" for n, c in enumerate([*CLAIMS, None]))
    )
    predict_file(run, tmp_path / "c.jsonl", tmp_path / "out.jsonl", top_k=6)
    probabilities = slow_probabilities(run, [join_claims(claims).text for claims in [*CLAIMS, ""]])
    rows = read_json(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]
    for row, p in zip(rows, probabilities, strict=True):
        assert row["probabilities"] == pytest.approx(sorted(p, reverse=True), abs=2e-6)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', r"a\.jsonl, line 2 is not JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1 is not JSON"),
        ("a.jsonl", b'{"claim": "x"}\n', "line 1 has no string text or claims"),
        ("a.jsonl", b'{"claims": ["x"]}\n', "line 1 has no string text or claims"),
        ("a.jsonl", b"[1]\n", "line 1 has no string text or claims"),
        ("a.parquet", b"PAR1 cut", "cannot be read as Parquet"),
        ("b/x.txt", b"x", "no tensors folder and holds no Parquet"),
        (None, b"", "does not exist"),
    ],
)
def test_what_is_no_source_is_said_and_leaves_nothing(
    run: Path, tmp_path: Path, name: str, content: bytes, sentence: str
):
    if name:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        predict_file(run, tmp_path / (name or "missing").split("/")[0], tmp_path / "out.jsonl")
    assert not list(tmp_path.glob("*out*"))


def test_the_column_that_holds_strings_is_read(run: Path, tmp_path: Path):
    pq.write_table(pa.table({"text": [[1]], "claims": ["1. A spring of steel."]}), tmp_path / "a.parquet")
    predict_file(run, tmp_path / "a.parquet", tmp_path / "out.jsonl", top_k=3)
    found = json.loads((tmp_path / "out.jsonl").read_text())
    assert found["label_names"] == list(ewe.load(run).predict(["A spring of steel."], top_k=3)[0])


def test_at_least_one_label_must_be_asked_for(run: Path):
    with pytest.raises(UsageError, match="--top-k must be at least 1, not 0"):
        ewe.load(run).predict(["a"], top_k=0)


def test_parquet_without_strings_is_refused(run: Path, tmp_path: Path):
    pq.write_table(pa.table({"text": [[1]], "title": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no string column text or claims"):
        predict_file(run, tmp_path / "a.parquet", tmp_path / "out.jsonl")


def test_what_cannot_be_asked(run: Path, tensors: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"must end in \.jsonl or \.parquet"):
        predict_file(run, tensors, tmp_path / "out.csv")
    with pytest.raises(UsageError, match="--top-k must be at least 1"):
        predict_file(run, tensors, tmp_path / "out.jsonl", top_k=0)
    with pytest.raises(UsageError, match="no split dev"):
        predict_file(run, tensors, tmp_path / "out.jsonl", split="dev")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_input_is_not_overwritten(run: Path, tmp_path: Path, suffix: str):
    (tmp_path / "own").mkdir()
    source = tmp_path / "own" / f"self{suffix}"
    if suffix == ".jsonl":
        source.write_text('{"text": "A plough."}\n')
    else:
        pq.write_table(pa.table({"text": ["A plough."]}), source)
    before = source.read_bytes()
    (tmp_path / f"link{suffix}").symlink_to(source)
    for given in (source, tmp_path / f"link{suffix}"):
        with pytest.raises(UsageError, match=rf"--out .*self\{suffix} is the input itself; name another file"):
            predict_file(run, given, source)
    if suffix == ".parquet":
        for name in ("self.parquet", "other.parquet"):
            with pytest.raises(UsageError, match=r"lies in the input .*own; name a file beside it"):
                predict_file(run, source.parent, source.parent / name)
    assert [path.name for path in source.parent.iterdir()] == [source.name]
    assert source.read_bytes() == before
    assert predict_file(run, source, source.with_name("out.jsonl"))["rows"] == 1


def test_what_a_command_made_is_not_written_into(run: Path, tensors: Path, tmp_path: Path):
    """Of a run, of tensors, and of a dataset whose texts lie one folder further in."""
    (tmp_path / "a.txt").write_text("A plough.\n")
    made = tmp_path / "dataset"
    with store.Store(made, "dataset", {}) as out:
        with out.write("relabeled/train.parquet") as path:
            pq.write_table(pa.table({"text": ["A plough."]}), path)
        out.finish()
    for source, out in (
        (tmp_path / "a.txt", run / "metrics.jsonl"),
        (tensors, tensors / "new.jsonl"),
        (made / "relabeled", made / "new.jsonl"),
        (made / "relabeled", made / "relabeled" / "new.jsonl"),
        (made / "relabeled" / "train.parquet", made / "relabeled" / "new.jsonl"),
    ):
        before = out.read_bytes() if out.exists() else None
        with pytest.raises(UsageError, match=rf"--out {out} lies in .*; choose a folder beside it"):
            predict_file(run, source, out)
        assert (out.read_bytes() if out.exists() else None) == before
    (tmp_path / "manifest.json").write_text('{"manifest_version": 3}')  # of another program
    assert predict_file(run, tmp_path / "a.txt", tmp_path / "out.jsonl")["rows"] == 1
    store.verify(run)


def test_texts_have_no_splits(run: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("A plough.\n")
    with pytest.raises(UsageError, match=r"--split belongs to tensors, which .*a\.txt is not; leave it out"):
        predict_file(run, tmp_path / "a.txt", tmp_path / "out.jsonl", split="train")
    assert not (tmp_path / "out.jsonl").exists()


def test_empty_sources(run: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    for source in ("a.txt", "a.parquet"):
        for out in ("out.jsonl", "out.parquet"):
            assert predict_file(run, tmp_path / source, tmp_path / out)["rows"] == 0
            assert (tmp_path / out).exists()


def reads(run: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[int]:
    """How many texts each batch has that models read from now on; the batch after so many is interrupted."""
    seen: list[int] = []
    logits = Run.logits

    def watched(self: Run, ids: np.ndarray) -> torch.Tensor:
        if len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(len(ids))
        return logits(self, ids)

    monkeypatch.setattr(Run, "logits", watched)
    return seen


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("kind", ["tensors", "lines"])
def test_an_interrupted_prediction_goes_on(
    run: Path, tensors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, kind: str
):
    """At every batch, again and again: the file is that of one run, and at most a part is read twice."""
    monkeypatch.setattr(predict, "PART", 64)
    monkeypatch.setattr("ewe.run.BATCH_SIZE", 32)
    source, batches = tensors, 11  # splits of 20 and 300 texts: a batch ends where one does
    if kind == "lines":
        source, batches = tmp_path / "a.txt", 10
        source.write_text("".join(f"A plough {n}.\n" for n in range(320)))
    whole = predict_file(run, source, tmp_path / f"whole{suffix}", top_k=2)
    out = tmp_path / f"out{suffix}"
    for each in range(batches):
        with monkeypatch.context() as patch:
            reads(run, patch, stop_after=each)
            with pytest.raises(KeyboardInterrupt):
                predict_file(run, source, out, top_k=2)
            assert not out.exists()
        with monkeypatch.context() as patch:
            seen = reads(run, patch)
            assert predict_file(run, source, out, top_k=2) == {**whole, "out": str(out)}
        assert len(seen) <= batches - max(each - 1, 0) // 2 * 2  # one batch is ahead of what is written
        assert out.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
        out.unlink()
    assert not list(tmp_path.glob(".*"))


def test_what_was_begun_otherwise_is_not_gone_on_with(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(predict, "PART", 32)
    monkeypatch.setattr("ewe.run.BATCH_SIZE", 16)
    source, out = tmp_path / "a.txt", tmp_path / "out.jsonl"
    lines = [f"A plough {n}." for n in range(100)]

    def interrupted() -> None:
        source.write_text("\n".join(lines))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            reads(run, patch, stop_after=4)
            predict_file(run, source, out, top_k=2)

    def reads_of(texts: Path = source, **options: object) -> int:
        with monkeypatch.context() as patch:
            seen = reads(run, patch)
            predict_file(run, texts, out, **options)
        return sum(seen)

    interrupted()
    assert reads_of(top_k=2) == 68
    assert "out.jsonl: going on after 32 texts" in capsys.readouterr().err
    interrupted()
    assert reads_of(top_k=3) == 100
    assert [len(row["label_names"]) for row in read_json(out)] == [3] * 100
    interrupted()
    source.write_text("\n".join(["x", *lines[1:]]))  # another text in the place of one that is done
    assert reads_of(top_k=2) == 100
    interrupted()
    (tmp_path / ".out.jsonl.parts" / "000000.jsonl").unlink()
    assert reads_of(top_k=2) == 100
    source.write_text("\n".join(lines))
    interrupted()
    (tmp_path / ".out.jsonl.parts" / ".000001.jsonl.1-abc.tmp").write_text("left by a kill")
    assert reads_of(top_k=3) == 100
    assert not list(tmp_path.glob(".*"))
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines) + "{")
    with pytest.raises(DataError, match="line 101 is not JSON"):
        predict_file(run, broken, out)
    assert not list(tmp_path.glob(".*"))
    stream = "\n".join(lines).encode()
    for stop_after in (4, None):  # nobody knows whether it is the same
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream)))
        with monkeypatch.context() as patch:
            seen = reads(run, patch, stop_after)
            if stop_after:
                with pytest.raises(KeyboardInterrupt):
                    predict_file(run, Path("-"), out, top_k=2)
                assert not list(tmp_path.glob(".*"))
            else:
                predict_file(run, Path("-"), out, top_k=2)
    assert sum(seen) == 100
    assert not list(tmp_path.glob(".*"))


def test_a_bare_box_trains_evaluates_and_predicts(tensors: Path, tmp_path: Path):
    """polars, duckdb, pyarrow and tensorboard are not needed for any of it on tensors/."""
    script = f"""
import sys
for name in ("polars", "duckdb", "pyarrow", "sqlglot", "datasketch", "tensorboard", "transformers", "sklearn"):
    sys.modules[name] = None
from pathlib import Path
from ewe.train import train_model
from ewe.evaluate import evaluate_run
from ewe.predict import predict_file
tensors, run = Path({str(tensors)!r}), Path({str(tmp_path)!r}) / "run"
train_model(tensors, run, preset="tiny", width=8, epochs=1, min_steps=0, device="cpu")
evaluate_run(run, tensors)
print(predict_file(run, tensors, run.parent / "out.jsonl")["rows"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "320"
