"""What people teach through the page: which picture was meant. It is kept beside the index, on the server's machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from densecap_search.collection.feedback import Answer, feedback_file, keep_answer
from densecap_search.errors import DensecapError
from densecap_search.ui.finding import check_caption
from densecap_search.ui.live import Shown


@dataclass(frozen=True)
class Teaching:
    """folder: of the index, beside which the answers are kept."""

    folder: Path

    @property
    def feedback(self) -> Path:
        """The file of answers."""
        return feedback_file(self.folder)

    def keep(self, shown: Shown, query: str, answer: Literal["this", "none", "undo"], picture: str | None,
             rank: int | None, hits: int) -> None:
        """Append what somebody said of the hits of a query. picture: as the page names it; rank, hits: where, of how
        many.
        """
        row = shown.row(picture) if picture else None
        if picture and row is None:
            raise DensecapError("the index has no such picture; search again")
        if (answer == "this" and row is None) or (answer == "none" and row is not None):
            raise DensecapError('"this" names a picture, and "none" names none')
        said = Answer(check_caption(query), answer, datetime.now(timezone.utc).isoformat(timespec="seconds"),
                      str(self.folder.resolve() / shown.generation), shown.searcher.encoder.name,
                      shown.index.manifest.fingerprint, rank=rank, shown=hits)
        if row is not None:
            said = replace(said, image_id=row.image_id, image=row.image, hash=row.hash)
        try:
            keep_answer(self.feedback, said)
        except OSError as error:
            raise DensecapError(f"the answer cannot be kept in {self.feedback.name}: {error.strerror}") from error
