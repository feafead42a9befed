"""Conversations about pictures, as language models are trained on them: ShareGPT's and OpenAI's forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from densecap_search.collection.json_tables import read_objects
from densecap_search.collection.records import Skipped
from densecap_search.collection.rows import IMAGE_COLUMNS, matches
from densecap_search.collection.source import Row, Rows, Source

_TALKS = ("conversations", "messages")
_ANSWERERS = ("gpt", "assistant", "model")


def is_conversations(source: Source) -> str | None:
    """Objects, in a list or a line each, that hold `conversations` or `messages`."""
    key = next((key for key in _TALKS if isinstance(source.first.get(key), list)), None)
    lines = "a JSON list" if isinstance(source.value, list) else "JSON Lines"
    return f"{lines} with {key}" if key else None


def read_conversations(source: Source) -> Rows:
    """The first answer about a picture is its caption; later turns are about parts of it. Other keys are columns."""
    for number, row in read_objects(source):
        if isinstance(row, Skipped):
            yield number, row
            continue
        turns = [turn for key in _TALKS for turn in _list(row.get(key)) if isinstance(turn, Mapping)]
        said = (text for turn in turns if turn.get("from", turn.get("role")) in _ANSWERERS
                for text in _texts(turn.get("value", turn.get("content"))))
        yield number, {"image": _picture(row, turns), "caption": next(said, None), **(
            {"split": row["split"]} if "split" in row else {})}


def _picture(row: Row, turns: list[Mapping[str, Any]]) -> Any:
    words = [word for word in IMAGE_COLUMNS if word != "image_id"]
    own = next((value for key, value in row.items() if value and matches(key, words)), None)
    shown = (part.get("image") or part.get("path") for turn in turns for part in _list(turn.get("content"))
             if isinstance(part, Mapping) and part.get("type") == "image")
    return own or next(shown, None)


def _texts(content: Any) -> Iterator[str]:
    """The texts of a turn, which is one or a list of parts."""
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str) and text.strip():
            yield text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
