"""What was answered on the page of an index → heads that are tuned, the held-out questions before and after, and an
index by the new model.

The pictures and captions are the index's own rows, so an index of several collections is no other case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from densecap_search.collection.feedback import feedback_file
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.config import ModelConfig, load_config
from densecap_search.errors import CollectionError, DensecapError
from densecap_search.locks import locked
from densecap_search.retrieval.index import load_index
from densecap_search.talk import SILENT, Talk
from densecap_search.workflows.index import corrected_collection, indexed_collection

SHOWN = ("R@1", "R@10", "MRR")
LEAST_CAPTIONED = 10  # pictures with a caption or a question, below which there is nothing to tell apart


@dataclass(frozen=True)
class Answers:
    """Questions that people answered: how many are trained on, and how many are held out to be asked."""

    train: int
    held_out: int


@dataclass(frozen=True)
class Change:
    """A figure of the held-out questions (percent, but MRR), and the 95 % interval of its paired difference."""

    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True)
class Lesson:
    """A run, and what it changed. questions: held out and asked; figures: by name, of SHOWN, none where no question
    could be asked; doubt: why they may tell little, or ""."""

    run: Path
    before: str
    questions: int
    figures: Mapping[str, Change]
    doubt: str


def lessons_folder(folder: Path) -> Path:
    """Where the runs of an index's lessons lie: beside its folder."""
    index = folder.resolve()
    return index.with_name(f"{index.name}.lessons")


def count_answers(folder: Path) -> Answers:
    """The questions that the page of an index has kept."""
    questions = _questions(folder)
    by_split = [sum(len(record.captions) for record in questions.records if record.split == split)
                for split in ("train", "test")]
    return Answers(*by_split)


def check_lesson(folder: Path) -> None:
    """Errors: DensecapError where there is nothing to learn from, before anything is loaded."""
    answers = count_answers(folder)
    if not answers.train:
        held = "every answer is about a picture that is held out; " if answers.held_out else ""
        raise CollectionError(f"{held}there is no question to learn from yet: press \"This is the one\" on what a "
                              "search was for")
    captioned = len(corrected_collection(folder).captioned)
    if captioned < LEAST_CAPTIONED:
        raise CollectionError(f"the index has {captioned} pictures with a caption, which are too few to train on (at "
                              f"least {LEAST_CAPTIONED})")


def learn(folder: Path, run: Path, talk: Talk = SILENT) -> Lesson:
    """Tune the heads of an index's model on its captions and questions into a run folder, and ask what is held out."""
    from densecap_search.training.loop import finetune  # torch and open_clip: only where something is learned

    before = load_index(folder).manifest.model
    config = load_config(None, [("train.tune", "heads"), ("data.add", (str(feedback_file(folder)),))])
    with locked(run.parent, "a lesson of the page"):
        finetune(corrected_collection(folder), replace(config, model=before), run, talk=talk)
        return _compare(folder, run, before, talk)


def take(folder: Path, run: Path, talk: Talk = SILENT) -> str:
    """Encode an index's pictures and captions by a run, as a new generation; its name."""
    from densecap_search.retrieval.update import Wanted
    from densecap_search.workflows.index import encoder_for, index_collection

    model, origin = ModelConfig(str(run)).resolved(), load_index(folder).manifest.origins[0]
    collection = corrected_collection(folder, source=origin.name, prefix=origin.prefix)
    wanted = Wanted(name=origin.name, trust_files=True)
    load = cache(partial(encoder_for, collection, model, folder, talk=talk))
    made = index_collection(collection, load, model, folder, wanted, talk=talk)
    return made.pictures.index.place.name


def _compare(folder: Path, run: Path, before: ModelConfig, talk: Talk) -> Lesson:
    from densecap_search.evaluation.outcome import few_questions
    from densecap_search.workflows.evaluate import run_evaluation

    questions = _questions(folder)
    try:
        outcome = run_evaluation(questions, [ModelConfig(str(run)).resolved(), before], splits=["test"],
                                 among=indexed_collection(folder), talk=talk)
    except CollectionError as error:  # none is held out, or the model before was trained on all of them
        return Lesson(run, before.name, 0, {}, f"before and after could not be compared: {error}")
    new, old = (report.text_to_image for report in outcome.reports)
    differences = outcome.comparisons[0].differences["text_to_image"]
    figures = {name: Change(old.figures[name].value, new.figures[name].value, differences[name].low,
                            differences[name].high) for name in SHOWN}
    return Lesson(run, before.name, new.queries, figures, few_questions(outcome.reports[0]))


def _questions(folder: Path) -> Collection:
    place = feedback_file(folder)
    if not place.is_file():
        return Collection(place.stem, ())
    try:
        return read_collection(place)
    except DensecapError as error:
        raise CollectionError(f"{place.name} cannot be read: {error}") from error
