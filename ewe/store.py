"""The durable store: atomic files, one manifest a folder, resume, and one process at a time.

A final name only ever holds a whole file: it is written under a temporary name, fsynced, renamed,
and the folder fsynced; only then does the manifest name it, with size, rows and sha256. The same
command run again therefore finds what is finished and redoes what is not.

A finished folder proves itself: its manifest holds a hash of itself beside those of the files, and
`release` adds SHA256SUMS over both, so that `verify` finds and names whatever byte has changed.

This is the only module that writes a final file name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from filelock import FileLock, Timeout

from ewe import __version__
from ewe.errors import DataError, EweError, IncompleteError, UsageError
from ewe.progress import warn

Result = TypeVar("Result")

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
LOCK = ".lock"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)  # what only who writes can be told
MADE_BY = {  # what makes each kind of folder, for the sentence a user reads
    "table": "ewe-data sample",
    "raw": "ewe-data fetch",
    "labels": "ewe-data fetch --labels-only",
    "dataset": "ewe-data relabel",
    "duplicates": "ewe-data dedup",
    "tensors": "ewe-data encode",
    "run": "ewe train",
    "comparison": "ewe compare",
    "predictions": "ewe predict",
}


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical text (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _fsync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows neither opens nor needs to sync a folder
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    """A name that no other writer has."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextmanager
def publish(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; rename it there, durably, when the block ends well.

    The block may make a file or a folder of that name. When it raises, nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        for part in sorted(temporary.rglob("*")) if temporary.is_dir() else ():
            _fsync(part)
        _fsync(temporary)
        temporary.replace(path)
        _fsync(path.parent)
    except OSError as error:  # a full disk, say, of which libraries do not tell whose
        _name(error, path, temporary)
        raise
    finally:
        _remove(temporary)


def _name(error: OSError, path: Path, temporary: Path | None = None) -> None:
    """Have an error that names no file, or a temporary one, name this one; without a number it would lose its words."""
    nameless = error.filename is None and error.errno is not None
    if nameless or (temporary and str(error.filename).startswith(str(temporary))):
        error.filename = str(path)


def publish_text(path: Path, text: str) -> None:
    """Write a small UTF-8 text file atomically."""
    with publish(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def publish_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, indented, keys in the order given."""
    publish_text(path, json_text(value))


def json_text(value: Any) -> str:
    """The text of a JSON file: indented, keys in the order given."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The value in a JSON file; DataError names the file where it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; make its folder again or point to another one.") from None
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}); remove its folder and make it again.") from None


def read_recorded(folder: Path, manifest: Mapping[str, Any], name: str) -> Any:
    """The value in a JSON file of a folder; DataError where its bytes are not those that the manifest records."""
    if not _is_whole(folder / name, manifest["files"].get(name, {}).get("sha256", "")):
        raise changed(folder, [name])
    return read_json(folder / name)


def _read(path: Path) -> dict[str, Any]:
    """What a manifest says, whole or not; DataError where it is none."""
    found = read_json(path)
    if not (isinstance(found, dict) and {"kind", "complete", "config", "files"} <= found.keys()):
        raise DataError(f"{path} is no manifest; remove its folder and make it again.")
    return found


def kind_of(folder: Path) -> str | None:
    """What one of the commands has made of a folder, whole or not, a key of MADE_BY; None where none of them has.

    Raises:
        DataError: its manifest is not valid JSON.
    """
    found = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    kind = found.get("kind") if isinstance(found, dict) else None
    return kind if kind in MADE_BY else None


def read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a finished folder of this kind ("raw", "dataset", ...).

    Raises:
        DataError: the folder is missing, of another kind, or lacks a file its manifest names.
        IncompleteError: its making was interrupted.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder} is not a {kind} folder (no {MANIFEST} in it); make one with {MADE_BY[kind]}.")
    manifest = _read(path)
    if manifest["kind"] != kind:
        raise DataError(f"{folder} is a {manifest['kind']} folder, not a {kind} one; make one with {MADE_BY[kind]}.")
    if not manifest["complete"]:
        raise IncompleteError(f"{folder} is unfinished; run the same {MADE_BY[kind]} again, it goes on from there.")
    for name, record in manifest["files"].items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != record["size"]:
            raise DataError(f"{folder / name} is missing or cut short; run the same {MADE_BY[kind]} again to mend it.")
    return manifest


class Files:
    """A store's folder as a part of a step sees it, in whatever process: the store records what it writes afterwards.

    Args:
        folder: the store's, under the same path everywhere.
        finished: names of the files that need not be written again.
        show: called with rows as they are done; in another process there is none.
        stop: set when the part is to end; in another process there is none.

    Attributes:
        facts: of each file that has been written, by name.
        rows: that are done and have not been shown.
    """

    def __init__(
        self, folder: Path, finished: frozenset[str], show: Callable[[int], object], stop: threading.Event
    ) -> None:
        self.folder, self._finished = folder, finished
        self._here: tuple[Callable[[int], object], threading.Event] | None = (show, stop)
        self.facts: dict[str, dict[str, Any]] = {}
        self.rows = 0

    def __getstate__(self) -> dict[str, Any]:
        """All that another process can use."""
        return {**vars(self), "_here": None}

    def has(self, name: str) -> bool:
        """As Store.has."""
        return name in self._finished

    @contextmanager
    def write(self, name: str, facts: Mapping[str, Any] | None = None) -> Iterator[Path]:
        """As Store.write, but for the record."""
        with publish(self.folder / name) as temporary:
            yield temporary
        self.facts[name] = {**(facts or {})}

    def advance(self, rows: int) -> None:
        """Count rows as done; KeyboardInterrupt where the step has been interrupted."""
        if self._here is None:
            self.rows += rows
            return
        show, stop = self._here
        if stop.is_set():
            raise KeyboardInterrupt
        show(rows)


class Done(NamedTuple, Generic[Result]):
    """A part of a step that has ended."""

    result: Result
    facts: dict[str, dict[str, Any]]
    """of the files that it has written"""
    rows: int
    """that have not been shown"""


def _part(work: Callable[..., Result], files: Files, arguments: tuple[Any, ...]) -> Done[Result]:
    return Done(work(files, *arguments), files.facts, files.rows)


class Store:
    """One folder being made by one command; a context manager that holds the folder's lock.

    Entering reads the manifest an earlier run left: files it names (and whose size still fits) are
    finished, `finished` says whether all is. Another configuration is refused, so nothing mixes.

    Args:
        folder: where to; made if missing, refused if it holds somebody else's files.
        kind: what the folder is, a key of MADE_BY.
        config: JSON values that decide the folder's content, inputs' hashes included.
        replaces: of working state beside a file that may be written anew: what another configuration or version
            has begun gives way.
    """

    def __init__(self, folder: Path, kind: str, config: Mapping[str, Any], *, replaces: bool = False) -> None:
        self.folder, self._replaces = folder, replaces
        self._lock = FileLock(folder / LOCK)
        self._saving = threading.Lock()  # several threads may finish files at once
        # through JSON, so that tuples and lists, written and read, compare equal
        config = json.loads(json.dumps(config))
        self.manifest: dict[str, Any] = {
            "kind": kind,
            "complete": False,
            "config": config,
            "config_sha256": sha256_json(config),
            "version": __version__,
            "files": {},
        }

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise EweError(f"Another process is writing {self.folder}; wait for it to end.") from None
        except (FileExistsError, NotADirectoryError):
            raise EweError(f"{self.folder} is no folder, nor can it be made one; choose another.") from None
        except OSError as error:
            raise EweError(
                f"Cannot write to {self.folder} ({error.strerror}); make it writable or choose another folder."
            ) from None
        try:
            self._resume()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _resume(self) -> None:
        path = self.folder / MANIFEST
        if path.is_file():
            found = _read(path)
            if found["kind"] != self.manifest["kind"]:
                raise DataError(f"{self.folder} already is a {found['kind']} folder; choose another.")
            begun = found.get("version", __version__)
            same = found["config"] == self.manifest["config"]
            if (found.pop("failed", False) and not same) or (self._replaces and not (same and begun == __version__)):
                self._discard(found["files"])
            else:
                self._take_over(found, begun)
            if self.finished:
                self._tidy()
                return
        elif any(not entry.name.startswith(".") for entry in self.folder.iterdir()):
            raise DataError(f"{self.folder} holds files but no {MANIFEST}; choose an empty folder.")
        for left_over in self.folder.rglob(".*.tmp"):
            within = left_over.relative_to(self.folder).parents[:-1]
            if not any((self.folder / folder / LOCK).exists() for folder in within):
                _remove(left_over)

    def _take_over(self, found: dict[str, Any], begun: str) -> None:
        """Go on with what an earlier run of this configuration and version has left."""
        self._refuse_other(found["config"])
        if not found["complete"] and begun != __version__:
            raise DataError(
                f"{self.folder} was begun by ewe-patents {begun}, and this is {__version__}: two would mix;"
                " finish it with that version, or remove it."
            )
        whole = {name: record for name, record in found["files"].items() if self._whole(name, record)}
        complete = found["complete"] and len(whole) == len(found["files"])
        self.manifest = {key: value for key, value in found.items() if key != "manifest_sha256"}
        self.manifest |= {"files": whole, "complete": complete}

    def _refuse_other(self, found: Mapping[str, Any]) -> None:
        config = self.manifest["config"]
        differing = [key for key in sorted({*found, *config}) if found.get(key) != config.get(key)]
        if differing:
            what = "; ".join(_difference(key, found.get(key), config.get(key)) for key in differing)
            raise DataError(f"{self.folder} was made differently ({what}); remove it or choose another folder.")

    def _whole(self, name: str, record: Mapping[str, Any]) -> bool:
        path = self.folder / name
        return path.is_file() and path.stat().st_size == record["size"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        files = self.manifest["files"]
        if isinstance(error, OSError) and error.errno in FULL:
            _name(error, self.folder)
        if isinstance(error, DataError) and all(name.startswith(".") for name in files):
            if files:  # what is done need not be done again, should the same input come back mended
                self.manifest["failed"] = True
                self._save()
            else:
                self._discard({})
        self._lock.release()
        if not any(entry.name != LOCK for entry in self.folder.iterdir()):
            _remove(self.folder)

    def discard(self) -> None:
        """Leave nothing of the folder."""
        self._discard(self.manifest["files"])

    def _discard(self, files: Iterable[str]) -> None:
        """Bad input has made nothing final: leave no state behind that another try would stumble on."""
        empty = {entry.name for entry in self.folder.iterdir() if entry.is_dir() and not any(entry.iterdir())}
        for name in {name.split("/")[0] for name in files} | empty:
            _remove(self.folder / name)
        _remove(self.folder / MANIFEST)  # last: without it the others would be nobody's

    @property
    def finished(self) -> bool:
        """Whether an earlier run finished this very folder."""
        return bool(self.manifest["complete"])

    def has(self, name: str) -> bool:
        """Whether the file of this name is finished (recorded, and of the recorded size)."""
        return name in self.manifest["files"]

    def rows(self, name: str) -> int:
        """The recorded number of rows of a finished file."""
        return int(self.manifest["files"][name]["rows"])

    @contextmanager
    def write(self, name: str, facts: Mapping[str, Any] | None = None) -> Iterator[Path]:
        """Yield a temporary path for the file `name`; publish and record it when the block ends well.

        Args:
            name: path in the folder, with forward slashes; a part that starts with a dot is
                working state and goes when the folder is finished.
            facts: what the manifest says of the file beside size and sha256 ("rows", ...); the
                caller may fill it inside the block.
        """
        self._begin()
        path = self.folder / name
        with publish(path) as temporary:
            yield temporary
        self.record(name, facts)

    def parts(
        self,
        pool: Executor | int,
        work: Callable[..., Result],
        arguments: Iterable[tuple[Any, ...]],
        show: Callable[[int], object],
    ) -> list[Result]:
        """Do the parts of a step side by side, and record what each has written when it ends.

        Args:
            pool: so many threads; or threads, processes or machines, which see the folder under the same path.
            work: a module's function, called as work(files: Files, *arguments).
            arguments: of each part.
            show: called with the rows that are done, by threads as they go, of other processes when a part has ended.

        Returns:
            What `work` returned of each part, in their order.
        """
        self._begin()
        finished, stop = frozenset(self.manifest["files"]), threading.Event()
        with ThreadPoolExecutor(pool) if isinstance(pool, int) else nullcontext(pool) as workers:
            futures = [
                workers.submit(_part, work, Files(self.folder, finished, show, stop), each) for each in arguments
            ]
            waiting = set(futures)
            try:
                for future in as_completed(futures):
                    done = future.result()
                    self._record_part(done)
                    waiting.remove(future)
                    show(done.rows)
            except (KeyboardInterrupt, SystemExit):
                stop.set()
                raise
            finally:  # of a failure: what is at work ends, and is not done again
                for future in wait([future for future in waiting if not future.cancel()]).done:
                    if not future.exception():
                        self._record_part(future.result())
        return [future.result().result for future in futures]

    def _record_part(self, done: Done[Any]) -> None:
        for name, facts in done.facts.items():
            self.record(name, facts)

    def record(self, name: str, facts: Mapping[str, Any] | None = None) -> None:
        """Name a published file in the manifest, with its size, sha256 and facts."""
        facts = {**(facts or {}), **_facts(self.folder / name)}
        with self._saving:
            self._released.pop(name, None)
            self.manifest["files"][name] = facts
            self._save()

    def write_json(self, name: str, value: Any) -> None:
        """Write and record a JSON file."""
        self._begin()
        publish_json(self.folder / name, value)
        self.record(name)

    def write_text(self, name: str, text: str) -> None:
        """Write and record a text file."""
        self._begin()
        publish_text(self.folder / name, text)
        self.record(name)

    @property
    def _released(self) -> dict[str, Any]:
        """Records of what `release` has added; apart from "files", so that without them a folder is still whole."""
        released: dict[str, Any] = self.manifest.get("released", {})
        return released

    def release(self, texts: Mapping[str, str]) -> bool:
        """Add text files to a finished folder, or replace the maker's own, and write SHA256SUMS over all of it.

        A kill in between leaves a folder that is whole, without SHA256SUMS; the same call again goes on.

        Args:
            texts: what to write, by name.

        Returns:
            Whether anything had to be written.
        """
        same = {name for name, text in texts.items() if _holds(self.folder / name, text)}
        records = {name: _facts(self.folder / name) for name in same}
        if same == set(texts) and records == self._released and self._has_sums():
            return False
        _remove(self.folder / SUMS)
        for name in texts:
            self.manifest["files"].pop(name, None)
        self.manifest.pop("released", None)
        self._save()
        for name in sorted(set(texts) - same):
            publish_text(self.folder / name, texts[name])
        self.manifest["released"] = {name: _facts(self.folder / name) for name in sorted(texts)}
        self._save()
        publish_text(self.folder / SUMS, _sums(self.folder, _manifests(self.folder)))
        return True

    def _has_sums(self) -> bool:
        return _holds(self.folder / SUMS, _sums(self.folder, _manifests(self.folder)))

    def forget(self, name: str) -> None:
        """Take a finished file back: out of the manifest first, then off the disk."""
        with self._saving:
            del self.manifest["files"][name]
            self._save()
        _remove(self.folder / name)

    def finish(self, **facts: Any) -> dict[str, Any]:
        """Drop working state, mark the folder complete and return the manifest with these facts in it."""
        files = self.manifest["files"]
        hidden = sorted({name.split("/")[0] for name in files if name.startswith(".")})
        kept = {name: files[name] for name in sorted(files) if not name.startswith(".")}
        self.manifest |= {"complete": True, **facts, "removing": hidden, "files": kept}
        self._save()
        self._tidy()
        return self.manifest

    def _tidy(self) -> None:
        """Remove a finished folder's working state; after a kill in between the next run does."""
        if "removing" in self.manifest:
            for name in self.manifest["removing"]:
                _remove(self.folder / name)
            del self.manifest["removing"]
            self._save()

    def _begin(self) -> None:
        """Have a manifest before the first final name: a kill between the two must orphan nothing."""
        with self._saving:
            if not (self.folder / MANIFEST).is_file():
                self._save()

    def _save(self) -> None:
        # files last: the facts stay on a person's first screen
        facts = {name: value for name, value in self.manifest.items() if name not in ("released", "files")}
        files = {name: self.manifest[name] for name in ("released", "files") if name in self.manifest}
        publish_json(self.folder / MANIFEST, {**facts, "manifest_sha256": sha256_json(facts | files), **files})


def _difference(name: str, was: Any, now: Any) -> str:
    """What differs in a configuration; of mappings by name the names."""
    if isinstance(was, dict) and isinstance(now, dict):
        return f"{name}: {', '.join(key for key in sorted({*was, *now}) if was.get(key, ...) != now.get(key, ...))}"
    return f"{name} was {was!r} and is now {now!r}"


def refuse_inside(out: Path, source: Path) -> None:
    """UsageError where a folder would be made in another command's, whose checksums it would break."""
    if (source / MANIFEST).is_file() and out.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"--out {out} lies in {source}; choose a folder beside it.")


def _facts(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256_file(path)}


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


# -- checking ---------------------------------------------------------------------------------------------------------


def verify(folder: Path) -> dict[str, int]:
    """Compare every file of a folder with its manifest, each manifest with itself, and SHA256SUMS with both.

    A folder inside that has a manifest of its own (duplicates/) is part of it.

    Returns:
        {"files": n, "bytes": n} when all is whole.

    Raises:
        DataError: names every file that is missing or differs.
    """
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder} has no {MANIFEST}; point to a folder that one of the commands made.")
    manifests = {name: _read(folder / name) for name in _manifests(folder)}
    bad = [name for name, manifest in manifests.items() if not is_sealed(folder / name, manifest)]
    if not bad:
        records = {name: record for each in manifests for name, record in _records(each, manifests[each]).items()}
        bad += [name for name, record in records.items() if not _is_whole(folder / name, record["sha256"])]
        if (folder / SUMS).is_file() and not _holds(folder / SUMS, _sums(folder, manifests)):
            then = {} if bad else {"then": "run ewe-data release again"}
            raise changed(folder, {*bad, SUMS, *_gone(folder)}, **then)
    if bad:
        raise changed(folder, bad)
    for manifest in manifests.values():
        if not manifest["complete"]:
            raise IncompleteError(f"{folder} is unfinished; run the same {MADE_BY[manifest['kind']]} again.")
    if manifests[MANIFEST].get("released") and not (folder / SUMS).is_file():
        warn(f"{folder} has changed since its card and report were written; run ewe-data release again.")
    if strange := _strange(folder, records):
        warn(f"{folder} holds what no manifest names and a reader may take for its own: {', '.join(strange)}.")
    return {"files": len(records), "bytes": sum(record["size"] for record in records.values())}


def _gone(folder: Path) -> list[str]:
    """Files that SHA256SUMS lists and that are not there."""
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    return [name for name in (line.partition("  ")[2] for line in lines) if not (folder / name).exists()]


def _strange(folder: Path, records: Iterable[str]) -> list[str]:
    """Files beside recorded ones that end as they do, as *.parquet would find them."""
    patterns = {
        (path.parent, path.suffix) for path in map(PurePosixPath, records) if path.suffix in (".parquet", ".npy")
    }
    found = [path for parent, suffix in patterns for path in (folder / parent).glob(f"[!.]*{suffix}")]
    return sorted({path.relative_to(folder).as_posix() for path in found} - set(records))


def _manifests(folder: Path) -> list[str]:
    """Names of the folder's manifest and of those of folders inside, the folder's own first."""
    return [MANIFEST, *sorted(path.relative_to(folder).as_posix() for path in folder.glob(f"*/{MANIFEST}"))]


def _records(name: str, manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the manifest of this name says of files, by their names in the outer folder."""
    inner = name.removesuffix(MANIFEST)
    return {inner + file: record for key in ("files", "released") for file, record in manifest.get(key, {}).items()}


def changed(folder: Path, names: Iterable[str], then: str = "") -> DataError:
    """The error that names a folder's files which are not as they were written, and what mends them."""
    names = sorted(names)
    # whose size is as recorded is taken for whole by the command that made it, until it is gone
    mend = "remove what is left of that and run the command that made it again"
    whole = any(PurePosixPath(name).name == MANIFEST for name in names)
    return DataError(
        f"{folder}: {', '.join(names)} missing or changed; {then or ('make it again' if whole else mend)}."
    )


def is_sealed(path: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest is what `Store` wrote: its own hash fits, and its text is the only one of its value."""
    body = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return manifest.get("manifest_sha256") == sha256_json(body) and _holds(path, json_text(manifest))


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_file(path) == sha256


def _sums(folder: Path, manifests: Iterable[str]) -> str:
    """The text of SHA256SUMS, as `sha256sum` prints it: every file these manifests name, and they themselves."""
    hashes = {name: sha256_file(folder / name) for name in manifests}
    for manifest in list(hashes):
        records = _records(manifest, read_json(folder / manifest))
        hashes |= {name: record["sha256"] for name, record in records.items()}
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))
