"""What the text tower makes of captions, before its head, compared without what all captions of an archive share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from densecap_search.embedding.cache import Array

SHRINK = 10.0  # added to each direction's share of the variance, in units of the mean share


@dataclass(frozen=True)
class CaptionSpace:
    """(x − mean) · turn for unit rows x [N, W], then to length 1 again.

    What all captions of an archive share says nothing about one of them, and the few directions in which most of them
    differ count less beside the others. Only a little less: how SHRINK was chosen, docs/results.md shows.
    """

    mean: Array  # [W]
    turn: Array  # [W, W]

    @classmethod
    def of(cls, rows: Array, shrink: float = SHRINK) -> CaptionSpace:
        """Learned from captions [N, W]: turn = V·(λ/λ̄ + shrink)^−½·Vᵀ of their covariance V·λ·Vᵀ."""
        units = unit(rows).astype(np.float64)
        mean = units.mean(axis=0) if len(units) else np.zeros(rows.shape[1])
        width = units.shape[1]
        covariance = (units - mean).T @ (units - mean) / max(1, len(units))
        values, vectors = np.linalg.eigh(covariance)
        values = np.maximum(values, 0)
        share = values / values.mean() if values.mean() > 1e-12 else np.ones(width)
        turn = (vectors * (share + shrink) ** -0.5) @ vectors.T
        return cls(mean.astype(np.float32), turn.astype(np.float32))

    def vectors(self, rows: Array) -> Array:
        """Tower outputs [N, W] → unit rows [N, W]."""
        return unit((unit(rows) - self.mean) @ self.turn)


def unit(rows: npt.NDArray[Any]) -> Array:
    """Rows [N, W] to length 1; a row of zeros stays one."""
    rows_of_one: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows_of_one.astype(np.float32)
