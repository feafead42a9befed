"""A collection looked at before training: what is there, what is broken, what is there twice, what leaks, and how
alike a model finds the captions. Everything that is found to need repair is a :class:`Finding`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from densecap_search.collection.captions import caption_key
from densecap_search.collection.records import Collection, Record
from densecap_search.collection.splits import group_numbers
from densecap_search.inspection import findings
from densecap_search.inspection.crops import Crop
from densecap_search.inspection.duplicates import Near, mirror_pictures, near_pictures, normal_caption, same
from densecap_search.inspection.findings import Finding, Reason, by_reason
from densecap_search.inspection.geometry import Geometry, Histogram, histogram, percentiles
from densecap_search.inspection.leakage import Leak, find_leaks
from densecap_search.inspection.pair_fit import PairFit
from densecap_search.inspection.pictures import Pictures
from densecap_search.inspection.suggestions import Suggestion, suggest


@dataclass(frozen=True)
class Inventory:
    """What a collection holds, without a model. words: percentiles of caption length, by str.split."""

    name: str
    pictures: int
    captions: int
    without_caption: int
    skipped: int
    splits: dict[str, int]
    words: dict[str, float]
    lengths: Histogram
    sharing_a_caption: int  # pictures whose caption, or group, another picture has too
    left_out: tuple[Reason, ...]  # the skipped rows, by reason
    format: str  # a key of READERS, and why it was taken
    format_reason: str


@dataclass(frozen=True)
class Files:
    """What opening every picture showed. copies: groups of equal files; alike: nearly the same pictures."""

    opened: int
    broken: int
    blank: int
    reasons: tuple[Reason, ...]
    copies: int
    alike: Near


@dataclass(frozen=True)
class Inspection:
    """findings: what needs repair first. leaks: None where there is no split column. files: None with --no-pictures."""

    inventory: Inventory
    files: Files | None
    leaks: tuple[Leak, ...] | None
    geometry: Geometry | None
    fit: PairFit | None
    suggestions: tuple[Suggestion, ...]
    findings: tuple[Finding, ...]


def take_inventory(collection: Collection) -> Inventory:
    """Counts and lengths."""
    captions = [caption for record in collection.records for caption in record.captions]
    captioned = collection.captioned
    numbers = Counter(group_numbers(captioned))
    words = [len(caption.split()) for caption in captions]
    return Inventory(
        collection.name, len(collection), len(captions), len(collection) - len(captioned), len(collection.skipped),
        dict(Counter(record.split or "(none)" for record in captioned)), percentiles(words, (5, 50, 95, 100)),
        histogram(words), sum(count for count in numbers.values() if count > 1), by_reason(collection.skipped),
        collection.format, collection.format_reason,
    )


def inspect(collection: Collection, pictures: Pictures | None = None, geometry: Geometry | None = None,
            fit: PairFit | None = None, crops: Sequence[Crop] = ()) -> Inspection:
    """Gather what is known of a collection. pictures, geometry, fit, crops: of its records, captions, pairs, if wanted.
    """
    captioned = collection.captioned
    leaks = find_leaks(captioned, pictures)
    files, found = None, list(findings.of_files(collection, pictures))
    found += findings.of_leaks(captioned, leaks)
    if pictures is not None:
        records = collection.records
        copies = same([[pictures.hashes[r.image_id]] if r.image_id in pictures.hashes else [] for r in records])
        alike = near_pictures(records, pictures)
        files = Files(len(pictures.hashes), len(pictures.broken), len(pictures.blank), by_reason(pictures.broken),
                      sum(len(group) - 1 for group in copies), alike)
        found += findings.of_shapes(records, pictures)
        found += findings.of_pictures(records, copies, alike, split=leaks is not None)
        found += findings.of_mirrors(records, mirror_pictures(records, pictures.codes, pictures.mirrored))
    found += findings.of_crops(collection.records, crops)
    found += findings.of_weak_captions(captioned)
    found += findings.of_flaws(captioned)
    found += findings.of_captions(captioned, *_same_captions(captioned))
    found += findings.of_pairs(captioned, fit)
    found += findings.of_geometry(captioned, geometry)
    found.sort(key=lambda finding: not finding.do)
    return Inspection(take_inventory(collection), files, leaks, geometry, fit, suggest(captioned, geometry, fit),
                      tuple(found))


def as_json(inspection: Inspection) -> dict[str, Any]:
    """The shape that scripts read; what could not be measured is null."""
    files, geometry = inspection.files, inspection.geometry
    of_files = None if files is None else {**asdict(files), "alike": _counted(files.alike)}
    of_captions = None if geometry is None else {**asdict(geometry), "near": _counted(geometry.near)}
    leaks = inspection.leaks
    leak = ("kind", "earlier", "later", "count")
    found = {
        **asdict(inspection.inventory),
        "files": of_files,
        "leaks": None if leaks is None else [{name: getattr(found, name) for name in leak} for found in leaks],
        "captions_by_model": of_captions,
        "pairs_by_model": None if inspection.fit is None else asdict(inspection.fit),
        "suggestions": [asdict(suggestion) for suggestion in inspection.suggestions],
        "findings": [asdict(finding) for finding in inspection.findings],
    }
    cleaned: dict[str, Any] = _without_nan(found)
    return cleaned


def _same_captions(records: Sequence[Record]) -> tuple[list[list[int]], list[list[int]]]:
    """Rows with an equal caption; rows whose captions are equal only once normalised."""
    equal = same([[caption_key(caption) for caption in record.captions] for record in records])
    known = {tuple(group) for group in equal}
    alike = same([[normal_caption(caption) for caption in record.captions] for record in records])
    return equal, [group for group in alike if tuple(group) not in known]


def _counted(near: Near) -> dict[str, int]:
    return {"groups": len(near.groups), "in_groups": sum(len(group) for group in near.groups), "pairs": len(near.pairs)}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
