"""All that one evaluation has to tell: reports, comparisons, an index, what was kept of another collection."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from densecap_search.collection.feedback import FEW
from densecap_search.evaluation.compare import Comparison
from densecap_search.evaluation.evaluate import Report
from densecap_search.evaluation.index_recall import IndexRecall


@dataclass(frozen=True)
class Mixtures:
    """R@1 in percent, mean of both directions, of α·(the model) + (1 − α)·(the model before), on both collections."""

    alphas: tuple[float, ...]
    target: tuple[float, ...]
    retained: tuple[float, ...]


@dataclass(frozen=True)
class Retention:
    """A second collection, measured with the model and with the one before: what fine-tuning has cost there."""

    now: Report
    before: Report
    comparison: Comparison
    mixtures: Mixtures | None  # None: the two are of different architectures

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return {"collection": self.now.collection, "now": self.now.as_json(), "before": self.before.as_json(),
                "difference": self.comparison.as_json(),
                "mixtures": None if self.mixtures is None else asdict(self.mixtures)}


@dataclass(frozen=True)
class EvaluationOutcome:
    """reports: of the model, and of those it is compared with; comparisons: of the first with each of the others."""

    reports: tuple[Report, ...]
    comparisons: tuple[Comparison, ...] = ()
    index: IndexRecall | None = None
    retention: Retention | None = None

    def as_json(self) -> list[dict[str, Any]]:
        """One object a model; what concerns the first and others is in the first one's."""
        first: dict[str, Any] = self.reports[0].as_json()
        if self.comparisons:
            first["against"] = [comparison.as_json() for comparison in self.comparisons]
        if self.index:
            first["index"] = self.index.as_json()
        if self.retention:
            first["retention"] = self.retention.as_json()
        return [first, *(report.as_json() for report in self.reports[1:])]


def few_questions(report: Report) -> str:
    """A sentence where a figure of answers to searches tells next to nothing; else none."""
    found, few = report.text_to_image.figures["R@1"], report.text_to_image.queries
    return "" if few >= FEW else (
        f"{few} question{'s are' if few != 1 else ' is'} too few to tell (at least {FEW}): R@1 of text→image may be "
        f"anything from {found.low:.0f} to {found.high:.0f} %")
