"""Reading and writing files: a reader sees the old or the new one, never half; JSON and CSV that any program reads."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from densecap_search.errors import DensecapError, FolderBusy
from densecap_search.locks import try_lock

HASH_BYTES = 16  # 128 bits: no accidental collision in any archive that fits on disks
UNFINISHED = ".densecap-tmp"  # how the names of files and folders end that are still being written
_NAME_BYTES = 80  # of the name that an unfinished file is for: with the rest it stays below what disks take
_STALE_SECONDS = 86400.0  # where unfinished files cannot be locked, their writers are gone after a day
# what JSON may hold, but no stream of UTF-8 and no terminal: half characters and control characters
_ESCAPED = re.compile("[\x7f-\x9f\ud800-\udfff]")


def cache_folder() -> Path:
    """$DENSECAP_CACHE, or ~/.cache/densecap."""
    return Path(os.environ.get("DENSECAP_CACHE") or Path.home() / ".cache" / "densecap").expanduser()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path, not there yet; when the block ends well its file takes the place of ``path``.

    The file is flushed to the disk before the rename, and removed if the block raises; what a killed process leaves,
    the next one that writes to the folder removes.
    """
    with temporary_folder(path.parent, path.name) as work:  # libraries also write beside the file they are given
        temporary = work / path.name
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    _sync_folder(path.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """As :func:`atomic_path`, with the temporary file opened for writing bytes."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


@contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """A folder below ``parent`` in which one called ``name`` is prepared; whoever finishes it renames it.

    Removed when the block ends, unless it was renamed; what a killed process leaves, :func:`sweep` removes.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _sweep_once(parent)
    folder, lock = _held_folder(parent, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)  # and with it the lock


def sweep(folder: Path) -> int:
    """Remove what killed processes left unfinished in a folder (not below it); how many of them there were.

    Only names that end with :data:`UNFINISHED`, and only where nobody holds their lock.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        unfinished = [Path(entry.path) for entry in entries if entry.name.endswith(UNFINISHED) and entry.name[0] == "."]
        return sum(_remove_unheld(path) for path in unfinished)
    return 0


def check_writable(path: Path) -> None:
    """Before long work: whether a file or folder can be made here; a sentence if not."""
    if path.is_file():
        raise DensecapError(f"{path} is a file; choose a folder with -o")
    parent = next((place for place in (path, *path.absolute().parents) if place.exists()), path)
    if not parent.is_dir():
        raise DensecapError(f"cannot write {path}: {parent} is not a folder; choose another place with -o")
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise DensecapError(f"cannot write {path}: {error.strerror}; choose another place with -o") from error


def is_file(path: Path) -> bool:
    """Whether a file is there that may be looked at; Path.is_file raises where a folder may not be entered."""
    with suppress(OSError, ValueError):
        return stat.S_ISREG(path.stat().st_mode)
    return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there that may be looked at."""
    with suppress(OSError, ValueError):
        return stat.S_ISDIR(path.stat().st_mode)
    return False


def open_file(path: Path) -> BinaryIO:
    """A file opened for reading bytes. Pipes, sockets and devices, which may never end, are an OSError."""
    status = path.stat()  # before it is opened: opening some devices does something
    _check_regular(status, path)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    try:
        _check_regular(os.fstat(descriptor), path)
    except OSError:
        file.close()
        raise
    return file


def read_bytes(path: Path, limit: int) -> bytes:
    """A whole file, of at most ``limit`` bytes; larger ones, and what is no file, are an OSError."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than the {limit / 1e6:,.0f} MB that are read of such a file", str(path))
    return data


def append_line(path: Path, line: str, *, most_bytes: int, wait: float = 5.0) -> None:
    """Add a line of UTF-8 text to a file that several processes write, whole or not at all; it is on the disk then.

    A line that a killed process left unfinished is ended first. wait: seconds for the others' turns. most_bytes: of the
    file with the line in it. Errors: FolderBusy, DensecapError where it is full, OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        _check_regular(os.fstat(descriptor), path)
        until = time.monotonic() + wait
        while try_lock(descriptor) is False:  # until the file is closed
            if time.monotonic() >= until:
                raise FolderBusy(f"{path} is being written by another process; try again in a moment")
            time.sleep(0.01)
        size = file.seek(0, os.SEEK_END)
        data = line.encode("utf-8", "surrogatepass") + b"\n"
        if size:
            file.seek(size - 1)
            data = (b"" if file.read(1) == b"\n" else b"\n") + data
        if size + len(data) > most_bytes:
            raise DensecapError(f"{path} has reached the {most_bytes / 1e6:,.0f} MB that are kept there; rename it, "
                                "and a new one is begun")
        if file.write(data) != len(data):  # a full disk
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON, which can always be written and is read back the same.

    What is no number (NaN, infinities) becomes null; half characters, as in file names that are not UTF-8, and control
    characters are written as escapes.
    """
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_lines(rows: Iterable[Any]) -> str:
    """One strict JSON value a line."""
    return "".join(f"{json_text(row)}\n" for row in rows)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]], *, quote_all: bool = False, inert: bool = False
             ) -> str:
    r"""A table as RFC 4180 has it, lines ended by \r\n; what is no number (None, NaN, infinities) is an empty cell.

    inert: texts that a spreadsheet would run as a formula get an apostrophe before them.
    """
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL)
    table.writerows([_inert(_cell(value)) if inert else _cell(value) for value in row] for row in chain([header], rows))
    return text.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step; half a character as the three bytes that our readers take it back from."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8", "surrogatepass"))


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON that people can read, in one step."""
    write_text(path, json_text(value, indent=2) + "\n")


def hash_file(path: Path, algorithm: str | None = None) -> str:
    """Hexadecimal hash of a file's bytes: BLAKE2b of :data:`HASH_BYTES`, or what hashlib calls algorithm."""
    digest = hashlib.new(algorithm) if algorithm else hashlib.blake2b(digest_size=HASH_BYTES)
    with open_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def hash_text(*parts: str) -> str:
    """Hexadecimal BLAKE2b of texts; their borders count."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _check_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a pipe, a socket or a device, not a file", str(path))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def _inert(value: Any) -> Any:
    """OWASP's list of what begins a formula (CSV injection)."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _held_folder(parent: Path, name: str) -> tuple[Path, int]:
    """A new folder, and its descriptor, which holds its lock; −1 on Windows, which locks no folder."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_prefix(name), suffix=UNFINISHED, dir=parent))
        if os.name == "nt":
            return folder, -1
        with suppress(FileNotFoundError):  # swept in the moment between its making and its lock
            descriptor = os.open(folder, os.O_RDONLY)
            if try_lock(descriptor) is not False and folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _prefix(name: str) -> str:
    return f".{os.fsencode(name)[:_NAME_BYTES].decode(errors='ignore')}."


@lru_cache(maxsize=4096)
def _sweep_once(folder: Path) -> None:
    sweep(folder)


def _remove_unheld(path: Path) -> bool:
    """Remove an unfinished file or folder whose writer is gone; whether that was so."""
    try:
        stale = time.time() - path.lstat().st_mtime > _STALE_SECONDS
        if os.name == "nt":
            return stale and _remove(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False  # finished meanwhile, or another user's
    try:
        free = try_lock(descriptor)
        return (stale if free is None else free) and _remove(path)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> bool:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return not path.exists()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # Windows cannot open a folder; its rename is durable enough for us
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
