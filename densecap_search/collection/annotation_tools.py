"""What programs for annotating write, where they hold captions: Label Studio's tasks, CVAT's XML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from densecap_search.collection.json_tables import read_objects
from densecap_search.collection.records import Skipped
from densecap_search.collection.rows import IMAGE_COLUMNS, matches
from densecap_search.collection.source import Row, Rows, Source
from densecap_search.collection.splits import normal_split
from densecap_search.collection.text_files import TABLE_BYTES
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError
from densecap_search.files import read_bytes

_SAY = ("caption", "captions", "description", "text", "comment")


def is_label_studio(source: Source) -> str | None:
    """A list of tasks: data, and annotations with results."""
    first = source.first
    tasks = isinstance(first.get("data"), dict) and any(
        isinstance(first.get(key), list) for key in ("annotations", "completions"))
    return "tasks with data and annotations" if tasks and source.text.lstrip().startswith("[") else None


def read_label_studio(source: Source) -> Rows:
    """A task is a row; every text that somebody wrote into one is a caption. Cancelled annotations are not read."""
    for number, task in read_objects(source):
        if isinstance(task, Skipped):
            yield number, task
            continue
        held = task.get("data")
        data: Mapping[str, Any] = held if isinstance(held, dict) else {}
        image = _picture_in(data)
        plain = {key: value for key, value in data.items() if key != image}
        yield number, {**plain, "image": data.get(image or ""), "captions": list(_texts(task)) or plain.get("caption")}


def _picture_in(data: Mapping[str, Any]) -> str | None:
    """The key of a task's data that names its picture."""
    named = [key for key in data if matches(key, IMAGE_COLUMNS)]
    like = [key for key, value in data.items() if isinstance(value, str) and is_picture(value.partition("?")[0])]
    local = [key for key, value in data.items() if isinstance(value, str) and "local-files/?d=" in value]
    return next(iter((*named, *like, *local)), None)


def _texts(task: Row) -> Iterator[str]:
    for annotation in (*_list(task.get("annotations")), *_list(task.get("completions"))):
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        for result in _list(annotation.get("result")):
            value = result.get("value") if isinstance(result, dict) else None
            texts = value.get("text") if isinstance(value, dict) else None
            yield from (text for text in (texts if isinstance(texts, list) else [texts]) if isinstance(text, str))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_cvat(source: Source) -> str | None:
    """XML of CVAT for images."""
    text = source.text.lstrip()
    return "XML with annotations of images" if text.startswith("<") and "<annotations>" in text[:2000] else None


def read_cvat(source: Source) -> Rows:
    """An image is a row; the attributes called caption, description or text are its captions."""
    try:
        tree = fromstring(read_bytes(source.path, TABLE_BYTES))
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise CollectionError(f"{source.path} is no whole XML: {error}") from error
    images = list(tree.iter("image"))
    if not any(captions for image in images if (captions := _written(image))):
        source.notes.append(f"no attribute is called {', '.join(_SAY)}, so there are no captions")
    for number, image in enumerate(images, start=1):
        yield number, {"image": image.get("name"), "captions": _written(image),
                       "split": normal_split(image.get("subset"))}


def _written(image: Element) -> list[str]:
    return [item.text for item in image.iter("attribute")
            if matches(item.get("name") or "", _SAY) and item.text and item.text.strip()]
