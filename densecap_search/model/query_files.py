"""Encoders of queries in the cache: CACHE/queries/FINGERPRINT/. Read without torch.

A folder is taken only where it says the fingerprint by which it is asked for, every file has the content that was
written, and the weights are the very file that was: one that was copied from elsewhere is made anew.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from densecap_search.files import cache_folder, hash_file, hash_text, temporary_folder, write_json, write_text
from densecap_search.model.query_encoder import QueryEncoder, QueryTokenizer, TextShape, Weights

FORMAT = 2
QUERIES = "queries"  # below the cache
WEIGHTS, TABLE, DESCRIPTION = "weights.safetensors", "tokenizer.json", "query.json"


def query_folder(fingerprint: str) -> Path:
    """Where the encoder of queries of an encoder lies, if there is one."""
    return cache_folder() / QUERIES / fingerprint


def load_query_encoder(fingerprint: str, long_text: str | None = None) -> QueryEncoder | None:
    """Of the encoder with this fingerprint; None where none was made, or it is damaged, copied, or of another one.

    long_text: another treatment of captions beyond the window than the encoder's own.
    """
    folder = query_folder(fingerprint)
    try:
        said = json.loads((folder / DESCRIPTION).read_bytes())
        if (said["format"], said["fingerprint"], said.pop("check")) != (FORMAT, fingerprint, _check(said)):
            return None
        if any(hash_file(folder / name) != said["files"][name] for name in (WEIGHTS, TABLE)):
            return None
        if (folder / WEIGHTS).stat().st_ino != said["weights_inode"]:
            return None
        from safetensors.numpy import load_file

        return QueryEncoder(
            said["name"], TextShape(**said["shape"]), load_file(folder / WEIGHTS),
            QueryTokenizer((folder / TABLE).read_text(encoding="utf-8"), said["unknown"]),
            context_length=said["context_length"], long_text=long_text or said["long_text"], fingerprint=fingerprint)
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return None


def write_query_encoder(encoder: QueryEncoder, weights: Weights, table: str) -> None:
    """Into the cache; what was there under its fingerprint goes."""
    from safetensors.numpy import save_file

    folder = query_folder(encoder.fingerprint())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder.parent, folder.name) as work:
        save_file(dict(weights), work / WEIGHTS)
        write_text(work / TABLE, table)
        said: dict[str, Any] = {
            "format": FORMAT, "fingerprint": encoder.fingerprint(), "name": encoder.name,
            "shape": asdict(encoder.shape), "unknown": encoder.tokenizer.unknown,
            "context_length": encoder.context_length, "long_text": encoder.long_text,
            "weights_inode": (work / WEIGHTS).stat().st_ino,
            "files": {name: hash_file(work / name) for name in (WEIGHTS, TABLE)}}
        write_json(work / DESCRIPTION, {**said, "check": _check(said)})
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)


def _check(said: dict[str, Any]) -> str:
    """A hash of the description without it."""
    return hash_text(json.dumps({name: value for name, value in said.items() if name != "check"}, sort_keys=True))
