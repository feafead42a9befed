"""A piece of work in a process of its own: its progress, how it ended, an end to it. It never outlives its owner."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from densecap_search.errors import DensecapError
from densecap_search.talk import Advance, Talk, printable

NICE = 10  # how far the work stands back behind others on the processor
TOLD_SECONDS = 0.2  # between two reports of progress
Ended = Literal["done", "failed", "stopped"]


@dataclass
class Background:
    """Work that has been started. what, share: the step that runs, and how much of it is done, 0 to 1; None where that
    is not known. said: the last sentence. ended: None while it runs. result: what it gave; failed: one sentence.
    """

    started: float = field(default_factory=time.monotonic)
    what: str = ""
    share: float | None = None
    said: str = ""
    ended: Ended | None = None
    result: Any = None
    seconds: float = 0.0
    _process: Any = None
    _reader: threading.Thread | None = None
    _stopped: bool = False

    @classmethod
    def start(cls, work: Callable[..., Any], *arguments: Any, then: Callable[[Background], None]) -> Background:
        """Begin ``work(*arguments, talk)``; all of it must be picklable. then: called when it has ended."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(there, work, arguments), daemon=True)
        process.start()
        there.close()
        begun = cls(_process=process)
        begun._reader = threading.Thread(target=begun._follow, args=(here, then), daemon=True)
        begun._reader.start()
        return begun

    def running_seconds(self) -> float:
        """How long it runs, or ran."""
        return self.seconds if self.ended else time.monotonic() - self.started

    def stop(self) -> None:
        """End it, and wait until it has ended. What it had written lies there unfinished."""
        self._stopped = True
        self._process.kill()
        if self._reader is not None:
            self._reader.join()

    def _follow(self, connection: Connection, then: Callable[[Background], None]) -> None:
        ended: Ended = "failed"
        last = "it ended without a word; there may be too little memory"
        with suppress(EOFError, OSError):
            while True:
                kind, *told = connection.recv()
                if kind == "progress":
                    self.what, self.share = told
                elif kind == "say":
                    self.said = told[0]
                else:
                    ended, self.result, last = ("done", told[0], self.said) if kind == "done" else (
                        "failed", None, told[0])
        self._process.join()
        self.seconds, self.said = time.monotonic() - self.started, last
        self.ended = "stopped" if self._stopped and ended != "done" else ended
        then(self)


def _work(connection: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """What the process does."""
    threading.Thread(target=_end_with_owner, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        connection.send(("done", work(*arguments, _talk(connection))))
    except DensecapError as error:
        connection.send(("failed", str(error)))
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    except KeyboardInterrupt:
        connection.send(("failed", "it was interrupted"))


def _end_with_owner() -> None:
    owner = multiprocessing.parent_process()
    if owner is not None:
        wait([owner.sentinel])
        os._exit(1)


def _talk(connection: Connection) -> Talk:
    @contextmanager
    def progress(what: str, total: int, unit: str) -> Iterator[Advance]:
        done, told = 0, float("-inf")

        def advance(steps: int) -> None:
            nonlocal done, told
            done += steps
            if time.monotonic() - told >= TOLD_SECONDS:
                told = time.monotonic()
                connection.send(("progress", what, min(done / total, 1.0) if total else None))

        connection.send(("progress", what, 0.0 if total else None))
        yield advance

    return Talk(say=lambda sentence: connection.send(("say", printable(sentence))), progress=progress)
