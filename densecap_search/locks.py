"""Locks that die with their process: who writes a folder, and whose unfinished files are still being written.

They are the system's own (flock; msvcrt on Windows), so a killed process keeps none, and a folder that is copied
takes none along.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from densecap_search.errors import FolderBusy

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".densecap-lock"  # in a folder while it is written; says who holds it
_WITHOUT = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems that know no locks: nobody is kept out there
_POLL_SECONDS = 0.2


@contextmanager
def locked(folder: Path, doing: str, *, wait: float = 0.0) -> Iterator[None]:
    """Keep other writers out of a folder, which is made where it is missing, for the length of the block.

    doing: a phrase that the others are shown, such as ``densecap index``. wait: seconds until giving up.
    Errors: FolderBusy, naming who holds it. Use it where a command begins to write a folder as a whole (a run, an
    index, an experiment); files written with :mod:`files` need none. Of several processes that share one job, only
    the first takes it. It is not taken twice by one process.
    """
    made = not folder.exists()
    descriptor = _taken(folder, time.monotonic() + wait)
    try:
        _sign(descriptor, doing)
        yield
    finally:
        if sys.platform != "win32":  # which removes no file that is open
            (folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            if made:
                folder.rmdir()  # where nothing came of it: the folder was only made to be locked
        os.close(descriptor)  # and with it the lock


def _taken(folder: Path, until: float) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        free = try_lock(descriptor)
        if free is not False and os.fstat(descriptor).st_nlink:
            return descriptor
        holder = _holder(descriptor)
        os.close(descriptor)
        if free is False and time.monotonic() >= until:
            raise FolderBusy(f"{folder} is being written by {holder}; wait until that has ended, or choose another "
                             "place with -o")
        time.sleep(_POLL_SECONDS if free is False else 0)


def try_lock(descriptor: int) -> bool | None:
    """Take the lock of an open file or folder, until it is closed; False where another holds it, None where the file
    system knows no locks."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # beyond the text, which others could not read otherwise
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _WITHOUT else False
    return True


def _sign(descriptor: int, doing: str) -> None:
    since = time.strftime("%H:%M")
    with suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"{doing} (process {os.getpid()} on {socket.gethostname()}, since {since})".encode())


def _holder(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, 300).decode("utf-8", "replace")
    return "".join(letter for letter in text if letter.isprintable()) or "another process"
