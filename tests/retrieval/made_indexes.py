"""Small indexes of random vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from densecap_search.config import ModelConfig
from densecap_search.retrieval.approximate import Asked
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.manifest import Manifest, Origin
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.writing import write_new

MANIFEST = Manifest(ModelConfig("m"), "f", "fp32", 16, 0, 0, "flat", "flat", 0, "", (), (Origin("c", "", ""),))


def vectors(count: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def rows_of(count: int) -> list[Row]:
    return [Row(-1, "c", f"i{row}", f"/i{row}.jpg", (f"caption i{row}",), f"{row:032x}", columns={"place": row})
            for row in range(count)]


def index_of(matrix: np.ndarray, folder: Path, kind: str = "flat") -> ImageIndex:
    manifest = replace(MANIFEST, dim=matrix.shape[1], index_type=kind, asked_type=kind)
    write_new(folder, manifest, [(rows_of(len(matrix)), matrix)], lambda rows, stored, alive: Asked(matrix[:100], "pictures"))
    return load_index(folder)
