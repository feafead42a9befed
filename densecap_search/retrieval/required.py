"""Words that must occur: in a picture's captions or in the name of its file, exactly as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from densecap_search.errors import ConfigError
from densecap_search.retrieval.rows import Row, Rows
from densecap_search.retrieval.vectors import Mask
from densecap_search.retrieval.words import holds, tokens


def with_words(rows: Rows, total: int, required: Sequence[str]) -> Mask:
    """By number, bool [total], whether a picture has every one of these words or groups of words.

    A group stands in one caption, or in the file's name, its words one after the other; case, accents and what stands
    between words do not count. Errors: ConfigError for what holds no word.
    """
    mask = np.zeros(total, bool)
    wanted = [_words(text) for text in required]
    candidates = _may_have(rows, required[0], wanted[0])
    for start in range(0, len(candidates), 1000):
        for row in rows.many(candidates[start:start + 1000]):
            mask[row.number] = all(any(holds(text, words) for text in _texts(row)) for words in wanted)
    return mask


def _words(text: str) -> list[str]:
    words = tokens(text)
    if not words:
        raise ConfigError(f"{text!r} holds no word that could occur")
    return words


def _texts(row: Row) -> list[list[str]]:
    return [tokens(text) for text in (*row.captions, PurePath(row.image).stem)]


def _may_have(rows: Rows, text: str, words: Sequence[str]) -> list[int]:
    """Numbers of all pictures that may hold a group of words, and perhaps of others."""
    first = max(words, key=len)
    if text.isascii():  # the full-text table cuts other scripts otherwise than `tokens`
        sql = ("SELECT number FROM words JOIN pictures ON pictures.key = words.rowid WHERE words MATCH ? "
               "ORDER BY number")
        return [int(number) for number, in rows.query(sql, [f'"{first}"'])]
    return [int(number) for number, in rows.query("SELECT number FROM pictures ORDER BY number")]
