"""Strict JSON and CSV, and reading what is a file."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import threading
import time
from pathlib import Path

import pytest

from densecap_search.errors import DensecapError, FolderBusy
from densecap_search.files import append_line, csv_text, json_text, open_file, read_bytes, write_json
from densecap_search.locks import try_lock
from densecap_search.talk import printable

ODD = ["\ud83d alone", os.fsdecode(b"caf\xe9.jpg"), "\x1b[31mred", "\x9b2J", "line\nend\r", "U+2028 \u2028", "\U0001f600"]


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.parametrize("text", ODD)
def test_json_can_always_be_written_and_reads_back_the_same(text: str, tmp_path: Path):
    write_json(tmp_path / "a.json", {text: [text]})
    data = (tmp_path / "a.json").read_bytes().decode()  # strict UTF-8
    assert json.loads(data) == {text: [text]}


def test_json_holds_no_control_character():
    assert json_text("\x1b[31m\x7f\x9b") == '"\\u001b[31m\\u007f\\u009b"'


def test_what_is_no_number_is_null_at_any_depth():
    text = json_text({"a": [math.nan, {"b": (math.inf, -math.inf, 1.5)}], "c": 2})
    assert json.loads(text, parse_constant=refuse) == {"a": [None, {"b": [None, None, 1.5]}], "c": 2}


def test_csv_has_empty_cells_for_what_is_no_number_and_quotes_what_must_be():
    text = csv_text(["a", "b", "c"], [["one, two", math.nan, 1.5], ['say "x"', None, "line\nend"]])
    assert text == 'a,b,c\r\n"one, two",,1.5\r\n"say ""x""",,"line\nend"\r\n'
    assert next(csv.reader(io.StringIO(text, newline=""))) == ["a", "b", "c"]


def test_printable_text_shows_what_a_terminal_would_obey():
    assert printable("a\x1b[2Jb\tc\nd\x9b\ud83d é") == "a\\x1b[2Jb\tc\nd\\x9b\\ud83d é"


def test_a_pipe_is_not_opened_and_does_not_hang(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe, a socket or a device, not a file"):
        open_file(tmp_path / "pipe")


def test_a_device_is_not_opened():
    with pytest.raises(OSError, match="a pipe, a socket or a device, not a file"):
        open_file(Path("/dev/zero"))


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path):
    (tmp_path / "a").write_bytes(bytes(11))
    assert read_bytes(tmp_path / "a", 11) == bytes(11)
    with pytest.raises(OSError, match="larger than the 0 MB"):
        read_bytes(tmp_path / "a", 10)


def test_inert_cells_are_texts_that_begin_as_formulas_do():
    cells = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "a=1", "'=1", " =1", "", -1, -0.5, None, "a-b"]
    assert csv_text(["=a"], [cells], inert=True) == (
        "'=a\r\n'=1+1,'+1,'-1,'@SUM(A1),'\tx,\"'\rx\",a=1,'=1, =1,,-1,-0.5,,a-b\r\n")
    assert csv_text(["=a"], [cells]) == "=a\r\n=1+1,+1,-1,@SUM(A1),\tx,\"\rx\",a=1,'=1, =1,,-1,-0.5,,a-b\r\n"


def test_lines_of_several_writers_are_all_there_and_none_is_mixed(tmp_path: Path):
    path = tmp_path / "lines"
    lines = [[f"{writer} {number} " + "x" * 5000 for number in range(20)] for writer in range(4)]
    writers = [threading.Thread(target=lambda own=own: [append_line(path, line, most_bytes=1 << 20) for line in own])
               for own in lines]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(path.read_text().splitlines()) == sorted(line for own in lines for line in own)


def test_a_line_that_was_left_unfinished_is_ended_before_the_next(tmp_path: Path):
    path = tmp_path / "lines"
    path.write_bytes(b"whole\nhal")
    append_line(path, "next", most_bytes=100)
    assert path.read_bytes() == b"whole\nhal\nnext\n"


def test_a_full_file_takes_no_line_and_stays_as_it_was(tmp_path: Path):
    append_line(tmp_path / "lines", "1234", most_bytes=10)
    append_line(tmp_path / "lines", "5678", most_bytes=10)
    with pytest.raises(DensecapError, match="rename it, and a new one is begun"):
        append_line(tmp_path / "lines", "", most_bytes=10)
    assert (tmp_path / "lines").read_text() == "1234\n5678\n"


def test_who_waits_too_long_for_another_writer_is_told(tmp_path: Path):
    path = tmp_path / "lines"
    with path.open("wb") as other:
        assert try_lock(other.fileno())
        began = time.monotonic()
        with pytest.raises(FolderBusy, match="written by another process"):
            append_line(path, "x", most_bytes=10, wait=0.05)
        assert time.monotonic() - began >= 0.05
    append_line(path, "x", most_bytes=10)
    assert path.read_text() == "x\n"


def test_a_line_is_not_put_into_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe, a socket or a device"):
        append_line(tmp_path / "pipe", "x", most_bytes=10)
