"""run_experiment(): every run of an experiment, then the test splits, once. It continues where it was stopped.

No test split is read before the last run is trained, and once one has been read the experiment's settings are fixed:
what is chosen (an epoch, a γ) can only be chosen on validation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.collection.splits import select_splits
from densecap_search.config import ModelConfig, RunConfig
from densecap_search.embedding.content import with_contents
from densecap_search.errors import CollectionError, RunError, TrainingStopped
from densecap_search.evaluation.evaluate import Direction, evaluate
from densecap_search.experiments.plan import BEFORE, START, Experiment, PlannedRun, Scenes
from densecap_search.files import check_writable, hash_text, json_text, write_json
from densecap_search.locks import locked
from densecap_search.model import checkpoint
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import RANDOM, load_encoder
from densecap_search.scenes.archive import make_scenes
from densecap_search.talk import SILENT, Talk
from densecap_search.training.loop import RunSummary, finetune
from densecap_search.training.run_folder import LOG, read_splits

PLAN, RUNS, COLLECTIONS, TRAINED, TESTED = "experiment.json", "runs", "collections", "trained.json", "tested.json"


@dataclass(frozen=True)
class Measured:
    """One direction of retrieval on one test set: figures, and the rank and picture of every query."""

    figures: Mapping[str, float]
    ranks: tuple[float, ...]
    clusters: tuple[int, ...]  # the picture of each query
    gallery: int


@dataclass(frozen=True)
class RunOutcome:
    """A run that is trained and tested, or why it could not be."""

    arm: str
    cell: str
    values: Mapping[str, str]
    seed: int
    config: RunConfig
    folder: str
    epochs: tuple[Mapping[str, Any], ...]  # the rows of the run's log
    kept_epoch: int | None
    saturated: float | None  # share of the measured batches on which InfoNCE was solved
    trained_on: Mapping[str, int]  # test set → its pictures that the run was trained on
    tests: Mapping[str, Mapping[str, Measured]]  # test set → direction → figures
    failed: str | None = None


def run_experiment(experiment: Experiment, folder: Path, *, talk: Talk) -> list[RunOutcome]:
    """Train what is not trained yet, then read the test splits. Returns all outcomes; the models before come first."""
    check_writable(folder)
    with locked(folder, "densecap experiment"):
        return _run_all(experiment, folder, talk)


def _run_all(experiment: Experiment, folder: Path, talk: Talk) -> list[RunOutcome]:
    runs = experiment.runs()
    _hold(experiment, runs, folder)
    job = _Grid(experiment, folder, talk)
    job.read_collections(runs)
    if experiment.start:
        job.make_start()
    failed: dict[str, str] = {}
    for number, run in enumerate(runs, start=1):
        reason = job.train(run, f"{number}/{len(runs)}")
        if reason:
            failed[run.folder] = reason
    _read_test_from_now_on(folder)
    done = [run for run in runs if run.folder not in failed]
    outcomes = [outcome for run in job.first_of_each_start(done) if (outcome := job.test_before(run))]
    for run in talk.each(runs, "testing", len(runs), "runs"):
        outcomes.append(job.outcome(run, failed.get(run.folder)))
    return outcomes


def _hold(experiment: Experiment, runs: Sequence[PlannedRun], folder: Path) -> None:
    """Write what the folder is for, or refuse a folder that is for something else."""
    collections = {name: asdict(made) if isinstance(made, Scenes) else made
                   for name, made in experiment.collections.items()}
    plan = json.loads(json_text({
        "start": experiment.start, "collections": collections, "test_on": experiment.test_on,
        "runs": {run.folder: {"collection": run.collection, **asdict(run.config)} for run in runs}, "test_read": False,
    }))
    file = folder / PLAN
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        before["runs"] = {name: _with_later_settings(row) for name, row in before["runs"].items()}
        if before["test_read"] and {**before, "test_read": False} != plan:
            raise RunError(f"{folder} holds an experiment with other settings, and its test splits have been read: "
                           "choose another folder with -o")
        differing = [name for name, row in plan["runs"].items() if before["runs"].get(name, row) != row]
        if differing or before["start"] != plan["start"]:
            raise RunError(f"{folder} holds runs with other settings ({(differing or [START])[0]}): choose another "
                           "folder with -o")
        plan["test_read"] = before["test_read"]
    write_json(file, plan)


def _with_later_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run as it was written, with the settings that only later versions have at the values they had all along."""
    return {**row, **{section: {**values, **row[section]} for section, values in asdict(RunConfig()).items()}}


def _read_test_from_now_on(folder: Path) -> None:
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    write_json(folder / PLAN, {**plan, "test_read": True})


class _Grid:
    """The collections of an experiment, read once, and the steps of :func:`run_experiment`."""

    def __init__(self, experiment: Experiment, folder: Path, talk: Talk) -> None:
        self.experiment, self.folder, self.talk = experiment, folder, talk
        self._collections: dict[str, Collection] = {}
        self._read: dict[str, Collection] = {}  # with contents

    def read_collections(self, runs: Sequence[PlannedRun]) -> None:
        """All that will be trained or tested on, before hours of training: what is missing is told now."""
        trained = dict.fromkeys(run.collection for run in runs)
        for name in dict.fromkeys((*trained, *(test for own in trained for test in self.experiment.tests_of(own)))):
            try:
                self.collection(name)
            except CollectionError as error:
                raise CollectionError(f"{error}; --collection {name}=PATH says where it lies") from error

    def collection(self, name: str) -> Collection:
        """The collection of that name, generated first where it has to be."""
        if name not in self._collections:
            source = self.experiment.collections[name]
            path = self._generate(name, source) if isinstance(source, Scenes) else Path(source).expanduser()
            self._collections[name] = read_collection(path)
        return self._collections[name]

    def _generate(self, name: str, scenes: Scenes) -> Path:
        place = self.folder / COLLECTIONS / name
        table = place / "captions.jsonl"
        if table.exists():  # written last
            return table
        with self.talk.progress(f"drawing {name}", scenes.bursts * scenes.per_burst, "pictures") as advance:
            return make_scenes(place, bursts=scenes.bursts, per_burst=scenes.per_burst, seed=scenes.seed,
                               style=scenes.style, progress=lambda done, total: advance(1))

    def make_start(self) -> None:
        """The run that others begin from."""
        assert self.experiment.start is not None
        if (self.folder / START / TRAINED).exists():
            return
        self.talk.say(f"making the model that the runs start from, on {self.experiment.start[0]}")
        self._finetune(self.experiment.start[0], self.experiment.start_config(), self.folder / START)

    def train(self, run: PlannedRun, number: str) -> str | None:
        """Train one run, or go on with it; the reason if it cannot be trained."""
        folder = self.folder / RUNS / run.folder
        if (folder / TRAINED).exists():
            return None
        label = " · ".join(word for word in (run.arm, run.cell, f"seed {run.seed}") if word)
        try:
            summary = self._finetune(run.collection, self._config(run), folder)
        except TrainingStopped as error:
            self.talk.say(f"{number} {label}: failed: {error}")
            return str(error)
        val = f", val R@1 {summary.kept.mean_recall_at_1:.1f}" if summary.kept else ""
        self.talk.say(f"{number} {label}: epoch {summary.kept_epoch} kept{val} ({summary.seconds:.0f} s)")
        return None

    def _config(self, run: PlannedRun) -> RunConfig:
        if run.config.model.name != START:
            return run.config
        return replace(run.config, model=replace(run.config.model, name=str((self.folder / START).resolve())))

    def _finetune(self, collection: str, config: RunConfig, folder: Path) -> RunSummary:
        resume = (folder / checkpoint.STATE).exists()
        summary = finetune(self.collection(collection), config, folder, resume=resume, talk=SILENT)
        write_json(folder / TRAINED, {"kept_epoch": summary.kept_epoch, "steps": summary.steps,
                                      "seconds": round(summary.seconds, 1), "saturated": summary.saturated})
        return summary

    def outcome(self, run: PlannedRun, failed: str | None) -> RunOutcome:
        """What a run's folder says, its test figures measured now if they were not yet."""
        folder = self.folder / RUNS / run.folder
        if failed:
            return RunOutcome(run.arm, run.cell, run.values, run.seed, run.config, run.folder, (), None, None, {}, {},
                              failed)
        if not (folder / TESTED).exists():
            encoder = load_encoder(ModelConfig(str(folder)), device=run.config.train.device)
            write_json(folder / TESTED, self._test(encoder, run, folder))
            if not self.experiment.keep_weights:
                (folder / checkpoint.WEIGHTS).unlink(missing_ok=True)
                (folder / checkpoint.STATE).unlink(missing_ok=True)
        trained = json.loads((folder / TRAINED).read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
        trained_on, tests = _read_tests(folder / TESTED)
        return RunOutcome(run.arm, run.cell, run.values, run.seed, run.config, run.folder,
                          tuple(row for row in rows if "epoch" in row), trained["kept_epoch"], trained["saturated"],
                          trained_on, tests)

    def first_of_each_start(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """One of the runs that begin from the same model and are tested on the same pictures."""
        firsts: dict[str, PlannedRun] = {}
        for run in runs:
            firsts.setdefault(self._start_key(run), run)
        return list(firsts.values())

    def _start_key(self, run: PlannedRun) -> str:
        tests = json.dumps(self.experiment.tests_of(run.collection))
        return hash_text(tests, json.dumps(asdict(run.config.model)))[:8]

    def test_before(self, run: PlannedRun) -> RunOutcome | None:
        """The model that the run began from; none where it began from nothing."""
        model = self._config(run).model
        if model.pretrained == RANDOM:
            return None
        file = self.folder / f"before-{self._start_key(run)}.json"
        if not file.exists():
            encoder = load_encoder(model, device=run.config.train.device)
            write_json(file, self._test(encoder, run, self.folder / RUNS / run.folder))
        _, tests = _read_tests(file)
        return RunOutcome(BEFORE, "", {}, 0, run.config, model.name, (), None, None, {}, tests)

    def _test(self, encoder: DualEncoder, run: PlannedRun, folder: Path) -> dict[str, Any]:
        chosen, trained = read_splits(folder)
        tested = {}
        for name, splits in self.experiment.tests_of(run.collection).items():
            if name not in self._read:
                self._read[name] = with_contents(self.collection(name), talk=self.talk)
            own = {image_id: split for image_id, (split, _) in chosen.items()} if name == run.collection else {}
            records = select_splits(self._read[name], splits, own)
            report = evaluate(encoder, records, model=run.arm, collection=name, splits=splits, trained=trained)
            tested[name] = {"trained_on": report.trained_on, "directions": {
                "text_to_image": asdict(_measured(report.text_to_image)),
                "image_to_text": asdict(_measured(report.image_to_text))}}
        return tested


def _measured(direction: Direction) -> Measured:
    figures = {name: figure.value for name, figure in direction.figures.items()}
    ranks, clusters = direction.ranks.rank, direction.clusters
    return Measured(figures, tuple(ranks.tolist()), tuple(clusters.tolist()), direction.gallery)


def _read_tests(file: Path) -> tuple[dict[str, int], dict[str, dict[str, Measured]]]:
    saved = json.loads(file.read_text(encoding="utf-8"))
    tests = {name: {direction: Measured(values["figures"], tuple(values["ranks"]), tuple(values["clusters"]),
                                        values["gallery"])
                    for direction, values in row["directions"].items()} for name, row in saved.items()}
    return {name: row["trained_on"] for name, row in saved.items()}, tests
