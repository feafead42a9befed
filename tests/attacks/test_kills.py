"""SIGKILL at random moments: what was given is as it was, and the next run ends as one that nobody killed.

Ten kills a command, or as many as $DENSECAP_KILLS says (``make kills``: 100). Commands run in forks of this process,
which has imported everything: their time is then that of reading, computing and writing, where kills can do harm.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import make_photos, run_in_fork
from safetensors.torch import load_file

from densecap_search.files import UNFINISHED, hash_file
from densecap_search.retrieval.index import load_index

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("DENSECAP_KILLS", "10"))
IMPORTED = ("cli.training", "cli.indexing", "cli.evaluating", "cli.collections", "workflows.evaluate", "workflows.index",
            "retrieval.update", "evaluation.report", "evaluation.per_query", "training.loop", "experiments.grid",
            "experiments.results_page", "collection.export", "model.loading")
EXPERIMENT = """
title: Two objectives
collections: {{photos: {photos}}}
settings: {{model.name: {model}, train.tune: heads, train.epochs: 3, train.batch_size: 8, train.lr: 1.0e-2}}
arms:
  InfoNCE: {{train.objective: info_nce}}
  HN-CLIP: {{train.objective: hn_clip}}
seeds: 1
"""


@dataclass(frozen=True)
class Given:
    """What the commands read: pictures with captions, a run folder, the file of an experiment, an older index."""

    folder: Path

    def __getattr__(self, name: str) -> str:
        return str(self.folder / name)


@dataclass(frozen=True)
class Command:
    """A command that writes into a folder.

    words: of the given things and the folder. result: what the folder then holds, to be compared. begin: puts what is
    there before. sound: asserts what holds after a kill. ended: whether the killed run had nothing left to do, and
    another is refused.
    """

    words: Callable[[Given, Path], list[str]]
    result: Callable[[Path], Any]
    begin: Callable[[Given, Path], object] = lambda given, out: out.mkdir()
    sound: Callable[[Path], object] = lambda out: None
    ended: Callable[[Path], bool] = lambda out: False


def index_words(given: Given, out: Path) -> list[str]:
    return ["index", given.photos, "--model", given.model, "-o", str(out)]


def told(out: Path) -> list[Any]:
    index = load_index(out)
    index.check_files()
    order = np.argsort([row.image_id for row in index.rows])
    rows = sorted((row.image_id, row.image, row.captions, row.hash, row.folder) for row in index.rows)
    return [rows, index.vectors()[order]]


def old_or_new_index(out: Path) -> None:
    if (out / "CURRENT").exists():
        assert len(told(out)[0]) in (12, 24)


def finetune_words(given: Given, out: Path) -> list[str]:
    if (out / "state.pt").exists():
        return ["finetune", given.photos, "--resume", "-o", str(out)]
    return ["finetune", given.photos, "--model", given.model, "--tune", "heads", "--objective", "hn_clip", "--epochs", "12",
            "--batch-size", "8", "--lr", "1e-2", "-o", str(out)]


def of_run(run: Path) -> list[Any]:
    log = [{**json.loads(line), "seconds": 0} for line in (run / "log.jsonl").read_text().splitlines()]
    weights = load_file(run / "weights.safetensors")
    return [log, json.loads((run / "best.json").read_text()), (run / "config.yaml").read_text(),
            (run / "split.json").read_text(), *(weights[name].numpy() for name in sorted(weights))]


def whole_files(out: Path) -> None:
    """Each file that is there by its own name can be read."""
    for path in out.rglob("*"):
        if path.suffix == ".safetensors" and not is_unfinished(path):
            load_file(path)
        elif path.suffix == ".json" and not is_unfinished(path):
            json.loads(path.read_text())
        elif path.name == "state.pt" and not is_unfinished(path):
            torch.load(path, weights_only=True)


def contents(out: Path) -> dict[str, str]:
    """Name → hash of all files."""
    return {str(path.relative_to(out)): hash_file(path) for path in sorted(out.rglob("*")) if path.is_file()}


def evaluate_words(given: Given, out: Path) -> list[str]:
    return ["evaluate", given.photos, "--model", given.model, "--split", "all", "--report", str(out / "report.html"),
            "--per-query", str(out / "queries.csv")]


def with_older_files(given: Given, out: Path) -> None:
    out.mkdir()
    for name in ("report.html", "queries.csv", "table.csv"):
        (out / name).write_text("of last week")


def old_or_whole(out: Path) -> None:
    for path, end in ((out / "report.html", "</html>"), (out / "queries.csv", "\n"), (out / "table.csv", '"\n')):
        text = path.read_text()
        assert text == "of last week" or text.replace("\r\n", "\n").endswith(end), path


def of_experiment(out: Path) -> list[Any]:
    outcomes = [(path.parent.name, json.loads(path.read_text())) for path in sorted(out.glob("runs/*/tested.json"))]
    runs = [part for path in sorted(out.glob("runs/*")) for part in of_run(path)]
    return [outcomes, *((out / name).read_text() for name in ("results.csv", "results.md", "results.html")), *runs]


COMMANDS = {
    "index": Command(index_words, told, sound=old_or_new_index),
    "index, an update": Command(index_words, told, lambda given, out: shutil.copytree(given.index, out), old_or_new_index),
    "finetune": Command(finetune_words, of_run, sound=whole_files),
    "export to a folder": Command(lambda given, out: ["export", given.photos, "-o", str(out / "copy")], contents,
                                  ended=lambda out: (out / "copy").exists()),
    "export to a table": Command(lambda given, out: ["export", given.photos, "-o", str(out / "table.csv")], contents,
                                 with_older_files, old_or_whole),
    "evaluate": Command(evaluate_words, contents, with_older_files, old_or_whole),
    "experiment": Command(lambda given, out: ["experiment", given.experiment, "-o", str(out)], of_experiment,
                          sound=whole_files),
}


def is_unfinished(path: Path) -> bool:
    return any(part.endswith(UNFINISHED) for part in path.parts)


def kinds_of_names(*folders: Path) -> set[str]:
    """Names of all files without their numbers and hashes, which may be others after a kill."""
    return {re.sub(r"[0-9a-f]{16,}|[0-9]+", "#", str(path.relative_to(folder)))
            for folder in folders for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Given:
    """An index of half of the pictures is there, then come the others."""
    for name in IMPORTED:
        importlib.import_module(f"densecap_search.{name}")
    torch.set_num_threads(1)  # before forks: threads do not survive them
    folder = tmp_path_factory.mktemp("given")
    found = Given(folder)
    shutil.copytree(tiny_run, folder / "model")
    photos = make_photos(folder / "photos")
    (folder / "experiment").write_text(EXPERIMENT.format(photos=photos, model=folder / "model"))
    away = folder / "away"
    away.mkdir()
    for path in sorted(photos.iterdir())[::2][:12]:
        for each in (path.with_suffix(".png"), path.with_suffix(".txt")):
            each.rename(away / each.name)
    assert run_in_fork(index_words(found, folder / "index"), folder / "log") == 0, (folder / "log").read_text()
    for path in away.iterdir():
        path.rename(photos / path.name)
    return found


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for each run, with a cache of its own."""
    def places() -> Iterator[Path]:
        number = 0
        while True:
            place = tmp_path / str(number)
            place.mkdir()
            monkeypatch.setenv("DENSECAP_CACHE", str(place / "cache"))
            yield place
            shutil.rmtree(place)
            number += 1

    return places()


@pytest.mark.parametrize("name", COMMANDS)
def test_after_kills_nothing_given_is_lost_and_the_next_run_ends_as_one_that_nobody_killed(
        name: str, given: Given, places: Iterator[Path]):
    command, before, generator = COMMANDS[name], contents(given.folder), random.Random(name)
    place = next(places)
    command.begin(given, place / "out")
    started = time.monotonic()
    assert run_in_fork(command.words(given, place / "out"), place / "log") == 0, (place / "log").read_text()
    whole, wanted = time.monotonic() - started, command.result(place / "out")
    names = kinds_of_names(place / "out", place / "cache")
    killed = 0
    while killed < KILLS:
        place = next(places)
        out = place / "out"
        command.begin(given, out)
        again = True
        while again:  # half of the runs that follow a kill are killed too
            code = run_in_fork(command.words(given, out), place / "log", generator.uniform(0, whole))
            assert code in (0, -signal.SIGKILL), (place / "log").read_text()
            killed += code != 0
            command.sound(out)
            assert contents(given.folder) == before
            again = code != 0 and not command.ended(out) and killed < KILLS and generator.random() < 0.5
        if not command.ended(out):
            assert run_in_fork(command.words(given, out), place / "log") == 0, (place / "log").read_text()
        assert_same(command.result(out), wanted)
        left = kinds_of_names(out, place / "cache")
        assert left - names == set()
        assert {name for name in names - left if not name.startswith("queries")} == set()  # those the next search makes
    assert contents(given.folder) == before


def assert_same(found: Any, wanted: Any) -> None:
    """Arrays within 1e-6, for batches may be others; everything else equal."""
    if isinstance(found, list):
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert_same(ours, theirs)
    elif isinstance(found, np.ndarray):
        assert np.allclose(found, wanted, atol=1e-6)
    else:
        assert found == wanted
