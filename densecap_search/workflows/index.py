"""A collection → an index whose pictures and captions are up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from densecap_search.collection.corrections import corrections_file, with_corrections
from densecap_search.collection.records import Collection, Content, Record
from densecap_search.config import PRECISIONS, ModelConfig
from densecap_search.embedding.towers import choose_precision_by_trial
from densecap_search.files import cache_folder, sweep
from densecap_search.model.device import HALVED
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.model.query_files import QUERIES
from densecap_search.model.query_making import keep_query_encoder
from densecap_search.retrieval.caption_store import Captions, update_captions
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.index_folder import read_precision
from densecap_search.retrieval.update import IndexSummary, Wanted, bring_up_to_date
from densecap_search.talk import SILENT, Talk
from densecap_search.training.run_folder import read_splits


@dataclass(frozen=True)
class Indexed:
    """What was done to the pictures of an index, and its captions; None where no picture has one."""

    pictures: IndexSummary
    captions: Captions | None


def encoder_for(collection: Collection, model: ModelConfig, folder: Path, *, precision: str = "auto",
                device: str = "auto", max_pixels: int | None = None, rebuild: bool = False, trial: bool = True,
                talk: Talk = SILENT) -> DualEncoder:
    """The encoder with which an index is made or updated.

    precision: of PRECISIONS; auto: what the index was made with, and for a new one, or one that is rebuilt, the
    quickest here. trial: whether that may be tried out.
    """
    kept = read_precision(folder) if precision == "auto" and not rebuild else None
    encoder = load_encoder(model, device=device, precision=kept if kept in PRECISIONS else precision,
                           max_pixels=max_pixels)
    encoder.halved = kept == HALVED
    if precision == "auto" and kept is None and trial:
        choose_precision_by_trial(encoder, [record.image for record in collection.records], len(collection), talk)
    talk.say(f"{model.name}, {encoder.image_precision}; {len(collection)} pictures")
    return encoder


def indexed_collection(folder: Path) -> Collection:
    """The pictures of an index with all that it knows of them, as a collection; nothing is opened."""
    index = load_index(folder)
    records = (Record(row.image_id, Path(row.image), row.captions, row.split, row.group, row.burst, row.columns,
                      content=Content(row.hash, row.size, row.modified)) for row in index.rows)
    return Collection(folder.resolve().name, tuple(records))


def corrected_collection(folder: Path, source: str | None = None, prefix: str = "") -> Collection:
    """The same as it was corrected on the page; source: of one of its collections, whose ids have a prefix."""
    known = indexed_collection(folder)
    if source is not None:
        own = {row.image_id for row in load_index(folder).rows if row.source == source}
        known = replace(known, records=tuple(replace(record, image_id=record.image_id.removeprefix(prefix))
                                             for record in known.records if record.image_id in own))
    corrections = corrections_file(folder)
    return with_corrections(known, corrections) if corrections.is_file() else known


def index_collection(
    collection: Collection, load: Callable[[], DualEncoder], model: ModelConfig, folder: Path, wanted: Wanted, *,
    talk: Talk,
) -> Indexed:
    """Bring the pictures of an index up to date, then its captions. load: called where something must be encoded.

    Captions of pictures that a run was trained on do not decide how captions count. A model that was loaded leaves an
    encoder of queries in the cache, so that a search need not load it.
    """
    loaded: list[DualEncoder] = []

    def noted() -> DualEncoder:
        loaded.append(load())
        return loaded[-1]

    pictures = bring_up_to_date(collection, noted, model, folder, wanted, talk=talk)
    trained = read_splits(Path(model.name))[1]
    captions = update_captions(pictures.index, noted, trained=trained, talk=talk)
    sweep(cache_folder() / QUERIES)
    if loaded:
        keep_query_encoder(loaded[-1])
    return Indexed(pictures, captions)
