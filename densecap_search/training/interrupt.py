"""Ctrl-C that never leaves half a step behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruptions:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt, at once, except within :meth:`deferred`: then after it.

    Forward and backward passes change nothing and may be cut short; the change of the weights may not.
    """

    def __init__(self) -> None:
        self._busy = False
        self._pending = False

    @contextmanager
    def handled(self) -> Iterator[Interruptions]:
        """Handle the signals within the block. Only the main thread can; elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that is not interrupted."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._busy:
            self._pending = True
        else:
            raise KeyboardInterrupt
