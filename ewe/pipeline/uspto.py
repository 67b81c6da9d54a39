"""The office's weekly full text (ipgYYMMDD.zip or .xml, 2005 onwards: DTD 4.0 to 4.7) as a source of grants.

One file holds some thousands of documents one after another, each with its own XML declaration. It is read as a
stream, a document at a time, several files in parallel. Labels are those printed on the grant.

How markup becomes text, the one rule: tags go, the text in them stays where it stands. So sub- and superscripts and
references to claims are their plain characters (`R1`, `claim 1`), a formula in MathML is its tokens, chemistry and
formulas given as pictures leave nothing, nested claim texts, lines and the cells of a table are parted by white space;
processing instructions and comments are no text. The words before the claims (`What is claimed is:`) stay out.
"""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import re
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
from lxml import etree

from ewe.errors import DataError, EweError, UsageError
from ewe.pipeline import schema
from ewe.pipeline.archive import HEAD, find_files, fingerprint, members, open_member
from ewe.pipeline.claims import write_claims
from ewe.pipeline.parts import read_keys, read_parts, write_parts
from ewe.pipeline.runs import KEY, merge, sorted_runs
from ewe.progress import bar, warn
from ewe.store import Store, publish
from ewe.text import clean

UTILITY = ("B1", "B2")  # utility grants; designs (S), plants (P), reissues (E) and registrations (H) stay out
BLOCK = 1 << 20  # bytes read of a file at once
MOST_BYTES = 128 << 20  # of one document; a larger one is left out, so that memory has a bound
BATCH_GRANTS = 1000  # that a worker holds before it writes them
BROKEN = "broken.jsonl"  # in RAW: every document that was not read, with file, number and reason

WRONG_PRODUCTS = {
    b"us-patent-application": "holds published applications (ipa), not grants; download the grants' full text (ipg)",
    b"PATDOC": "is of the format before 2005; download the full text from ipg050104.zip on",
    b"html": "holds a web page; download it again, signed in",
}
FRONT_PAGES = "holds front pages without claims (ipgb); download the full text (ipg)"

BOM = b"\xef\xbb\xbf"
_DECLARATION = re.compile(rb"<\?xml\s")
_ROOT = re.compile(rb"<([A-Za-z][\w.-]*)")
_ENTITIES = re.compile(rb"<!ENTITY(?![^>]*\bNDATA\b)")  # names of pictures are harmless
_NAME = re.compile(rb'<us-patent-grant\b[^>]*\bfile="([^"]{1,80})"')
_APART = ("claim-text", "p", "br", "li", "row", "entry", "tables", "maths", "chemistry")  # parted by white space
_PARSER = etree.XMLParser(
    resolve_entities=False,  # whoever declares one is refused before
    load_dtd=False,
    no_network=True,
    remove_pis=True,
    remove_comments=True,
    collect_ids=False,
    huge_tree=True,  # libxml2's own bounds are below what the office publishes; MOST_BYTES is ours
)


class UsptoEngine:
    """Grants from a folder of the office's weekly files.

    A document that cannot be read is left out, counted, and listed in RAW/broken.jsonl; it never ends the file.
    Combination sets' CPC codes are kept as codes of their own, as the publications table has them.

    Args:
        folder: of ipgYYMMDD.zip or .xml files, in subfolders too; or one such file.
    """

    columns = schema.RAW

    def __init__(self, folder: Path) -> None:
        if not folder.exists():
            raise UsageError(f"{folder} does not exist; give --input the folder of your weekly files (ipgYYMMDD.zip).")
        self.files = find_files(folder, ".xml")
        if not self.files:
            raise DataError(f"{folder} holds no .zip or .xml file; give --input the folder of ipgYYMMDD.zip files.")
        weeks: dict[str, Path] = {}
        for path in self.files:
            other = weeks.setdefault(path.stem.lower(), path)
            if other is not path:
                raise DataError(f"{other} and {path} are the same week; remove one of them.")
            _check(path)
        self._keys: dict[Path, list[str]] = {}  # of each scanned part, the month of each of its batches
        self._repeated: dict[str, str] = {}  # publication number that stands there more than once -> its first month
        self._facts: dict[str, Any] = {}

    def config(self) -> dict[str, Any]:
        """What decides the result: the files, by the checksums in them."""
        return {"source": "uspto", "input_sha256": fingerprint(self.files, ".xml")}

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the source.

        documents = grants + repeated + left_out + outside_window + broken
        """
        return {"made_up": False, "labels": "at-issue", "input_files": len(self.files), **self._facts}

    def scan(self, store: Store, start: dt.date, end: dt.date) -> None:
        """Read every file once, several at a time, each into a hidden part of RAW."""
        jobs = [_Job(path, store.folder, start, end) for path in self.files]
        todo = [job for job in jobs if not store.has(job.part)]
        with bar("scan", len(jobs), "files", done=len(jobs) - len(todo)) as advance:
            for job, found in _scan_files(todo):
                if found.broken:
                    store.write_text(job.broken, _lines(found.broken))
                store.record(job.part, {"counts": found.counts, "left_out": found.left_out})
                advance()
        self._keys = {store.folder / job.part: read_keys(store.folder / job.part) for job in jobs}
        repeated = self._find_repeated(store.folder)
        counts, left_out = Counter(grants=-len(repeated), repeated=len(repeated)), Counter[str]()
        for job in jobs:
            counts.update(store.manifest["files"][job.part]["counts"])
            left_out.update(store.manifest["files"][job.part]["left_out"])
        self._facts = {**counts, "left_out": dict(sorted(left_out.items()))}
        if counts["broken"] or repeated:
            lists = [store.folder / job.broken for job in jobs if store.has(job.broken)]
            store.write_text(BROKEN, "".join(each.read_text(encoding="utf-8") for each in lists) + _lines(repeated))
            what = f"documents left out: {counts['broken']} broken, {len(repeated)} repeated"
            warn(f"{what}; {store.folder / BROKEN} lists them with the reason.")

    def read(self, store: Store, month: str) -> Iterator[pa.Table]:  # noqa: ARG002  the parts are known by path
        """The scanned grants of one month ("2006-01"), each once (the first copy), a bounded table at a time."""
        seen = {number for number, first in self._repeated.items() if first != month}
        for part, keys in self._keys.items():
            for batch in read_parts(part, keys, month):
                fresh = self._first_copies(batch["publication_number"].to_pylist(), seen)
                yield pa.Table.from_batches([batch]).cast(self.columns).filter(pa.array(fresh))

    def _first_copies(self, numbers: list[str], seen: set[str]) -> list[bool]:
        """Whether each is none of those in `seen`, to which the repeated ones are added."""
        fresh = []
        for number in numbers:
            fresh.append(number not in seen)
            if number in self._repeated:
                seen.add(number)
        return fresh

    def _find_repeated(self, folder: Path) -> list[dict[str, Any]]:
        """The copies that `read` leaves out: all but the earliest month's, and there all but the first file's.

        Memory grows with the copies alone: the numbers are sorted in FOLDER.
        """
        months = sorted({month for keys in self._keys.values() for month in keys})
        with tempfile.TemporaryDirectory(prefix=".sort-", suffix=".tmp", dir=folder) as runs:
            tables = (pa.table({KEY: numbers}) for month in months for _, numbers in self._numbers(month))
            self._repeated = dict.fromkeys(_repeated(merge(sorted_runs(tables, Path(runs)))), "")
        seen: set[str] = set()
        copies = []
        for month in months if self._repeated else ():
            for part, numbers in self._numbers(month):
                for number in numbers.filter(pc.is_in(numbers, pa.array(self._repeated))).to_pylist():
                    if number in seen:
                        copies.append({"file": part.stem, "publication_number": number, "reason": "is there twice"})
                    else:
                        self._repeated[number] = month
                        seen.add(number)
        return copies

    def _numbers(self, month: str) -> Iterator[tuple[Path, pa.Array]]:
        """Publication numbers of a month's grants, with the part they stand in."""
        for part, keys in self._keys.items():
            for batch in read_parts(part, keys, month, [KEY]):
                yield part, batch.column(0)


def _repeated(tables: Iterable[pa.Table]) -> Iterator[str]:
    """The publication numbers that stand more than once in sorted tables."""
    last = None
    for table in tables:
        numbers = table[KEY].combine_chunks()
        if numbers[0] == last:
            yield numbers[0].as_py()
        yield from numbers[1:].filter(pc.equal(numbers[1:], numbers[:-1])).unique().to_pylist()
        last = numbers[-1]


def _lines(records: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _check(path: Path) -> None:
    """Refuse what is no file of grants before hours of work go into the others."""
    found = members(path, ".xml")
    if not found:
        raise DataError(f"{path} holds no .xml file; download the grants' full text (ipgYYMMDD.zip).")
    with open_member(path, found[0]) as stream:
        root = _ROOT.search(stream.read(HEAD))
    if root and root[1] in WRONG_PRODUCTS:
        raise DataError(f"{path} {WRONG_PRODUCTS[root[1]]}.")


# -- one file, in a process of its own --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A file to scan for the grants of a window, and its part in RAW."""

    path: Path
    raw: Path
    start: dt.date
    end: dt.date

    @property
    def part(self) -> str:
        return f".scan/{self.path.name}.arrow"

    @property
    def broken(self) -> str:
        return f".scan/{self.path.name}.jsonl"


@dataclass
class _Found:
    """What a file held."""

    counts: Counter[str] = field(
        default_factory=lambda: Counter(documents=0, grants=0, outside_window=0, broken=0, without_claims=0)
    )
    left_out: Counter[str] = field(default_factory=Counter)  # by kind, or by root element
    broken: list[dict[str, Any]] = field(default_factory=list)


def _scan_files(jobs: list[_Job]) -> Iterator[tuple[_Job, _Found]]:
    """Each job and what it found, as they end; a part is published by whoever made it."""
    workers = min(len(jobs), os.cpu_count() or 1)
    if workers < 2:
        for job in jobs:
            yield job, _scan_file(job)
        return
    with _workers(workers) as pool:
        running = {pool.submit(_scan_file, job): job for job in jobs}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool:
            raise EweError("A process ended unasked, most likely for lack of memory; run the same again.") from None


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end at once when the block raises, or when this process dies, however it dies."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, initializer=_end_with, initargs=(reader,))
    try:
        yield pool
        pool.shutdown()
    finally:
        writer.close()
        pool.shutdown(cancel_futures=True)
        reader.close()


def _end_with(reader: Connection) -> None:
    """End this process when the other end of the pipe closes, so that no orphan writes into RAW."""

    def wait() -> None:
        reader.poll(None)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells
    threading.Thread(target=wait, daemon=True).start()


def _scan_file(job: _Job) -> _Found:
    found = _Found()
    with publish(job.raw / job.part) as temporary:
        write_parts(temporary, schema.RAW, _tables(job, found))
    return found


def _tables(job: _Job, found: _Found) -> Iterator[tuple[pa.Table, pa.Array]]:
    """The file's grants and their months, some at a time; counts go to `found`."""
    grants: list[dict[str, Any]] = []
    texts = 0  # utility grants with claims or description
    for document in _documents(job.path):
        found.counts["documents"] += 1
        try:
            root = _parse(document)
            row = _grant(root, job, found)
        except _BrokenError as error:
            found.counts["broken"] += 1
            name = _NAME.search(document or b"")
            found.broken.append(
                {
                    "file": job.path.name,
                    "document": found.counts["documents"],
                    "name": name and name[1].decode(errors="replace"),
                    "reason": str(error),
                }
            )
            continue
        if row:
            grants.append(row)
            texts += root.find("claims") is not None or root.find("description") is not None
        if len(grants) == BATCH_GRANTS:
            yield _table(grants)
            grants = []
    if found.counts["grants"] and not texts:
        raise DataError(f"{job.path} {FRONT_PAGES}.")
    if grants:
        yield _table(grants)


def _table(grants: list[dict[str, Any]]) -> tuple[pa.Table, pa.Array]:
    return pa.Table.from_pylist(grants, schema.RAW), pa.array([f"{row['grant_date']:%Y-%m}" for row in grants])


def _documents(path: Path) -> Iterator[bytes | None]:
    """The documents of a file, in its order; None stands for one larger than MOST_BYTES."""
    for member in members(path, ".xml"):
        with open_member(path, member) as stream:
            yield from _cut(stream)


def _cut(stream: IO[bytes]) -> Iterator[bytes | None]:
    """Cut a stream before each XML declaration; blank pieces are none."""
    pieces: list[bytes] = []
    size = 0
    held = b""  # the block's end, which may be the start of a declaration
    for read in iter(partial(stream.read, BLOCK), b""):
        block = held + read
        begin = 0
        for declaration in _DECLARATION.finditer(block):
            yield from _whole(pieces, size, block[begin : declaration.start()])
            pieces, size, begin = [], 0, declaration.start()
        end = max(len(block) - 5, begin)
        held = block[end:]
        size += end - begin
        pieces = [*pieces, block[begin:end]] if size <= MOST_BYTES else []
    yield from _whole(pieces, size, held)


def _whole(pieces: list[bytes], size: int, last: bytes) -> Iterator[bytes | None]:
    if size + len(last) > MOST_BYTES:
        yield None
    elif document := b"".join([*pieces, last]).removeprefix(BOM).lstrip():
        yield document


# -- one document -----------------------------------------------------------------------------------------------------


class _BrokenError(Exception):
    """A document that is left out; its text is the reason."""


def _parse(document: bytes | None) -> Any:
    if document is None:
        raise _BrokenError(f"is larger than {MOST_BYTES >> 20} MiB")
    if _ENTITIES.search(document):
        raise _BrokenError("declares entities, which are never resolved")
    try:
        return etree.fromstring(document, _PARSER)
    except etree.XMLSyntaxError as error:
        raise _BrokenError(f"is not well-formed: {error.msg}") from None


def _grant(root: Any, job: _Job, found: _Found) -> dict[str, Any] | None:
    """The row in schema.RAW of a utility grant in the window; None, counted, for any other document."""
    if root.tag != "us-patent-grant":
        found.left_out[str(root.tag)] += 1
        return None
    front = root.find("us-bibliographic-data-grant")
    reference = None if front is None else front.find("publication-reference/document-id")
    if reference is None:
        raise _BrokenError("has no publication-reference")
    number = _field(reference, "doc-number").lstrip("0")
    kind = _field(reference, "kind")
    if not number or not kind:
        raise _BrokenError("has no number or no kind")
    if kind not in UTILITY:
        found.left_out[kind] += 1
        return None
    granted = _date(_field(reference, "date"))
    if granted is None:
        raise _BrokenError("has no date of grant")
    if not job.start <= granted <= job.end:
        found.counts["outside_window"] += 1
        return None
    application = front.find("application-reference/document-id")
    title = front.find("invention-title")
    claims = write_claims(_text(claim) for claim in root.iterfind("claims/claim"))
    found.counts["grants"] += 1
    found.counts["without_claims"] += claims is None
    return {
        "publication_number": f"US-{number}-{kind}",
        "patent_id": number,
        "application_number": None if application is None else _field(application, "doc-number") or None,
        "family_id": None,
        "kind_code": kind,
        "filing_date": None if application is None else _date(_field(application, "date")),
        "grant_date": granted,
        "title": None if title is None else clean(_text(title)) or None,
        "claims": claims,
        "assignees": [name for name in map(_assignee, front.iterfind("assignees/assignee")) if name],
        "cpc": [_symbol(code) for code in front.iterfind("classifications-cpc//classification-cpc")],
        "ipc": [
            *_ipc_before_2006(front),
            *(_symbol(code) for code in front.iterfind("classifications-ipcr/classification-ipcr")),
        ],
    }


def _text(element: Any) -> str:
    """An element's text by the module's one rule; white space is cleaned later. Changes the element."""
    for apart in element.iter(*_APART):
        apart.text = f"\n{apart.text or ''}"
        apart.tail = f"\n{apart.tail or ''}"
    return "".join(element.itertext())


def _field(element: Any, name: str) -> str:
    return (element.findtext(name) or "").strip()


def _date(digits: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(digits)
    except ValueError:
        return None


def _assignee(element: Any) -> str:
    organization = element.find(".//orgname")
    names = (
        [organization] if organization is not None else [element.find(".//first-name"), element.find(".//last-name")]
    )
    return clean(" ".join(_text(name) for name in names if name is not None))


def _symbol(code: Any) -> dict[str, Any]:
    """A CPC code, or an IPC code of 2006 onwards: position F is the first-listed, value I is inventive."""
    group, subgroup = _field(code, "main-group"), _field(code, "subgroup")
    position, value = _field(code, "symbol-position"), _field(code, "classification-value")
    return {
        "code": "".join(_field(code, name) for name in ("section", "class", "subclass"))
        + (f"{group}/{subgroup}" if subgroup else group),
        "first": position == "F" if position else None,
        "inventive": value == "I" if value else None,
    }


def _ipc_before_2006(front: Any) -> Iterator[dict[str, Any]]:
    """IPC codes of edition 7, main group and subgroup in columns: `A45F  504` is A45F5/04."""
    for codes in front.iterfind("classification-ipc"):
        for place in ("main-classification", "further-classification"):
            for code in codes.iterfind(place):
                symbol = code.text or ""
                if symbol.strip():
                    yield {"code": _edition_7(symbol), "first": place == "main-classification", "inventive": None}


def _edition_7(symbol: str) -> str:
    subclass, group = symbol[:4], symbol[4:]
    group, _, subgroup = group.partition("/") if "/" in group else (group[:3], "", group[3:])
    group = group.strip().lstrip("0")
    return f"{subclass}{group}/{subgroup.strip()}" if group else subclass.strip()
