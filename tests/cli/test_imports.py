"""What a command loads before it knows that it has work to do: said by sys.modules, not by a clock."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import make_tiny

from densecap_search.cli import main
from densecap_search.model.checkpoint import save_encoder
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import open_searcher

SCRIPT = """
import json, sys
from densecap_search.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps([code, sorted({name.split(".")[0] for name in sys.modules})]))
"""
HEAVY = {"torch", "open_clip", "transformers", "torchvision", "timm", "sympy", "gradio", "matplotlib", "scipy"}


def loaded(*words: str, cwd: Path | None = None) -> tuple[int, set[str]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True, cwd=cwd)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


def test_help_loads_nothing_beyond_click_and_yaml():
    code, modules = loaded("search", "--help")
    assert code == 0
    assert not (HEAVY | {"numpy", "PIL", "faiss", "jinja2", "rich"}) & modules


@pytest.mark.parametrize(("words", "code"), [
    (["search"], 2),
    (["search", "idx", "a red bus", "--queries", "queries.txt"], 2),
    (["search", "idx", "a red bus", "--output", "hits.txt"], 2),
    (["finetune", "photos"], 2),
    (["finetune", "photos", "-o", "run", "--set", "train.gama=1"], 1),
    (["evaluate", "photos", "--model", "starter", "--report", "report.doc"], 2),
])
def test_an_argument_error_loads_neither_torch_nor_numpy(words: list[str], code: int):
    found, modules = loaded(*words)
    assert found == code
    assert not (HEAVY | {"numpy", "faiss"}) & modules


@pytest.mark.parametrize("words", [
    ["search", "idx", "a red bus"],
    ["search", "idx", "--queries", "queries.txt"],
    ["serve", "idx"],
    ["index", "photos", "--model", "starter", "-o", "idx"],
    ["index", "photos", "-o", "idx"],
    ["finetune", "photos", "-o", "run"],
    ["evaluate", "photos", "--model", "starter"],
    ["inspect", "photos"],
    ["export", "photos", "-o", "table.csv"],
], ids=" ".join)
def test_an_index_or_a_collection_that_is_not_there_is_told_without_torch(words: list[str], tmp_path: Path):
    code, modules = loaded(*words, cwd=tmp_path)
    assert code == 1
    assert not HEAVY & modules


def test_a_search_reads_its_caption_without_torch_where_the_cache_has_an_encoder_of_queries(photos: Path, tiny_run: Path,
                                                                                            tmp_path: Path):
    index, words = tmp_path / "index", "a red box on the left"
    assert CliRunner().invoke(main, ["index", str(photos), "--model", str(tiny_run), "-o", str(index)]).exit_code == 0
    for mode in ("image", "fused"):
        code, modules = loaded("search", str(index), words, "--mode", mode, "--output", str(tmp_path / "hits.csv"))
        assert code == 0
        assert not HEAVY & modules
        hits = [row["image_id"] for row in csv.DictReader((tmp_path / "hits.csv").read_text(encoding="utf-8").splitlines())]
        found, _ = open_searcher(index).find([Query(words)], 10, mode=mode)  # by torch
        assert hits == [hit.image_id for hit in found[0]]


def test_a_model_whose_files_have_changed_is_loaded_and_refused_as_before(photos: Path, tiny_run: Path, tmp_path: Path):
    index, run = tmp_path / "index", tmp_path / "run"
    shutil.copytree(tiny_run, run)
    assert CliRunner().invoke(main, ["index", str(photos), "--model", str(run), "-o", str(index)]).exit_code == 0
    save_encoder(make_tiny(seed=1), run)
    found = CliRunner().invoke(main, ["search", str(index), "a red box"])
    assert found.exit_code == 1
    assert "was built by" in found.output


FAULTS = """
import resource, sys
import densecap_search.cli
if sys.argv[1] == "as the command line does":
    from densecap_search.cli.memory import keep_freed_memory
    assert keep_freed_memory()
bytes(1) * (64 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * (64 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc", reason="for glibc")
def test_memory_that_was_freed_is_used_again_by_the_command_line_and_not_by_a_mere_import():
    """64 MiB are 16,384 pages of 4 KiB, or 32 of 2 MiB: all asked for again by default, none where they are kept."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    faults = [int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True,
                                 env=environment).stdout) for how in ("imported", "as the command line does")]
    assert faults[0] >= 32
    assert faults[1] <= 4
