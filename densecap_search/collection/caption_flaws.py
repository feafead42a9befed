"""What is wrong with captions that programs wrote or cut, or that nobody finished; each kind is told by its letters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_EXAMPLES = 3
_OPENING = range(4, 9)  # words of an opening that many captions share
_SHARED, _SHARED_LEAST = 0.15, 5  # share, and number, of captions from which on an opening is boilerplate
_ENDED = 0.9  # of the captions end with punctuation before a missing one says anything
_CUT_ALIKE = 3  # captions of exactly the greatest length, without an end, before that is a limit
_MINORITY = 0.5  # of the captions: what fewer are written in is another language

_MARKUP = re.compile(r"""
    </?(p|br|b|i|u|em|strong|a|div|span|img|ul|ol|li|h[1-6]|font|table|tr|td)\b[^<>]*>
  | &(amp|lt|gt|quot|apos|nbsp|\#\d{2,5}|\#x[0-9a-f]{2,5}|[aeiou](acute|grave|uml|circ));
""", re.IGNORECASE | re.VERBOSE)
_REFUSAL = re.compile(r"""
    \W*( i('|\ a)m\ (sorry|unable|not\ able)\b | sorry,\ (but\ )?i\b | unfortunately,\ i\ (can|am)
       | i\ (can(no|')t|can\ not)\ (assist|help|see|view|describe|provide|identify|process)
       | as\ an\ ai\b | as\ a\ language\ model\b )
""", re.IGNORECASE | re.VERBOSE)
_UNFINISHED = re.compile(r"\b(TODO|FIXME|TBD|XXX)\b|\blorem ipsum\b|(?i:\b(to do|todo): )")
_SLOT = re.compile(r"""
    <(image|unk|pad|s|/s|eos|bos|mask|\|endoftext\||\|im_end\|)>
  | \[(unk|mask|pad|insert\ [^\]]*|name|object|description)\] | \{\{?\s*\w+\s*\}?\} | %\(\w+\)s
""", re.IGNORECASE | re.VERBOSE)
_END = re.compile(r"[.!?…。！？:;)\]}\"'”’»*]\s*$")
_WORD = re.compile(r"[^\W\d_]+")

# Words that hold sentences together, of which no other language here has many.
_SMALL_WORDS = {
    "English": "the and with of on at is are this there which while from behind",
    "German": "der die das und mit auf ist ein eine einem sind im vor neben dem den",
    "French": "le la les et avec sur est un une dans des du au devant aux",
    "Spanish": "el la los las y con una en es del se hay junto sobre unos",
    "Italian": "il lo gli e con una nel della di è sono che davanti sul alla",
    "Portuguese": "o os as e com uma em do da no na é são está ao",
    "Dutch": "de het een en met op is van zijn voor naast bij staat aan wordt",
}
_FUNCTION_WORDS: Mapping[str, frozenset[str]] = {name: frozenset(words.split()) for name, words in _SMALL_WORDS.items()}
_SCRIPTS = {"CJK": "Chinese or Japanese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "HANGUL": "Korean",
            "CYRILLIC": "Cyrillic letters", "ARABIC": "Arabic letters", "DEVANAGARI": "Devanagari", "HEBREW": "Hebrew",
            "GREEK": "Greek", "THAI": "Thai"}
UNSPACED = ("Chinese or Japanese", "Japanese", "Thai")  # are written without spaces between words


@dataclass(frozen=True)
class Flaw:
    """captions: how many have it; what, do: what it is and how to mend it, in words; examples: how it looks."""

    kind: str
    captions: int
    what: str
    do: str
    examples: tuple[str, ...]


# kind → how one caption is told, what it has, what to do
_BY_ITSELF: Mapping[str, tuple[Callable[[str], object], str, str]] = {
    "markup": (_MARKUP.search, "HTML in them", "take the tags out and put letters for entities"),
    "refusal": (_REFUSAL.match, "a program's refusal in its place", "describe these pictures, or leave them without"),
    "unfinished": (_UNFINISHED.search, "a note to finish them", "finish them, or leave them empty"),
    "slot": (_SLOT.search, "a slot that nothing was put into", "fill the slots, or take them out"),
}


def find_flaws(captions: Sequence[str]) -> tuple[Flaw, ...]:
    """Every kind that occurs, with examples."""
    flaws = [_flaw(kind, [caption for caption in captions if tells(caption)], what, do)
             for kind, (tells, what, do) in _BY_ITSELF.items()]
    opening, same = _shared_opening(captions)
    flaws.append(_flaw("opening", same, f"the same beginning, “{opening} …”",
                       "take it out: it says nothing about a picture, and fills the window"))
    flaws.append(_flaw("cut short", _cut_short(captions), "an end in the middle of a word or a sentence",
                       "take the captions from where they were whole"))
    main, others = _languages(captions)
    named = ", ".join(f"{language} {count}" for language, count in Counter(others.values()).most_common(4))
    flaws.append(_flaw("other language", list(others), f"another language than {main} ({named})",
                       "translate them, unless the model reads both"))
    return tuple(flaw for flaw in flaws if flaw.captions)


def _flaw(kind: str, captions: Sequence[str], what: str, do: str) -> Flaw:
    has = "caption has" if len(captions) == 1 else "captions have"
    return Flaw(kind, len(captions), f"{len(captions)} {has} {what}", do, tuple(dict.fromkeys(captions))[:_EXAMPLES])


def _shared_opening(captions: Sequence[str]) -> tuple[str, list[str]]:
    """The longest run of first words that many captions share, and the captions that begin with it."""
    words = [caption.split() for caption in captions]
    for length in reversed(_OPENING):
        counts = Counter(" ".join(own[:length]) for own in words if len(own) > length)
        opening, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if count >= max(_SHARED_LEAST, _SHARED * len(captions)) and len(set(captions)) > 1:
            return opening, [caption for caption in captions if " ".join(caption.split()).startswith(opening)]
    return "", []


def _cut_short(captions: Sequence[str]) -> list[str]:
    """Captions without an end where nearly all have one: of just the greatest length, or ending in part of a word."""
    open_ended = [caption for caption in captions if not _END.search(caption) and len(caption.split()) > 4]
    if 2 * len(open_ended) > len(captions):
        return []
    longest = max(map(len, captions), default=0)
    at_limit = [caption for caption in open_ended if len(caption) == longest]
    if len(open_ended) > (1 - _ENDED) * len(captions):
        return at_limit if len(at_limit) >= _CUT_ALIKE else []
    known = Counter(word.casefold() for caption in captions for word in _WORD.findall(caption))
    starts = _beginnings(known)
    parts = [caption for caption in open_ended if (last := caption.split()[-1].casefold()).isalpha()
             and known[last] == 1 and last in starts]
    return list(dict.fromkeys([*(at_limit if len(at_limit) >= _CUT_ALIKE else []), *parts]))


def _beginnings(words: Iterable[str]) -> set[str]:
    """Every beginning of every word, the whole word not."""
    return {word[:end] for word in words for end in range(1, len(word))}


def _languages(captions: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The language of most captions, and each caption that is plainly in another."""
    own = {caption: language for caption in dict.fromkeys(captions) if (language := language_of(caption))}
    if not own:
        return "", {}
    main, count = Counter(own.values()).most_common(1)[0]
    if count < _MINORITY * len(own):
        main = "the most frequent"
    return main, {caption: language for caption, language in own.items() if language != main}


def language_of(caption: str) -> str | None:
    """By its letters, or where they are Latin by its small words; None where it is not plain."""
    letters = [letter for letter in caption if letter.isalpha()]
    other = [letter for letter in letters if not letter.isascii()]
    if letters and 2 * len(other) > len(letters):
        scripts = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in other)
        told = next((_SCRIPTS[script] for script, _ in scripts.most_common() if script in _SCRIPTS), None)
        if told:
            return "Japanese" if {"HIRAGANA", "KATAKANA"} & set(scripts) else told
    words = [word.casefold() for word in _WORD.findall(caption)]
    hits = {language: sum(word in small for word in words) for language, small in _FUNCTION_WORDS.items()}
    (best, most), (_, second) = sorted(hits.items(), key=lambda item: -item[1])[:2]
    return best if most >= 3 and most >= 2 * second else None
