"""How large the cache is, and emptying it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from densecap_search.cli import main
from densecap_search.files import cache_folder


@pytest.fixture
def filled() -> Path:
    """1,000 bytes of each of two towers, 500 of outlines, 2,000 of a shard, all 40 days old but one tower."""
    for name, size in (("towers/abc/1.npy", 1000), ("towers/def/1.npy", 1000), ("perceptual/x/1.npy", 500),
                       ("webdataset/shard/1.jpg", 2000)):
        path = cache_folder() / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
        if "def" not in name:
            for place in (path, path.parent):
                os.utime(place, (time.time() - 40 * 86400,) * 2)
    (cache_folder() / "mine.txt").write_text("not ours")
    return cache_folder()


def run(*words: str) -> str:
    done = CliRunner().invoke(main, ["cache", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def left(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_cache_alone_only_prints(filled: Path):
    before = left(filled)
    assert f"0.0 MB in {filled}" in run()
    assert left(filled) == before


@pytest.mark.parametrize(("words", "gone"), [
    (("--clear", "towers"), {"towers/abc/1.npy", "towers/def/1.npy"}),
    (("--clear", "pictures"), {"perceptual/x/1.npy"}),
    (("--clear", "towers", "--older", "30"), {"towers/abc/1.npy"}),
    (("--clear", "towers", "--model", "de"), {"towers/def/1.npy"}),
    (("--clear", "all", "--older", "30"), {"towers/abc/1.npy", "perceptual/x/1.npy", "webdataset/shard/1.jpg"}),
    (("--clear", "all"), {"towers/abc/1.npy", "towers/def/1.npy", "perceptual/x/1.npy", "webdataset/shard/1.jpg"}),
])
def test_what_is_cleared_is_gone_and_nothing_else(filled: Path, words: tuple[str, ...], gone: set[str]):
    before = left(filled)
    run(*words)
    assert before - left(filled) == gone
