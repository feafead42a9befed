"""Answers to searches added to a collection: their questions become captions of its pictures, and what is to be asked
later is held out of training, with all that is the same picture or of the same burst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from densecap_search.collection.feedback import FORMAT
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.collection.splits import most_held_out, sides, split_collection
from densecap_search.config import RunConfig
from densecap_search.embedding.content import read_contents
from densecap_search.errors import CollectionError
from densecap_search.talk import Talk
from densecap_search.training.run_folder import trained_before


def read_answers(files: Sequence[str]) -> list[Collection]:
    """The answers that the page kept in some files. Errors: CollectionError where one is no such file."""
    answers = [read_collection(Path(name)) for name in files]
    for name, each in zip(files, answers, strict=True):
        if each.format != FORMAT:
            raise CollectionError(f"{name} holds no answers to searches (it is read as {each.format}); the page keeps "
                                  "them beside its index, in INDEX.feedback.jsonl")
    return answers


def add_questions(collection: Collection, answers: Sequence[Collection], config: RunConfig, talk: Talk) -> Collection:
    """The collection with the questions of answers and a split for every captioned picture; all have been read.

    A picture is known by its content. The collection's split stays (made where it has none, or none is to be used),
    but a picture that the answers hold out is of the split test. One that the model has been trained on already is not
    held out: its questions could not be asked honestly.
    """
    records, unreadable = read_contents(collection.records, talk=talk, workers=config.train.workers)
    questions, missing = _questions(answers, config.train.workers)
    before = trained_before(config.model.name)
    questions = [replace(record, split="train") if record.hash in before else record for record in questions]
    added = with_questions(_with_splits(replace(collection, records=tuple(records)), config), questions)
    count = sum(len(record.captions) for record in questions)
    held = sum(len(record.captions) for record in questions if record.split == "test")
    talk.say(f"{count} questions about {len(questions)} pictures are added; {held} of them are held out, for evaluate "
             "to ask")
    if missing:
        talk.say(f"{len(missing)} answers are no questions, the first: {missing[0]}")
    return replace(added, skipped=(*collection.skipped, *unreadable))


def with_questions(collection: Collection, questions: Sequence[Record]) -> Collection:
    """The questions as captions of the pictures of the same content, or as pictures of their own; all have been read.

    The more held-out split wins, for all records that are of one group, burst or content.
    """
    records = list(collection.records)
    row_of = {record.hash: row for row, record in reversed(list(enumerate(records)))}
    ids = {record.image_id for record in records}
    for question in questions:
        if question.hash in row_of:
            row = row_of[question.hash]
            records[row] = replace(records[row], captions=(*dict.fromkeys(records[row].captions + question.captions),))
        else:
            name = question.image_id if question.image_id not in ids else str(question.image)
            row_of[question.hash] = len(records)
            records.append(replace(question, image_id=name, rows=()))
            ids.add(name)
    held = {question.hash for question in questions if question.split == "test"}
    numbers = sides(records)
    out = {number for record, number in zip(records, numbers, strict=True) if record.hash in held}
    return replace(collection, records=tuple(
        replace(record, split=most_held_out([record.split or "train", "test"]) if number in out else record.split)
        for record, number in zip(records, numbers, strict=True)))


def _questions(answers: Sequence[Collection], workers: int | None) -> tuple[list[Record], list[Skipped]]:
    read, unreadable = read_contents([record for each in answers for record in each.records], workers=workers)
    by_content: dict[str, Record] = {}
    for record in read:
        known = by_content.setdefault(record.hash, record)
        by_content[record.hash] = replace(known, captions=(*dict.fromkeys(known.captions + record.captions),))
    return list(by_content.values()), [*(skip for each in answers for skip in each.skipped), *unreadable]


def _with_splits(collection: Collection, config: RunConfig) -> Collection:
    """With the split that training would take, written down."""
    if not config.data.use_split:
        collection = replace(collection, records=tuple(replace(record, split=None) for record in collection.records))
    if not collection.captioned:
        return collection
    splits = split_collection(collection, val_share=config.data.val_share, test_share=config.data.test_share,
                              seed=config.split_seed)
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    made = {record.image_id: name for name, part in parts.items() for record in part}
    return replace(collection, records=tuple(
        replace(record, split=made.get(record.image_id, record.split)) for record in collection.records))
