"""A collection becomes an index, or brings one up to date at the cost of what has changed."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np

from densecap_search import __version__
from densecap_search.collection.dates import date_taken
from densecap_search.collection.records import Collection, Content, Record, Skipped
from densecap_search.config import ModelConfig
from densecap_search.embedding.content import ahead, read_contents
from densecap_search.embedding.texts import embed_queries
from densecap_search.embedding.towers import embed_images
from densecap_search.errors import CollectionError, IndexFolderError, NewerIndex, StoreError
from densecap_search.locks import locked
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval.approximate import QUERIES, Asked, choose_type, machine_memory
from densecap_search.retrieval.changes import Changes, closed_folders, folder_of, plan_update, refuse_losses, signature
from densecap_search.retrieval.contents import Reading, new_skips, read_changed
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.index_folder import is_index, sweep_leftovers, written
from densecap_search.retrieval.manifest import Manifest, Origin, StoredIn, stamp_of
from densecap_search.retrieval.origins import choose_origin
from densecap_search.retrieval.rows import Known, Row, Rows, note
from densecap_search.retrieval.stores import choose_store
from densecap_search.retrieval.vectors import Mask, VectorSource
from densecap_search.retrieval.writing import Blocks, blocks_of, is_worn, publish_store, write_more, write_new
from densecap_search.talk import SILENT, Talk

AUTO = "auto"
ENCODED_AT_ONCE = 1 << 15  # pictures whose vectors are held before they are written
MUCH = 1 << 60
LIBRARIES = ("faiss-cpu", "torch", "open_clip_torch", "numpy", "pillow")


@dataclass(frozen=True)
class Wanted:
    """What is asked of an index besides its collection.

    kind: of INDEX_TYPES, or AUTO; None: as it is, and AUTO for a new one. name: of the collection in the index. add: it
    comes beside those that are there. prune: it may lack what the index had, or replace it. rebuild: all is encoded
    anew. strict: a picture that cannot be used is an error, and the index stays as it was. place: where the collection
    was read. max_pixels: larger pictures are skipped. trust_files: a model whose files have the sizes and times that
    the index noted is the one that it was, and is loaded only to encode. store: of :mod:`stores`; None: as it is.
    """

    kind: str | None = None
    name: str | None = None
    add: bool = False
    prune: bool = False
    rebuild: bool = False
    strict: bool = False
    place: Path | None = None
    max_pixels: int | None = None
    trust_files: bool = False
    store: str | None = None


@dataclass(frozen=True)
class IndexSummary:
    """What making or updating an index did. cached: of the encoded, those whose tower outputs lay in the cache."""

    index: ImageIndex
    changes: Changes
    encoded: int
    skipped: tuple[Skipped, ...]
    changed: bool
    rebuilt_for: str | None = None  # the encoder of the index that was replaced, where it was another
    cached: int = 0

    @property
    def reused(self) -> int:
        """Pictures of this index that were not encoded."""
        return len(self.index) - self.encoded

    @property
    def removed(self) -> int:
        """Contents that are no longer in it."""
        return self.changes.vanished


def update_index(
    collection: Collection, encoder: DualEncoder, model: ModelConfig, folder: Path, *, kind: str | None = None,
    strict: bool = False, prune: bool = False, workers: int | None = None, talk: Talk = SILENT,
) -> IndexSummary:
    """Make an index of a collection, or bring one up to date: only new or changed content is encoded.

    model: how to load the encoder again, kept in the manifest. kind, strict, prune: as in :class:`Wanted`.
    """
    wanted = Wanted(kind=kind, strict=strict, prune=prune, max_pixels=encoder.max_pixels)
    return bring_up_to_date(collection, lambda: encoder, model, folder, wanted, workers=workers, talk=talk)


def bring_up_to_date(
    collection: Collection, load: Callable[[], DualEncoder], model: ModelConfig, folder: Path, wanted: Wanted, *,
    workers: int | None = None, talk: Talk = SILENT,
) -> IndexSummary:
    """As :func:`update_index`; ``load`` is called where something must be encoded, or the model may be another."""
    _bring_over(folder, talk)
    with written(folder), _kept_if_made(folder), locked(folder, "densecap index"):
        sweep_leftovers(folder)
        with _without_cycles():
            job = _prepare(collection, model, folder, wanted, workers, talk)
        if job.old is not None and not wanted.prune:
            refuse_losses(job.changes, folder, collection.name, job.origin.name)
        return _Run(job, load, workers, talk).finish()


def _bring_over(folder: Path, talk: Talk) -> None:
    """Make an index of an older format one of the present, before the folder is locked: that takes the lock itself."""
    with suppress(IndexFolderError):  # what is damaged is told, or built anew, by what follows
        if is_index(folder):
            load_index(folder, talk=talk)


@contextmanager
def _kept_if_made(folder: Path) -> Iterator[None]:
    """What goes wrong leaves no folder behind that was not there."""
    was_there = folder.exists()
    try:
        yield
    except BaseException:
        if not was_there and not is_index(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def preview_update(collection: Collection, model: ModelConfig, folder: Path, wanted: Wanted, *,
                   workers: int | None = None, talk: Talk = SILENT) -> Changes:
    """What an update would do, by the files alone; no model is loaded, and no generation written."""
    return _prepare(collection, model, folder, wanted, workers, talk).changes


def encode_share(records: Sequence[Record], encoder: DualEncoder, *, workers: int | None = None, talk: Talk = SILENT
                 ) -> None:
    """Put the vectors of some pictures into the cache, where :func:`update_index` of all of them finds them.

    What each of several processes does before one of them writes the index; they must share $DENSECAP_CACHE.
    """
    readable, _ = read_contents(records, talk=talk, workers=workers)
    embed_images(encoder, readable, workers=workers, talk=talk)


def remove_collection(folder: Path, name: str, *, talk: Talk = SILENT) -> ImageIndex:
    """Take a collection out of an index that has several."""
    _bring_over(folder, talk)
    with locked(folder, "densecap index --remove"), written(folder):
        old = load_index(folder, talk=talk)
        names = [origin.name for origin in old.manifest.origins]
        if name not in names:
            raise IndexFolderError(f"{folder} holds no collection {name!r}; it holds: {', '.join(names)}")
        if len(names) == 1:
            raise IndexFolderError(f"{name} is all that {folder} holds; delete the folder instead")
        gone = [known.number for known in old.rows.known() if known.source == name]
        origins = tuple(origin for origin in old.manifest.origins if origin.name != name)
        manifest = replace(old.manifest, origins=origins)
        if is_worn(old, len(gone), 0):
            write_new(folder, manifest, blocks_of(old, gone, ()), _ask_pictures)
        else:
            write_more(old, manifest, gone, (), (), _ask_pictures)
        return load_index(folder)


@dataclass(frozen=True)
class _Job:
    """An update that has been planned."""

    folder: Path
    collection: Collection
    model: ModelConfig
    wanted: Wanted
    old: ImageIndex | None
    origin: Origin
    others: tuple[Known, ...]  # rows of the index's other collections
    changes: Changes
    reading: Reading
    store: StoredIn | None


def _prepare(collection: Collection, model: ModelConfig, folder: Path, wanted: Wanted, workers: int | None, talk: Talk
             ) -> _Job:
    old, known = _before(folder, wanted, talk)
    kind = wanted.kind or (old.manifest.asked_type if old else AUTO)
    store = choose_store(wanted.store, old.manifest.store if old else None, folder, "flat" if kind == AUTO else kind,
                         replace=wanted.prune)
    origin = choose_origin(collection, wanted.place, old.manifest.origins if old else (), folder, name=wanted.name,
                           add=wanted.add)
    records = [replace(record, image_id=origin.prefix + record.image_id) for record in collection.records] \
        if origin.prefix else collection.records
    others = tuple(row for row in known if row.source != origin.name)
    own = [row for row in known if row.source == origin.name] if others else known
    skips = [skip for skip in (old.rows.skips() if old else []) if skip.under == _under(wanted)]
    reading = read_changed(records, known, skips, workers=workers, talk=talk)
    taken = {row.image_id for row in others}
    twin = next((record for record in reading.records if record.image_id in taken), None) if taken else None
    if twin is not None:
        raise IndexFolderError(f"{folder} holds a picture {twin.image_id} of another collection already; give this one "
                               "another name with --name")
    changes = plan_update(own, reading.records, reading.hashes,
                          {row.hash: row.number for row in others}, closed_folders(collection.skipped), reading.before)
    origin = replace(origin, fingerprint=changes.said)
    return _Job(folder, collection, model, wanted, old, origin, others, changes, reading, store)


@contextmanager
def _without_cycles() -> Iterator[None]:
    """A plan makes millions of tuples, none of which form cycles; looking for some would take a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _before(folder: Path, wanted: Wanted, talk: Talk) -> tuple[ImageIndex | None, list[Known]]:
    """The index that is there, and what it knows."""
    if not is_index(folder):
        return None, []
    try:
        old = load_index(folder, talk=talk)
        return old, old.rows.known()
    except NewerIndex:
        raise
    except IndexFolderError as error:
        talk.say(f"{error}; it is built anew")
        return None, []
    except StoreError as error:  # what does not answer now may be whole: only who says so has it built anew
        if not wanted.rebuild:
            raise
        talk.say(f"{error}; it is built anew")
        return None, []


@dataclass
class _Run:
    """A planned update that is carried out."""

    job: _Job
    load: Callable[[], DualEncoder]
    workers: int | None
    talk: Talk
    encoded: int = 0
    cached: int = 0
    broken: list[Skipped] = field(default_factory=list)
    _loaded: DualEncoder | None = None

    @property
    def encoder(self) -> DualEncoder:
        """Loaded when it is first needed."""
        if self._loaded is None:
            self._loaded = self.load()
        return self._loaded

    def finish(self) -> IndexSummary:
        """Write what has changed."""
        job, old = self.job, self.job.old
        self._check_strict()
        same = old is not None and not job.wanted.rebuild and self._is_same_model(old.manifest)
        if old is not None and same and not self._anything(old):
            self._note(old)
            publish_store(job.folder, old.manifest)  # where the process before was ended just ahead of this
            return self._summary(old, changed=False)
        if old is None or not same:
            write_new(job.folder, self._manifest(old), self._filled(self._everything(old)), self._ask)
        elif self._update(old) is None:
            self._note(old)
            return self._summary(old, changed=False)
        index = load_index(job.folder)
        self._note(index)
        another = old is not None and old.manifest.fingerprint != index.manifest.fingerprint
        return self._summary(index, changed=True,
                             rebuilt_for=old.manifest.model.name if old is not None and another else None)

    def _update(self, old: ImageIndex) -> Path | None:
        """None where all that was new could not be used, and nothing else has changed."""
        job = self.job
        blocks: Blocks = chain(self._encode(self._rows(job.changes.new)), self._copies(old))
        restated = self._restated(old)
        if not self._restructured(old) and not job.changes.gone and not restated:
            first = next(iter(blocks := iter(blocks)), None)
            if first is None:
                return None
            blocks = chain([first], blocks)
        manifest, gone = self._manifest(old), job.changes.gone
        worn = is_worn(old, len(gone), len(job.changes.new) + len(job.changes.copied))
        if worn or self._moves(old, manifest):
            blocks = self._filled(chain(blocks_of(old, gone, restated), blocks))
            return write_new(job.folder, manifest, blocks, self._ask)
        if len(gone) == len(old):
            blocks = self._filled(blocks)
        return write_more(old, manifest, gone, restated, blocks, self._ask)

    def _moves(self, old: ImageIndex, made: Manifest) -> bool:
        """Whether the vectors go to another store, or a store must index them in another way."""
        before, after = old.manifest.store, made.store
        places = [store.place if store else "" for store in (before, after)]
        return places[0] != places[1] or (after is not None and made.index_type != old.manifest.index_type)

    def _anything(self, old: ImageIndex) -> bool:
        return self.job.changes.any or self._restructured(old)

    def _restructured(self, old: ImageIndex) -> bool:
        """Whether the manifest is another, whatever the pictures."""
        made = self._manifest(old)
        return self._moves(old, made) or (made.index_type, made.asked_type, made.model, made.origins) != (
            old.manifest.index_type, old.manifest.asked_type, old.manifest.model, old.manifest.origins)

    def _is_same_model(self, manifest: Manifest) -> bool:
        model = self.job.model
        if self.job.wanted.trust_files and manifest.model == model and manifest.stamp == stamp_of(model):
            return True
        return self.encoder.fingerprint() == manifest.fingerprint

    def _manifest(self, old: ImageIndex | None) -> Manifest:
        """All but the counts and files. Without an encoder it is that of the index before."""
        job = self.job
        before = old.manifest if old else None
        if self._loaded is None and before is not None and not job.wanted.rebuild:
            fingerprint, precision, dim, libraries = before.fingerprint, before.precision, before.dim, before.libraries
        else:
            fingerprint, precision, dim = self.encoder.fingerprint(), self.encoder.image_precision, self.encoder.dim
            libraries = {name: version(name) for name in LIBRARIES}
        asked = job.wanted.kind or (before.asked_type if before else AUTO)
        count = len(job.reading.records) + len(job.changes.unseen) + len(job.others)
        memory = machine_memory() if job.store is None else MUCH  # of whoever runs the store
        kind, reason = choose_type(count, dim, memory) if asked == AUTO else (asked, "")
        origins = [job.origin if origin.name == job.origin.name else origin
                   for origin in (before.origins if before else ())]
        if job.origin.name not in [origin.name for origin in origins]:
            origins.append(job.origin)
        return Manifest(
            model=job.model, fingerprint=fingerprint, precision=precision, dim=dim, total=0, count=0, index_type=kind,
            asked_type=asked, number=0, rows="", vectors=(), origins=tuple(origins), store=job.store,
            stamp=stamp_of(job.model), reason=reason, libraries=libraries)

    def _check_strict(self) -> None:
        skipped = self._skipped()
        if self.job.wanted.strict and skipped:
            raise CollectionError(f"{self.job.collection.name}: {len(skipped)} pictures cannot be used, the first: "
                                  f"{skipped[0]}; mend them or index without --strict")

    def _filled(self, blocks: Blocks) -> Blocks:
        """The same blocks; an error where there are none."""
        count = 0
        for rows, vectors in blocks:
            count += len(rows)
            yield rows, vectors
        if not count:
            skipped = self._skipped()
            first = f", the first: {skipped[0]}" if skipped else ""
            raise CollectionError(f"{self.job.collection.name}: no picture could be indexed; {len(skipped)} were "
                                  f"skipped{first}")

    def _everything(self, old: ImageIndex | None) -> Blocks:
        """All pictures encoded anew: of the collection, those that it did not see, and of the index's others."""
        yield from self._encode(self._rows(self.job.reading.records))
        numbers = [*self.job.changes.unseen, *(known.number for known in self.job.others)]
        if old is not None and numbers:
            yield from self._encode(row for start in range(0, len(numbers), ENCODED_AT_ONCE)
                                    for row in old.rows.many(numbers[start:start + ENCODED_AT_ONCE]))

    def _rows(self, records: Sequence[Record]) -> Iterator[Row]:
        """Rows of records whose files were read, without number and date."""
        root = self._root()
        for record in records:
            content = self.job.reading.content(record)
            yield _row(record, content, self.job.origin.name, root)

    def _root(self) -> str | None:
        place = self.job.wanted.place
        if place is None:
            return None
        return str(place.absolute() if place.is_dir() else place.absolute().parent)

    def _encode(self, rows: Iterator[Row]) -> Blocks:
        """Rows with vectors, in blocks; what cannot be opened is remembered in ``broken``."""
        while block := [row for _, row in zip(range(ENCODED_AT_ONCE), rows, strict=False)]:
            records = [Record(row.image_id, Path(row.image), content=Content(row.hash, row.size, row.modified))
                       for row in block]
            made, broken = embed_images(self.encoder, records, workers=self.workers, talk=self.talk)
            self.broken.extend(broken)
            self._check_strict()
            self.encoded += len(made.image_ids)
            self.cached += len(made.image_ids) - made.encoded
            good = set(made.image_ids)
            kept = [row for row in block if row.image_id in good]
            if kept:
                yield self._dated(kept), made.vectors

    def _copies(self, old: ImageIndex) -> Blocks:
        """Pictures whose content has a vector already."""
        copied = self.job.changes.copied
        for start in range(0, len(copied), ENCODED_AT_ONCE):
            block = copied[start:start + ENCODED_AT_ONCE]
            rows = self._dated(list(self._rows([record for _, record in block])))
            yield rows, old.stored.take(np.array([number for number, _ in block], np.int64))

    def _dated(self, rows: Sequence[Row]) -> list[Row]:
        dates = ahead(date_taken, [Path(row.image) for row in rows], self.workers)
        return [replace(row, taken=date) for row, date in zip(rows, dates, strict=True)]

    def _restated(self, old: ImageIndex) -> list[Row]:
        """New versions of rows; the date they have, for the content is the same."""
        restated = self.job.changes.restated
        before = old.rows.many([number for number, _ in restated])
        rows = self._rows([record for _, record in restated])
        return [replace(row, number=own.number, taken=own.taken) for row, own in zip(rows, before, strict=True)]

    def _skipped(self) -> tuple[Skipped, ...]:
        return (*self.job.collection.skipped, *self.job.reading.skipped, *self.broken)

    def _note(self, index: ImageIndex) -> None:
        """What spares the next update work."""
        reading = self.job.reading
        contents = {str(record.image): reading.content(record) for record in reading.records} if self.broken else {}
        skips = [*reading.skips, *new_skips(self.broken, contents, _under(self.job.wanted))]
        times = reading.times if self.job.old is not None and index.rows.path == self.job.old.rows.path else []
        if times or skips != index.rows.skips():
            note(index.rows.path, times, skips)

    def _ask(self, rows: Rows, vectors: VectorSource, alive: Mask) -> Asked:
        """Captions of some pictures as queries; pictures where fewer than a tenth have one."""
        numbers = _sample(alive)
        captions = [row.captions[0] for row in rows.many(numbers.tolist()) if row.captions]
        if 10 * len(captions) < len(numbers):
            return _ask_pictures(rows, vectors, alive)
        queries = embed_queries(self.encoder, captions, talk=self.talk).rows[:QUERIES]
        return Asked(queries, f"{len(queries)} captions")

    def _summary(self, index: ImageIndex, *, changed: bool, rebuilt_for: str | None = None) -> IndexSummary:
        return IndexSummary(index, self.job.changes, self.encoded, self._skipped(), changed, rebuilt_for,
                            self.cached)


def _row(record: Record, content: Content, source: str, root: str | None) -> Row:
    return Row(-1, source, record.image_id, str(record.image), record.captions, content.hash, content.size,
               content.modified, signature(record), record.split, record.group, record.burst, None,
               folder_of(record, root), record.columns)


def _sample(alive: Mask) -> np.ndarray:
    numbers = np.flatnonzero(alive)
    return np.sort(np.random.default_rng(0).permutation(numbers)[:QUERIES])


def _ask_pictures(rows: Rows, vectors: VectorSource, alive: Mask) -> Asked:
    numbers = _sample(alive)
    return Asked(vectors.take(numbers), f"{len(numbers)} pictures")


def _under(wanted: Wanted) -> str:
    """What a verdict about a picture depends on besides the file."""
    return f"{__version__} {wanted.max_pixels}"
