"""Random steps, and after each one the index is what one built anew would be."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from helpers import make_tiny
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from PIL import Image

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval import writing
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.index_folder import undo
from densecap_search.retrieval.update import Wanted, bring_up_to_date

pytestmark = pytest.mark.slow
PLACES = ("Lyon", "Nice", "Ulm")
EXAMPLES, STEPS = 4, 50  # 200 steps in all


class Killed(BaseException):
    """In the place of a kill: nothing that follows in the process is run."""


@cache
def tiny() -> DualEncoder:
    return make_tiny()


class Archive(RuleBasedStateMachine):
    """A folder of pictures with side files, and its index."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="densecap-"))
        self.photos, self.index = self.root / "photos", self.root / "index"
        self.photos.mkdir()
        self.cache = mock.patch.dict(os.environ, {"DENSECAP_CACHE": str(self.root / "cache")})
        self.cache.start()
        self.count = self.clock = 0
        self.add(0, 0)
        self.update()

    def teardown(self) -> None:
        self.cache.stop()
        shutil.rmtree(self.root)

    def pictures(self) -> list[Path]:
        return sorted(self.photos.rglob("*.png"))

    def pick(self, which: int) -> Path:
        return self.pictures()[which % len(self.pictures())]

    def aged(self, path: Path) -> None:
        """Each change at another time, long ago."""
        self.clock += 1
        os.utime(path, (1_500_000_000 + self.clock, 1_500_000_000 + self.clock))

    def draw(self, path: Path, shade: int) -> None:
        Image.new("RGB", (32, 32), (shade * 20 % 256, 255 - shade * 7 % 256, shade % 3 * 100)).save(path)
        self.aged(path)

    @rule(shade=st.integers(0, 30), place=st.integers(0, 2))
    def add(self, shade: int, place: int) -> None:
        self.count += 1
        folder = self.photos / PLACES[place]
        folder.mkdir(exist_ok=True)
        self.draw(folder / f"{self.count:03}.png", shade)

    @rule(which=st.integers(0, 99), shade=st.integers(0, 30))
    def change(self, which: int, shade: int) -> None:
        self.draw(self.pick(which), shade)

    @rule(which=st.integers(0, 99), words=st.sampled_from(["a red bus", "two boats", "nothing"]))
    def describe(self, which: int, words: str) -> None:
        self.pick(which).with_suffix(".txt").write_text(words)

    @rule(which=st.integers(0, 99), place=st.integers(0, 2))
    def move(self, which: int, place: int) -> None:
        self.count += 1
        (self.photos / PLACES[place]).mkdir(exist_ok=True)
        self.pick(which).rename(self.photos / PLACES[place] / f"{self.count:03}.png")

    @rule(which=st.integers(0, 99))
    def touch(self, which: int) -> None:
        self.aged(self.pick(which))

    @precondition(lambda self: len(self.pictures()) > 1)
    @rule(which=st.integers(0, 99))
    def delete(self, which: int) -> None:
        self.pick(which).unlink()

    @rule(which=st.integers(0, 99))
    def copy(self, which: int) -> None:
        self.count += 1
        path = self.pick(which)
        shutil.copyfile(path, path.with_name(f"{self.count:03}.png"))
        self.aged(path.with_name(f"{self.count:03}.png"))

    @rule()
    def undo_and_update(self) -> None:
        if len(list(self.index.glob("gen-*"))) > 1 and (self.index / "CURRENT").read_text().strip() != min(
                place.name for place in self.index.glob("gen-*")):
            undo(self.index)
            load_index(self.index).check_files()
        self.update()

    @rule(place=st.sampled_from(["changing", "publish", "_finish", "end_rows"]))
    def crash(self, place: str) -> None:
        """An update that ends as a kill would end it; the index is as it was."""
        before = told(load_index(self.index))
        with mock.patch.object(writing, place, side_effect=Killed):
            try:
                self.update()
            except Killed:
                assert told(load_index(self.index)) == before

    def update(self) -> None:
        bring_up_to_date(read_collection(self.photos), tiny, ModelConfig("tiny"), self.index,
                         Wanted(prune=True, place=self.photos, trust_files=True), workers=0)

    @invariant()
    def is_what_a_new_one_would_be(self) -> None:
        self.update()
        found = load_index(self.index)
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            bring_up_to_date(read_collection(self.photos), tiny, ModelConfig("tiny"), Path(folder) / "i",
                             Wanted(place=self.photos), workers=0)
            wanted = load_index(Path(folder) / "i")
            assert told(found) == told(wanted)
            assert np.allclose(vectors(found), vectors(wanted), atol=1e-5)  # encoded in batches of other sizes
            queries = np.eye(16, dtype=np.float32)[:3]
            for where in (None, "folder = 'Lyon'", "not folder under 'Lyon' and id != 'Lyon/001.png'"):
                for k in (1, 3, 1000):
                    for ours, theirs in zip(found.search(queries, k, where), wanted.search(queries, k, where), strict=True):
                        assert np.allclose(scores(ours), scores(theirs), atol=1e-5)
            assert words(found) == words(wanted)


def told(index: ImageIndex) -> list[tuple[object, ...]]:
    assert len(index) == len(index.numbers) == len(index.rows)
    return sorted((row.image_id, row.image, row.captions, row.hash, row.folder) for row in index.rows)


def vectors(index: ImageIndex) -> np.ndarray:
    """In the order of ids."""
    return index.vectors()[np.argsort([row.image_id for row in index.rows])]


def scores(hits: list[tuple[int, float]]) -> list[float]:
    """Which of equal ones comes first is a matter of numbers, which differ."""
    return [score for _, score in hits]


def words(index: ImageIndex) -> list[str]:
    sql = "SELECT image_id FROM words JOIN pictures ON pictures.key = words.rowid WHERE words MATCH 'boat OR nice OR 003'"
    return sorted(image_id for image_id, in index.rows.query(sql))


Archive.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None,
                                     phases=(Phase.explicit, Phase.generate),
                                     suppress_health_check=list(HealthCheck))
test_after_any_steps_an_index_is_what_one_built_anew_would_be = Archive.TestCase
