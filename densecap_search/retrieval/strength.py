"""Is the best match a match at all? Told by what captions of other pictures find.

A match is counted in spreads above the mean, and long captions reach other heights than short ones; so a query's best
match is compared with those of captions of like length whose own picture was taken out of the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Strength = Literal["strong", "likely", "weak", "none"]  # none: most captions of other pictures find as much
LEVELS: Mapping[Strength, float] = {"strong": 0.99, "likely": 0.90, "weak": 0.50, "none": 0.0}  # that find less
NEAREST = 100  # foreign captions of the most similar length that are compared with
LEAST = 20  # fewer say nothing


@dataclass(frozen=True)
class Foreign:
    """Captions whose own picture was taken out: how many words each has, and the match of the best of the others."""

    words: tuple[int, ...]
    best: tuple[float, ...]

    def strength(self, match: float, words: int) -> Strength | None:
        """Of a match of a query of so many words; None where too few captions are there to compare with."""
        if len(self.words) < LEAST:
            return None
        apart = np.abs(np.log1p(np.array(self.words)) - np.log1p(words))
        near = np.argsort(apart, kind="stable")[:NEAREST]
        share = float((np.array(self.best)[near] < match).mean())
        return next(name for name, least in LEVELS.items() if share >= least)


def shares(foreign: Foreign, matches: Sequence[float], words: Sequence[int]) -> dict[str, float]:
    """What share of some queries is called what, in percent."""
    strengths = [foreign.strength(match, count) for match, count in zip(matches, words, strict=True)]
    return {name: 100 * strengths.count(name) / max(1, len(strengths)) for name in LEVELS}
