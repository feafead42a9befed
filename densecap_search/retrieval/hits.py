"""What a search finds, and how tables and JSON lines give it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from densecap_search.retrieval.strength import Strength

COLUMNS = ("rank", "score", "image_id", "image", "caption")
MATCH_COLUMNS = ("match", "by", "strength")  # after those, where captions were searched


@dataclass(frozen=True)
class Hit:
    """One found picture; rank counts from 1, number is the picture's own in the index.

    score: its cosine with the query's vector, None where the query has none. Where captions were searched too, match:
    how far it stands above the mean of all pictures, in spreads, and rank follows it; by: which of RANKINGS said most
    for it; strength: how sure that is, None where the archive has too few captions to say. under: further hits that are
    nearly the same picture, where stacks were asked for.
    """

    rank: int
    score: float | None
    image_id: str
    image: str
    caption: str
    number: int = -1
    match: float | None = None
    by: str | None = None
    strength: Strength | None = None
    under: tuple[Hit, ...] = ()

    def told(self) -> dict[str, Any]:
        """What leaves the program: not its number, which is not lasting, and of a match only where there is one."""
        values = asdict(self)
        own = {name: values[name] for name in (*COLUMNS, *(MATCH_COLUMNS if self.match is not None else ()))}
        return {**own, "under": [hit.told() for hit in self.under]} if self.under else own
