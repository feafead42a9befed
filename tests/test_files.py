"""Strict JSON and CSV, and reading what is a file."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path

import pytest

from densecap_search.files import csv_text, json_text, open_file, read_bytes, write_json
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
