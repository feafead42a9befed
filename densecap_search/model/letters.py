"""Words of a caption that the text tower's vocabulary does not know: those of another script, and signs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

SHOWN = 5  # unknown words in a message


def unknown_words(tokenizer: Any, caption: str) -> tuple[list[str], int]:
    """The words that a vocabulary lacks, in order, and of how many words.

    A word is unknown where it holds the tokenizer's token for what it does not know, or where a WordPiece vocabulary
    spells it letter by letter in letters beyond ASCII: BERT's English one has the letters of Arabic and Russian, and no
    words of them. Tokenizers that are not of Hugging Face work on bytes and know all: ([], 0).
    """
    spelled = _spelled(tokenizer, caption)
    if spelled is None:
        return [], 0
    words: dict[int, list[int]] = {}
    for position, word in enumerate(spelled.words):
        if word is not None:
            words.setdefault(word, []).append(position)
    unknown = [places for places in words.values()
               if _is_unknown([spelled.pieces[place] for place in places], spelled.unknown)]
    text, offsets = spelled.text, spelled.offsets
    return [text[offsets[places[0]][0]:offsets[places[-1]][1]] for places in unknown], len(words)


class _Spelled(NamedTuple):
    """A caption in pieces: of each, the word that it is of, and where it stands in the text."""

    text: str
    pieces: Sequence[str]
    words: Sequence[int | None]
    offsets: Sequence[tuple[int, int]]
    unknown: str | None


def _spelled(tokenizer: Any, caption: str) -> _Spelled | None:
    """By open_clip's tokenizer of Hugging Face, or that of an encoder of queries; None by one that works on bytes."""
    if hasattr(tokenizer, "spelled"):
        if tokenizer.unknown is None:
            return None
        made = tokenizer.spelled(caption)
        return _Spelled(tokenizer.cleaned(caption), made.tokens, made.word_ids, made.offsets, tokenizer.unknown)
    inner: Any = getattr(tokenizer, "tokenizer", None)
    if not getattr(inner, "is_fast", False):
        return None
    text = tokenizer.clean_fn(caption)
    encoded = inner(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return _Spelled(text, inner.convert_ids_to_tokens(encoded.input_ids), encoded.word_ids(), encoded.offset_mapping,
                    inner.unk_token)


def letters_hint(tokenizer: Any, caption: str) -> str | None:
    """A sentence for who searches with words that the model cannot read; None where it knows them all."""
    unknown, count = unknown_words(tokenizer, caption)
    if not unknown:
        return None
    return (f"the model's vocabulary does not know {len(unknown)} of {count} words or signs ({_some(unknown)}), and "
            "they say next to nothing to it; ask in the language that it was trained on (the starter: English only)")


@dataclass
class UnknownWords:
    """Of many captions: how many there are, and how many hold words that a vocabulary lacks, with some of these."""

    captions: int = 0
    unread: int = 0
    words: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()  # captions, the first ones

    def add(self, tokenizer: Any, captions: Iterable[str]) -> None:
        """Look through more captions."""
        for caption in captions:
            self.captions += 1
            unknown, _ = unknown_words(tokenizer, caption)
            if unknown:
                self.unread += 1
                self.words = tuple(dict.fromkeys((*self.words, *unknown)))[: SHOWN + 1]
                self.examples = (*self.examples, caption)[:SHOWN]

    def __str__(self) -> str:
        return (f"{self.unread} of {self.captions} captions hold words or signs that the model's vocabulary does not "
                f"know ({_some(self.words)}), and that say next to nothing to it")


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (", …" if len(words) > SHOWN else "")


def _is_unknown(pieces: list[str], unknown: str | None) -> bool:
    if unknown in pieces:
        return True
    letters = [pieces[0], *(piece.removeprefix("##") for piece in pieces[1:] if piece.startswith("##"))]
    return len(letters) == len(pieces) > 1 and all(len(letter) == 1 and not letter.isascii() for letter in letters)
