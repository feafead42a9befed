from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from helpers import make_photos, make_tiny
from PIL import Image

from densecap_search import config
from densecap_search.cli import main
from densecap_search.collection.readers import read_collection
from densecap_search.model.checkpoint import save_encoder
from densecap_search.model.tuning import TUNE
from densecap_search.retrieval.index import INDEX_TYPES, load_index
from densecap_search.training.objectives import OBJECTIVES

ROOT = Path(__file__).parents[2]


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_help_loads_neither_torch_nor_gradio():
    script = ("import sys; from densecap_search.cli import main\n"
              "try: main(['--help'])\nexcept SystemExit: pass\n"
              "print(sorted({'torch', 'gradio', 'faiss', 'open_clip', 'numpy', 'PIL'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_help_with_an_example(command: str):
    assert f"densecap {command}" in run(command, "--help").output.split("\n\n", 1)[1]


def test_the_settings_know_the_tables():
    assert set(config.OBJECTIVE_NAMES) == {"auto", *OBJECTIVES}
    assert set(config.INDEX_NAMES) == set(INDEX_TYPES)
    assert set(config.TUNE_MODES) == set(TUNE) == set(config.TUNE_DEFAULTS)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_settings_file_loads(path: Path):
    config.load_config(path)


def test_the_whole_chain(photos: Path, tiny_run: Path, tmp_path: Path):
    model, index = tmp_path / "run", tmp_path / "index"
    done = run("finetune", photos, "--model", tiny_run, "--tune", "heads", "--epochs", "2", "--batch-size", "8", "-o", model)
    assert f"densecap index {photos} --model {model}" in done.output
    assert "tune heads" in done.stderr
    assert "no caption is longer than the window of 248 tokens" in done.stderr

    done = run("index", photos, "--model", model, "-o", index)
    assert "24 pictures written (" in done.output
    assert "24 pictures written (24 new, 24 of them from the cache, 0 kept, " in done.output  # heads were trained on them
    assert "up to date (0 encoded, 24 kept, 0 removed, 0 skipped)" in run("index", photos, "-o", index).output

    hits = [json.loads(line) for line in run("search", index, "a red ball", "-k", "3", "--json").stdout.splitlines()]
    assert [(hit["rank"], set(hit)) for hit in hits] == [
        (rank, {"query_number", "query", "rank", "score", "image_id", "image", "caption", "match", "by", "strength"})
        for rank in (1, 2, 3)
    ]

    found = json.loads(run("evaluate", photos, "--model", model, "--json").stdout)
    assert (found["splits"], found["text_to_image"]["queries"], found["trained_on"]) == (["test"], 2, 0)
    done = run("evaluate", photos, "--model", model, "--against", tiny_run, "--split", "train,val", "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["trained_on"], second["trained_on"], second["model"]) == (20, 0, str(tiny_run))
    assert "20 of these pictures were trained on" in run("evaluate", photos, "--model", model, "--split", "train").output


def test_queries_and_output_files(photos: Path, tiny_run: Path, tmp_path: Path):
    run("index", photos, "--model", tiny_run, "-o", tmp_path / "index")
    (tmp_path / "q.txt").write_text('a red ball\n\nhe said "go", twice\n')
    run("search", tmp_path / "index", "--queries", tmp_path / "q.txt", "-k", "300", "--output", tmp_path / "hits.csv")
    with (tmp_path / "hits.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 48
    assert {row["query"] for row in rows} == {"a red ball", 'he said "go", twice'}
    assert Path(rows[0]["image"]).is_file()
    (tmp_path / "q.json").write_text(json.dumps(["two\nlines"]))
    done = run("search", tmp_path / "index", "--queries", tmp_path / "q.json", "-k", "1", "--json")
    assert json.loads(done.stdout)["query"] == "two\nlines"
    done = run("search", tmp_path / "index", "--image", photos / "red-left-ball.png", "-k", "1", "--json")
    assert json.loads(done.stdout)["image_id"] == "red-left-ball.png"


def test_export_writes_what_can_be_read_again(photos: Path, tmp_path: Path):
    assert run("export", photos, "-o", tmp_path / "out.jsonl").output == f"24 pictures written to {tmp_path / 'out.jsonl'}\n"
    assert "cannot export to" in run("export", photos, "-o", tmp_path / "out.xls", code=1).output
    for name in ("out.csv", "out"):
        run("export", photos, "-o", tmp_path / name)
        assert read_collection(tmp_path / name).fingerprint() == read_collection(photos).fingerprint()


def test_every_command_that_reads_a_collection_takes_a_format_and_hidden_pictures(photos: Path, tmp_path: Path):
    (photos / ".hidden").mkdir()
    shutil.copy(next(photos.rglob("*.png")), photos / ".hidden" / "one.png")
    for words in (["inspect"], ["export", "-o", tmp_path / "o.jsonl"], ["index", "--model", "starter", "-o", tmp_path / "i"],
                  ["evaluate", "--model", "starter"], ["finetune", "-o", tmp_path / "r"], ["finetune", "-o", tmp_path / "r", "--set", "data.format=yolo"]):
        asked = [] if "--set" in words else ["--format", "yolo"]
        output = run(words[0], photos, *words[1:], *asked, code=1).output
        assert "unknown format 'yolo'; known formats: parquet, " in output
    assert run("export", photos, "--format", "folder", "-o", tmp_path / "a.jsonl").output.startswith("24 pictures")
    assert run("export", photos, "--hidden", "-o", tmp_path / "b.jsonl").output.startswith("25 pictures")


def test_inspect_says_how_it_read_and_which_captions_say_nothing(tmp_path: Path):
    Image.new("RGB", (4, 4)).save(tmp_path / "1.jpg")
    (tmp_path / "t.csv").write_text("image,caption\n1.jpg,IMG_0001\n")
    output = run("inspect", tmp_path / "t.csv").output
    assert "read as csv: a table whose cells are set apart by commas" in output
    assert "1 pictures have a caption that a camera or a form left there: “IMG_0001”" in output
    found = json.loads(run("inspect", tmp_path / "t.csv", "--json").output)
    assert (found["format"], found["format_reason"]) == ("csv", "a table whose cells are set apart by commas")
    assert [(row["count"], row["examples"][0]["note"]) for row in found["findings"] if row["kind"] == "placeholder"] == [
        (1, "IMG_0001")]


def test_resuming_with_other_settings_names_the_difference(photos: Path, tiny_run: Path, tmp_path: Path):
    words = ["finetune", photos, "--model", tiny_run, "--tune", "heads", "--epochs", "1", "-o", tmp_path / "run"]
    run(*words)
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert "continuing" in run("finetune", photos, "--resume", "-o", tmp_path / "run").output
    assert (tmp_path / "run" / "log.jsonl").read_text() == log  # its one epoch was done: nothing is trained twice
    done = run(*words[:-2], "--gamma", "0.25", "--resume", "-o", tmp_path / "run", code=1)
    assert "--resume continues the run as it was begun, where train.gamma is 0.5, not 0.25" in done.output
    assert (tmp_path / "run" / "log.jsonl").read_text() == log


def test_a_run_that_a_loss_stopped_takes_another_rate_and_nothing_else(photos: Path, tiny_run: Path, tmp_path: Path, monkeypatch):
    from densecap_search.training import loop

    original = loop._Job.loss_of
    monkeypatch.setattr(loop._Job, "loss_of", lambda self, *batch: original(self, *batch) * (
        float("nan") if self.at.step == 4 and self.train.lr > 0.5 else 1.0))
    words = ["finetune", photos, "--model", tiny_run, "--tune", "heads", "--objective", "hn_clip", "--epochs", "2", "--batch-size", "8",
             "--lr", "1", "-o", tmp_path / "run"]
    assert "--resume and a lower --lr" in run(*words, code=1).output
    again = ["finetune", photos, "--resume", "-o", tmp_path / "run"]
    done = run(*again, "--lr", "0.001", "--epochs", "3", code=1)
    assert "--resume continues the run as it was begun, where train.epochs is 2, not 3" in done.output
    assert "train.lr" not in done.output
    assert "continuing" in run(*again, "--lr", "0.001").output
    done = run(*again, "--lr", "0.01", code=1)  # an attempt that nothing stopped goes on as it was begun
    assert "where train.lr is 0.001, not 0.01" in done.output


@pytest.mark.parametrize(("words", "sentence"), [
    (["finetune", "nowhere", "-o", "r"], "nowhere does not exist; give a folder of pictures or a CSV, TSV, JSONL or JSON table"),
    (["finetune", "{photos}", "-o", "r", "--set", "train.gama=1"], "unknown key train.gama; known keys here: batch_size, batches, "),
    (["finetune", "{photos}", "-o", "r", "--set", "train.lr=fast"], "train.lr must be a number, not 'fast'"),
    (["finetune", "{photos}", "-o", "r", "--set", "lr"], "--set takes key=value, not 'lr'"),
    (["finetune", "{photos}", "-o", "r", "--epochs", "0"], "train.epochs must be 1 or more, not 0"),
    (["finetune", "{photos}", "-o", "r", "--config", "none.yaml"], "cannot read the settings file none.yaml"),
    (["finetune", "{photos}", "-o", "r", "--precision", "fp16", "--device", "cpu"], "--precision fp16 is not supported on cpu"),
    (["index", "{photos}", "-o", "i"], "say which model with --model"),
    (["index", "{photos}", "-o", "i", "--model", "nope"], "no model is called 'nope'"),
    (["search", "{photos}", "a red ball"], "is not an index (no file CURRENT); make one with `densecap index`"),
    (["evaluate", "{photos}", "--model", "{tiny}"], "has no split named test; splits here: none; --split all takes every picture"),
    (["serve", "nowhere"], "nowhere is not an index"),
    (["finetune", "{photos}", "-o", "{photos}/red-left-ball.txt/run"], "is not a folder; choose another place with -o"),
    (["index", "{photos}", "--model", "{tiny}", "-o", "/proc/i"], "cannot write /proc/i: "),
    (["finetune", "{photos}", "--resume", "-o", "none"], "none holds no run: there is nothing to resume"),
])
def test_bad_input_gets_one_clear_sentence(words, sentence, photos, tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*(word.format(photos=photos, tiny=tiny_run) for word in words), code=1)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert sentence in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_usage_errors_exit_with_2(photos: Path):
    run("search", photos, code=2)
    run("search", photos, "a", "--queries", "b", code=2)
    run("nonsense", code=2)


def test_models_lists_the_starter_first():
    rows = [json.loads(line) for line in run("models", "--json").stdout.splitlines()]
    assert rows[0]["name"] == "starter"
    assert "openai" in next(row for row in rows if row["name"] == "ViT-B-16")["pretrained"]
    assert not any(row["name"].startswith("coca") for row in rows)


def test_evaluate_writes_a_page_tables_and_a_row_a_query(photos: Path, tiny_run: Path, tmp_path: Path):
    other = tmp_path / "other"
    save_encoder(make_tiny(seed=1), other)
    words = ["evaluate", photos, "--model", tiny_run, "--against", other, "--split", "all"]
    done = run(*words, "--report", tmp_path / "r.html", "--per-query", tmp_path / "q.csv", "--slice", "words")
    assert "R@1 differs by " in done.output or "R@1 is the same on each of the 24 queries" in done.output
    assert re.search(r"words +all alike +text→image +24 ", done.output)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for expected in ("24 captions search 24 pictures", "split all", "half of the wrong ones that score the same",
                     "every caption is a query", "mean of 1/rank", "tiny against other", "What came first instead, text→image",
                     "hardness", "no caption is longer than the window of 248 tokens"):
        assert expected in page, expected
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count("<img") == 2 * 2 + 1 + 2 + 2 * (12 + 6)  # curves, differences, slices, confused pairs
    with (tmp_path / "q.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 24
    found = [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]
    for model, figures in ((str(tiny_run), found[0]), (str(other), found[1])):
        ranks = [float(row["rank"]) for row in rows if (row["model"], row["direction"]) == (model, "text_to_image")]
        assert figures["text_to_image"]["mean_rank"]["value"] == pytest.approx(sum(ranks) / 24)
        assert all((float(row["right_score"]) < float(row["first_score"])) == (float(row["rank"]) > 1) for row in rows)
    difference = found[0]["against"][0]["text_to_image"]["mean_rank"]
    assert found[0]["against"][0]["model"] == str(other)
    assert difference["value"] == pytest.approx(found[0]["text_to_image"]["mean_rank"]["value"]
                                                - found[1]["text_to_image"]["mean_rank"]["value"])
    assert difference["wins"] + difference["losses"] + difference["equal"] == 24

    run(*words, "--report", tmp_path / "r.md")
    tables = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "| R@1 | share of queries, in percent, for which a right answer comes first | " in tables
    assert "<" not in tables.replace("<br>", "")


@pytest.mark.parametrize("kind", ["flat", *(pytest.param(kind, marks=pytest.mark.slow) for kind in config.INDEX_NAMES
                                            if kind != "flat")])
def test_evaluate_through_an_index_gives_the_exact_figures_of_a_small_one(kind: str, photos: Path, tiny_run: Path, tmp_path: Path):
    run("index", photos, "--model", tiny_run, "--type", kind, "-o", tmp_path / "index")
    run("index", photos, "--model", tiny_run, "-o", tmp_path / "index")
    assert load_index(tmp_path / "index").manifest.index_type == kind  # auto: as it is
    words = ["evaluate", photos, "--model", tiny_run, "--split", "all", "--index", tmp_path / "index"]
    found = json.loads(run(*words, "--json").stdout)
    exact = {name: found["text_to_image"][name]["value"] for name in ("R@1", "R@5", "R@10", "R@25", "R@50")}
    assert found["index"]["exact"] == found["index"]["found"] == exact
    assert (found["index"]["index_type"], found["index"]["neighbours"], found["index"]["missing"]) == (kind, 100.0, 0)
    assert f"({kind}, 24 pictures)" in run(*words).output
    save_encoder(make_tiny(seed=1), tmp_path / "other")
    words[3] = tmp_path / "other"
    assert f"was built by {tiny_run}" in run(*words, code=1).stderr


def test_what_an_index_lacks_is_never_found_through_it(photos: Path, tiny_run: Path, tmp_path: Path):
    (tmp_path / "few").mkdir()
    for path in [*photos.glob("red-*"), *photos.glob("blue-left-*")]:
        (tmp_path / "few" / f"moved-{path.name}").write_bytes(path.read_bytes())
    run("index", tmp_path / "few", "--model", tiny_run, "-o", tmp_path / "index")
    found = json.loads(run("evaluate", photos, "--model", tiny_run, "--split", "all", "--index", tmp_path / "index",
                           "--json").stdout)["index"]
    assert (found["gallery"], found["missing"], found["found"]["R@50"]) == (8, 16, pytest.approx(100 * 8 / 24))


@pytest.mark.slow
def test_retention_measures_a_second_collection_before_and_after_and_between(photos: Path, tiny_run: Path, tmp_path: Path):
    other = make_photos(tmp_path / "other")
    for path in other.glob("*.txt"):
        path.write_text(path.read_text().replace("white table", "desk"))
    run("finetune", photos, "--model", tiny_run, "--tune", "heads", "--epochs", "4", "--batch-size", "8",
        "--checkpoint", "last", "-o", tmp_path / "run")
    words = ["evaluate", photos, "--model", tmp_path / "run", "--split", "val,test", "--retain", other]
    found = json.loads(run(*words, "--json").stdout)["retention"]
    assert (found["before"]["model"], found["now"]["splits"]) == (str(tiny_run), ["all"])
    assert found["now"]["text_to_image"]["queries"] == 24
    mixtures = found["mixtures"]
    assert (len(mixtures["alphas"]), mixtures["alphas"][0], mixtures["alphas"][-1]) == (11, 0.0, 1.0)
    for side, place in (("before", 0), ("now", -1)):
        mean = sum(found[side][direction]["R@1"]["value"] for direction in ("text_to_image", "image_to_text")) / 2
        assert mixtures["retained"][place] == pytest.approx(mean)
    difference = found["difference"]["text_to_image"]["MRR"]["value"]
    assert difference == pytest.approx(found["now"]["text_to_image"]["MRR"]["value"]
                                       - found["before"]["text_to_image"]["MRR"]["value"])
    assert "What was retained" in run(*words, "--report", tmp_path / "r.html").output
    assert "Between the model before and after" in (tmp_path / "r.html").read_text(encoding="utf-8")
    words[3] = tiny_run
    words[5] = "all"
    assert "is no run folder; name that model with --against" in run(*words, code=1).stderr


@pytest.mark.slow
def test_what_a_run_with_its_own_splits_is_tested_on_was_not_trained_on(photos: Path, tiny_run: Path, tmp_path: Path):
    run("export", photos, "-o", tmp_path / "t.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(row | {"split": "test" if number < 8 else "train"}) + "\n" for number, row in enumerate(rows)))
    run("finetune", table, "--model", tiny_run, "--tune", "heads", "--epochs", "1", "--batch-size", "8",
        "--set", "data.use_split=false", "--set", "data.test_share=0.25", "-o", tmp_path / "run")
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert set(split["train"]) & {row["id"] if "id" in row else row["image"] for row in rows[:8]}  # as the table has it, tested on
    found = json.loads(run("evaluate", table, "--model", tmp_path / "run", "--json").stdout)
    assert (found["trained_on"], found["text_to_image"]["queries"]) == (0, len(split["test"]))
    other = json.loads(run("evaluate", table, "--model", tiny_run, "--against", tiny_run, "--json").stdout.splitlines()[0])
    assert other["text_to_image"]["queries"] == 8  # a model that was trained on none of them: as the table says


def test_the_gallery_is_told_and_may_be_all_pictures_and_missing_rows_count_as_skipped(photos: Path, tiny_run: Path, tmp_path: Path):
    rows = [{"image": str(path), "caption": path.with_suffix(".txt").read_text(), "split": "test" if number < 5 else "train"}
            for number, path in enumerate(sorted(photos.glob("*.png")))]
    rows.append({"image": "gone.png", "caption": "Not there.", "split": "train"})
    (photos / "yellow-right-box.png").write_bytes(b"broken")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["evaluate", tmp_path / "t.jsonl", "--model", tiny_run]
    small, large = (json.loads(run(*words, "--gallery", name, "--json").stdout) for name in ("split", "all"))
    assert [(found["gallery"], found["text_to_image"]["queries"], found["text_to_image"]["gallery"], found["skipped"])
            for found in (small, large)] == [("split", 5, 5, 1), ("all", 5, 23, 2)]
    assert large["text_to_image"]["mean_rank"]["value"] > small["text_to_image"]["mean_rank"]["value"]
    output = run(*words, "--gallery", "all").output
    assert re.search(r"text→image +23 ", output)
    assert "5 captions, which search the whole collection" in output
    assert run(*words, "--gallery", "all", "--retain", photos, code=2)


@pytest.mark.slow
def test_retention_is_measured_from_any_folder(photos: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(tiny_run, tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    run("finetune", "photos", "--model", "models/tiny", "--tune", "heads", "--epochs", "1", "--batch-size", "8", "-o", "runs/mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ["evaluate", "../photos", "--model", "../runs/mine", "--retain", "../photos"]
    found = json.loads(run(*words, "--json").stdout)["retention"]
    assert found["before"]["model"] == str(tmp_path / "models" / "tiny")
    shutil.rmtree(tmp_path / "models")
    sentence = run(*words, code=1).stderr
    assert f"{tmp_path / 'runs' / 'mine'} began with {tmp_path / 'models' / 'tiny'}, which is not there" in sentence
    assert "name that model with --against" in sentence


def test_a_report_of_an_unknown_kind_is_a_usage_error_before_any_work(photos: Path):
    assert "r.pdf must end in .html or .md" in run("evaluate", photos, "--model", "nope", "--report", "r.pdf", code=2).stderr
    assert "q.txt must end in .csv" in run("evaluate", photos, "--model", "nope", "--per-query", "q.txt", code=2).stderr


def test_inspect_prints_a_line_for_each_thing_to_mend_and_writes_the_page(photos: Path, tiny_run: Path, tmp_path: Path):
    (photos / "cut.png").write_bytes((photos / "red-left-ball.png").read_bytes()[:90])
    (photos / "cut.txt").write_text("A caption of its own.")
    done = run("inspect", photos, "--model", tiny_run, "--batch-size", "4", "--report", tmp_path / "new" / "r.html")
    assert "1 picture cannot be opened: damaged picture (1): mend or remove them" in done.stdout
    assert "--context-length 77: 0.0 % of the captions are longer than 77 tokens" in done.stdout
    assert "cut.png: damaged picture" in (tmp_path / "new" / "r.html").read_text(encoding="utf-8")
    assert json.loads(run("inspect", photos, "--max-pixels", 1000, "--json").stdout)["files"]["broken"] == 25
    table = json.loads(run("inspect", photos, "--no-pictures", "--json").stdout)
    assert (table["pictures"], table["files"], table["captions_by_model"], table["findings"]) == (25, None, None, [])
    refused = run("inspect", photos, "--no-pictures", "--report", photos / "cut.png" / "r.html", code=1)
    assert "cut.png is a file" in refused.output
