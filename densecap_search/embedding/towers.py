"""Pictures → vectors, cached by content. The last module that knows torch; numpy from here on.

What is cached is what each tower hands to its head (:meth:`DualEncoder.tower_outputs`), under the fingerprint of
the tower: training heads, evaluating before and after, and indexing all read the same rows, and a picture goes
through a frozen tower once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from densecap_search.collection.images import use_image
from densecap_search.collection.records import Record, Skipped
from densecap_search.embedding.cache import Array
from densecap_search.embedding.content import ahead, changed_since
from densecap_search.embedding.texts import heads_of
from densecap_search.embedding.tower_rows import Computed, blocks, check_finite, find_rows, stack
from densecap_search.model.device import HALVED, streams
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.trial import PICTURES, try_precisions
from densecap_search.talk import SILENT, Talk

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
    loaded = ahead(partial(_pixels_of, encoder), records, workers)
    opened = Opened([], (), {})
    skipped: list[Skipped] = []
    for record, pixels in zip(records, talk.each(loaded, "checking", len(records), "pictures"), strict=True):
        if isinstance(pixels, Skipped):
            skipped.append(pixels)
            continue
        opened.records.append(record)
        if (len(opened.pixels) + 1) * pixels.nbytes <= keep_bytes:
            opened.pixels[record.hash] = pixels
    return replace(opened, skipped=tuple(skipped))


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
    return TowerRows(stack([rows[row] for row in kept]), kept, skipped, encoded)


def _of_images(
    encoder: DualEncoder, records: Sequence[Record], keep: Callable[[Array], Array], cached: bool,
    workers: int | None, talk: Talk,
) -> tuple[dict[int, Array], tuple[Skipped, ...], int]:
    """Number of a record → what is kept of its tower outputs; files that cannot be opened; how many were encoded."""
    keys = [record.hash for record in records]
    reasons: dict[str, str] = {}  # by path, of the files that cannot be opened

    def compute(missing: Sequence[int]) -> Iterator[Computed]:
        asked = [records[row] for row in missing]
        in_streams = encoder.device.type == "cpu" and len(asked) >= PASS and workers != 0
        for places, outputs, broken in (_in_streams(encoder, asked) if in_streams else
                                        _one_after_the_other(encoder, asked, workers)):
            reasons.update({skip.path: skip.reason for skip in broken})
            yield Computed([missing[place] for place in places], outputs, len(places) + len(broken))

    rows, encoded = find_rows(encoder, "image", keys, compute, keep, cached, talk)
    reason_of = {record.hash: reasons[str(record.image)] for record in records if str(record.image) in reasons}
    skipped = tuple(
        Skipped(str(record.image), reason_of[key])
        for row, (record, key) in enumerate(zip(records, keys, strict=True)) if row not in rows
    )
    return rows, skipped, encoded


Encoded = tuple[list[int], Array, list[Skipped]]  # places in records, tower outputs, what could not be opened


def _one_after_the_other(encoder: DualEncoder, records: Sequence[Record], workers: int | None) -> Iterator[Encoded]:
    """Decoded ahead by threads, encoded batch by batch with all that the device has."""
    passes = len(records) >= PASS or encoder.halved
    outputs_of = encoder.image_pass() if passes else partial(encoder.tower_outputs, "image")
    for places, pixels, broken in pixel_batches(encoder, records, encoder.image_batch, workers):
        yield places, outputs_of(pixels).cpu().numpy() if places else np.empty((0, 0), np.float32), broken


def _in_streams(encoder: DualEncoder, records: Sequence[Record]) -> Iterator[Encoded]:
    """Every core decodes and encodes batches of its own.

    None waits for another in every layer, as those do that share a batch, nor for pictures to be decoded.
    """
    outputs_of, size, own = encoder.image_pass(), encoder.image_batch, threading.local()

    def work(batch: range) -> Encoded:
        if not hasattr(own, "pixels"):
            own.pixels = encoder.room_for(size)  # used again: memory for every batch leaves holes
        places: list[int] = []
        broken: list[Skipped] = []
        for place in batch:
            own_pixels = _pixels_of(encoder, records[place])
            if isinstance(own_pixels, Skipped):
                broken.append(own_pixels)
            else:
                own.pixels[len(places)] = own_pixels
                places.append(place)
        pixels = own.pixels[: len(places)]
        return places, outputs_of(pixels).numpy() if places else np.empty((0, 0), np.float32), broken

    with streams() as (count, begin):
        batches = [range(at, min(at + size, len(records))) for at in range(0, len(records), size)]
        yield from ahead(work, batches, count, window=2 * count, begin=begin)


def _as_it_is(rows: Array) -> Array:
    return rows


def token_keys(encoder: DualEncoder, captions: Sequence[str]) -> tuple[list[int], list[bytes]]:
    """For each caption its whole length in tokens, and a key of what the window leaves of them."""
    lengths: list[int] = []
    keys: list[bytes] = []
    for block in blocks(captions, 1024):
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


def read_pixels(encoder: DualEncoder, path: Path) -> Tensor | Skipped:
    """A picture as the image tower takes it, uint8 [3, H, W], or why it cannot be had."""
    return use_image(path, encoder.preprocess, min_side=encoder.image_size, max_pixels=encoder.max_pixels)


def picture_patches(encoder: DualEncoder, path: Path) -> tuple[Array, tuple[int, int], tuple[int, int]] | Skipped:
    """The parts of a picture [rows, columns, D], its width and height, and the height and width of what the tower sees;
    or why they cannot be had. Errors: ModelError where the tower tells no parts apart."""
    prepared = use_image(path, lambda image: (image.size, encoder.preprocess(image)), min_side=encoder.image_size,
                         max_pixels=encoder.max_pixels)
    if isinstance(prepared, Skipped):
        return prepared
    size, pixels = prepared
    return encoder.patches(pixels[None])[0].cpu().numpy(), size, (pixels.shape[1], pixels.shape[2])


def _pixels_of(encoder: DualEncoder, record: Record) -> Tensor | Skipped:
    """The same of a record that was read before, whose file still holds what it held then."""
    pixels = read_pixels(encoder, record.image)
    if isinstance(pixels, Skipped) or record.content is None:
        return pixels
    return changed_since(record.image, record.content) or pixels


def pixel_batches(encoder: DualEncoder, records: Sequence[Record], batch_size: int, workers: int | None
                  ) -> Iterator[tuple[list[int], Tensor, list[Skipped]]]:
    """Decoded ahead by threads: (places in records, pixels uint8 [b, 3, H, W], what could not be opened).

    The pixels of all batches lie in the same memory: use them before the next batch is asked for. Memory of its own
    for every batch leaves holes that grow with the number of pictures.
    """
    places: list[int] = []
    broken: list[Skipped] = []
    pixels = encoder.room_for(batch_size)
    loaded = ahead(partial(_pixels_of, encoder), records, workers, window=max(AHEAD, 2 * batch_size))
    for place, result in enumerate(loaded):
        if isinstance(result, Skipped):
            broken.append(result)
        else:
            pixels[len(places)] = result
            places.append(place)
        if len(places) + len(broken) == batch_size or place == len(records) - 1:
            yield places, pixels[: len(places)], broken
            places, broken = [], []


def choose_precision_by_trial(encoder: DualEncoder, paths: Sequence[Path], count: int, talk: Talk = SILENT) -> None:
    """Let passes over pictures have the precision that is quickest here and near enough, tried on some of them.

    count: pictures of the whole job; a small one is not worth a trial.
    """
    if encoder.device.type != "cpu" or count < PASS:
        return
    some = (read_pixels(encoder, path) for path in paths[:: max(1, len(paths) // PICTURES)][:PICTURES])
    pixels = [one for one in some if not isinstance(one, Skipped)]
    if not pixels:
        return
    tried = try_precisions(encoder, torch.stack(pixels), count)
    if tried is not None:
        encoder.halved = tried.precision == HALVED
        talk.say(str(tried))
