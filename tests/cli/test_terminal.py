"""What the command line says while it works."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from densecap_search.cli import main, terminal


@pytest.mark.parametrize(("per_second", "words"), [
    (42.34, "42.3 pictures/s"), (1.0, "1.0 pictures/s"), (0.04, "25.0 s each"), (0.0, "")])
def test_slow_work_has_a_rate_too(per_second: float, words: str):
    assert terminal.rate(per_second, "pictures") == words


def test_lines_of_progress_say_what_was_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(terminal, "LOG_SECONDS", 0.0)
    with terminal._lines("encoding pictures", 150, "pictures") as advance:
        advance(0)
        advance(64)
        advance(86)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["encoding pictures: 64 of 150 pictures", "encoding pictures: 150 of 150 pictures"]
    assert lines[1].endswith(", 0 s left")


def test_a_bar_within_a_bar_joins_it_and_leaves():
    def shown() -> list[tuple[str, float, float | None]]:
        return [(task.description, task.completed, task.total) for task in terminal._shown[0].tasks]

    with terminal._bar("training", 4, "steps") as outer:
        outer(2)
        with terminal._bar("encoding", 3, "pictures") as inner:
            inner(3)
            assert shown() == [("training", 2, 4), ("encoding", 3, 3)]
        outer(2)
        assert shown() == [("training", 4, 4)]
    assert terminal._shown == []


def test_the_seconds_of_a_command_begin_where_it_begins(photos: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    early = SimpleNamespace(monotonic=lambda: time.monotonic() - 1000)
    monkeypatch.setattr("densecap_search.cli.group.time", early)  # as if the command had been called long before
    done = CliRunner().invoke(main, ["index", str(photos), "--model", str(tiny_run), "-o", str(tmp_path / "index")])
    said = re.search(r" in ([0-9.]+) s$", done.stdout, re.M)
    assert said
    assert float(said[1]) > 1000
