"""`densecap evaluate` from a collection and names of models to an EvaluationOutcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from densecap_search.collection.feedback import FORMAT as FEEDBACK
from densecap_search.collection.questions import choose_protocol
from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.collection.splits import select_splits
from densecap_search.config import STARTER, ModelConfig, load_config
from densecap_search.embedding.content import read_contents, with_contents
from densecap_search.errors import CollectionError, ConfigError
from densecap_search.evaluation.compare import compare_reports
from densecap_search.evaluation.evaluate import Report, evaluate
from densecap_search.evaluation.index_recall import measure_index
from densecap_search.evaluation.modes import ModesReport, measure_modes
from densecap_search.evaluation.outcome import EvaluationOutcome, Mixtures, Retention
from densecap_search.evaluation.pairs import mean_recall_at_1
from densecap_search.evaluation.slices import Parts
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.retrieval.index import load_index
from densecap_search.talk import Talk
from densecap_search.training import interpolate
from densecap_search.training.run_folder import CONFIG, read_splits, trained_before


@dataclass(frozen=True)
class _Set:
    """Records of one collection that are measured; those that can be read carry their content."""

    collection: str
    splits: tuple[str, ...]
    records: tuple[Record, ...]
    skipped: tuple[Skipped, ...]  # of the collection: rows without a picture, and others that could not be read
    others: tuple[Record, ...] = ()  # that are only in the galleries


def run_evaluation(
    collection: Collection, models: Sequence[ModelConfig], *, splits: Sequence[str], precision: str = "fp32",
    device: str = "auto", long_text: str | None = None, max_pixels: int | None = None, slices: Sequence[str] = (),
    gallery: str = "split", index: Path | None = None, retain: Collection | None = None,
    among: Collection | None = None, talk: Talk,
) -> EvaluationOutcome:
    """Measure the first model, compare it with the others, and see what it does to an index or another collection.

    splits: names, or ``all``; a run's own splits go before the table's. index: a folder that the first model built.
    long_text, max_pixels: as for load_encoder, for all models.
    gallery: ``all``: the galleries hold the whole collection, as an index of it would; queries are those of the splits.
    among: what is searched instead, whose captions are not; for answers to searches, which name few pictures.
    retain: also measured with the first model and with the one before it (the second one, or what its run began with).
    """
    if long_text:
        models = [replace(model, long_text=long_text) for model in models]
    before = None if retain is None else _model_before(models)
    load = partial(load_encoder, device=device, precision=precision, max_pixels=max_pixels)
    chosen = _choose(collection, models, splits, talk)
    if among is not None:
        chosen = _with_gallery(chosen, among, talk)
    elif gallery == "all":
        chosen = _with_others(chosen, collection, talk)
    reports: list[Report] = []
    found_index = None
    for model in models:
        encoder = load(model)
        # all models by the parts of the first: hardness, for one, is another under each
        reports.append(_measure(encoder, model, chosen, reports[0].parts if reports else slices, talk))
        if index is not None and model is models[0] and reports[0].pairs is not None:
            found_index = measure_index(load_index(index), reports[0].pairs, model.name, encoder.fingerprint())
    retention = None
    if retain is not None and before is not None:
        retention = _retention(load(models[0]), load(before), (models[0], before), chosen, retain, talk)
    compared = tuple(compare_reports(reports[0], other) for other in reports[1:])
    return EvaluationOutcome(tuple(reports), compared, found_index, retention)


def run_modes(
    collection: Collection, models: Sequence[ModelConfig], *, splits: Sequence[str], protocol: str | None,
    whole_gallery: bool, precision: str = "fp32", device: str = "auto", long_text: str | None = None,
    max_pixels: int | None = None, talk: Talk,
) -> list[ModesReport]:
    """Measure search by pictures, by captions and by both, with each model.

    protocol: of PROTOCOLS; None: what fits the captions. whole_gallery: among all pictures of the collection, also
    those of other splits and those without a caption; else among those that ask.
    """
    if long_text:
        models = [replace(model, long_text=long_text) for model in models]
    chosen = _choose(collection, models, splits, talk)
    gallery = collection.records if whole_gallery else chosen.records
    protocol = protocol or choose_protocol(chosen.records)
    reports = []
    for model in models:
        encoder = load_encoder(model, device=device, precision=precision, max_pixels=max_pixels)
        _, trained = read_splits(Path(model.name))
        reports.append(measure_modes(encoder, chosen.records, gallery, protocol=protocol, model=model.name,
                                     collection=chosen.collection, splits=chosen.splits, trained=trained, talk=talk))
    return reports


def _choose(collection: Collection, models: Sequence[ModelConfig], splits: Sequence[str], talk: Talk) -> _Set:
    """The records of the splits: as the first run among the models has them, and of other pictures as the table has."""
    if collection.format == FEEDBACK:
        return _choose_questions(collection, models, splits, talk)
    made = next((own_splits for model in models if (own_splits := read_splits(Path(model.name))[0])), {})
    if made:
        collection = with_contents(collection, talk=talk)
    here = {record.image_id: record.content.hash for record in collection.captioned if record.content}
    same = {name: split for name, (split, content) in made.items() if here.get(name) == content}
    if len(same) < len(made):
        talk.say(f"{len(made) - len(same)} of the {len(made)} pictures that the run split are not here or have changed")
    records = select_splits(collection, splits, same)
    return _read_set(collection, tuple(splits), records, talk)


def _choose_questions(collection: Collection, models: Sequence[ModelConfig], splits: Sequence[str], talk: Talk) -> _Set:
    """Of answers to searches those of the splits, as the first run has them by content; none that was trained on."""
    collection = with_contents(collection, talk=talk)
    trained = frozenset[str]().union(*(trained_before(model.name) for model in models))
    runs = [Path(model.name) for model in models if model.name != STARTER]
    made = next((own_splits for run in runs if (own_splits := read_splits(run)[0])), {})
    split_of = {content: split for split, content in made.values()}
    fair = [record for record in collection.captioned if record.content and record.hash not in trained]
    known = len(collection.captioned) - len(fair)
    if known:
        talk.say(f"{known} of the {len(collection.captioned)} pictures that were meant were trained on; what was asked "
                 "for them is not asked")
    if not fair:
        raise CollectionError(f"{collection.name}: every picture that was meant was trained on, so no question can be "
                              "asked; hold some out with finetune --add")
    own = {record.image_id: split for record in fair if (split := split_of.get(record.hash))}
    records = select_splits(replace(collection, records=tuple(fair)), splits, own)
    return _Set(collection.name, tuple(splits), records, collection.skipped)


def _with_gallery(chosen: _Set, among: Collection, talk: Talk) -> _Set:
    """The pictures of another collection beside those that are asked, without their captions."""
    read, unreadable = read_contents(among.records, talk=talk)
    asked = {record.hash for record in chosen.records}
    ids = {record.image_id for record in chosen.records}
    others = tuple(
        replace(record, captions=(), image_id=str(record.image) if record.image_id in ids else record.image_id)
        for record in read if record.hash not in asked)
    return replace(chosen, others=others, skipped=(*chosen.skipped, *unreadable))


def _read_set(of: Collection, splits: tuple[str, ...], records: tuple[Record, ...], talk: Talk) -> _Set:
    return _Set(of.name, splits, with_contents(Collection(of.name, records), talk=talk).records, of.skipped)


def _with_others(chosen: _Set, collection: Collection, talk: Talk) -> _Set:
    """Every other picture of the collection beside those that are asked."""
    asked = {record.image_id for record in chosen.records}
    others, unreadable = read_contents([each for each in collection.records if each.image_id not in asked], talk=talk)
    return replace(chosen, others=tuple(others), skipped=(*chosen.skipped, *unreadable))


def _measure(encoder: DualEncoder, model: ModelConfig, chosen: _Set, slices: Sequence[str] | Sequence[Parts], talk: Talk
             ) -> Report:
    _, trained = read_splits(Path(model.name))
    return evaluate(encoder, chosen.records, model=model.name, collection=chosen.collection,
                    splits=chosen.splits, trained=trained, others=chosen.others, skipped=chosen.skipped,
                    slices=slices, talk=talk)


def _model_before(models: Sequence[ModelConfig]) -> ModelConfig:
    """The second model, or what the first one's run began with."""
    if len(models) > 1:
        return models[1]
    saved = Path(models[0].name) / CONFIG
    if not saved.is_file():
        raise ConfigError(f"--retain compares with the model before, but {models[0].name} is no run folder; name "
                          "that model with --against")
    model = load_config(saved).model
    if Path(model.name).is_absolute() and not Path(model.name).exists():
        raise ConfigError(f"--retain compares with the model before, but {models[0].name} began with {model.name}, "
                          "which is not there; name that model with --against")
    return model


def _retention(encoder: DualEncoder, old: DualEncoder, models: tuple[ModelConfig, ModelConfig], target: _Set,
               retain: Collection, talk: Talk) -> Retention:
    """The second collection with both models, and mixtures of the two on both collections."""
    kept = _kept_set(retain, target.splits, talk)
    now, before = (_measure(each, model, kept, (), talk) for each, model in zip((encoder, old), models, strict=True))
    return Retention(now, before, compare_reports(now, before), _mixtures(encoder, old, target, kept, talk))


def _kept_set(retain: Collection, splits: tuple[str, ...], talk: Talk) -> _Set:
    try:
        records = select_splits(retain, splits)
    except CollectionError:  # it has no such splits: it was not trained on, and may be used whole
        records, splits = retain.captioned, ("all",)
    if not records:
        raise CollectionError(f"{retain.name} has no picture with a caption: nothing to retain")
    return _read_set(retain, splits, records, talk)


def _mixtures(encoder: DualEncoder, old: DualEncoder, target: _Set, kept: _Set, talk: Talk) -> Mixtures | None:
    original, tuned = interpolate.snapshot(old), interpolate.snapshot(encoder)
    shapes = [{name: value.shape for name, value in weights.items()} for weights in (original, tuned)]
    if shapes[0] != shapes[1] or old.spec.identity() != encoder.spec.identity():
        talk.say(f"{old.name} and {encoder.name} are not of one architecture: no weights between them")
        return None
    towers = all(encoder.tower_fingerprint(tower) == old.tower_fingerprint(tower) for tower in ("image", "text"))
    sets = {name: [record for record in each.records if record.content] for name, each in
            (("target", target), ("retained", kept))}
    measured = interpolate.measure_mixtures(encoder, original, tuned, sets, cached=towers, talk=talk)
    curves = {name: tuple(mean_recall_at_1(figures) for figures in curve) for name, curve in measured.items()}
    return Mixtures(interpolate.ALPHAS, curves["target"], curves["retained"])
