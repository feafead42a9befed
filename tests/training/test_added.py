"""Questions that people asked are trained on or asked later, never both, by picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from densecap_search.collection.feedback import Answer, held_out, keep_answer
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection, Content, Record
from densecap_search.config import ModelConfig, load_config
from densecap_search.errors import CollectionError, RunError
from densecap_search.evaluation.outcome import few_questions
from densecap_search.files import hash_file
from densecap_search.talk import SILENT
from densecap_search.training.added import read_answers, with_questions
from densecap_search.training.loop import finetune
from densecap_search.training.run_folder import read_splits, trained_before
from densecap_search.workflows.evaluate import run_evaluation


def record(name: str, content: str, *captions: str, split: str | None = None, burst: str | None = None) -> Record:
    return Record(name, Path(f"/{name}"), captions, split, burst=burst, content=Content(content, 1, 1))


def settings(model: Path, feedback: Path, **data):
    values = {"model.name": str(model), "train.epochs": 1, "train.batch_size": 8, "train.tune": "heads",
              "train.objective": "info_nce", "data.add": [str(feedback)], **data}
    return load_config(overrides=list(values.items()))


def ask_for_all(photos: Path, feedback: Path, words: str = "asked for") -> list[Path]:
    pictures = sorted(photos.glob("*.png"))
    for picture in pictures:
        keep_answer(feedback, Answer(f"{words} {picture.stem}", "this", "", "", "", "", picture.name, str(picture),
                                     hash_file(picture)))
    return pictures


def test_questions_become_captions_and_what_is_held_out_takes_its_burst_along():
    found = with_questions(Collection("c", (
        record("a", "1", "of a", split="train"), record("b", "2", "of b", split="train", burst="x"),
        record("c", "3", "of c", split="val", burst="x"), record("d", "4", "of d", split="test"), record("e", "5"),
        record("copy of a", "1", "another of a", split="train"))), [
        record("q1", "1", "where is a", "of a", split="train"), record("q2", "2", "where is b", split="test"),
        record("q3", "4", "where is d", split="train"), record("q4", "5", "where is e", split="train"),
        record("e", "6", "where is f", split="test")])
    assert [(each.image_id, each.captions, each.split) for each in found.records] == [
        ("a", ("of a", "where is a"), "train"), ("b", ("of b", "where is b"), "test"), ("c", ("of c",), "test"),
        ("d", ("of d", "where is d"), "test"), ("e", ("where is e",), None), ("copy of a", ("another of a",), "train"),
        ("/e", ("where is f",), "test")]


@pytest.mark.parametrize("use_split", [True, False])
def test_no_picture_is_both_trained_on_and_asked(photos: Path, collection, tiny_run: Path, tmp_path: Path, use_split: bool):
    feedback, run = tmp_path / "mine.feedback.jsonl", tmp_path / "run"
    pictures = ask_for_all(photos, feedback)
    finetune(collection, settings(tiny_run, feedback, **{"data.use_split": use_split}), run, talk=SILENT)
    out = {hash_file(picture) for picture in pictures if held_out(hash_file(picture))}
    _, trained = read_splits(run)
    assert trained
    assert not trained & out
    outcome = run_evaluation(read_collection(feedback), [ModelConfig(str(run)), ModelConfig(str(tiny_run))],
                             splits=["test"], among=collection, talk=SILENT)
    report = outcome.reports[0]
    assert (report.text_to_image.queries, report.text_to_image.gallery, report.trained_on) == (
        len(read_splits(run)[0]) - len(trained) - 2, 24, 0)  # all that is neither trained on nor val
    assert few_questions(report).startswith(f"{report.text_to_image.queries} questions are too few to tell (at least 50): R@1")
    everything = run_evaluation(read_collection(feedback), [ModelConfig(str(run))], splits=["all"], talk=SILENT).reports[0]
    assert everything.trained_on == 0
    assert {record.hash for record in everything.pairs.records}.isdisjoint(trained)


def test_what_the_model_was_trained_on_before_is_not_held_out_and_never_asked(photos: Path, collection, tiny_run: Path, tmp_path: Path):
    feedback, first, second = tmp_path / "f.jsonl", tmp_path / "first", tmp_path / "second"
    plain = settings(tiny_run, feedback)
    finetune(collection, replace(plain, data=replace(plain.data, add=())), first, talk=SILENT)
    ask_for_all(photos, feedback)
    finetune(collection, settings(first, feedback), second, talk=SILENT)
    before = trained_before(str(first))
    assert len(before) == 20
    assert json.loads((second / "split.json").read_text())["earlier"] == sorted(before)
    assert trained_before(str(second)) >= before
    asked = run_evaluation(read_collection(feedback), [ModelConfig(str(second))], splits=["all"], talk=SILENT).reports[0]
    assert {record.hash for record in asked.pairs.records}.isdisjoint(before)


def test_a_model_that_saw_every_picture_cannot_be_asked(photos: Path, tiny_run: Path, tmp_path: Path):
    feedback, run = tmp_path / "f.jsonl", tmp_path / "run"
    ask_for_all(photos, feedback)
    whole = Collection("c", tuple(replace(each, split="train") for each in read_collection(photos).records))
    plain = settings(tiny_run, feedback, **{"data.val_share": 0.0})
    finetune(whole, replace(plain, data=replace(plain.data, add=())), run, talk=SILENT)
    with pytest.raises(CollectionError, match="hold some out with finetune --add"):
        run_evaluation(read_collection(feedback), [ModelConfig(str(run))], splits=["all"], talk=SILENT)


def test_a_run_is_not_resumed_with_other_questions(photos: Path, collection, tiny_run: Path, tmp_path: Path):
    feedback, run = tmp_path / "f.jsonl", tmp_path / "run"
    ask_for_all(photos, feedback)
    finetune(collection, settings(tiny_run, feedback), run, talk=SILENT)
    finetune(collection, settings(tiny_run, feedback), run, resume=True, talk=SILENT)
    ask_for_all(photos, feedback, "now asked for")
    with pytest.raises(RunError, match="photos has changed since"):
        finetune(collection, settings(tiny_run, feedback), run, resume=True, talk=SILENT)


def test_what_is_no_file_of_answers_is_refused_before_a_model_is_loaded(photos: Path, collection, tmp_path: Path):
    with pytest.raises(CollectionError, match="holds no answers to searches"):
        read_answers([str(photos)])
    with pytest.raises(CollectionError, match="holds no answers to searches"):
        finetune(collection, settings(tmp_path / "no such model", photos), tmp_path / "run", talk=SILENT)
