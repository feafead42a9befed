"""Captions that say nothing: missing, left over from a camera or a form, or the same on many pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from densecap_search.collection.records import Record

MANY = 3  # pictures that share a caption before it counts as repeated
SHARED = 0.2  # of the captioned pictures have a sentence before it counts as boilerplate
SHARED_LEAST = 5  # and at least so many pictures
_EXAMPLES = 3

_PLACEHOLDER = re.compile(r"""
    n\.?/?a\.? | none | null | nil | nan | undefined | unknown | todo | tbd | xxx+ | test\d* | lorem\ ipsum.*
  | untitled(\ image|\ photo)?[\ _-]?\d*
  | no\ (caption|description|title|text)(\ (available|provided|given))?
  | (add|enter|insert)\ (a\ |your\ )?caption.*
  | (caption|description|title|image|photo|picture|img|bild|foto)[\ _-]?\d*
  | [-–—_.?*\#\s]+
  | (img|dsc|dscn|dscf|dcim|pict?|p|mvi|mov|gopr|pxl|cimg|imgp|hpim|sam|kif|dji|vid|wp|screenshot)[\ _-]?
        [\d_\-]{3,}[\w\-()~\ ]{0,10}(\.\w{1,5})?
  | \S+\.(jpe?g|png|gif|tiff?|webp|heic|bmp|dng|nef|cr2|arw)
""", re.IGNORECASE | re.VERBOSE)
_CAMERA = re.compile(r"""
    (olympus|minolta|konica|kodak|sony|samsung|jenoptik|pentax|ricoh|konica\ minolta|general\ electric)
        \ ?(digital|dsc|dslr)?\ ?(still\ )?(camera)?\ ?(images?|pictures|dsc)?
  | dcf\ ?1\.0 | my\ great\ (picture|photo) | exif_jpeg(_picture)? | dav | rhdr | hdrpl
  | (digital|default)\ (still\ )?(camera|picture|image) | processed\ with\ vsco.*
  | imagej=.* | \{"shape":.* | cof | ptr | sdr | hdr | mde | oznorco? | vivo
""", re.IGNORECASE | re.VERBOSE | re.DOTALL)
# after . ! ? … and what closes a quotation or bracket, where white space follows; after 。！？ anywhere; at line ends
_SENTENCE_END = re.compile(r"""(?<=[.!?…])["'”’»)\]]*\s+|(?<=[。！？])["'”’」』）]*|\n""")


@dataclass(frozen=True)
class WeakCaptions:
    """One kind of caption that teaches nothing. pictures: how many have one; examples: what it looks like."""

    kind: str  # empty, placeholder, repeated or boilerplate
    pictures: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        shown = "; ".join(_short(example) for example in self.examples)
        return f"{self.pictures} {_SAID[self.kind]}{f': {shown}' if shown else ''}"


_SAID = {
    "empty": "pictures have no caption",
    "placeholder": "pictures have a caption that a camera or a form left there",
    "repeated": f"pictures have a caption that {MANY} or more pictures have",
    "boilerplate": f"pictures have a sentence that at least {100 * SHARED:.0f} % of the captions share",
}


def is_placeholder(caption: str) -> bool:
    """Whether a text stands where a caption should: `n/a`, `untitled`, `DSC0001.JPG`, `OLYMPUS DIGITAL CAMERA`."""
    text = caption.strip().strip("\"'()[]<>").strip()
    return not text or bool(_PLACEHOLDER.fullmatch(text) or _CAMERA.fullmatch(text))


def find_weak_captions(records: Sequence[Record]) -> tuple[WeakCaptions, ...]:
    """Counts of pictures, with examples, of every kind that occurs: empty, placeholder, repeated, boilerplate."""
    captioned = [record for record in records if record.captions]
    empty = [record.image_id for record in records if not record.captions]
    left = {record.image_id: caption for record in captioned for caption in record.captions if is_placeholder(caption)}
    kinds = [
        WeakCaptions("empty", len(empty), tuple(empty[:_EXAMPLES])),
        WeakCaptions("placeholder", len(left), tuple(dict.fromkeys(left.values()))[:_EXAMPLES]),
        _shared("repeated", captioned, lambda caption: [caption_key(caption)], MANY),
        _shared("boilerplate", captioned, _several, max(SHARED_LEAST, SHARED * len(captioned))),
    ]
    return tuple(finding for finding in kinds if finding.pictures)


def sentences(text: str) -> list[str]:
    """A text cut after its sentences and at its line ends, without the white space around them."""
    parts, at = [], 0
    for end in _SENTENCE_END.finditer(text):
        parts.append(text[at:end.start() + len(end.group().rstrip())])
        at = end.end()
    parts.append(text[at:])
    return [sentence.strip() for sentence in parts if sentence.strip()]


def caption_key(caption: str) -> str:
    """What two captions share that are the same caption: everything but the white space around them.

    The one definition, for groups, right answers, repeated captions and leaks. Two more are meant to be wider:
    `normal_caption`, nearly the same, and a model's tokens within its window, the same to that model.
    """
    return caption.strip()


def _several(caption: str) -> list[str]:
    """The sentences of a caption that has more than one: a whole caption is no boilerplate."""
    parts = sentences(caption)
    return parts if len(parts) > 1 else []


def _shared(kind: str, records: Sequence[Record], cut: Callable[[str], Iterable[str]], least: float) -> WeakCaptions:
    """Pictures that have a text which at least so many pictures have; the commonest texts as examples."""
    texts = [{text for caption in record.captions for text in cut(caption)} for record in records]
    counts = Counter(text for own in texts for text in own)
    common = [text for text, count in counts.most_common() if count >= least]
    known = set(common)
    return WeakCaptions(kind, sum(not known.isdisjoint(own) for own in texts), tuple(common[:_EXAMPLES]))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f"“{line if len(line) <= 60 else line[:59] + '…'}”"
