"""The whole chain on a generated archive: render, fine-tune the starter, index, measure before and after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from densecap_search.collection.readers import read_collection
from densecap_search.collection.splits import select_splits
from densecap_search.config import ModelConfig, load_config
from densecap_search.errors import DensecapError
from densecap_search.evaluation.evaluate import Report, evaluate
from densecap_search.model.loading import load_encoder
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import Wanted
from densecap_search.scenes.archive import make_scenes
from densecap_search.talk import Talk
from densecap_search.training.loop import finetune
from densecap_search.workflows.index import index_collection


@dataclass(frozen=True)
class DemoOutcome:
    """Retrieval on unseen bursts before and after, and where a caption finds its picture by the pictures alone."""

    before: Report
    after: Report
    index: Path
    query: str
    rank: int
    pictures: int


def run_demo(folder: Path, *, bursts: int, seed: int, talk: Talk) -> DemoOutcome:
    """Write an archive, a run and an index below folder."""
    if folder.exists() and any(folder.iterdir()):
        raise DensecapError(f"{folder} is not empty; remove it or name another folder: densecap demo DIR")
    with talk.progress("drawing", 4 * bursts, "pictures") as advance:
        table = make_scenes(folder / "archive", bursts=bursts, seed=seed, progress=lambda done, total: advance(1))
    collection = read_collection(table)
    run, index = folder / "run", folder / "index"
    config = load_config(overrides=[("train.seed", seed), ("train.objective", "hn_clip")])
    test = select_splits(collection, ["test"])
    before = evaluate(load_encoder(ModelConfig()), test, model="starter", collection="scenes", splits=["test"],
                      talk=talk)
    tuned = ModelConfig(str(run)).resolved()
    finetune(collection, config, run, talk=talk)
    encoder = load_encoder(tuned)
    after = evaluate(encoder, test, model=str(run), collection="scenes", splits=["test"], talk=talk)
    wanted = Wanted(place=table, max_pixels=encoder.max_pixels)
    made = index_collection(collection, lambda: encoder, tuned, index, wanted, talk=talk).pictures.index
    query = test[0].captions[0]  # the index holds it too, so only the pictures are asked
    hits, _ = Searcher(encoder, made).by_captions([query], len(made))
    rank = next(hit.rank for hit in hits[0] if hit.image_id == test[0].image_id)
    return DemoOutcome(before, after, index, query, rank, len(made))
