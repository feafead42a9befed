"""What a search needs of an encoder: captions in, vectors out. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from densecap_search.model.segments import Array, Segments

Tower = Literal["image", "text"]


class TextEncoder(Protocol):
    """The text side of a :class:`DualEncoder`, which a :class:`QueryEncoder` has too."""

    tokenizer: Any

    @property
    def name(self) -> str:
        """Where the encoder came from, in words."""

    @property
    def dim(self) -> int:
        """Width of the shared space."""

    @property
    def context_length(self) -> int:
        """Tokens that the text tower reads."""

    @property
    def long_text(self) -> str:
        """What becomes of captions beyond the window, of LONG_TEXT."""

    def segments(self, captions: Sequence[str]) -> Segments:
        """The parts in which captions are read."""

    def lengths(self, captions: Sequence[str]) -> Sequence[int]:
        """The tokens that each caption would have without a window."""

    def text_outputs(self, captions: Sequence[str]) -> Array:
        """What the text tower hands to its head, float32 [N, W]."""

    def through_head(self, tower: Tower, rows: Array) -> Array:
        """Tower outputs [N, W] → float32 unit rows [N, D]."""

    def tower_fingerprint(self, tower: Tower) -> str:
        """A hash of what decides the outputs of a tower."""
