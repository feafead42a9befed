"""Tables in JSON: a list of objects, one object a line, or one object with a picture a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from densecap_search.collection.records import Skipped
from densecap_search.collection.source import Row, Rows, Source
from densecap_search.collection.text_files import TABLE_BYTES, decode, parse_json, text_lines
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError
from densecap_search.files import read_bytes


def is_captions_by_name(source: Source) -> str | None:
    """One object, most of whose keys are names of pictures."""
    value = source.value
    if not isinstance(value, Mapping) or not value:
        return None
    named = sum(is_picture(key) for key in value)
    return "one JSON object with a picture a key" if 2 * named >= len(value) else None


def read_captions_by_name(source: Source) -> Rows:
    """`{"a.jpg": "…" | ["…"] | {"caption": …}}`: a key is a row."""
    if not isinstance(source.value, Mapping):
        raise CollectionError(f"{source.path} is not one JSON object; choose another --format")
    for number, (name, said) in enumerate(source.value.items(), start=1):
        yield number, {**said, "image": name} if isinstance(said, dict) else {"image": name, "captions": said}


def read_objects(source: Source) -> Rows:
    """The objects of a JSON list or of JSON Lines, whichever it is."""
    return read_json(source) if source.text.lstrip().startswith("[") else read_jsonl(source)


def is_jsonl(source: Source) -> str | None:
    """A file that begins with an object."""
    return "one JSON object a line" if source.text.lstrip().startswith("{") else None


def read_jsonl(source: Source) -> Rows:
    """One JSON object a line."""
    if isinstance(source.value, dict) and "\n" in source.text.strip():
        raise CollectionError(f"{source.path} is one JSON object; a list of objects, or one object a line, "
                              "was expected")
    for number, line in enumerate((line for line in text_lines(source.path) if line.strip()), start=1):
        try:
            yield number, as_row(parse_json(line), number)
        except ValueError as error:
            yield number, Skipped("", f"not JSON ({error})", number)


def is_json(source: Source) -> str | None:
    """A list of objects, or an object that holds one such list and nothing like it."""
    if source.text.lstrip().startswith("["):
        return "a JSON list of objects"
    key = _list_key(source.value)
    return None if key is None else f"a JSON list of objects, below the key {key!r}"


def read_json(source: Source) -> Rows:
    """A JSON list of objects."""
    key = _list_key(source.value)
    items = source.value if key is None else source.value[key]
    if items is None:
        try:
            items = parse_json(decode(read_bytes(source.path, TABLE_BYTES)))
        except ValueError as error:
            raise CollectionError(f"{source.path} is not JSON: {error}") from error
    if not isinstance(items, list):
        raise CollectionError(f"{source.path} holds no JSON list of objects, but {_kind(items)}")
    for number, item in enumerate(items, start=1):
        yield number, as_row(item, number)


def as_row(item: Any, number: int) -> Row | Skipped:
    """An object as a row; anything else is skipped."""
    return item if isinstance(item, dict) else Skipped("", f"an object was expected, not {type(item).__name__}", number)


def _list_key(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    keys = [key for key, items in value.items() if isinstance(items, list) and items and isinstance(items[0], dict)]
    return keys[0] if len(keys) == 1 else None


def _kind(value: Any) -> str:
    return "one object" if isinstance(value, dict) else f"a single {type(value).__name__}"
