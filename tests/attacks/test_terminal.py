"""What reaches a terminal or a pipe, and what was typed by mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from PIL import Image

from densecap_search.cli import main
from densecap_search.cli.group import Group, sentence_of
from densecap_search.cli.terminal import print_hits, print_table, tell_skipped, terminal_talk
from densecap_search.collection.records import Skipped
from densecap_search.errors import ConfigError, DensecapError
from densecap_search.retrieval.searcher import Hit

EVIL = "a\x1b]0;title\x07\x1b[2Jb\x9b31m"


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


def assert_harmless(text: str) -> None:
    assert "\\x1b[2Jb" in text
    assert not [letter for letter in text if (letter < " " and letter not in "\n\t") or "\x7f" <= letter <= "\x9f"]


def test_hits_skips_tables_and_talk_hold_no_escapes(capsys: pytest.CaptureFixture[str]):
    hit = Hit(rank=1, score=0.5, image_id="a", image=EVIL, caption=EVIL)
    for show in (lambda: print_hits(EVIL, [hit], titled=True), lambda: tell_skipped([Skipped(EVIL, EVIL)]),
                 lambda: print_table(["name"], [[EVIL]]), lambda: terminal_talk().say(EVIL)):
        show()
        assert_harmless(said(capsys))


@pytest.mark.parametrize("error", [DensecapError(EVIL), OSError(13, "Permission denied", EVIL)])
def test_errors_hold_no_escapes(error: Exception):
    @click.command(cls=Group, invoke_without_command=True)
    def broken() -> None:
        raise error

    done = CliRunner().invoke(broken, [])
    assert done.exit_code == 1
    assert_harmless(done.stderr)


@pytest.mark.parametrize(("error", "sentence"), [
    (OSError(28, "No space left on device", "/x/a.npy"), "the disk is full: cannot write /x/a.npy; make room and run it again"),
    (ConnectionRefusedError(111, "Connection refused"), "the network does not answer (Connection refused); try again, or use what is on this machine"),
    (PermissionError(13, "Permission denied", "/x/a"), "cannot read or write /x/a: Permission denied"),
    (OSError("a bug in a library"), None),
])
def test_errors_of_the_system_are_told_apart(error: OSError, sentence: str | None):
    assert sentence_of(error) == sentence


def test_a_cache_that_cannot_be_written_names_its_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DENSECAP_CACHE", "/x/cache")
    assert sentence_of(PermissionError(13, "Permission denied", "/x/cache/towers")) == (
        "cannot use the cache /x/cache/towers: Permission denied; DENSECAP_CACHE can place it elsewhere")


@pytest.mark.parametrize("query", ["photo.png", "./photo.png", "https://example.org/a.jpg"])
def test_a_file_or_an_address_as_caption_asks_for_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str):
    Image.new("RGB", (4, 4)).save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["search", str(tmp_path), query])
    assert done.exit_code == 2
    assert "not a caption; to search by a picture: --image FILE" in done.stderr


def test_the_column_of_pictures_cannot_hold_the_captions(tmp_path: Path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("image,caption\na.png,one\n")
    done = CliRunner().invoke(main, ["export", str(tmp_path / "t.csv"), "--caption-column", "image", "-o", str(tmp_path / "o.csv")])
    assert done.exit_code == 1
    assert "the column image names the pictures and cannot hold the captions too" in done.stderr


def test_settings_nested_without_end_are_a_sentence(tmp_path: Path):
    from densecap_search.config import load_config

    (tmp_path / "deep.yaml").write_text("[" * 20_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(tmp_path / "deep.yaml", [])


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_the_command_quietly():
    done = subprocess.run(f"{sys.executable} -m densecap_search models --json | head -1", shell=True, capture_output=True,
                          text=True, check=False)
    assert json.loads(done.stdout)["name"] == "starter"
    assert done.stderr == ""
