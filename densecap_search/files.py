"""Writing files so that a reader sees the old or the new one, never half of it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from densecap_search.errors import DensecapError

HASH_BYTES = 16  # 128 bits: no accidental collision in any archive that fits on disks


def cache_folder() -> Path:
    """$DENSECAP_CACHE, or ~/.cache/densecap."""
    return Path(os.environ.get("DENSECAP_CACHE") or Path.home() / ".cache" / "densecap").expanduser()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; when the block ends well it takes the place of ``path``.

    The temporary file is flushed to the disk before the rename, and removed if the block raises.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """As :func:`atomic_path`, with the temporary file opened for writing bytes."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


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


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON that people can read, in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def hash_file(path: Path, algorithm: str | None = None) -> str:
    """Hexadecimal hash of a file's bytes: BLAKE2b of :data:`HASH_BYTES`, or what hashlib calls algorithm."""
    digest = hashlib.new(algorithm) if algorithm else hashlib.blake2b(digest_size=HASH_BYTES)
    with path.open("rb") as file:
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


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # Windows cannot open a folder; its rename is durable enough for us
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
