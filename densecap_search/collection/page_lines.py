"""Files in which the page keeps what people say: JSON Lines beside the index's folder, whose own files are the index's
alone. Each line says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from densecap_search.errors import DensecapError
from densecap_search.files import append_line, json_text

_MARK = "densecap"  # the key by which lines of ours are told


def file_beside(index: Path, kind: str) -> Path:
    """INDEX.KIND.jsonl."""
    folder = index.resolve()
    return folder.with_name(f"{folder.name}.{kind}.jsonl")


def keep_line(path: Path, kind: str, said: Mapping[str, Any], *, most_bytes: int) -> None:
    """Append what was said, whole or not at all. Errors: DensecapError where the file cannot be written or is full."""
    try:
        append_line(path, json_text({_MARK: kind, **said}), most_bytes=most_bytes)
    except OSError as error:
        raise DensecapError(f"{path.name} cannot be written: {error.strerror}; what was said is not kept") from error


def is_line(kind: str, value: Any) -> bool:
    """Whether a value that was read from JSON is a line of a kind."""
    return isinstance(value, Mapping) and value.get(_MARK) == kind
