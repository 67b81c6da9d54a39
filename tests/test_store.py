import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from ewe import store
from ewe.errors import DataError, EweError, IncompleteError
from ewe.store import MANIFEST, Files, Store, kind_of, publish, read_manifest, sha256_file, verify


def fill(store: Store, *names: str) -> None:
    for name in names:
        if not store.has(name):
            with store.write(name, {"rows": 1}) as temporary:
                temporary.write_text(name)


def test_publish_leaves_nothing_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), publish(tmp_path / "a") as temporary:
        temporary.write_text("half")
        raise RuntimeError

    assert list(tmp_path.iterdir()) == []


def test_publish_replaces_a_whole_file_by_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with publish(tmp_path / "a") as temporary:
        temporary.write_text("new")
        assert (tmp_path / "a").read_text() == "old"

    assert (tmp_path / "a").read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_folder_is_published_whole(tmp_path: Path) -> None:
    with publish(tmp_path / "step-1") as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "deep" / "weights").write_bytes(b"1")

    assert (tmp_path / "step-1" / "deep" / "weights").read_bytes() == b"1"


def test_an_interrupted_run_resumes_and_a_finished_one_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    with pytest.raises(KeyboardInterrupt), Store(folder, "raw", {"a": 1}) as store:
        fill(store, "one", ".work/two")
        raise KeyboardInterrupt
    with pytest.raises(IncompleteError, match="run the same"):
        read_manifest(folder, "raw")
    with Store(folder, "raw", {"a": 1}) as store:
        assert not store.finished
        assert store.has("one")
        assert store.has(".work/two")
        fill(store, "three")
        store.finish(made_up=False)
    with Store(folder, "raw", {"a": 1}) as store:
        assert store.finished

    assert sorted(read_manifest(folder, "raw")["files"]) == ["one", "three"]
    assert not (folder / ".work").exists()


def write_part(out: Files, name: str, begun: list[str], broken: str) -> str:
    out.advance(1)
    if out.has(name):
        return name
    begun.append(name)
    if name == broken:
        raise OSError(name)
    with out.write(name, {"rows": len(name)}) as temporary:
        temporary.write_text(name)
    return name


@pytest.mark.parametrize("threads", [1, 3])
def test_of_parts_that_fail_the_others_are_kept(tmp_path: Path, threads: int) -> None:
    names = [f"part-{number}" for number in range(6)]
    begun: list[str] = []
    ended: list[int] = []
    for broken in ("part-2", ""):
        with Store(tmp_path, "raw", {}) as store, ThreadPoolExecutor(threads) as pool:
            arguments = [(name, begun, broken) for name in names]
            if broken:
                with pytest.raises(OSError, match=broken):
                    store.parts(pool, write_part, arguments, ended.append)
                kept = set(store.manifest["files"])
                assert {"part-0", "part-1"} <= kept == set(begun) - {broken}
            else:
                begun.clear()
                ended.clear()
                assert store.parts(pool, write_part, arguments, ended.append) == names
                assert set(begun) == set(names) - kept
                assert sum(ended) == 6
                store.finish()

    assert {name: record["rows"] for name, record in read_manifest(tmp_path, "raw")["files"].items()} == dict.fromkeys(
        names, 6
    )
    verify(tmp_path)


def go_on_until_stopped(out: Files, begun: threading.Event) -> None:
    for _ in range(1_000_000_000):
        out.advance(1)
        begun.set()


def either(out: Files, begun: threading.Event, ends: type[BaseException] | None) -> None:
    if ends is None:
        go_on_until_stopped(out, begun)
    begun.wait()
    raise ends


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])  # Ctrl-C, and what the commands make of SIGTERM
def test_an_interrupt_ends_the_parts_at_work(tmp_path: Path, ends: type[BaseException]) -> None:
    begun = threading.Event()
    with pytest.raises(ends), Store(tmp_path, "raw", {}) as store, ThreadPoolExecutor(2) as pool:
        store.parts(pool, either, [(begun, None), (begun, ends)], lambda _: None)


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("out", "link", "out/further"):
        wanted = pytest.raises(EweError, match=rf"{name} is no folder, nor can it be made one; choose another")
        with wanted, Store(tmp_path / name, "raw", {}):
            pass


def test_a_full_disk_names_the_users_file(tmp_path: Path) -> None:
    for error in (OSError(28, "No space left on device"), OSError(5, "Error writing bytes to file")):
        with pytest.raises(OSError, match=r"No space|Error writing") as caught, publish(tmp_path / "x.jsonl"):
            raise error
        assert caught.value.filename == str(tmp_path / "x.jsonl")
    with pytest.raises(FileNotFoundError) as caught, publish(tmp_path / "x.jsonl") as path:
        path.with_name(path.name + "x").read_text()
    assert caught.value.filename == str(tmp_path / "x.jsonl")
    with pytest.raises(FileNotFoundError) as caught, publish(tmp_path / "x.jsonl"):
        (tmp_path / "input").read_text()
    assert caught.value.filename == str(tmp_path / "input")


def test_a_kill_while_all_is_discarded_leaves_what_the_next_run_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of working state that is done with, and of that which another configuration has begun; at every file."""
    for config in ({"a": 1}, {"a": 2}):
        for left in range(4):
            folder = tmp_path / f"{config['a']}-{left}"
            with Store(folder, "predictions", {"a": 1}, replaces=True) as parts:
                for name in ("x", "y", "z"):
                    parts.write_text(name, name)
            count = iter(range(10))

            def dies(path: Path, remove: object = store._remove, left: int = left, count: object = count) -> None:
                if next(count) == left:  # type: ignore[call-overload]
                    raise KeyboardInterrupt
                remove(path)  # type: ignore[operator]

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(store, "_remove", dies)
                with Store(folder, "predictions", config, replaces=True) as parts:
                    parts.discard()
            with Store(folder, "predictions", config, replaces=True) as parts:
                parts.discard()
            assert not folder.exists()


def test_two_writers_of_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    with publish(tmp_path / "out") as one:
        one.write_text("one")
        with publish(tmp_path / "out") as other:
            other.write_text("other")
        assert (tmp_path / "out").read_text() == "other"

    assert (tmp_path / "out").read_text() == "one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("finished", [False, True])
def test_another_commands_temporaries_stay(tmp_path: Path, finished: bool) -> None:
    """A folder inside may be in the making; in a finished one somebody may be writing what was read from it."""
    with Store(tmp_path, "dataset", {}) as store:
        fill(store, "one")
        if finished:
            store.finish()
    beside = tmp_path / ".predictions.tmp"
    beside.write_text("half")
    with Store(tmp_path / "duplicates", "duplicates", {}) as inner, inner.write(".work/two") as temporary:
        temporary.write_text("half")
        with Store(tmp_path, "dataset", {}):
            assert temporary.exists()
            assert beside.exists() == finished


@pytest.mark.parametrize("text", ["null", "[]", '{"kind": "raw"}'])
def test_json_that_is_no_manifest_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    for use in (lambda: read_manifest(tmp_path, "raw"), lambda: verify(tmp_path), Store(tmp_path, "raw", {}).__enter__):
        with pytest.raises(DataError, match="is no manifest"):
            use()
    (tmp_path / MANIFEST).unlink()
    with Store(tmp_path, "raw", {}):  # nobody holds the lock
        pass


def test_the_manifest_of_a_resumed_run_equals_that_of_one_run(tmp_path: Path) -> None:
    for name, stops in (("whole", []), ("resumed", ["one", "two"])):
        for stop in [*stops, None]:
            try:
                with Store(tmp_path / name, "raw", {"a": 1}) as store:
                    for file in ("one", "two", "three"):
                        fill(store, file)
                        if file == stop:
                            raise KeyboardInterrupt
                    store.finish(rows=3)
            except KeyboardInterrupt:
                continue

    assert (tmp_path / "whole" / MANIFEST).read_bytes() == (tmp_path / "resumed" / MANIFEST).read_bytes()


def test_another_configuration_is_refused_with_what_differs(tmp_path: Path) -> None:
    with Store(tmp_path / "raw", "raw", {"start": "2006-01-01", "end": "2015-12-31"}) as store:
        fill(store, "one")
    with (
        pytest.raises(DataError, match="start was '2006-01-01' and is now '2005-01-01'") as refused,
        Store(tmp_path / "raw", "raw", {"start": "2005-01-01", "end": "2015-12-31"}),
    ):
        pass

    assert refused.value.exit_code == 3
    assert "end" not in str(refused.value)


@pytest.mark.parametrize("finished", [False, True])
def test_two_versions_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool) -> None:
    with Store(tmp_path, "raw", {}) as store:
        fill(store, "one")
        if finished:
            store.finish()
    monkeypatch.setattr("ewe.store.__version__", "99.0")
    if finished:
        with Store(tmp_path, "raw", {}) as store:
            assert store.finished
    else:
        with (
            pytest.raises(DataError, match=r"was begun by ewe-patents .*, and this is 99\.0"),
            Store(tmp_path, "raw", {}),
        ):
            pass


def test_of_what_differs_in_a_mapping_the_names_are_told(tmp_path: Path) -> None:
    with Store(tmp_path, "comparison", {"systems": {"a": {"size": 1}, "b": None}}) as store:
        fill(store, "one")
    with (
        pytest.raises(DataError, match=r"differently \(systems: a, c\); remove"),
        Store(tmp_path, "comparison", {"systems": {"a": {"size": 2}, "b": None, "c": None}}),
    ):
        pass


def test_a_folder_of_another_kind_or_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "raw", "raw", {}) as store:
        fill(store, "one")
        store.finish()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")

    with pytest.raises(DataError, match="already is a raw folder"), Store(tmp_path / "raw", "dataset", {}):
        pass
    with pytest.raises(DataError, match="holds files but no manifest"), Store(tmp_path / "photos", "raw", {}):
        pass
    with pytest.raises(DataError, match="is a raw folder, not a dataset one"):
        read_manifest(tmp_path / "raw", "dataset")
    with pytest.raises(DataError, match="is not a raw folder"):
        read_manifest(tmp_path / "photos", "raw")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ewe.store import Store\n"
        "with Store(Path(sys.argv[1]), 'raw', {}): pass"
    )
    with Store(tmp_path / "raw", "raw", {}):
        second = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "raw")], capture_output=True, text=True, check=False
        )

    assert second.returncode != 0
    assert "Another process is writing" in second.stderr


def test_left_over_temporaries_go_and_a_cut_file_is_redone(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    with Store(folder, "raw", {}) as store:
        fill(store, "one", "two")
        store.finish()
    (folder / ".three.tmp").write_text("half")
    os.truncate(folder / "one", 1)

    with pytest.raises(DataError, match="one is missing or cut short"):
        read_manifest(folder, "raw")
    with Store(folder, "raw", {}) as store:
        assert not store.finished
        assert not store.has("one")
        assert store.has("two")
        assert not (folder / ".three.tmp").exists()


def test_bad_input_leaves_no_state_behind(tmp_path: Path) -> None:
    with pytest.raises(DataError), Store(tmp_path / "raw", "raw", {}):
        raise DataError("no grant in the window")

    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize("mended", [True, False])
def test_work_before_bad_input_is_kept_for_the_same_input_alone(tmp_path: Path, mended: bool) -> None:
    with pytest.raises(DataError), Store(tmp_path, "raw", {"input": 1}) as store:
        fill(store, ".work/one")
        raise DataError("the second week is broken")
    with pytest.raises(IncompleteError):
        read_manifest(tmp_path, "raw")

    with Store(tmp_path, "raw", {"input": 1 if mended else 2}) as store:
        assert store.has(".work/one") == mended
        fill(store, ".work/one", "two")
        store.finish()

    manifest = read_manifest(tmp_path, "raw")
    assert list(manifest["files"]) == ["two"]
    assert "failed" not in manifest
    verify(tmp_path)


def test_verify_names_what_changed(tmp_path: Path) -> None:
    with Store(tmp_path / "raw", "raw", {}) as store:
        fill(store, "one", "two")
        store.finish()
    assert verify(tmp_path / "raw") == {"files": 2, "bytes": 6}

    data = bytearray((tmp_path / "raw" / "two").read_bytes())
    data[1] ^= 1
    (tmp_path / "raw" / "two").write_bytes(data)
    with pytest.raises(DataError, match=r"two missing or changed"):
        verify(tmp_path / "raw")
    with pytest.raises(DataError, match="has no manifest"):
        verify(tmp_path)


def test_verify_tells_of_files_that_a_pattern_would_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(tmp_path, "dataset", {}) as store:
        fill(store, "relabeled/one.parquet", "labels.json")
        store.finish()
    (tmp_path / "notes.json").write_text("{}")
    verify(tmp_path)
    assert capsys.readouterr().err == ""
    (tmp_path / "relabeled/zzz.parquet").write_text("strange")
    verify(tmp_path)

    assert "relabeled/zzz.parquet" in capsys.readouterr().err


def test_a_broken_manifest_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"kind": "raw", ')

    with pytest.raises(DataError, match="is not valid JSON"):
        read_manifest(tmp_path, "raw")


@pytest.mark.parametrize(
    ("text", "kind"), [(None, None), ('{"kind": "dataset"}', "dataset"), ('{"kind": "theirs"}', None), ("[1]", None)]
)
def test_what_a_command_has_made_is_known_by_its_manifest(tmp_path: Path, text: str | None, kind: str | None) -> None:
    if text:
        (tmp_path / MANIFEST).write_text(text)
    assert kind_of(tmp_path) == kind


def test_records_hold_size_rows_and_sha256(tmp_path: Path) -> None:
    with Store(tmp_path / "raw", "raw", {}) as store:
        fill(store, "one")
        store.write_json("two.json", {"é": 1})
        store.finish()
    files = json.loads((tmp_path / "raw" / MANIFEST).read_text())["files"]

    assert files["one"] == {"rows": 1, "size": 3, "sha256": sha256_file(tmp_path / "raw" / "one")}
    assert (tmp_path / "raw" / "two.json").read_text(encoding="utf-8") == '{\n  "é": 1\n}\n'


def test_a_manifest_proves_itself(tmp_path: Path) -> None:
    with Store(tmp_path / "raw", "raw", {"a": 1}) as store:
        fill(store, "one")
        store.finish(made_up=False)
    path = tmp_path / "raw" / MANIFEST
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match=re.escape(MANIFEST)):
            verify(tmp_path / "raw")
    path.write_bytes(whole)

    assert verify(tmp_path / "raw") == {"files": 1, "bytes": 3}


def test_released_files_stand_beside_the_makers_own(tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    with Store(folder, "dataset", {}) as store:
        fill(store, "README.md", "data")
        store.finish(rows=1)
    texts = {"README.md": "more", "report.html": "<p>"}
    for written in (True, False):
        with Store(folder, "dataset", {}) as store:
            assert store.finished
            assert store.release(texts) is written
    assert list(read_manifest(folder, "dataset")["files"]) == ["data"]
    assert verify(folder) == {"files": 3, "bytes": 11}

    (folder / "report.html").unlink()  # a reader who leaves it out still has a whole dataset
    assert read_manifest(folder, "dataset")["rows"] == 1
    with pytest.raises(DataError, match=r"report.html missing or changed"):
        verify(folder)


def test_a_kill_while_working_state_goes_leaves_it_to_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a person keeps beside the files stays, hidden or not."""
    with Store(tmp_path / "whole", "raw", {}) as store:
        fill(store, ".parts/a", "b")
        store.finish(rows=1)
    (tmp_path / "killed/.git").mkdir(parents=True)

    def killed(path: Path) -> None:
        if path.name == ".parts":
            raise KeyboardInterrupt

    with Store(tmp_path / "killed", "raw", {}) as store:
        fill(store, ".parts/a", "b")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("ewe.store._remove", killed)
            store.finish(rows=1)
    assert (tmp_path / "killed/.parts/a").exists()
    assert verify(tmp_path / "killed") == verify(tmp_path / "whole")
    with Store(tmp_path / "killed", "raw", {}) as store:
        assert store.finished

    assert not (tmp_path / "killed/.parts").exists()
    assert (tmp_path / "killed/.git").exists()
    manifests = [(tmp_path / name / MANIFEST).read_bytes() for name in ("whole", "killed")]
    assert manifests[0] == manifests[1]


def test_a_killed_release_leaves_a_whole_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"README.md": "more", "report.html": "<p>"}
    for name, stop in (("whole", None), ("killed", "README.md"), ("late", "SHA256SUMS")):
        folder = tmp_path / name
        with Store(folder, "dataset", {}) as store:
            fill(store, "README.md", "data")
            store.finish()
        with monkeypatch.context() as patch, Store(folder, "dataset", {}) as store:
            patch.setattr("ewe.store.publish_text", _stop_at(stop))
            with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
                store.release(texts)
        assert verify(folder)["files"] >= 1
        with Store(folder, "dataset", {}) as store:
            assert store.finished
            store.release(texts)
    files = {path.name: path.read_bytes() for path in sorted((tmp_path / "whole").iterdir())}

    for name in ("killed", "late"):
        assert {path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())} == files


def _stop_at(name: str | None) -> Callable[[Path, str], None]:
    from ewe import store

    publish_text = store.publish_text

    def stopping(path: Path, text: str) -> None:
        if path.name == name:
            raise KeyboardInterrupt
        publish_text(path, text)

    return stopping
