from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from densecap_search.cli import main
from densecap_search.retrieval.queries import hints
from densecap_search.retrieval.searcher import open_searcher
from densecap_search.workflows import search_file as batch


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def made(photos: Path, tiny_run: Path, tmp_path: Path) -> tuple[Path, Result]:
    for number, path in enumerate(sorted(photos.glob("*.txt"))):
        path.write_text(f"Box number k{number}k lies here. On it stands k{number}k.", encoding="utf-8")
    return tmp_path / "i", run("index", photos, "--model", tiny_run, "-o", tmp_path / "i")


@pytest.fixture
def index(made: tuple[Path, Result]) -> Path:
    return made[0]


def test_index_says_what_its_captions_are_worth_and_makes_them_once(made: tuple[Path, Result], photos: Path, tiny_run: Path):
    assert "captions: they count beside the pictures with the weights image 1.00, text 1.00, words 1.00" in made[1].stdout
    before = (made[0] / "gen-000001" / "captions" / "captions.json").stat().st_mtime_ns
    run("index", photos, "--model", tiny_run, "-o", made[0])
    assert (made[0] / "gen-000001" / "captions" / "captions.json").stat().st_mtime_ns == before


def test_a_hit_has_match_by_and_strength_only_where_captions_were_searched(index: Path):
    fused = json.loads(run("search", index, "k7k", "-k", 1, "--json").stdout)
    assert "k7k" in fused["caption"]
    assert set(fused) == {"query_number", "query", "rank", "score", "image_id", "image", "caption", "match", "by", "strength"}
    image = json.loads(run("search", index, "k7k", "-k", 1, "--json", "--mode", "image").stdout)
    assert set(image) == {"query_number", "query", "rank", "score", "image_id", "image", "caption"}


def test_required_words_terms_and_pictures_may_be_joined(index: Path, photos: Path):
    assert run("search", index, "--must", "number K7K").stdout.count("\n") == 2
    found = run("search", index, "a box", "--also", "2", "k3k", "--without", "k7k", "--image", photos / "red-left-ball.png",
                "--where", "folder = '.'", "-k", 24, "--json").stdout.splitlines()
    assert "k7k" not in json.loads(found[0])["caption"]
    assert "k3k" in json.loads(found[0])["caption"]
    assert run("search", index, "a box", "--min-score", "2").stdout == "nothing was found\n"
    assert "give one of" in run("search", index, code=2).output


def test_explain_prints_the_sentences_below_each_hit_with_their_percentile(index: Path):
    query = "Box number k7k lies here. It rains."
    plain = run("search", index, query, "-k", 2).stdout.splitlines()
    told = run("search", index, query, "-k", 2, "--explain").stdout.splitlines()
    assert [told[row] for row in (0, 1, 4, 5)] == plain
    rows = [json.loads(line) for line in run("search", index, query, "-k", 2, "--explain", "--json").stdout.splitlines()]
    parts = [part for row in rows for part in row["explanation"]]
    assert [part["text"] for part in parts] == ["Box number k7k lies here.", "It rains."] * 2
    assert all(0 <= part["percentile"] <= 100 for part in parts)
    assert [line.split("%  ") for line in (*told[2:4], *told[6:])] == [
        [f"            {part['percentile']:3.0f} ", part["text"]] for part in parts]
    run("search", index, query, "--explain", "--output", "hits.csv", code=2)


def test_near_duplicates_lie_under_the_best_of_them_where_hits_are_printed(photos: Path, tiny_run: Path, tmp_path: Path):
    copy = photos / "copy.png"
    copy.write_bytes((photos / "red-left-ball.png").read_bytes())
    copy.with_suffix(".txt").write_text((photos / "red-left-ball.txt").read_text(encoding="utf-8"), encoding="utf-8")
    run("index", photos, "--model", tiny_run, "-o", tmp_path / "i")
    query = [tmp_path / "i", "a red ball", "--must", "red ball", "--must", "left"]
    printed = run("search", *query, "-k", 1).stdout.splitlines()[0]
    assert re.search(r"(copy|red-left-ball)\.png  \(\+1\)$", printed)
    plain = run("search", *query, "--no-stacks").stdout
    assert ("(+1)" in plain, plain.count(".png")) == (False, 2)
    rows = [json.loads(line) for line in run("search", *query, "--json").stdout.splitlines()]
    (top,) = [json.loads(line) for line in run("search", *query, "--json", "--stacks").stdout.splitlines()]
    under = [{name: value for name, value in row.items() if name not in ("query", "query_number")} for row in rows[1:]]
    assert top == {**rows[0], "under": under}
    run("search", *query, "--stacks", "--output", "hits.csv", code=2)


def test_hints_name_the_field_that_says_it_better(index: Path):
    assert hints("a red bus") == []
    assert "--must" in hints('the ship "Aurora"')[0]
    assert "“no people” in a caption" in hints("a street, no people")[0]
    assert "--without" in run("search", index, "a street without cars").stderr


def write_queries(folder: Path, count: int = 150) -> Path:
    path = folder / "queries.txt"
    path.write_text("".join(f"k{number % 24}k\n" for number in range(count)), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_file_of_queries_that_was_stopped_goes_on_and_ends_as_if_it_had_not_been(index: Path, tmp_path: Path, monkeypatch, suffix: str):
    queries, output = write_queries(tmp_path), tmp_path / f"hits{suffix}"
    searcher = open_searcher(index, device="cpu")
    assert batch.search_file(searcher, queries, tmp_path / f"whole{suffix}", 2) == (300, 150)
    answered = []

    def stops(self, block, k, **options):
        answered.append(len(block))
        if len(answered) == 2:
            raise KeyboardInterrupt
        return find(self, block, k, **options)

    find = type(searcher).find
    monkeypatch.setattr(type(searcher), "find", stops)
    with pytest.raises(KeyboardInterrupt):
        batch.search_file(searcher, queries, output, 2)
    assert not output.exists()
    assert batch.search_file(searcher, queries, output, 2) == (300, 150)
    assert answered == [64, 64, 64, 22]  # the first block was not asked again
    assert output.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    assert sorted(path.name for path in tmp_path.glob("hits*")) == [output.name]


def test_another_search_begins_anew(index: Path, tmp_path: Path):
    queries, output = write_queries(tmp_path, 3), tmp_path / "hits.csv"
    searcher = open_searcher(index, device="cpu")
    (tmp_path / "hits.csv.unfinished").write_text("x" * 100)
    (tmp_path / "hits.csv.unfinished.json").write_text(json.dumps({"key": "other", "asked": 2, "hits": 4, "size": 50}))
    assert batch.search_file(searcher, queries, output, 2) == (6, 3)
    rows = list(csv.DictReader(output.read_text(encoding="utf-8").splitlines()))
    assert [row["query"] for row in rows] == ["k0k", "k0k", "k1k", "k1k", "k2k", "k2k"]
    assert all(row["query"] in row["caption"] for row in rows[::2])


def test_a_file_of_queries_is_checked_before_a_model_is_loaded(tmp_path: Path, index: Path):
    (tmp_path / "empty.txt").write_text("\n")
    assert "holds no query" in run("search", index, "--queries", tmp_path / "empty.txt", code=1).output
    (tmp_path / "q.csv").write_text("picture\na\n")
    assert "no column caption" in run("search", index, "--queries", tmp_path / "q.csv", code=1).output


@pytest.mark.parametrize("many", [False, True], ids=["a caption", "a file of queries"])
def test_spreadsheet_writes_an_apostrophe_before_formulas_and_nothing_else_is_changed(index: Path, tmp_path: Path, many: bool):
    asked: list[object] = ["=1+1"]
    if many:
        (tmp_path / "q.txt").write_text("=1+1\n", encoding="utf-8")
        asked = ["--queries", tmp_path / "q.txt"]
    run("search", index, *asked, "-k", 24, "--output", tmp_path / "raw.csv")
    run("search", index, *asked, "-k", 24, "--output", tmp_path / "inert.csv", "--spreadsheet")
    raw, inert = (list(csv.DictReader((tmp_path / name).read_text(encoding="utf-8").splitlines())) for name in ("raw.csv", "inert.csv"))
    assert {row["query"] for row in raw} == {"=1+1"}
    assert inert == [row | {"query": "'=1+1"} for row in raw]
    assert any(row["score"].startswith("-") or row["match"].startswith("-") for row in raw)  # a number, and no formula
    run("search", index, *asked, "--output", tmp_path / "x.jsonl", "--spreadsheet", code=2)


@pytest.mark.slow
def test_words_that_the_starter_cannot_read_are_named_where_the_tower_reads_them(photos: Path, tmp_path: Path):
    run("index", photos, "--model", "starter", "-o", tmp_path / "i")
    line = "the model's vocabulary does not know 1 of 3 words or signs (🚌), "
    assert line in run("search", tmp_path / "i", "a bus 🚌").stderr
    assert "vocabulary" not in run("search", tmp_path / "i", "a red bus").stderr
    assert "vocabulary" not in run("search", tmp_path / "i", "a bus 🚌", "--mode", "words").stderr
