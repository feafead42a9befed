"""One YAML → the runs of an experiment: arms × grid × seeds, every one checked before the first begins."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from densecap_search.config import RunConfig, load_config, read_yaml
from densecap_search.errors import ConfigError
from densecap_search.files import hash_text
from densecap_search.scenes.styles import STYLES

COLLECTION = "collection"  # beside the settings of a run: which of the collections it trains on
BEFORE = "before training"  # in results, the arm that is the model as it was
START = "start"  # the model.name by which runs begin from the run that is made first
SAME_SPLITS = (("data.split_seed", 0),)  # splits that have to be made are the same for every seed of an experiment
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Scenes:
    """An archive that is generated: the arguments of make_scenes."""

    bursts: int = 180
    per_burst: int = 4
    seed: int = 0
    style: str = "plain"


@dataclass(frozen=True)
class PlannedRun:
    """One training run: which arm, in which cell of the grid, with which seed."""

    arm: str
    cell: str  # the names of its grid values, joined; "" without a grid
    values: Mapping[str, str]  # grid axis → name of the value
    seed: int
    collection: str  # a key of Experiment.collections
    config: RunConfig

    @property
    def folder(self) -> str:
        """Its place below DIR/runs: readable, and different from every other's."""
        words = [self.arm, *self.values.values(), f"seed {self.seed}"]
        slug = "--".join(re.sub(r"[^\w.+-]+", "-", word).strip("-") for word in words)
        return f"{slug}-{hash_text(*words)[:6]}"


@dataclass(frozen=True)
class Experiment:
    """What a file in ``configs/experiments`` or ``configs/paper`` says.

    collections: name → path, or Scenes to generate. test_on: name of a collection → splits. arms: name → settings.
    grid: axis → name of a value → settings; every arm is run with every combination. start: a run on
    (collection, settings) that is made first; runs with ``model.name: start`` begin from it.
    expect: arm → collection → R@1 (text→image, image→text) that somebody published.
    """

    title: str
    notes: str
    collections: Mapping[str, str | Scenes]
    train_on: str
    test_on: Mapping[str, tuple[str, ...]]
    settings: Settings
    arms: Mapping[str, Settings]
    grid: Mapping[str, Mapping[str, Settings]]
    seeds: tuple[int, ...]
    baseline: str
    start: tuple[str, Settings] | None
    expect: Mapping[str, Mapping[str, tuple[float, float]]]
    keep_weights: bool

    def runs(self) -> list[PlannedRun]:
        """All runs, in the order they are made: seed by seed, so that an unfinished grid is even."""
        return list(self._plan())

    def _plan(self) -> Iterator[PlannedRun]:
        axes = [[(axis, name, settings) for name, settings in values.items()] for axis, values in self.grid.items()]
        for seed in self.seeds:
            for chosen in itertools.product(*axes):
                for arm, own in self.arms.items():
                    settings: dict[str, Any] = {**self.settings}
                    for _, _, more in chosen:
                        settings.update(more)
                    settings |= own
                    collection = self._known(str(settings.pop(COLLECTION, self.train_on)))
                    config = load_config(overrides=[*SAME_SPLITS, *settings.items(), ("train.seed", seed)])
                    # a value is named after its setting, unless the file gives it a name of its own
                    cell = ", ".join(f"{axis} {name}" if "." in axis else name for axis, name, _ in chosen)
                    yield PlannedRun(arm, cell, {axis: name for axis, name, _ in chosen}, seed, collection, config)

    def start_config(self) -> RunConfig:
        """The settings of the run that is made first."""
        assert self.start is not None
        return load_config(overrides=list(self.start[1].items()))

    def tests_of(self, collection: str) -> Mapping[str, tuple[str, ...]]:
        """Collection → splits that a run on this collection is tested on; without test_on its own test split."""
        return self.test_on or {collection: ("test",)}

    def _known(self, name: str) -> str:
        if name not in self.collections:
            raise ConfigError(f"the experiment names no collection {name}; it has {', '.join(self.collections)}")
        return name

    def with_changes(self, paths: Mapping[str, str], settings: Sequence[tuple[str, Any]]) -> Experiment:
        """Other places for collections, and settings that hold for every run, whatever its arm says."""
        for name in paths:
            self._known(name)
        more = dict(settings)
        arms = {name: {**own, **more} for name, own in self.arms.items()}
        start = (self.start[0], {**self.start[1], **more}) if self.start else None
        return replace(self, collections={**self.collections, **paths}, arms=arms, start=start)

    def check(self) -> Experiment:
        """Refuse what cannot be, by name, before anything runs."""
        self._known(self.train_on)
        for name in self.test_on:
            self._known(name)
        if self.baseline not in self.arms:
            raise ConfigError(f"baseline must be one of the arms ({', '.join(self.arms)}), not {self.baseline!r}")
        for arm, figures in self.expect.items():
            if arm not in (*self.arms, BEFORE):
                raise ConfigError(f"expect names {arm!r}, which is none of the arms: {', '.join((*self.arms, BEFORE))}")
            for name in figures:
                self._known(name)
        if self.start:
            self._known(self.start[0])
            self.start_config()
        if any(run.config.model.name == START for run in self.runs()) and not self.start:
            raise ConfigError(f"model.name is {START}, but the file has no section {START}")
        return self


def load_experiment(file: Path) -> Experiment:
    """Read an experiment's file."""
    tree = read_yaml(file, "experiment")
    try:
        return _experiment(_Tree("", tree)).check()
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


KEYS = ("title", "notes", "collections", "train_on", "test_on", "settings", "arms", "grid", "seeds", "baseline",
        "start", "expect", "keep_weights")


def _experiment(tree: _Tree) -> Experiment:
    tree.only(KEYS)
    collections = {name: _collection(value) for name, value in tree.mapping("collections").items()}
    arms = {name: _settings(value) for name, value in tree.mapping("arms").items()}
    if not collections or not arms:
        raise ConfigError("an experiment needs collections (name → path) and arms (name → settings)")
    start = tree.mapping("start")
    if start:
        tree.child("start").only((COLLECTION, "settings"))
    return Experiment(
        title=str(tree.get("title", "Experiment")), notes=str(tree.get("notes", "")).strip(), collections=collections,
        train_on=str(tree.get("train_on", next(iter(collections)))),
        test_on={name: _words(value) for name, value in tree.mapping("test_on").items()},
        settings=_settings(_Tree("settings", tree.get("settings", {}))), arms=arms,
        grid={axis: _axis(axis, values) for axis, values in tree.mapping("grid").items()},
        seeds=_seeds(tree.get("seeds", [0])), baseline=str(tree.get("baseline", next(iter(arms)))),
        start=(str(tree.child("start").get(COLLECTION, next(iter(collections)))),
               _settings(_Tree("start.settings", tree.child("start").get("settings", {})))) if start else None,
        expect={arm: {name: _two(node) for name, node in figures.mapping().items()}
                for arm, figures in tree.mapping("expect").items()},
        keep_weights=bool(tree.get("keep_weights", True)),
    )


@dataclass(frozen=True)
class _Tree:
    """A value of the file and the keys that lead to it, for messages that name the place."""

    place: str
    value: Any

    def get(self, key: str, default: Any) -> Any:
        value = self._dict().get(key)
        return default if value is None else value

    def child(self, key: str) -> _Tree:
        return _Tree(f"{self.place}.{key}".lstrip("."), self._dict().get(key))

    def mapping(self, key: str | None = None) -> dict[str, _Tree]:
        """Its own children, or those of one of them; an absent one has none."""
        tree = self if key is None else self.child(key)
        return {str(name): _Tree(f"{tree.place}.{name}", value) for name, value in tree._dict().items()}

    def only(self, known: Sequence[str]) -> None:
        for key in self._dict():
            if key not in known:
                raise ConfigError(f"unknown key {self.child(str(key)).place}; known keys here: {', '.join(known)}")

    def _dict(self) -> dict[Any, Any]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise ConfigError(f"{self.place or 'the file'} must be a section with keys, not {self.value!r}")
        return self.value


def _settings(tree: _Tree) -> Settings:
    """Dotted keys → values; sections as in a run's settings file are flattened to dotted keys."""
    flat: dict[str, Any] = {}
    for key, node in tree.mapping().items():
        if isinstance(node.value, dict):
            flat |= {f"{key}.{name}": value for name, value in _settings(node).items()}
        else:
            flat[key] = node.value
    return flat


def _collection(tree: _Tree) -> str | Scenes:
    if isinstance(tree.value, str):
        return tree.value
    tree.only(("bursts", "per_burst", "seed", "style"))
    try:
        bursts, per_burst, seed = (int(tree.get(key, default)) for key, default in (
            ("bursts", Scenes.bursts), ("per_burst", Scenes.per_burst), ("seed", Scenes.seed)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{tree.place}: bursts, per_burst and seed must be whole numbers") from error
    scenes = Scenes(bursts, per_burst, seed, str(tree.get("style", Scenes.style)))
    if scenes.style not in STYLES:
        raise ConfigError(f"{tree.place}.style must be one of {', '.join(STYLES)}, not {scenes.style!r}")
    return scenes


def _axis(axis: str, tree: _Tree) -> Mapping[str, Settings]:
    """A list of values of the setting that the axis is called after, or name → settings."""
    if isinstance(tree.value, list):
        return {str(value): {axis: value} for value in tree.value}
    return {name: _settings(node) for name, node in tree.mapping().items()}


def _words(tree: _Tree) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(tree.value).split(",") if word.strip())


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int):
        return tuple(range(value))
    if not isinstance(value, list) or not all(isinstance(seed, int) for seed in value):
        raise ConfigError(f"seeds must be a list of whole numbers, or how many, not {value!r}")
    return tuple(value)


def _two(tree: _Tree) -> tuple[float, float]:
    try:
        first, second = (float(number) for number in tree.value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{tree.place} must be two numbers, R@1 text→image and image→text, "
                          f"not {json.dumps(tree.value, default=str)}") from error
    return first, second
