"""A collection becomes an index, or brings one up to date: only new or changed content is encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.config import ModelConfig
from densecap_search.embedding.cache import Array
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import Embeddings, embed_images
from densecap_search.errors import CollectionError, IndexFolderError
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval.index import Entry, ImageIndex, build_index, is_index, load_index, save_index
from densecap_search.talk import SILENT, Talk


@dataclass(frozen=True)
class IndexSummary:
    """What making or updating an index did."""

    index: ImageIndex
    encoded: int
    reused: int
    removed: int
    skipped: tuple[Skipped, ...]
    changed: bool
    rebuilt_for: str | None = None  # the encoder of the index that was replaced, where it was another


def update_index(
    collection: Collection, encoder: DualEncoder, model: ModelConfig, folder: Path, *, kind: str | None = None,
    strict: bool = False, workers: int | None = None, talk: Talk = SILENT,
) -> IndexSummary:
    """Make an index of a collection, or bring one up to date: only new or changed content is encoded.

    kind: of INDEX_TYPES; None: that of the index that is there, or flat.
    model: how to load the encoder again, kept in the manifest. strict: a picture
    that cannot be used is an error, and the index stays as it was.
    """
    old, known = _before(folder, encoder, talk)
    kind = kind or (old.manifest.index_type if old else "flat")
    same = old is not None and old.manifest.fingerprint == encoder.fingerprint()
    records, unreadable = read_contents(collection.records, talk=talk, workers=workers)
    fresh = [record for record in records if record.hash not in known]
    embedded, broken = embed_images(encoder, fresh, workers=workers, talk=talk)
    vectors = {**known, **dict(zip(embedded.hashes, embedded.vectors, strict=True))}
    kept = [record for record in records if record.hash in vectors]
    skipped = (*collection.skipped, *unreadable, *broken)
    if strict and skipped:
        raise CollectionError(f"{collection.name}: {len(skipped)} pictures cannot be used, the first: {skipped[0]}; "
                              "mend them or index without --strict")
    if not kept:
        raise CollectionError(f"{collection.name}: no picture could be indexed; "
                              f"{len(skipped)} were skipped{f', the first: {skipped[0]}' if skipped else ''}")
    entries = [Entry(r.image_id, str(r.image), r.captions, r.hash) for r in kept]
    unchanged = (old is not None and same and tuple(entries) == old.entries and kind == old.manifest.index_type
                 and model == old.manifest.model)
    if old is not None and unchanged:
        index = old
    else:
        index = _save_generation(collection, encoder, model, folder, kind, entries, vectors)
    return IndexSummary(
        index, encoded=len(embedded.hashes), reused=len(kept) - len(embedded.hashes),
        removed=len({e.hash for e in old.entries} - {e.hash for e in entries}) if old else 0,
        skipped=skipped, changed=not unchanged,
        rebuilt_for=old.manifest.model.name if old and not same else None,
    )


def encode_share(records: Sequence[Record], encoder: DualEncoder, *, workers: int | None = None, talk: Talk = SILENT
                 ) -> None:
    """Put the vectors of some pictures into the cache, where :func:`update_index` of all of them finds them.

    What each of several processes does before one of them writes the index; they must share $DENSECAP_CACHE.
    """
    readable, _ = read_contents(records, talk=talk, workers=workers)
    embed_images(encoder, readable, workers=workers, talk=talk)


def _save_generation(
    collection: Collection, encoder: DualEncoder, model: ModelConfig, folder: Path, kind: str,
    entries: Sequence[Entry], vectors: Mapping[str, Array],
) -> ImageIndex:
    matrix = np.ascontiguousarray(np.stack([vectors[entry.hash] for entry in entries]), dtype=np.float32)
    embeddings = Embeddings(tuple(e.image_id for e in entries), matrix, tuple(e.hash for e in entries))
    manifest = {
        "model": model, "fingerprint": encoder.fingerprint(), "precision": encoder.precision,
        "collection": {"name": collection.name, "fingerprint": collection.fingerprint()},
    }
    return save_index(build_index(embeddings, kind, folder, entries, manifest), matrix)


def _before(folder: Path, encoder: DualEncoder, talk: Talk) -> tuple[ImageIndex | None, dict[str, Array]]:
    """The index that is there, and its vectors by content hash where this encoder made them."""
    if not is_index(folder):
        return None, {}
    try:
        old = load_index(folder)
        if old.manifest.fingerprint != encoder.fingerprint():
            return old, {}
        return old, dict(zip((entry.hash for entry in old.entries), old.vectors(), strict=True))
    except IndexFolderError as error:
        talk.say(f"{error}; it is built anew")
        return None, {}
