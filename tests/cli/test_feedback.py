"""From the answers that the page keeps to a model and its figures, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from densecap_search.cli import main
from densecap_search.collection.feedback import Answer, feedback_file, keep_answer
from densecap_search.files import hash_file


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_answers_train_a_model_and_ask_it_among_all_pictures_of_the_index(photos: Path, tiny_run: Path, tmp_path: Path):
    index, model = tmp_path / "indexes" / "mine", tmp_path / "run"
    run("index", photos, "--model", tiny_run, "-o", index)
    feedback = feedback_file(index)
    for picture in sorted(photos.glob("*.png")):
        keep_answer(feedback, Answer(f"where is {picture.stem}", "this", "", "", "", "", "", str(picture), hash_file(picture)))
    done = run("finetune", photos, "--add", feedback, "--model", tiny_run, "--tune", "heads", "--objective", "info_nce",
               "--epochs", "1", "--batch-size", "8", "-o", model)
    assert "24 questions about 24 pictures are added" in done.output
    told = CliRunner().invoke(main, ["evaluate", str(feedback), "--model", str(model), "--against", str(tiny_run), "--json"])
    first = json.loads(told.stdout.splitlines()[0])
    assert first["text_to_image"]["gallery"] == 24
    assert first["trained_on"] == 0
    assert f"{first['text_to_image']['queries']} questions are too few to tell (at least 50)" in told.stderr
    assert len(first["against"]) == 1
    assert "leave out --mode" in run("evaluate", feedback, "--model", tiny_run, "--mode", "fused", code=2).output
    elsewhere = feedback.rename(tmp_path / "answers.jsonl")
    assert "say with --among which pictures are searched" in run("evaluate", elsewhere, "--model", tiny_run, code=1).output
    assert "24" in run("evaluate", elsewhere, "--among", photos, "--model", tiny_run).output
