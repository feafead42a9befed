"""The demo archive: what its captions say is what its pictures show."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from densecap_search.scenes import archive as scenes
from densecap_search.scenes import picture
from densecap_search.scenes.archive import make_scenes
from densecap_search.scenes.pen import COLOURS, RGB, WHITE, Item, Pen, Scene
from densecap_search.scenes.picture import render
from densecap_search.scenes.places import PLACES
from densecap_search.scenes.things import THINGS, Thing

BURSTS, PER_BURST, SIZE = 6, 4, 96
SCENE = Scene("key", "street", "summer", "noon", "clear", False, Item("church", "white", 1, "left"),
              (Item("car", "red", 3, "left"), Item("dog", "black", 1, "right")), None)


def small(folder: Path, seed: int = 0) -> Path:
    return make_scenes(folder, bursts=BURSTS, per_burst=PER_BURST, size=SIZE, seed=seed)


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def planned() -> list[list[Scene]]:
    return scenes.plan(180, 4, 0)


def items_of(scene: Scene) -> list[Item]:
    return [scene.feature, *scene.items, *([scene.aloft] if scene.aloft else [])]


def test_every_row_has_a_picture_of_the_asked_size(archive: Path) -> None:
    rows = rows_of(archive)
    assert len(rows) == BURSTS * PER_BURST
    for row in rows:
        assert "\\" not in row["image"]
        with Image.open(archive.parent / row["image"]) as image:
            image.load()
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (SIZE, SIZE))


def test_a_burst_lies_in_one_split_and_all_splits_are_there(archive: Path) -> None:
    rows = rows_of(archive)
    sides = {(row["burst"], row["split"]) for row in rows}
    assert len(sides) == BURSTS
    assert {row["split"] for row in rows} == {"train", "val", "test"}
    assert set(Counter(row["burst"] for row in rows).values()) == {PER_BURST}


def test_split_shares() -> None:
    counts = Counter(scenes.split_bursts(180, 0))
    assert counts == {"train": 125, "val": 22, "test": 33}
    assert scenes.split_bursts(180, 0) != scenes.split_bursts(180, 1)


def test_pictures_of_a_burst_differ(archive: Path) -> None:
    for number in range(BURSTS):
        pictures = [
            np.asarray(Image.open(archive.parent / row["image"]), float)
            for row in rows_of(archive)
            if row["burst"] == f"{number:04d}"
        ]
        for i, one in enumerate(pictures):
            assert all(np.abs(one - two).max() > 40 for two in pictures[:i])


def test_same_seed_same_bytes(archive: Path, tmp_path: Path) -> None:
    small(tmp_path / "again")
    small(tmp_path / "other", seed=1)
    assert bytes_of(archive.parent) == bytes_of(tmp_path / "again")
    assert bytes_of(archive.parent) != bytes_of(tmp_path / "other")


def test_progress(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    make_scenes(
        tmp_path, bursts=1, per_burst=2, size=32, progress=lambda done, total: calls.append((done, total))
    )
    assert calls == [(1, 2), (2, 2)]


def test_captions_are_dense_and_never_the_same(planned: list[list[Scene]]) -> None:
    captions = [scenes.describe(scene) for burst in planned for scene in burst]
    assert len(captions) == 720 == len(set(captions))
    counts = [len(caption.split()) for caption in captions]
    assert min(counts) >= 60
    assert max(counts) <= 120


def test_a_burst_speaks_in_one_voice(planned: list[list[Scene]]) -> None:
    for burst in planned:
        first, *others = (Counter(scenes.describe(scene).lower().split()) for scene in burst)
        assert all((first & other).total() >= 0.5 * first.total() for other in others)


def test_captions_name_what_is_there(planned: list[list[Scene]]) -> None:
    for scene in (scene for burst in planned for scene in burst):
        caption = scenes.describe(scene).lower()
        for item in items_of(scene):
            thing = THINGS[item.kind]
            (said,) = [part for part in caption.split(". ") if scenes.say(item) in part]
            assert item.side in said or (item.side == "middle" and "centre" in said)
            assert item.colour in said
            assert 1 <= item.count <= thing.crowd
            assert thing.does[item.count > 1] in said
        assert not re.search(r"\ba [aeiou]", caption)
        if len(PLACES[scene.place].seasons) > 1:
            assert scene.season in caption


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Item("car", "red", 1, "left"), "a red car"),
        (Item("tractor", "orange", 1, "left"), "an orange tractor"),
        (Item("sheep", "black", 3, "left"), "three black sheep"),
        (Item("bus", "blue", 1, "left"), "a blue double-decker bus"),
        (Item("person", "pink", 5, "left"), "five people in pink coats"),
        (Item("tree", "", 2, "left"), "two trees"),
        (Item("table", "orange", 1, "left"), "a table with an orange cloth"),
    ],
)
def test_say(item: Item, words: str) -> None:
    assert scenes.say(item) == words


def test_what_is_said_is_drawn(planned: list[list[Scene]], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Counter[tuple[str, RGB, str]] = Counter()

    def spy(kind: str) -> Thing:
        def draw(p: Pen, c: RGB) -> None:
            side = "left" if p.x < 34 else "right" if p.x > 66 else "middle"
            drawn[kind, c, side] += 1

        return replace(THINGS[kind], draw=draw)

    monkeypatch.setattr(picture, "THINGS", {kind: spy(kind) for kind in THINGS})
    for scene in (burst[Random(i).randrange(4)] for i, burst in enumerate(planned[:48])):
        drawn.clear()
        render(scene, 32)
        told: Counter[tuple[str, RGB]] = Counter()
        for item in items_of(scene):
            told[item.kind, COLOURS.get(item.colour, WHITE)] += item.count
        assert told == sum((Counter({(kind, c): n}) for (kind, c, _), n in drawn.items()), Counter())
        if len(scene.items) == 3:
            assert {(item.kind, item.side) for item in scene.items} <= {
                (kind, side) for kind, _, side in drawn
            }


def test_every_coloured_thing_shows_its_colour() -> None:
    for kind, thing in THINGS.items():
        for colour in thing.colours:
            image = Image.new("RGB", (200, 200), (1, 2, 3))
            pen = Pen(ImageDraw.Draw(image, "RGBA"), 2, SCENE, (1.0, 1.0, 1.0), (0, 0, 0), x=50, y=20)
            thing.draw(pen, COLOURS[colour])
            shown = (np.asarray(image) == COLOURS[colour]).all(-1).sum()
            assert shown > 60, (kind, colour)


def test_every_place_can_be_drawn_at_any_hour_and_in_any_weather() -> None:
    for number, (name, place) in enumerate(PLACES.items()):
        rng = Random(number)
        for weather in place.weathers:
            scene = scenes.compose(rng, f"{number}", name)
            for light in scenes.LIGHTS:
                shown = scenes.in_season(replace(scene, light=light, weather=weather))
                assert render(shown, 32).size == (32, 32)
                assert scenes.describe(shown)


def test_weather_and_lamps_suit_season_and_hour(planned: list[list[Scene]]) -> None:
    for scene in (scene for burst in planned for scene in burst):
        assert (scene.weather == "snow") <= (scene.season == "winter")
        assert (scene.weather == "rain") <= (scene.season != "winter")
        assert not (scene.lamps and scene.light == "noon")
        assert len({item.kind for item in items_of(scene)}) == len(items_of(scene))


def test_a_faded_archive_shows_the_same_scenes_paler(tmp_path: Path) -> None:
    plain = make_scenes(tmp_path / "plain", bursts=2, per_burst=2, size=64)
    faded = make_scenes(tmp_path / "faded", bursts=2, per_burst=2, size=64, style="faded")
    assert plain.read_text() == faded.read_text()
    for path in (tmp_path / "plain" / "images").iterdir():
        one, two = (np.asarray(Image.open(place).convert("HSV"), np.float64)
                    for place in (path, tmp_path / "faded" / "images" / path.name))
        assert two[..., 1].mean() < 0.8 * one[..., 1].mean()
