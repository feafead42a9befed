"""Rows as they stand in a file become records: which column is what, where the picture lies, which rows are one."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from densecap_search.collection.places import Located, is_address, locate
from densecap_search.collection.records import Record, Skipped
from densecap_search.collection.source import Row
from densecap_search.collection.splits import most_held_out, normal_split
from densecap_search.config import Reading
from densecap_search.errors import CollectionError

IMAGE_COLUMNS = ("image", "filename", "file_name", "filepath", "path", "original_filename", "image_file", "image_name",
                 "image_path", "image_filename", "img", "img_path", "img_name", "file", "file_path", "photo", "picture",
                 "image/key", "images", "image_id")
CAPTION_COLUMNS = ("caption", "captions", "text", "description", "title", "original_caption")
OTHER_CAPTION_COLUMNS = ("comment", "comments", "sentence", "sentences", "raw", "paragraph", "long_caption",
                         "detailed_caption", "dense_caption", "image_caption", "caption_text", "image_description",
                         "alt_text", "iiw", "prompt")  # only where a table has none of the above
OWN_COLUMNS = ("id", "split", "group", "burst")
FETCH = "these are addresses, not files; fetch them first, for example with img2dataset"
_LISTS = ("captions", "comments", "sentences", "raw")  # columns whose text may be a list, as JSON
_IN_AN_OBJECT = ("raw", "text", "caption", "value", "description")  # where a caption that is an object has its text
_LOOKED_AT = 100  # rows that tell which column holds sentences


@dataclass(frozen=True)
class _Columns:
    """The names, as the file spells them, of the columns that mean something to us."""

    image: str
    captions: tuple[tuple[str, ...], ...]  # the first of these groups that a row has text in is the row's
    own: Mapping[str, str]  # our word → the file's


@dataclass
class _Draft:
    """Rows of one picture, while they come."""

    record: Record
    captions: dict[str, None]
    rows: list[int]
    said: dict[str, list[str]] = field(default_factory=dict)  # our word → what its rows say
    blank: list[int] = field(default_factory=list)  # rows without a caption


def matches(name: str, words: Sequence[str | None]) -> bool:
    """Whether a column is called one of these, whatever its case and the blanks around it."""
    return str(name).strip().lower() in [str(word).strip().lower() for word in words]


def make_records(
    rows: Sequence[tuple[int, Row | Skipped]], path: Path, folders: Sequence[Path], reading: Reading,
    pictures: Callable[[], Iterable[Path]], notes: list[str], excluded: Callable[[str], bool] = lambda image: False,
) -> tuple[list[Record], list[Skipped]]:
    """Records in the order of their first rows, and what was left out.

    folders: where relative picture paths are looked up, in turn, the table's own first. pictures: what may be meant
    where no folder has a path. notes: gets what should be said of how it was read.
    """
    columns = _columns([row for _, row in rows if not isinstance(row, Skipped)], path, reading, notes)
    cells = {number: _cell(row.get(columns.image)) for number, row in rows if not isinstance(row, Skipped)}
    located, ways = locate((cell for cell in cells.values() if cell is not None and cell.strip()), folders, pictures)
    _tell_places(ways, folders[0], path, notes)
    skipped: list[Skipped] = []
    drafts: dict[int, _Draft] = {}  # by file: links to a picture are that picture
    numbers: list[int] = []
    linked = 0
    for number, row in rows:
        record = row if isinstance(row, Skipped) else _record(row, number, cells[number], located, folders[0], columns)
        if not isinstance(record, Skipped) and excluded(str(record.image)):
            record = Skipped(record.image_id, "left out, as asked for", number)
        if isinstance(record, Skipped):
            skipped.append(record)
            continue
        numbers += _not_a_number(row, columns) * [number]
        place = located[cells[number] or ""]
        assert isinstance(place, Located)  # without one the row was skipped
        linked += not _add(drafts, place.file, record)
    if linked:
        notes.append(f"{_count(linked, 'row')} of links to pictures that are there already")
    _refuse_addresses(drafts, skipped, path)
    _tell_rows(drafts.values(), numbers, notes)
    return [_finished(draft) for draft in drafts.values()], skipped


def _columns(rows: Sequence[Row], path: Path, reading: Reading, notes: list[str]) -> _Columns:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    image = _named(columns, reading.image_column, "--image-column", path) or _called(columns, IMAGE_COLUMNS)
    named = tuple(name for option in reading.caption_column
                  if (name := _named(columns, option, "--caption-column", path)) is not None)
    if image in named:
        raise CollectionError(f"{path}: the column {image} names the pictures and cannot hold the captions too; "
                              f"columns found: {_listed(columns)}")
    groups = (named,) if named else _caption_groups(columns, CAPTION_COLUMNS) or _caption_groups(
        columns, OTHER_CAPTION_COLUMNS)
    groups = tuple(group for names in groups if (group := tuple(name for name in names if name != image)))
    if rows and image is None:
        far = next((name for name in columns if is_address(name) or _holds_addresses(rows, name)), None)
        if far is not None:
            raise CollectionError(f"{path}: no column names files; in {_short(far)}, {FETCH}")
        raise CollectionError(f"{path}: no column names the pictures; columns found: {_listed(columns)}; "
                              "say which one with --image-column NAME")
    own = {word: name for word in OWN_COLUMNS
           if (name := _called(columns, (word,))) not in (None, image, *(name for group in groups for name in group))}
    if rows and not groups and len(columns) > 1:
        lone = _columns_of_sentences(rows, [name for name in columns if name not in (image, *own.values())])
        if len(lone) == 1:
            groups = ((lone[0],),)
            notes.append(f"captions from the column {_short(lone[0])}, the only one that holds sentences")
        else:
            notes.append(_no_captions(columns))
    if rows and not groups and not path.is_dir():
        raise CollectionError(f"{path}: {_no_captions(columns)}")
    return _Columns(image or "image", groups, {word: name for word, name in own.items() if name})


def _no_captions(names: Sequence[str]) -> str:
    return f"no column holds captions; columns found: {_listed(names)}; say which one with --caption-column NAME"


def _named(names: Sequence[str], wanted: str | None, option: str, path: Path) -> str | None:
    if wanted is None or not names:
        return None
    name = _called(names, (wanted,))
    if name is None:
        raise CollectionError(f"{path}: {option} {wanted} is not there; columns found: {_listed(names)}")
    return name


def _called(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for word in wanted for name in names if matches(name, (word,))), None)


def _caption_groups(names: Sequence[str], words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """For each word the columns called so, or so with a number: caption, caption_1, caption (2)."""
    groups = (tuple(name for name in names if re.fullmatch(
        rf"\s*{word}(\s*[_\- ]?\d+|\s*\(\d+\))?\s*", str(name), re.IGNORECASE)) for word in words)
    return tuple(group for group in groups if group)


def _columns_of_sentences(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The columns whose values are text, of three words or more on average."""
    lone = []
    for name in names:
        values = [row[name] for row in rows[:_LOOKED_AT] if row.get(name) not in (None, "")]
        texts = [value for value in values if isinstance(value, str) and not is_address(value)]
        if values and len(texts) == len(values) and sum(len(text.split()) for text in texts) >= 3 * len(texts):
            lone.append(name)
    return lone


def _holds_addresses(rows: Sequence[Row], name: str) -> bool:
    values = [row[name] for row in rows[:_LOOKED_AT] if row.get(name) not in (None, "")]
    return bool(values) and sum(map(is_address, values)) * 2 > len(values)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:30])
    return f"{shown}, … ({len(names)})" if len(names) > 30 else shown or "none"


def _short(name: object) -> str:
    text = "".join(letter if letter.isprintable() else "�" for letter in str(name))
    return text if len(text) <= 60 else f"{text[:59]}…"


def _cell(value: Any) -> str | None:
    """The name of a picture: text, a number, a list of one, or an object with its path. None: no name."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and value.get("bytes") is None:
        value = value.get("path")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _record(row: Row, number: int, cell: str | None, located: Mapping[str, Located | str], folder: Path,
            columns: _Columns) -> Record | Skipped:
    value = row.get(columns.image)
    if cell is None or not cell.strip():
        return Skipped("", _why_no_picture(value, columns.image), number)
    place = located[cell]
    own = {word: _word(row.get(name)) for word, name in columns.own.items()}
    group, captions = _own_captions(row, columns)
    if captions is None:
        return Skipped(cell, f"the column {_short(group[0])} holds no text", number)
    if isinstance(place, str):
        return Skipped(cell, place, number)
    used = {columns.image, *group, *columns.own.values()}
    return Record(
        image_id=own.get("id") or image_id(place.image, os.path.abspath(folder), place.folder),
        image=Path(place.image),
        captions=captions,
        split=normal_split(own.get("split")),
        group=own.get("group"),
        burst=own.get("burst"),
        columns={key: item for key, item in row.items() if key not in used and _is_plain(item)},
        rows=(number,),
    )


def _why_no_picture(value: Any, column: str) -> str:
    if isinstance(value, (dict, bytes)):
        return f"the column {_short(column)} holds pictures, not their names; write them to files"
    if isinstance(value, list) and len(value) > 1:
        return f"the column {_short(column)} names {len(value)} pictures; a row is about one"
    return f"the column {_short(column)} is empty"


def _own_captions(row: Row, columns: _Columns) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The group of columns that the row has text in, and its captions; None where a value is no text at all."""
    wrong: tuple[str, ...] = ()
    for group in columns.captions:
        parts = [_captions(row.get(name), name) for name in group]
        if any(part is None for part in parts):
            wrong = wrong or group
        elif captions := tuple(dict.fromkeys(text for part in parts if part for text in part)):
            return group, captions
    return (wrong, None) if wrong else (columns.captions[0] if columns.captions else (), ())


def _captions(value: Any, column: str) -> tuple[str, ...] | None:
    """One caption or a list of them; blank ones are none. None where the value is no text at all."""
    if value is None or _is_nan(value):
        return ()
    if isinstance(value, str) and value.startswith('["') and matches(column, _LISTS):
        value = _json_list(value)
    items = [_text_in(item) for item in (value if isinstance(value, list) else [value])]
    if not all(isinstance(item, str) for item in items):
        return None
    return tuple(dict.fromkeys(item for item in items if item.strip()))


def _json_list(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text_in(item: Any) -> Any:
    """The text of a caption that is an object with one."""
    if not isinstance(item, dict):
        return item
    return next((item[key] for key in _IN_AN_OBJECT if isinstance(item.get(key), str)), item)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _not_a_number(row: Row | Skipped, columns: _Columns) -> bool:
    """Whether a caption is missing as programs write it that know only numbers."""
    return not isinstance(row, Skipped) and any(_is_nan(row.get(name)) for group in columns.captions for name in group)


def _add(drafts: dict[int, _Draft], file: int, record: Record) -> bool:
    """Whether the picture is new, or known by the same path."""
    draft = drafts.get(file)
    if draft is None:
        draft = drafts[file] = _Draft(record, dict.fromkeys(record.captions), list(record.rows))
    else:
        draft.captions.update(dict.fromkeys(record.captions))
        draft.rows.extend(record.rows)
        draft.record = replace(draft.record, columns={**record.columns, **draft.record.columns})
    draft.blank += record.rows if not record.captions else ()
    same_path = draft.record.image == record.image
    for word in ("image_id", "split", "group", "burst") if same_path else ("split", "group", "burst"):
        value = getattr(record, word)
        said = draft.said.setdefault(word, [])
        if value is not None and value not in said:
            said.append(value)
    return same_path


def _finished(draft: _Draft) -> Record:
    """One record; of contradicting splits the most held-out one, of everything else what stands first."""
    group, burst = (next(iter(draft.said[word]), None) for word in ("group", "burst"))
    return replace(draft.record, captions=tuple(draft.captions), rows=tuple(draft.rows), group=group, burst=burst,
                   split=most_held_out(draft.said["split"]))


def _tell_places(ways: Counter[str], folder: Path, path: Path, notes: list[str]) -> None:
    for place, count in ways.items():
        if place == "by name":
            notes.append(f"{_count(count, 'picture')} found by {'its name' if count == 1 else 'their names'} below "
                         f"{folder}")
        elif place != os.path.abspath(folder):
            notes.append(f"{_count(count, 'picture')} found in {os.path.relpath(place, folder)}")


def _tell_rows(drafts: Iterable[_Draft], numbers: Sequence[int], notes: list[str]) -> None:
    """What rows of one picture disagree about, and captions that are missing."""
    words = {"image_id": "ids; the first is taken", "group": "groups; the first is taken",
             "burst": "bursts; the first is taken",
             "split": "splits; the most held-out one is taken (test before val before train)"}
    drafts = list(drafts)
    for word, said in words.items():
        torn = [draft.record.image_id for draft in drafts if len(draft.said[word]) > 1]
        if torn:
            notes.append(f"{_count(len(torn), 'picture')} with rows of different {said} ({', '.join(torn[:3])})")
    blank = sorted(row for draft in drafts if draft.captions for row in draft.blank)
    if blank:
        notes.append(f"{_count(len(blank), 'row')} without a caption beside one with ({_rows(blank)})")
    if numbers:
        notes.append(f"{_count(len(numbers), 'row')} with NaN for a caption, that is none ({_rows(numbers)})")


def _refuse_addresses(drafts: Mapping[int, _Draft], skipped: Sequence[Skipped], path: Path) -> None:
    if not drafts and any(is_address(skip.path) for skip in skipped):
        raise CollectionError(f"{path}: {FETCH}")


def _rows(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"row{'s' * (len(numbers) > 1)} {shown}{', …' if len(numbers) > 5 else ''}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def image_id(image: str, folder: str, place: str) -> str:
    """The path from the table's folder; else from the folder above the place where it was looked up; else whole."""
    bases = [folder] if place == folder else [folder, str(Path(place).parent)]
    inside = next((base for base in bases if image.startswith(base.rstrip(os.sep) + os.sep)), None)
    name = image if inside is None else image[len(inside.rstrip(os.sep)) + 1:]
    return unicodedata.normalize("NFC", name.replace(os.sep, "/"))


def _word(value: Any) -> str | None:
    text = "" if value is None or isinstance(value, (dict, list)) or _is_nan(value) else str(value).strip()
    return text or None


def _is_plain(value: Any) -> bool:
    """Whether a column can hold it; an empty text is no value, as an empty cell is none, nor is NaN or Infinity."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""
