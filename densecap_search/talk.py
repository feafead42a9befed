"""How a workflow tells what it does, without knowing whether a terminal, a log or nobody listens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

Advance = Callable[[int], None]
T = TypeVar("T")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Text from outside as it may be shown: control characters (a terminal obeys them) and half characters (no stream
    takes them) as visible escapes; line ends and tabs stay."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def _say_nothing(sentence: str) -> None:
    del sentence


@contextmanager
def _track_nothing(what: str, total: int, unit: str) -> Iterator[Advance]:
    del what, total, unit
    yield lambda steps: None


@dataclass(frozen=True)
class Talk:
    """What a workflow is handed to speak with.

    say: one sentence for the user.
    progress: ``with talk.progress("embedding", 500, "pictures") as advance: … advance(32)``.
    """

    say: Callable[[str], None] = _say_nothing
    progress: Callable[[str, int, str], AbstractContextManager[Advance]] = _track_nothing

    def each(self, items: Iterable[T], what: str, total: int, unit: str) -> Iterator[T]:
        """Yield the items and count them."""
        with self.progress(what, total, unit) as advance:
            for item in items:
                yield item
                advance(1)


SILENT = Talk()
