from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from densecap_search.cli import main

LONG = " ".join(f"Sentence {number} speaks of a red ball and of a blue box." for number in range(25))  # 300 words


def run(*words: object):
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["heads", "full"])
def test_a_caption_of_300_words_goes_through_every_command_and_the_log_says_how_many(photos: Path, tiny_run: Path, tmp_path: Path, tune: str):
    assert len(LONG.split()) == 300
    (photos / "red-left-ball.txt").write_text(LONG)
    queries = tmp_path / "queries.txt"
    queries.write_text(f"a red ball\n{LONG}\na blue box\n")
    model, index = tmp_path / "run", tmp_path / "index"
    for long_text, said in (("cut", "captions were cut to the window of 77 tokens"),
                            ("mean", "captions are longer than the window of 77 tokens and were split into"),
                            ("best", "captions are longer than the window of 77 tokens and were split into")):
        done = run("finetune", photos, "--model", tiny_run, "--tune", tune, "--epochs", 1, "--batch-size", 8, "--set", "data.val_share=0",
                   "--set", "data.test_share=0", "--context-length", 77, "--long-text", long_text, "-o", model / long_text)
        assert done.exit_code == 0, done.output
        assert f"1 of 24 {said}" in done.stderr
        assert run("index", photos, "--model", model / long_text, "-o", index / long_text).exit_code == 0
        found = run("search", index / long_text, LONG, "-k", 3)
        assert f"1 of 1 {said}" in found.stderr
        assert len(found.stdout.splitlines()) == 6
        assert f"1 of 3 {said}" in run("search", index / long_text, "--queries", queries).stderr
        measured = run("evaluate", photos, "--model", model / long_text, "--split", "all")
        assert f"1 of 24 {said}" in measured.stdout
    assert "split into" in run("search", index / "cut", LONG, "--long-text", "best").stderr
