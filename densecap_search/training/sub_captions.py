"""Runs of sentences of long captions, which training reads in the place of some of them; pure text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from densecap_search.collection.captions import caption_key, sentences
from densecap_search.model.segments import Ints

RUNS = 8  # of a caption, drawn once; each is as likely as another


def runs_of_sentences(captions: Sequence[str], seed: int, lengths: Callable[[Sequence[str]], Sequence[int]],
                      window: int) -> list[list[str]]:
    """Of each caption up to RUNS proper runs of its sentences, in the caption's order within a run.

    Left out are runs that more than one caption has, for they say nothing about one picture, and those that do not fit
    the window. lengths: texts → their tokens.
    """
    generator = np.random.default_rng([seed, 2])
    drawn = [_draw(sentences(caption), generator) for caption in captions]
    often = Counter(key for runs in drawn for key in {caption_key(run) for run in runs})
    own = [[run for run in runs if often[caption_key(run)] == 1] for runs in drawn]
    fits = iter([length <= window for length in lengths([run for runs in own for run in runs])])
    return [[run for run in runs if next(fits)] for runs in own]


def _draw(parts: Sequence[str], generator: np.random.Generator) -> list[str]:
    """Distinct runs, none of them the whole."""
    spans = [(start, end) for start in range(len(parts)) for end in range(start + 1, len(parts) + 1)
             if end - start < len(parts)]
    chosen = generator.permutation(len(spans))[:RUNS]
    return [" ".join(parts[start:end]) for start, end in (spans[number] for number in chosen)]


def interleaved(first: Ints, second: Ints) -> Ints:
    """Numbers into rows that hold all of the first and then all of the second, so that what belongs to a caption comes
    together: its first[i] rows, then its second[i]."""
    behind = int(first.sum())
    starts, more = np.cumsum(first) - first, np.cumsum(second) - second + behind
    return np.concatenate([np.concatenate([start + np.arange(count), extra + np.arange(others)])
                           for start, count, extra, others in zip(starts, first, more, second, strict=True)]
                          or [np.empty(0)]).astype(np.int64)
