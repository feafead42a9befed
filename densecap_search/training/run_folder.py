"""The files of a run folder beside weights and state: their names, and how splits are written and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from densecap_search.collection.records import Collection
from densecap_search.collection.splits import Splits
from densecap_search.config import STARTER
from densecap_search.files import write_json

LOG, BEST, CONFIG, SPLIT = "log.jsonl", "best.json", "config.yaml", "split.json"
STOPPED = "stopped"  # in a line of the log: why an attempt ended whose loss was no longer finite


def write_splits(run: Path, splits: Splits, seed: int, collection: Collection, earlier: frozenset[str] = frozenset()
                 ) -> None:
    """Which pictures (by id and content) are trained, validated and tested on, and of which collection.

    earlier: contents that the model was trained on before this run.
    """
    named = {name: {record.image_id: record.hash for record in part}
             for name, part in (("train", splits.train), ("val", splits.val), ("test", splits.test))}
    write_json(run / SPLIT, {"made": splits.made, "seed": seed, "collection": collection.fingerprint(), **named,
                             **({"earlier": sorted(earlier)} if earlier else {})})


def read_splits(run: Path) -> tuple[dict[str, tuple[str, str]], frozenset[str]]:
    """Of a run folder: image_id → split and content hash, and the content hashes of what its model was ever trained on.
    """
    saved = read_split_file(run)
    if saved is None:
        return {}, frozenset()
    chosen = {image_id: (split, content) for split in ("train", "val", "test")
              for image_id, content in saved[split].items()}
    return chosen, frozenset(saved["train"].values()) | frozenset(saved.get("earlier", ()))


def trained_before(model: str) -> frozenset[str]:
    """Content hashes of the pictures that a model was trained on, as far as its folder tells."""
    return frozenset() if model == STARTER else read_splits(Path(model))[1]


def read_split_file(run: Path) -> dict[str, Any] | None:
    """What :func:`write_splits` wrote; None where it is missing or damaged."""
    try:
        saved: dict[str, Any] = json.loads((run / SPLIT).read_text(encoding="utf-8"))
        return saved
    except (OSError, json.JSONDecodeError):
        return None


def was_stopped(run: Path) -> bool:
    """Whether the last attempt ended by a loss that was not finite, and none has begun since."""
    try:
        last = json.loads((run / LOG).read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return False
    return isinstance(last, dict) and STOPPED in last
