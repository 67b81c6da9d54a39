"""Downloaded files, zipped as they are offered or unpacked: found, checked, opened as a stream.

What people download by mistake, or only half, is told here in one sentence that names the file.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ewe.errors import DataError
from ewe.store import sha256_json

READABLE = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA}
HEAD = 1 << 16  # bytes that tell what a file is


def find_files(folder: Path, suffix: str) -> list[Path]:
    """Files of this suffix (".xml") and zips in a folder and its subfolders, by name; or the one file itself."""
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    hidden = ("._", ".")  # what other systems leave beside the files
    return sorted(
        (path for path in files if path.suffix.lower() in (suffix, ".zip") and not path.name.startswith(hidden)),
        key=lambda path: (path.name, path),
    )


def members(path: Path, suffix: str) -> list[str]:
    """The names of this suffix in a zip, as stored; of a plain file, its own name.

    Raises:
        DataError: the file is a web page, cut short, no zip at all, or holds nothing of the kind.
    """
    with path.open("rb") as file:
        head = file.read(HEAD)
    if not head:
        raise DataError(f"{path} is empty; download it again.")
    if b"<html" in head.lower():
        raise DataError(f"{path} is a web page, not the file it is named after; download it again, signed in.")
    if path.suffix.lower() != ".zip":
        return [path.name]
    return [info.filename for info in _infos(path, head) if _is_member(info, suffix, path)]


def _infos(path: Path, head: bytes) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except zipfile.BadZipFile:
        why = "is cut short" if head.startswith(b"PK") else "is no zip file"
        raise DataError(f"{path} {why}; download it again.") from None


def _is_member(info: zipfile.ZipInfo, suffix: str, path: Path) -> bool:
    name = info.filename.lower()
    if info.is_dir() or name.startswith("__macosx/"):
        return False
    if name.endswith(".zip"):
        raise DataError(f"{path} holds another zip ({info.filename}); unpack it once, and give the folder.")
    if not name.endswith(suffix):
        return False
    if info.flag_bits & 1 or info.compress_type not in READABLE:
        raise DataError(f"{path} is packed in a way Python cannot read; unpack it, and give the folder.")
    return True


@contextmanager
def open_member(path: Path, member: str) -> Iterator[IO[bytes]]:
    """A stream of one member's bytes, as `members` named it; DataError where the zip is damaged inside."""
    if path.suffix.lower() != ".zip":
        with path.open("rb") as stream:
            yield stream
        return
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            yield stream
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path} is damaged ({error}); download it again.") from None


def fingerprint(files: list[Path], suffix: str) -> str:
    """A hash of the files' names and content, by the checksums a zip carries, so that gigabytes are not read for it.

    Of plain files, size and both ends stand for the content.
    """
    return sha256_json([[path.name, *_content(path, suffix)] for path in files])


def _content(path: Path, suffix: str) -> list[Any]:
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if info.filename.lower().endswith(suffix)]
        return [[info.filename, info.file_size, info.CRC] for info in infos]
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(size - HEAD, 0))
        return [size, zlib.crc32(head), zlib.crc32(file.read())]
