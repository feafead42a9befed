"""The captions of an index on the disk, beside each generation: what is ranked, by which scale, with which weights.

In the folder of a generation, ``captions/``: parts (vectors and words of captions that came together, in files that
generations share by hard links), ``scale.npz``, and ``captions.json``. It is written after the generation, in one
step; an index without it is searched by its pictures alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.errors import IndexFolderError
from densecap_search.files import temporary_folder, write_json
from densecap_search.locks import locked
from densecap_search.model.text_encoder import TextEncoder
from densecap_search.retrieval.calibration import Calibration, calibrate, learn_scale
from densecap_search.retrieval.caption_space import CaptionSpace
from densecap_search.retrieval.captioned import Captioned, Scale, lengths_in, read_texts
from densecap_search.retrieval.fuse import Spread, Weights
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.index_folder import current_place, read_arrays
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.strength import Foreign
from densecap_search.retrieval.vectors import Mask, Numbers, Vectors, map_vectors
from densecap_search.retrieval.words import WordPart, Words, load_part, save_part
from densecap_search.talk import SILENT, Talk

FORMAT = 1
FOLDER, DESCRIPTION, SCALE = "captions", "captions.json", "scale.npz"
ROWS = "rows.npz"  # what is known of each row of the parts, which to find out takes a look at all of them
GROWTH = 0.1  # share of captions that must be new before scale and weights are learned again
MOST_PARTS = 8  # beyond, and where a third of all rows is of captions that are gone, all become one
WORN = 1 / 3
AT_ONCE = 1 << 13  # captions of so many pictures are encoded between two writes


@dataclass(frozen=True)
class Part:
    """Captions that came together. keys [n]: the version of the row that each is of; numbers [n]: its picture."""

    keys: Numbers
    numbers: Numbers
    rows: Array  # [n, W] as in Texts
    words: WordPart


@dataclass(frozen=True)
class Captions:
    """What an index knows of its captions."""

    captioned: Captioned
    calibration: Calibration

    @property
    def weights(self) -> Weights:
        """How the rankings are added up."""
        return self.calibration.weights


def load_captions(index: ImageIndex) -> Captions | None:
    """Of this generation; None where it has none, or none of this format. Errors: IndexFolderError where damaged."""
    place = index.place / FOLDER
    if not (place / DESCRIPTION).is_file():
        return None
    try:
        said = json.loads((place / DESCRIPTION).read_bytes())
        if said["format"] != FORMAT or said["rows"] != index.manifest.rows:
            return None
        parts = [_load_part(place, name, said["width"], count) for name, count in said["parts"]]
        scale = _load_scale(place / SCALE)
        captioned = _assembled(index, parts, scale, said["width"], place)
        calibration = _calibration(said)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IndexFolderError(f"{place} is damaged ({error}); `densecap index … --rebuild` makes it again") from error
    return Captions(captioned, calibration)


def update_captions(index: ImageIndex, load: Callable[[], TextEncoder], *, trained: frozenset[str] = frozenset(),
                    talk: Talk = SILENT) -> Captions | None:
    """Bring the captions of an index up to date with its rows; None where no picture has a caption.

    load: called where captions must be encoded. trained: content hashes of pictures that the model has seen in
    training, which are not asked for when weights are learned: it knows their captions by heart.
    """
    with locked(index.folder, "densecap index"):
        if current_place(index.folder) != index.place:
            return load_captions(index)
        return _Update(index, load, trained, talk).run()


@dataclass
class _Update:
    index: ImageIndex
    load: Callable[[], TextEncoder]
    trained: frozenset[str]
    talk: Talk

    def run(self) -> Captions | None:
        """Write what is new and learn again where much is."""
        keys, numbers = _described(self.index)
        if not len(keys):
            return None
        old, calibration, scale = self._before()
        known = np.concatenate([np.empty(0, np.int64), *(part.keys for _, part in old)])
        fresh = ~np.isin(keys, known)
        if calibration is not None and not fresh.any() and (self.index.place / FOLDER / DESCRIPTION).is_file():
            return load_captions(self.index)
        worn = len(known) - np.isin(known, keys).sum() > WORN * max(1, len(known)) or len(old) >= MOST_PARTS
        parts = [part for _, part in old]
        if worn:
            parts, fresh, old = [], np.ones(len(keys), bool), []
        added = list(self._read(keys[fresh], numbers[fresh]))
        width = (added or parts)[0].rows.shape[1]
        seen = calibration.learned_from if calibration else 0
        if scale is None or calibration is None or abs(len(keys) - seen) > GROWTH * seen or fresh.mean() > GROWTH:
            scale, calibration = learn_scale(self.load(), self.index, numbers, self.talk), None
        captioned = _assembled(self.index, [*parts, *added], scale, width)
        if calibration is None:
            calibration = calibrate(self.load(), self.index, captioned, numbers, self.trained, self.talk)
        self._write([name for name, _ in old], parts, added, captioned, calibration)
        return load_captions(self.index)

    def _before(self) -> tuple[list[tuple[Path, Part]], Calibration | None, Scale | None]:
        """Parts, figures and scale of this generation, or of the latest that has the same file of rows."""
        places = sorted((place for place in self.index.folder.glob(f"gen-*/{FOLDER}")), reverse=True)
        for place in places:
            try:
                said = json.loads((place / DESCRIPTION).read_bytes())
                if (said["format"], said["rows"], said["fingerprint"]) != (FORMAT, self.index.manifest.rows,
                                                                           self.index.manifest.fingerprint):
                    continue
                parts = [(place / name, _load_part(place, name, said["width"], count)) for name, count in said["parts"]]
                return parts, _calibration(said), _load_scale(place / SCALE)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # damaged: made anew
        return [], None, None

    def _read(self, keys: Numbers, numbers: Numbers) -> Sequence[Part]:
        """Encode captions; one part of them all."""
        if not len(keys):
            return []
        encoder, rows, texts = self.load(), [], []
        for start in range(0, len(keys), AT_ONCE):
            block = self.index.rows.many(numbers[start:start + AT_ONCE].tolist())
            rows.append(read_texts(encoder, [row.captions for row in block], talk=self.talk).rows)
            texts += [text_of(row) for row in block]
        return [Part(keys, numbers, np.concatenate(rows), WordPart.of(texts))]

    def _write(self, old: Sequence[Path], parts: Sequence[Part], added: Sequence[Part], captioned: Captioned,
               calibration: Calibration) -> None:
        place = self.index.place / FOLDER
        names: list[tuple[str, int]] = []
        with temporary_folder(self.index.place, FOLDER) as work:
            for path, part in zip(old, parts, strict=True):
                names.append((f"part-{len(names)}", len(part.keys)))
                for suffix in (".f32", ".npz", ".rows.npy"):
                    _share(path.parent / (path.name + suffix), work / (names[-1][0] + suffix))
            for part in added:
                names.append((f"part-{len(names)}", len(part.keys)))
                _save_part(part, work / names[-1][0])
            _save_scale(captioned.scale, work / SCALE)
            np.savez(work / ROWS, counted=captioned.words.counted, lengths=captioned.lengths)
            write_json(work / DESCRIPTION, {
                "format": FORMAT, "rows": self.index.manifest.rows, "fingerprint": self.index.manifest.fingerprint,
                "width": captioned.rows.dim, "parts": names, **calibration.as_json()})
            work.chmod(0o755)
            if place.exists():
                shutil.rmtree(place)
            work.rename(place)


def text_of(row: Row) -> str:
    """What of a picture is searched by words: its captions and its file name."""
    return "\n".join([*row.captions, PurePath(row.image).stem])


def _described(index: ImageIndex) -> tuple[Numbers, Numbers]:
    """Versions and numbers of the pictures that have a caption, in the order of numbers."""
    described = index.rows.query("SELECT key, number FROM pictures JOIN texts USING (key) WHERE captions != '[]' "
                                 "ORDER BY number")
    both = np.array(described, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _assembled(index: ImageIndex, parts: Sequence[Part], scale: Scale, width: int, place: Path | None = None
               ) -> Captioned:
    """place: the folder of captions in which they were written, where they were."""
    of = np.concatenate([np.empty(0, np.int64), *(part.numbers for part in parts)])
    rows = Vectors(tuple(part.rows for part in parts), width)
    counted, lengths = _load_rows(place, len(of)) if place else (None, None)
    if counted is None or lengths is None:
        have = np.concatenate([np.empty(0, np.int64), *(part.keys for part in parts)])
        counted, lengths = np.isin(have, _described(index)[0]), lengths_in(scale.space, rows)
    words = Words(tuple(part.words for part in parts), counted)
    return Captioned(words, rows, of, index.manifest.total, scale, lengths)


def _load_rows(place: Path, count: int) -> tuple[Mask, Array] | tuple[None, None]:
    """Which rows count, and their lengths in the scale's space; None where an earlier version wrote the captions.
    Errors: ValueError, KeyError, OSError where the file is damaged."""
    if not (place / ROWS).is_file():
        return None, None
    arrays = read_arrays(place / ROWS)
    counted, lengths = arrays["counted"], arrays["lengths"]
    if counted.shape != (count,) or lengths.shape != (count,) or counted.dtype != bool or lengths.dtype != np.float32:
        raise ValueError(f"{ROWS} does not fit")
    return counted, lengths


def _save_part(part: Part, path: Path) -> None:
    np.ascontiguousarray(part.rows, "<f4").tofile(path.with_name(path.name + ".f32"))
    np.save(path.with_name(path.name + ".rows.npy"), np.stack([part.keys, part.numbers]), allow_pickle=False)
    save_part(part.words, path.with_name(path.name + ".npz"))


def _load_part(place: Path, name: str, width: int, count: int) -> Part:
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not the name of a file")
    (rows,) = map_vectors([(place / f"{name}.f32", count)], width).parts
    keys, numbers = np.load(place / f"{name}.rows.npy", allow_pickle=False)
    words = load_part(place / f"{name}.npz")
    if not len(keys) == len(numbers) == len(words.lengths) == count:
        raise ValueError(f"{name} does not fit together")
    return Part(keys, numbers, rows, words)


def _save_scale(scale: Scale, path: Path) -> None:
    np.savez(path, mean=scale.space.mean, turn=scale.space.turn, text_mean=scale.text.mean,
             text_covariance=scale.text.covariance, image_mean=scale.image.mean,
             image_covariance=scale.image.covariance, centre=scale.centre)


def _load_scale(path: Path) -> Scale:
    arrays = read_arrays(path)
    return Scale(CaptionSpace(arrays["mean"], arrays["turn"]), Spread(arrays["text_mean"], arrays["text_covariance"]),
                 Spread(arrays["image_mean"], arrays["image_covariance"]), arrays["centre"])


def _calibration(said: Mapping[str, Any]) -> Calibration:
    weights, foreign = said["weights"], said["foreign"]
    return Calibration(Weights(**weights), Foreign(tuple(foreign["words"]), tuple(foreign["best"])),
                       said["learned_from"], said["strengths"])


def _share(path: Path, other: Path) -> None:
    """The same file under another name, or a copy where the disk has no hard links."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copy2(path, other)
