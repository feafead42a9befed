"""Words of a caption that the text tower's vocabulary does not know: those of another script, and signs."""

from __future__ import annotations

from typing import Any

from open_clip.tokenizer import HFTokenizer

SHOWN = 5  # unknown words in a message


def unknown_words(tokenizer: Any, caption: str) -> tuple[list[str], int]:
    """The words that a vocabulary lacks, in order, and of how many words.

    A word is unknown where it holds the tokenizer's token for what it does not know, or where a WordPiece vocabulary
    spells it letter by letter in letters beyond ASCII: BERT's English one has the letters of Arabic and Russian, and no
    words of them. Tokenizers that are not of Hugging Face work on bytes and know all: ([], 0).
    """
    if not isinstance(tokenizer, HFTokenizer) or not tokenizer.tokenizer.is_fast:
        return [], 0
    text = tokenizer.clean_fn(caption)
    found = tokenizer.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    pieces = tokenizer.tokenizer.convert_ids_to_tokens(found.input_ids)
    words: dict[int, list[int]] = {}
    for position, word in enumerate(found.word_ids()):
        if word is not None:
            words.setdefault(word, []).append(position)
    unknown = [places for places in words.values()
               if _is_unknown([pieces[place] for place in places], tokenizer.tokenizer.unk_token)]
    offsets = found.offset_mapping
    return [text[offsets[places[0]][0]:offsets[places[-1]][1]] for places in unknown], len(words)


def letters_hint(tokenizer: Any, caption: str) -> str | None:
    """A sentence for who searches with words that the model cannot read; None where it knows them all."""
    unknown, count = unknown_words(tokenizer, caption)
    if not unknown:
        return None
    shown = ", ".join(unknown[:SHOWN]) + (", …" if len(unknown) > SHOWN else "")
    return (f"the model's vocabulary does not know {len(unknown)} of {count} words or signs ({shown}), and they say "
            "next to nothing to it; ask in the language that it was trained on (the starter: English only)")


def _is_unknown(pieces: list[str], unknown: str | None) -> bool:
    if unknown in pieces:
        return True
    letters = [pieces[0], *(piece.removeprefix("##") for piece in pieces[1:] if piece.startswith("##"))]
    return len(letters) == len(pieces) > 1 and all(len(letter) == 1 and not letter.isascii() for letter in letters)
