"""Tables in a folder of pictures: which files may be one, which are its parts, and what is left unread."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from densecap_search.collection.records import Skipped
from densecap_search.collection.side_files import ENDINGS as SIDE_ENDINGS
from densecap_search.collection.source import Row, Source
from densecap_search.collection.splits import SPLITS, normal_split

_ENDINGS = (".csv", ".tsv", ".jsonl", ".jsonlines", ".ndjson", ".json", ".parquet", ".arrow", ".xlsx", ".xlsm", ".txt",
            ".token", ".xml", ".tar", "")
_DEEP = 3  # folders below the one that was given: data/train/metadata.csv
_MANY = 64  # files that may be tables: more are something else, and reading them all takes long
_WORD = re.compile(r"(?<![a-z])(train(?:ing)?|val(?:id(?:ation)?)?|dev|test(?:ing)?)(?![a-z])", re.IGNORECASE)
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(_ENDINGS, "give the file itself to read it as a table"),
    **dict.fromkeys(SIDE_ENDINGS, ""),
    **dict.fromkeys((".zip", ".gz", ".7z", ".rar", ".bz2", ".xz", ".tgz"), "unpack it first"),
    **dict.fromkeys((".eps", ".ps", ".wmf", ".emf", ".svg", ".pdf"), "a drawing, not a picture"),
}
_SYSTEM_FILES = frozenset(("thumbs.db", "desktop.ini", "ehthumbs.db", "readme", "license"))


@dataclass(frozen=True)
class Part:
    """A file that is a table, or a part of one. notes: what its reader said. inside: goes before ids that it gives."""

    source: Source
    kind: str
    rows: tuple[tuple[int, Row | Skipped], ...]
    notes: tuple[str, ...] = ()
    split: str | None = None
    inside: str = ""

    def numbered(self, before: int) -> list[tuple[int, Row | Skipped]]:
        """The rows, their numbers after those of the parts before, with the split that the file's name says."""
        return [(before + number, self._row(row, before)) for number, row in self.rows]

    def _row(self, row: Row | Skipped, before: int) -> Row | Skipped:
        if isinstance(row, Skipped):
            return replace(row, row=None if row.row is None else before + row.row)
        own = {"split": self.split} if self.split and not row.get("split") else {}
        return {**row, **own, **({"id": self.inside + row["id"]} if self.inside and "id" in row else {})}


def may_be_tables(source: Source) -> list[Path]:
    """Files of a folder, not too deep, that end as tables do and are no side files; none where they are very many."""
    sides = _side_files(source)
    tables = [path for path in source.other_files() if path.suffix.lower() in _ENDINGS and path not in sides
              and path.name.lower() not in _SYSTEM_FILES and len(path.relative_to(source.path).parts) <= _DEEP]
    return tables if len(tables) <= _MANY else []


def parts_of(parts: Sequence[Part], source: Source) -> tuple[Part, ...] | None:
    """One table, or several files that are its parts: of one format, told apart by a split's name or a number only."""
    if not parts:
        return None
    if len(parts) == 1:
        inside = parts[0].source.path.parent.relative_to(source.path).parts
        split = next((word for part in inside if (word := normal_split(part)) in SPLITS), None)
        return (replace(parts[0], split=split),)
    places = [part.source.path for part in parts]
    held = all(part.kind in ("parquet", "arrow", "webdataset") for part in parts)  # their pictures, wherever they lie
    alike = {(part.kind, None if held else path.parent, _bare(path.stem))
             for part, path in zip(parts, places, strict=True)}
    if len(alike) > 1:
        names = ", ".join(os.path.relpath(path, source.path) for path in places[:4]) + ", …" * (len(places) > 4)
        source.notes.append(f"{len(places)} tables lie there ({names}), so none is taken; give one itself")
        return None
    apart = len({path.parent for path in places}) > 1  # then several may have one name
    return tuple(replace(part, split=_split_of(path),
                         inside=f"{path.parent.relative_to(source.path).as_posix()}/" if apart else "")
                 for part, path in zip(parts, places, strict=True))


def tell_unread(source: Source, kind: str) -> None:
    """By ending and count, what lies below a folder and was not read, with what would read it; what was left out.

    kind: the format that the folder was read in.
    """
    kinds: dict[str, list[Path]] = {}
    sides = _side_files(source)
    for path in source.other_files():
        if path not in source.done and path.name.lower() not in _SYSTEM_FILES:
            kinds.setdefault(path.suffix.lower() or path.name, []).append(path)
    kinds = dict(sorted(kinds.items(), key=lambda item: -len(item[1])))
    shown = []
    for ending, paths in list(kinds.items())[:8]:
        names = ", ".join(os.path.relpath(path, source.path) for path in paths[:3]) + ", …" * (len(paths) > 3)
        hint = _HINTS.get(ending, "")
        if ending in SIDE_ENDINGS and not sides.isdisjoint(paths):
            hint = "" if kind == "folder" else "--format folder reads them"
        shown.append(f"{len(paths)} {ending} ({names}{f'; {hint}' if hint else ''})")
    if shown:
        more = f" and {len(kinds) - 8} more endings" if len(kinds) > 8 else ""
        source.notes.append(f"not read: {', '.join(shown)}{more}")
    if source.left:
        names = ", ".join(os.path.relpath(path, source.path) for path in source.left[:3])
        names += ", …" * (len(source.left) > 3)
        source.notes.append(f"left out, as asked for: {names} ({len(source.left)})")


def _side_files(source: Source) -> set[Path]:
    return {side for pair in source.pictures if not isinstance(pair, Skipped) for side in pair[1]}


def _bare(stem: str) -> str:
    """A file's stem without the words for splits and without numbers."""
    return re.sub(r"\d+|-of-|[-_. ]", "", _WORD.sub("", re.sub(r"(?<=[a-z])(?=\d)", " ", stem.lower())))


def _split_of(path: Path) -> str | None:
    match = _WORD.search(re.sub(r"(?<=[A-Za-z])(?=\d)", " ", path.stem)) or _WORD.fullmatch(path.parent.name)
    return normal_split(match[1]) if match else None
