"""The index behind the page, which follows its folder: a new generation is taken up without a restart."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath

from densecap_search.errors import DensecapError, IndexFolderError
from densecap_search.retrieval.caption_store import load_captions
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.index_folder import CURRENT
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.searcher import Searcher

EXAMPLES, LOOKED_AT = 3, 60  # captions that are shown, out of so many pictures
EXAMPLE_LETTERS = (30, 400)  # of a caption that is shown as an example


@dataclass(frozen=True)
class Shown:
    """One generation of an index as the page shows it."""

    searcher: Searcher

    @property
    def index(self) -> ImageIndex:
        """The index that is searched."""
        return self.searcher.index

    @property
    def generation(self) -> str:
        """As its folder names it."""
        return self.index.place.name

    @property
    def model(self) -> str:
        """By which it was made; of a run folder its last part, for where it lies is nobody's business."""
        return PurePath(self.index.manifest.model.name).name

    @property
    def count(self) -> int:
        """Pictures in the index."""
        return len(self.index)

    def row(self, picture: str) -> Row | None:
        """What the index knows of a picture, by the name that :func:`picture_name` gives; None if it has none such."""
        number, _, content = picture.partition("-")
        if not number.isdecimal() or len(number) > 18:
            return None
        try:
            row = self.index.rows[int(number)]
        except IndexFolderError:
            return None
        return row if row.hash == content else None

    @cached_property
    def root(self) -> str:
        """The innermost folder that holds all pictures: what the first and the last of all paths have in common."""
        ((first, last),) = self.index.rows.query("SELECT min(image), max(image) FROM pictures")
        try:
            return os.path.commonpath([os.path.dirname(os.fsdecode(path)) for path in (first, last)])  # noqa: PTH120
        except (ValueError, TypeError):  # on several drives; no pictures
            return ""

    def path(self, image: str, absolute: bool) -> str:
        """A picture's place as it may be shown: whole, or from the folder of all pictures on."""
        if absolute:
            return image
        return os.path.relpath(image, self.root) if self.root else PurePath(image).name

    @cached_property
    def examples(self) -> tuple[str, ...]:
        """Captions from the archive, spread over it, of a length that can be read at a glance."""
        low, high = EXAMPLE_LETTERS
        numbers = self.index.numbers
        rows = self.index.rows.many(numbers[:: max(1, len(numbers) // LOOKED_AT)].tolist())
        captions = [caption for row in rows for caption in row.captions[:1] if caption.strip()]
        fitting = ([caption for caption in captions if low <= len(caption) <= high]
                   or [caption[:high] for caption in captions])
        step = max(1, len(fitting) // EXAMPLES)
        return tuple(dict.fromkeys(fitting[step // 2::step][:EXAMPLES]))


def picture_name(row: Row) -> str:
    """Which picture of the index and which content it had: never another picture, even after a new generation."""
    return f"{row.number}-{row.hash}"


class LiveIndex:
    """``shown`` is what to search now; :meth:`refresh` looks whether the folder names another generation.

    load: opens the folder with the encoder that its manifest names; now, and again where that has changed.
    """

    def __init__(self, load: Callable[[], Searcher]) -> None:
        self.shown = Shown(load())
        self.problem = ""  # why the newest generation is not shown, in a sentence
        self._open = load
        self._refused = ""

    @property
    def folder(self) -> Path:
        """The index folder."""
        return self.shown.index.folder

    def refresh(self) -> bool:
        """Take up the generation that CURRENT names; True if it is another one. What cannot be loaded is left."""
        try:
            named = (self.folder / CURRENT).read_text(encoding="utf-8").strip()
        except OSError:
            return False  # the folder is being moved or is gone; what is loaded still answers
        if named == self._refused:
            return False
        try:
            if named == self.shown.generation:
                return self._captions_came()
            self.shown, self.problem = Shown(self._load()), ""
        except (DensecapError, OSError, ValueError) as error:
            self.problem, self._refused = f"the index has changed and cannot be read: {error}", named
            return False
        return True

    def _captions_came(self) -> bool:
        """Captions are added to a generation after it has been named, since they take longer."""
        before = self.shown.searcher
        captions = load_captions(before.index) if before.captions is None else None
        if captions is not None:
            self.shown = Shown(replace(before, captions=captions))
        return captions is not None

    def _load(self) -> Searcher:
        index, before = load_index(self.folder), self.shown.searcher
        if index.manifest.fingerprint == before.index.manifest.fingerprint:
            return replace(before, index=index, captions=load_captions(index))
        return self._open()
