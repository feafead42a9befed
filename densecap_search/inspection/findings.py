"""What an inspection found, in sentences, each with what to do about it and examples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from densecap_search.collection.caption_flaws import UNSPACED, find_flaws
from densecap_search.collection.captions import find_weak_captions
from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.inspection.crops import Crop
from densecap_search.inspection.duplicates import NEAR_BITS, Near
from densecap_search.inspection.geometry import NEAR_COSINE, Geometry
from densecap_search.inspection.leakage import Leak
from densecap_search.inspection.pair_fit import Pair, PairFit, in_order
from densecap_search.inspection.pictures import SMALL, STRIP, Pictures
from densecap_search.inspection.suggestions import CUT_AT_MOST, cut_share

EXAMPLES = 12  # of a finding, in the page and in the JSON
TOGETHER = 4  # pictures of one example
SPELLED_OUT = 1.5  # tokens a word, from which on a model hardly knows the language
WEAK = {  # kinds of weak captions that are no finding of their own below, and what to do
    "placeholder": "describe these pictures, or leave the caption empty: they teach that unlike pictures are alike",
    "boilerplate": "take the sentence out: it says nothing about a picture, and makes all captions alike",
}


@dataclass(frozen=True)
class Example:
    """Pictures that belong together (paths), a caption for each or none, and what to say of them."""

    images: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """kind: a word for scripts. count: of what, ``what`` says. do: how to repair it; "" where nothing needs repair."""

    kind: str
    count: int
    what: str
    do: str
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class Reason:
    """Why things were left out: one line for all that differ only in numbers and details."""

    reason: str
    count: int
    examples: tuple[str, ...]


def by_reason(skipped: Iterable[Skipped]) -> tuple[Reason, ...]:
    """Skips by kind of reason, most frequent first."""
    kinds: dict[str, list[Skipped]] = {}
    for skip in skipped:
        kinds.setdefault(re.sub(r"\d[\d,.×]*", "N", _brief(skip)), []).append(skip)
    reasons = [Reason(kind if len(skips) > 1 else _brief(skips[0]), len(skips), tuple(map(str, skips[:EXAMPLES])))
               for kind, skips in kinds.items()]
    return tuple(sorted(reasons, key=lambda reason: -reason.count))


def of_files(collection: Collection, pictures: Pictures | None) -> Iterator[Finding]:
    """Rows and files that cannot be used."""
    if collection.skipped:
        yield _left_out("skipped", _number(len(collection.skipped), "row was", "rows were") + " skipped while reading",
                        collection.skipped, "mend these rows")
    if pictures is not None and pictures.broken:
        yield _left_out("broken", f"{_pictures(len(pictures.broken))} cannot be opened", pictures.broken,
                        "mend or remove them; training and indexing leave them out")
    empty = [record for record in collection.records if not record.captions]
    if empty:
        yield Finding("no caption", len(empty), _number(len(empty), "picture has", "pictures have") + " no caption",
                      "describe them; without a caption they can be indexed but not trained on",
                      _each(empty))
    if pictures is not None and pictures.blank:
        blank = [record for record in collection.records if record.image_id in set(pictures.blank)]
        yield Finding("blank", len(blank), _number(len(blank), "picture is", "pictures are") + " nearly of one colour",
                      "remove those that show nothing", _each(blank))


def of_shapes(records: Sequence[Record], pictures: Pictures) -> Iterator[Finding]:
    """Pictures that lack their end, and those of whose shape or size a model sees little."""
    for kind, ids, what, do in (
        ("cut short picture", pictures.cut, "without the last bytes", "fetch them again; they are taken as they are"),
        ("small", pictures.small, f"with a side below {SMALL} pixels", "find larger ones: a model sees a blur"),
        ("strip", pictures.strips, f"more than {STRIP:g} times as long as wide",
         "choose --resize pad, or cut them apart: of the middle alone little is seen"),
    ):
        own = [record for record in records if record.image_id in set(ids)]
        if own:
            yield Finding(kind, len(own), f"{_pictures(len(own))} {what}", do, _each(own))


def of_mirrors(records: Sequence[Record], pairs: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Pictures that are another turned left to right, where the table does not say so."""
    loose = [pair for pair in pairs if not _declared(records, pair, ("group", "burst"))]
    if loose:
        yield Finding("mirrored", len(loose), _number(len(loose), "pair of pictures is", "pairs of pictures are")
                      + " each other turned left to right", "remove one, or give both one `burst`; what their captions "
                      "say of left and right is wrong for one of them",
                      tuple(_together(records, pair, "mirrored") for pair in loose[:EXAMPLES]))


def of_crops(records: Sequence[Record], crops: Sequence[Crop]) -> Iterator[Finding]:
    """Pictures that were cut out of another one, where the table does not say so."""
    loose = [crop for crop in crops if not _declared(records, (crop.whole, crop.part), ("group", "burst"))]
    if loose:
        yield Finding("cropped", len(loose), _number(len(loose), "picture was", "pictures were")
                      + " cut out of another one",
                      "remove one, or give both one `burst`; a caption of the whole tells what the part does not show",
                      tuple(_together(records, (crop.whole, crop.part), f"{100 * crop.share:.0f} % of the first")
                            for crop in loose[:EXAMPLES]))


def of_pictures(records: Sequence[Record], copies: Sequence[Sequence[int]], near: Near, split: bool
                ) -> Iterator[Finding]:
    """The same and nearly the same pictures, where the table does not say so. split: it has a split column."""
    loose = [group for group in copies if not _declared(records, group, ("group",))]
    if loose:
        count = sum(len(group) - 1 for group in loose)
        yield Finding("same picture", count,
                      _number(count, "picture is a copy", "pictures are copies") + " of another, byte for byte",
                      "remove the copies or give each picture and its copies one `group`",
                      tuple(_together(records, group, f"{len(group)} copies") for group in loose[:EXAMPLES]))
    alike = [group for group in near.groups if not _declared(records, group, ("group", "burst"))]
    if alike:
        rows = {row for group in alike for row in group}
        pairs = [pair for pair in near.pairs if not _declared(records, pair[:2], ("group", "burst"))]
        yield Finding("nearly the same picture", len(rows),
                      f"{len(rows)} pictures look almost the same as another (difference hashes at most {NEAR_BITS} "
                      "of 64 bits apart)",
                      "" if split else "give those that belong together one `burst`: it stays on one side of a split",
                      tuple(_together(records, pair[:2], _bits(pair[2])) for pair in pairs[:EXAMPLES]))


def of_weak_captions(records: Sequence[Record]) -> Iterator[Finding]:
    """Captions that a camera or a form left there, and sentences that stand in many."""
    for weak in find_weak_captions(records):
        if weak.kind in WEAK:
            yield Finding(weak.kind, weak.pictures, str(weak), WEAK[weak.kind],
                          tuple(Example(note=text) for text in weak.examples))


def of_flaws(records: Sequence[Record]) -> Iterator[Finding]:
    """Captions that a program wrote or cut, that nobody finished, or that are in another language."""
    captions = [caption for record in records for caption in record.captions]
    for flaw in find_flaws(captions):
        yield Finding(flaw.kind, flaw.captions, flaw.what, flaw.do,
                      tuple(Example(note=" ".join(text.split())[:200]) for text in flaw.examples))


def of_captions(records: Sequence[Record], equal: Sequence[Sequence[int]], almost: Sequence[Sequence[int]]
                ) -> Iterator[Finding]:
    """Captions that several pictures share, to the letter or but for case, spaces and punctuation."""
    loose = [group for group in equal if not _declared(records, group, ("group",))]
    if loose:
        count = len({row for group in loose for row in group})
        yield Finding("same caption", count, f"{_pictures(count)} share their caption with another",
                      "say what tells them apart: no search can, and they are never each other's negatives",
                      tuple(_together(records, group, f"{len(group)} pictures") for group in loose[:EXAMPLES]))
    loose = [group for group in almost if not _declared(records, group, ("group",))]
    if loose:
        count = len({row for group in loose for row in group})
        yield Finding("nearly the same caption", count,
                      f"{count} pictures have a caption that is another's but for case, spaces or punctuation",
                      "make these captions equal, or say what tells the pictures apart",
                      tuple(_together(records, group, f"{len(group)} pictures") for group in loose[:EXAMPLES]))


def of_leaks(records: Sequence[Record], leaks: Sequence[Leak] | None) -> Iterator[Finding]:
    """What the splits of the table share."""
    for leak in leaks or ():
        has, sides = "have" if leak.count > 1 else "has", f"{leak.later} and {leak.earlier}"
        yield Finding(f"leak: {leak.kind}", leak.count,
                      f"{leak.count} of {leak.later} {has} {_the(leak.kind)} in {leak.earlier}",
                      f"take them out of {leak.earlier} or out of {leak.later}: figures on {leak.later} are too good",
                      tuple(_together(records, twin, sides) for twin in leak.twins[:EXAMPLES]))


def of_geometry(records: Sequence[Record], geometry: Geometry | None) -> Iterator[Finding]:
    """What only a model can say."""
    if geometry is None:
        return
    share = cut_share(geometry.truncation)
    if geometry.truncation.truncated:
        longer = "choose a longer window with --context-length, or shorten the captions"
        yield Finding("cut captions", geometry.truncation.truncated,
                      f"{share:.1f} % of the captions are cut: {geometry.truncation}",
                      longer if share >= CUT_AT_MOST else "")
    if geometry.same_when_cut:
        yield Finding("same when cut", geometry.same_when_cut,
                      _number(geometry.same_when_cut, "caption is", "captions are")
                      + " equal to another up to the end of the window",
                      "choose a longer window with --context-length: to this model they are the same caption")
    unknown = geometry.unknown_words
    if unknown.unread:
        yield Finding("unknown words", unknown.unread,
                      f"{100 * unknown.unread / unknown.captions:.1f} % of the captions, {unknown}",
                      "describe these pictures in the language that the model was trained on (the starter: English "
                      "only), or choose a model that reads theirs",
                      tuple(Example(note=" ".join(text.split())[:200]) for text in unknown.examples))
    for own in geometry.languages:
        if own.language != "English" and own.tokens >= SPELLED_OUT:
            unit = "letter" if own.language in UNSPACED else "word"
            yield Finding("hardly read", own.captions,
                          _number(own.captions, "caption is", "captions are") + f" in {own.language}, which "
                          f"{geometry.model} spells in {own.tokens:.1f} tokens a {unit}: it hardly knows the language",
                          "choose a model that was trained on it, or translate the captions")
    near = geometry.near
    if near.groups:
        count = sum(len(group) for group in near.groups)
        yield Finding("near-duplicate captions", count,
                      f"{count} captions have one that {geometry.model} finds at least {NEAR_COSINE:g} similar, in "
                      + _number(len(near.groups), "group", "groups"), "",
                      tuple(_together(records, group, f"{len(group)} captions") for group in near.groups[:EXAMPLES]))
    if near.pairs:
        yield Finding("most similar captions", len(near.pairs),
                      "the pairs of different captions that are hardest to tell apart", "",
                      tuple(_together(records, pair[:2], f"cosine {pair[2]:.3f}") for pair in near.pairs[:EXAMPLES]))


def of_pairs(records: Sequence[Record], fit: PairFit | None) -> Iterator[Finding]:
    """Captions that are another picture's, by a model that knows these pictures; all the worst in their order."""
    if fit is None or math.isnan(fit.told_apart):
        return
    if not fit.can_tell:
        yield Finding("pairs that do not fit", 0,
                      f"whether captions fit their pictures {fit.model} cannot tell here: it puts a pair above a "
                      f"random one in {100 * fit.told_apart:.0f} % of cases only", "")
        return
    if fit.wrong:
        yield Finding("pairs that do not fit", fit.wrong,
                      _number(fit.wrong, "caption fits its picture", "captions fit their pictures")
                      + " no better than another picture's would",
                      "look at them in the order below and mend them: about as many more are wrong among the next",
                      tuple(_pair(records, pair) for pair in fit.worst[: min(fit.wrong, EXAMPLES)]))
    shown = [_pair(records, pair) for pair in fit.worst[:EXAMPLES]]
    rest = [Example(note=line) for line in in_order(fit.worst[EXAMPLES:])]
    yield Finding("worst fitting pairs", len(fit.worst),
                  "the captions that fit their pictures worst, in the order in which to look at them", "",
                  (*shown, *rest))


def _pair(records: Sequence[Record], pair: Pair) -> Example:
    return Example((str(records[pair.row].image),), (pair.caption,), f"{pair.image_id}, cosine {pair.cosine:.2f}")


def _the(kind: str) -> str:
    """`the same picture`, but `nearly the same picture`."""
    return kind if kind.startswith("nearly") else f"the {kind}"


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _pictures(count: int) -> str:
    return _number(count, "picture", "pictures")


def _brief(skip: Skipped) -> str:
    """The reason without its details in brackets."""
    return re.sub(r" \(.*\)$", "", skip.reason)


def _left_out(kind: str, what: str, skipped: Sequence[Skipped], do: str) -> Finding:
    reasons = ", ".join(f"{reason.reason} ({reason.count})" for reason in by_reason(skipped))
    return Finding(kind, len(skipped), f"{what}: {reasons}", do,
                   tuple(Example(note=str(skip)) for skip in skipped[:EXAMPLES]))


def _each(records: Sequence[Record]) -> tuple[Example, ...]:
    return tuple(Example((str(record.image),), (), record.image_id) for record in records[:EXAMPLES])


def _together(records: Sequence[Record], rows: Sequence[int], note: str) -> Example:
    shown = [records[row] for row in rows[:TOGETHER]]
    return Example(tuple(str(record.image) for record in shown),
                   tuple("\n".join(record.captions) for record in shown), note)


def _declared(records: Sequence[Record], rows: Sequence[int], words: Sequence[str]) -> bool:
    """Whether the table itself says that these belong together: they share a group, or a burst."""
    return any(len({getattr(records[row], word) for row in rows}) == 1 and getattr(records[rows[0]], word) is not None
               for word in words)


def _bits(distance: float) -> str:
    return "the same outline" if distance == 0 else f"{distance:.0f} of 64 bits apart"
