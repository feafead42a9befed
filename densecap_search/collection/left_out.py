"""What a user does not want read: patterns given, an ignore file at the root, folders marked with .nomedia."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pathspec import GitIgnoreSpec

from densecap_search.collection.text_files import text_lines
from densecap_search.errors import CollectionError
from densecap_search.files import is_file

IGNORE_FILE = ".densecapignore"  # patterns as in a .gitignore, at the root of a collection
NO_MEDIA = ".nomedia"  # Android's mark for a folder whose pictures no gallery shows

Excluded = Callable[[str], bool]  # a path, of a folder with a / at its end → whether it is left out


def left_out(folder: Path, patterns: Sequence[str]) -> Excluded:
    """Which paths below a folder are left out, by patterns and by the ignore file that lies in it."""
    file = folder / IGNORE_FILE
    lines = [line.rstrip("\r\n") for line in text_lines(file)] if is_file(file) else []
    if not lines and not patterns:
        return lambda path: False
    try:
        spec = GitIgnoreSpec.from_lines([*lines, *patterns])
    except ValueError as error:
        raise CollectionError(f"a pattern to leave files out cannot be read ({error}); they are written as in a "
                              ".gitignore") from error
    root = os.path.abspath(folder)

    def excluded(path: str) -> bool:
        inside = os.path.relpath(path, root)
        return not inside.startswith("..") and spec.match_file(inside + "/" * path.endswith("/"))

    return excluded
