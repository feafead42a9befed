"""Pictures and captions → vectors, cached by content. The last module that knows torch; numpy from here on.

What is cached is what each tower hands to its head (:meth:`DualEncoder.tower_outputs`), under the fingerprint of
the tower: training heads, evaluating before and after, and indexing all read the same rows, and a picture goes
through a frozen tower once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from densecap_search.collection.images import use_image
from densecap_search.collection.records import Record, Skipped
from densecap_search.embedding.cache import Array, RowCache
from densecap_search.embedding.content import ahead
from densecap_search.errors import ModelError
from densecap_search.files import cache_folder, hash_text
from densecap_search.model.encoder import DualEncoder, Tower
from densecap_search.model.segments import Ints, Truncation, mean_of
from densecap_search.talk import SILENT, Talk

TEXT_BATCH = 64
HEAD_BLOCK = 1024  # tower outputs that go through a head at once, and are held beside what is kept of them
AHEAD = 32  # pictures decoded before they are asked for
PASS = 32  # pictures that are worth making the tower ready for a pass


@dataclass(frozen=True)
class Embeddings:
    """Vectors float32 [N, D] of pictures: unit rows, finite, aligned with ids and content hashes.

    encoded: pictures that went through the tower for it; the vectors of the others came from the cache.
    """

    image_ids: tuple[str, ...]
    vectors: Array
    hashes: tuple[str, ...]
    encoded: int = 0

    def __post_init__(self) -> None:
        if not len(self.image_ids) == len(self.vectors) == len(self.hashes):
            raise AssertionError("ids, vectors and hashes must be aligned")
        check_finite(self.vectors, self.image_ids)


def check_finite(vectors: Array, names: Sequence[str]) -> None:
    """Refuse vectors that a broken model made, naming the first."""
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if broken.size:
        raise ModelError(f"the model returns vectors that are not finite for {broken.size} inputs, the first is "
                         f"{names[broken[0]]!r}; its weights are damaged or its precision is too low")


@dataclass(frozen=True)
class Opened:
    """The records whose pictures can be opened, the reasons of the others, and the pixels of those that were kept.

    pixels: content hash → uint8 [3, H, W].
    """

    records: list[Record]
    skipped: tuple[Skipped, ...]
    pixels: dict[str, Tensor]


def open_pictures(
    encoder: DualEncoder, records: Sequence[Record], *, keep_bytes: int = 0, workers: int | None = None,
    talk: Talk = SILENT,
) -> Opened:
    """Open every picture (of records read before) once; nothing is encoded.

    keep_bytes: how much memory the pixels may take that are kept, so that nothing need be decoded again.
    """
    loaded = ahead(lambda record: read_pixels(encoder, record.image), records, workers)
    found = Opened([], (), {})
    skipped: list[Skipped] = []
    for record, pixels in zip(records, talk.each(loaded, "checking", len(records), "pictures"), strict=True):
        if isinstance(pixels, Skipped):
            skipped.append(pixels)
            continue
        found.records.append(record)
        if (len(found.pixels) + 1) * pixels.nbytes <= keep_bytes:
            found.pixels[record.hash] = pixels
    return replace(found, skipped=tuple(skipped))


@dataclass(frozen=True)
class TowerRows:
    """Tower outputs float32 [M, W] of those inputs that could be read, and which these are.

    encoded: inputs that went through the tower for it; the others were in the cache, or are there twice.
    """

    rows: Array
    kept: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    encoded: int


def image_rows(
    encoder: DualEncoder, records: Sequence[Record], *, cached: bool = True,
    workers: int | None = None, talk: Talk = SILENT,
) -> TowerRows:
    """What the image tower hands to its head, for every record (read before) whose picture can be opened."""
    rows, skipped, encoded = _of_images(encoder, records, _as_it_is, cached, workers, talk)
    kept = tuple(sorted(rows))
    return TowerRows(_stack([rows[row] for row in kept]), kept, skipped, encoded)


def _of_images(
    encoder: DualEncoder, records: Sequence[Record], keep: Callable[[Array], Array], cached: bool,
    workers: int | None, talk: Talk,
) -> tuple[dict[int, Array], tuple[Skipped, ...], int]:
    """Number of a record → what is kept of its tower outputs; files that cannot be opened; how many were encoded."""
    keys = [record.hash for record in records]
    reasons: dict[str, str] = {}  # by path, of the files that cannot be opened

    def compute(missing: Sequence[int]) -> Iterator[_Computed]:
        paths = [records[row].image for row in missing]
        outputs_of = encoder.image_pass() if len(paths) >= PASS else partial(encoder.tower_outputs, "image")
        for places, pixels, broken in pixel_batches(encoder, paths, encoder.image_batch, workers):
            reasons.update({skip.path: skip.reason for skip in broken})
            outputs = outputs_of(pixels).cpu().numpy() if places else np.empty((0, 0), np.float32)
            yield _Computed([missing[place] for place in places], outputs, len(places) + len(broken))

    rows, encoded = _rows(encoder, "image", keys, compute, keep, cached, talk)
    reason_of = {record.hash: reasons[str(record.image)] for record in records if str(record.image) in reasons}
    skipped = tuple(
        Skipped(str(record.image), reason_of[key])
        for row, (record, key) in enumerate(zip(records, keys, strict=True)) if row not in rows
    )
    return rows, skipped, encoded


def _as_it_is(rows: Array) -> Array:
    return rows


@dataclass(frozen=True)
class TextRows:
    """Of captions: tower outputs or unit vectors float32 [S, W] of their segments, those of a caption together.

    counts: segments of each caption, int64 [N]; all 1 where captions fit or are cut, and S is N then.
    """

    rows: Array
    counts: Ints
    truncation: Truncation

    def followed_by(self, more: TextRows) -> TextRows:
        """These and then others, of which the truncation is not counted."""
        return TextRows(np.concatenate([self.rows, more.rows]), np.concatenate([self.counts, more.counts]),
                        self.truncation)


def text_rows(encoder: DualEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT) -> TextRows:
    """What the text tower hands to its head for every segment of the captions."""
    segments = encoder.segments(captions)
    texts = segments.flat
    unique = list(dict.fromkeys(texts))
    lengths = [length for block in _blocks(unique, 1024) for length in encoder.lengths(block)]
    order = sorted(range(len(unique)), key=lambda row: lengths[row])  # batches of like length waste no padding

    def compute(missing: Sequence[int]) -> Iterator[_Computed]:
        wanted = set(missing)
        for block in _blocks([row for row in order if row in wanted], TEXT_BATCH):
            ids = encoder.tokenize([unique[row] for row in block]).ids
            yield _Computed(list(block), encoder.tower_outputs("text", ids).cpu().numpy(), len(block))

    rows, _ = _rows(encoder, "text", [hash_text(text) for text in unique], compute, _as_it_is, cached, talk)
    number = {text: row for row, text in enumerate(unique)}
    return TextRows(_stack([rows[number[text]] for text in texts]), segments.counts, segments.truncation)


def token_keys(encoder: DualEncoder, captions: Sequence[str]) -> tuple[list[int], list[bytes]]:
    """For each caption its whole length in tokens, and a key of what the window leaves of them."""
    lengths: list[int] = []
    keys: list[bytes] = []
    for block in _blocks(captions, 1024):
        tokens = encoder.tokenize(block)
        lengths.extend(tokens.lengths)
        keys.extend(ids.numpy()[:length].tobytes() for ids, length in zip(tokens.ids, tokens.lengths, strict=True))
    return lengths, keys


def embed_images(
    encoder: DualEncoder, records: Sequence[Record], *, cached: bool = True,
    workers: int | None = None, talk: Talk = SILENT,
) -> tuple[Embeddings, tuple[Skipped, ...]]:
    """Unit vectors of every record (read before) whose picture can be opened, and the others with their reasons.

    Tower outputs, which are several times as wide, are held for a block of pictures only.
    """
    rows, skipped, encoded = _of_images(encoder, records, partial(heads_of, encoder, "image"), cached, workers, talk)
    kept = sorted(rows)
    vectors = np.stack([rows[row] for row in kept]) if kept else np.empty((0, encoder.dim), np.float32)
    ids = tuple(records[row].image_id for row in kept)
    return Embeddings(ids, vectors, tuple(records[row].hash for row in kept), encoded), skipped


def embed_segments(encoder: DualEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT
                   ) -> TextRows:
    """Unit vectors of the segments of captions, float32 [S, D]."""
    return segments_of(encoder, text_rows(encoder, captions, cached=cached, talk=talk), captions)


def segments_of(encoder: DualEncoder, found: TextRows, captions: Sequence[str]) -> TextRows:
    """Tower outputs of captions → unit vectors of their segments."""
    vectors = heads_of(encoder, "text", found.rows)
    check_finite(vectors, [caption for number, caption in enumerate(captions) for _ in range(found.counts[number])])
    return TextRows(vectors, found.counts, found.truncation)


def embed_texts(encoder: DualEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT
                ) -> tuple[Array, Truncation]:
    """One unit vector of each caption, float32 [N, D]: of one in several segments their mean."""
    found = embed_segments(encoder, captions, cached=cached, talk=talk)
    return mean_of(found.rows, found.counts), found.truncation


def embed_queries(encoder: DualEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT
                  ) -> TextRows:
    """The unit vectors by which captions are ranked: one of each, or of its segments where the best decides."""
    return queries_of(encoder, embed_segments(encoder, captions, cached=cached, talk=talk))


def queries_of(encoder: DualEncoder, found: TextRows) -> TextRows:
    """Unit vectors of segments → those by which their captions are ranked."""
    if encoder.spec.long_text == "best":
        return found
    return TextRows(mean_of(found.rows, found.counts), np.ones_like(found.counts), found.truncation)


def read_pixels(encoder: DualEncoder, path: Path) -> Tensor | Skipped:
    """A picture as the image tower takes it, uint8 [3, H, W], or why it cannot be had."""
    return use_image(path, encoder.preprocess, min_side=encoder.image_size, max_pixels=encoder.max_pixels)


def pixel_batches(encoder: DualEncoder, paths: Sequence[Path], batch_size: int, workers: int | None
                  ) -> Iterator[tuple[list[int], Tensor, list[Skipped]]]:
    """Decoded ahead by threads: (places in paths, pixels uint8 [b, 3, H, W], what could not be opened).

    The pixels of all batches lie in the same memory: use them before the next batch is asked for. Memory of its own
    for every batch leaves holes that grow with the number of pictures.
    """
    places: list[int] = []
    broken: list[Skipped] = []
    pixels = encoder.room_for(batch_size)
    loaded = ahead(lambda path: read_pixels(encoder, path), paths, workers, window=max(AHEAD, 2 * batch_size))
    for place, result in enumerate(loaded):
        if isinstance(result, Skipped):
            broken.append(result)
        else:
            pixels[len(places)] = result
            places.append(place)
        if len(places) + len(broken) == batch_size or place == len(paths) - 1:
            yield places, pixels[: len(places)], broken
            places, broken = [], []


@dataclass(frozen=True)
class _Computed:
    """A batch that went through a tower: numbers of the inputs that could be read, their outputs, inputs tried."""

    numbers: list[int]
    outputs: Array
    tried: int


@contextmanager
def _row_cache(encoder: DualEncoder, tower: Tower, cached: bool) -> Iterator[RowCache | None]:
    if not cached:
        yield None
        return
    cache = RowCache(cache_folder() / "towers-2" / encoder.tower_fingerprint(tower))
    try:
        yield cache
    finally:
        cache.flush()


def _rows(
    encoder: DualEncoder, tower: Tower, keys: Sequence[str],
    compute: Callable[[Sequence[int]], Iterator[_Computed]], keep: Callable[[Array], Array], cached: bool, talk: Talk,
) -> tuple[dict[int, Array], int]:
    """Input number → row, for all that could be computed or found; and how many were computed.

    keep: tower outputs [b, W] → the rows that are held of them [b, …].
    """
    rows: dict[int, Array] = {}
    waiting: dict[int, Array] = {}  # until there are enough for a pass through a head

    def settle() -> None:
        if waiting:
            rows.update(zip(waiting, keep(np.stack(list(waiting.values()))), strict=True))
            waiting.clear()

    encoded = 0
    first: dict[str, int] = {}
    with _row_cache(encoder, tower, cached) as cache:
        for number, key in enumerate(keys):
            if cache is not None and key in cache:
                waiting[number] = cache[key]
                if len(waiting) == HEAD_BLOCK:
                    settle()
            else:
                first.setdefault(key, number)
        missing = list(first.values())
        unit = "pictures" if tower == "image" else "captions"
        with talk.progress(f"encoding {unit}", len(missing), unit) if missing else _no_progress() as advance:
            for batch in compute(missing):
                waiting.update(zip(batch.numbers, batch.outputs, strict=True))
                if len(waiting) >= HEAD_BLOCK:
                    settle()
                if cache is not None and np.isfinite(batch.outputs).all():
                    cache.add([keys[number] for number in batch.numbers], batch.outputs)
                encoded += len(batch.numbers)
                advance(batch.tried)
        settle()
    for number, key in enumerate(keys):  # the same content twice is computed once
        if number not in rows and first[key] in rows:
            rows[number] = rows[first[key]]
    return rows, encoded


@contextmanager
def _no_progress() -> Iterator[Callable[[int], None]]:
    yield lambda steps: None


@torch.no_grad()
def heads_of(encoder: DualEncoder, tower: Tower, rows: Array) -> Array:
    """Tower outputs [N, W] → unit vectors [N, D]; in blocks, so that memory stays that of the result."""
    blocks = [
        encoder.from_tower(tower, torch.from_numpy(np.ascontiguousarray(block)).to(encoder.device)).cpu().numpy()
        for block in _blocks(rows, 4096)
    ]
    return np.concatenate(blocks) if blocks else np.empty((0, encoder.dim), np.float32)


def _stack(rows: Sequence[Array]) -> Array:
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


def _blocks(items: Any, size: int) -> Iterator[Any]:
    return (items[start:start + size] for start in range(0, len(items), size))
