"""The demo archive: illustrated scenes with dense captions, drawn with nothing but Pillow.

The archive is organised in bursts, as a photographer's is: near-duplicates of one scene that differ in one or two
details, so that their captions are hard negatives for each other.  A :class:`Scene` says everything that is in a
picture; :func:`render` (scene_picture.py) draws it, :func:`describe` puts it into words, and nothing else decides what
is seen or said.  Add the next way to say something to the tables of words here, the next detail that may differ
within a burst to ``CHANGES`` and :func:`change`; things are added in scene_things.py, places in scene_places.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from densecap_search.scenes.pen import Item, Scene
from densecap_search.scenes.picture import render
from densecap_search.scenes.places import PLACES, Place
from densecap_search.scenes.styles import STYLES
from densecap_search.scenes.things import THINGS

COUNTS = ("no", "a", "two", "three", "four", "five")
SIDES = ("left", "right")
WORDS = range(60, 121)
LIGHTS = ("dawn", "noon", "sunset", "night")

# --- words ------------------------------------------------------------------------------------------------

HOURS = {
    "dawn": ("at dawn", "at the break of dawn", "at daybreak"),
    "noon": ("at noon", "in the middle of the day", "at midday"),
    "sunset": ("at sunset", "in the evening at sunset", "at sundown"),
    "night": ("at night", "late at night", "deep at night"),
}
OPENINGS = (
    "This illustration shows {place} {hour}{season}.",
    "The scene is {place} {hour}{season}, drawn in a flat style.",
    "This is a picture-book view of {place} {hour}{season}.",
    "{Place} is pictured here {hour}{season}, in a flat style.",
)
SKY_WORDS = {
    ("clear", "dawn"): ("a pale sun has just risen in the clear pink sky",
                        "the clear morning sky is pink under a pale sun"),
    ("clear", "noon"): ("a bright yellow sun shines in a clear blue sky",
                        "the clear sky is blue and the sun is bright"),
    ("clear", "sunset"): ("a big orange sun sinks in a clear glowing sky", "the clear sky glows around an orange sun"),
    ("clear", "night"): ("the moon and many stars shine in a clear dark sky",
                         "the clear dark sky is full of stars around the moon"),
    ("cloudy", "dawn"): ("white clouds drift across the pink morning sky", "the pink morning sky is full of clouds"),
    ("cloudy", "noon"): ("white clouds drift across the blue sky", "the blue sky is full of white clouds"),
    ("cloudy", "sunset"): ("clouds drift across the orange evening sky", "the orange evening sky is full of clouds"),
    ("cloudy", "night"): ("clouds drift across the dark night sky", "the dark night sky is full of clouds"),
    ("rain", ""): ("rain falls from dark grey clouds", "it is raining hard from dark grey clouds"),
    ("snow", ""): ("it is snowing and white flakes fill the air", "it snows and thick white flakes fall everywhere"),
    ("fog", ""): ("thick fog hides whatever is far away", "everything far away is faint in thick fog"),
}
LIGHT_WORDS = {
    "dawn": "the soft morning light gives everything a faint pink tint",
    "noon": "the white light of the day falls evenly on everything here",
    "sunset": "the warm evening light gives everything a strong orange tint",
    "night": "the dim light of night makes everything dark and muted",
}
SEASON_WORDS = {
    "spring": ("the trees are covered in pink blossom", "pink blossom covers the trees"),
    "summer": ("the trees are in full green leaf", "green leaves cover the trees"),
    "autumn": ("the trees have turned orange", "orange leaves cover the trees"),
    "winter": ("snow lies on the ground and the trees are bare", "the ground is white with snow and trees are bare"),
    "winter indoors": ("the trees are bare and white with snow", "snow lies on the bare trees"),
}
SIDE_WORDS = {
    "left": ("on the left", "to the left"),
    "middle": ("in the middle", "at the centre"),
    "right": ("on the right", "to the right"),
}
ITEM_WORDS = {
    "background": ("in the background {side} {does} {what}", "{what} {does} {side} in the background"),
    "aloft": ("high up {side}, {what} {does}", "{what} {does}, high up {side}"),
    "foreground": ("{side} in the foreground, {what} {does}", "{what} {does} {side}",
                   "{side}, {what} {does} in the foreground"),
}


def say(item: Item) -> str:
    """Return what an item is called, for instance "three red cars"."""
    name = THINGS[item.kind].names[item.count > 1]
    if "{}" in name:
        name = name.format(item.colour)
    elif item.colour:
        name = f"{item.colour} {name}"
    return re.sub(r"\ba (?=[aeiou])", "an ", f"{COUNTS[item.count]} {name}")


def sentence(text: str) -> str:
    """Return the text as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


class Voice:
    """Chooses among ways to say a thing: one and the same way for all captions of a burst."""

    def __init__(self, key: str) -> None:
        self.key = key

    def pick(self, subject: str, ways: Sequence[str]) -> str:
        """Return one of the ways to speak of the subject."""
        return ways[int(Random(f"{self.key}/{subject}").random() * len(ways))]

    def place(self, role: str, item: Item) -> str:
        """Return the sentence that says what an item is and where; its role is a key of ITEM_WORDS."""
        does = THINGS[item.kind].does[item.count > 1]
        side = self.pick("side", SIDE_WORDS[item.side])
        way = self.pick(role, ITEM_WORDS[role.split()[0]])
        return sentence(way.format(what=say(item), does=does, side=side))


def describe(scene: Scene) -> str:
    """Put a scene into words: place and hour, then sky, setting, background and foreground in some order."""
    voice, place = Voice(scene.key), PLACES[scene.place]
    name = voice.pick("place", place.names)
    season = f" in {scene.season}" if len(place.seasons) > 1 else ""
    opening = voice.pick("opening", OPENINGS).format(
        place=name, Place=name[0].upper() + name[1:], hour=voice.pick("hour", HOURS[scene.light]), season=season)
    sky = voice.pick("sky", SKY_WORDS.get((scene.weather, scene.light)) or SKY_WORDS[scene.weather, ""])
    if place.indoors:
        sky = f"outside the window, {sky}"
    if season:
        inside = " indoors" if place.indoors and scene.season == "winter" else ""
        sky = f"{sky}; {voice.pick('season', SEASON_WORDS[scene.season + inside])}"
    setting = [sentence(voice.pick("setting", place.setting))]
    if place.lamps and scene.light != "noon":
        setting.append(sentence(place.lamps[not scene.lamps]))
    back = [voice.place("background", scene.feature)]
    if scene.aloft:
        back.append(voice.place("aloft", scene.aloft))
    front = [voice.place(f"foreground {i}", item) for i, item in enumerate(scene.items)]
    if (len(front) == 2 or not season) and not (place.indoors and scene.light != "noon"):
        setting.append(sentence(LIGHT_WORDS[scene.light]))
    blocks = [[sentence(sky)], setting, back, front]
    Random(f"{scene.key}/order").shuffle(blocks)
    return " ".join([opening, *(text for block in blocks for text in block)])


# --- the archive ------------------------------------------------------------------------------------------


def _item(rng: Random, kind: str, side: str, most: int = 5) -> Item:
    thing = THINGS[kind]
    count = rng.randint(1, min(thing.crowd, most))
    return Item(kind, rng.choice(thing.colours) if thing.colours else "", count, side)


def _aloft(rng: Random, place: Place, feature: Item) -> Item:
    return _item(rng, rng.choice(place.aloft), other(rng, SIDES, feature.side))


def compose(rng: Random, key: str, name: str) -> Scene:
    """Make up a scene of a place."""
    place = PLACES[name]
    kinds = rng.sample(place.things, rng.choice((2, 3)))
    sides = ("left", "right") if len(kinds) == 2 else ("left", "middle", "right")
    light, season = rng.choice(LIGHTS), rng.choice(place.seasons)
    items = tuple(_item(rng, kind, side) for kind, side in zip(kinds, sides, strict=True))
    lamps = place.lamps is not None and light != "noon" and rng.random() < 0.6
    feature = _item(rng, rng.choice(place.features), rng.choice(SIDES))
    aloft = _aloft(rng, place, feature) if rng.random() < 0.7 else None
    return in_season(Scene(key, name, season, light, rng.choice(place.weathers), lamps, feature, items, aloft))


def in_season(scene: Scene) -> Scene:
    """Turn rain into snow in winter, snow into rain in other seasons, and lamps off at noon."""
    wet = "snow" if scene.season == "winter" else "rain"
    weather = wet if scene.weather in ("rain", "snow") else scene.weather
    return replace(scene, weather=weather, lamps=scene.lamps and scene.light != "noon")


def other(rng: Random, choices: Sequence[str], value: str) -> str:
    """Return one of the choices that is not the value, or the value if there is no other."""
    return rng.choice([choice for choice in choices if choice != value] or [value])


def repaint(rng: Random, item: Item) -> Item:
    """Return the item in another colour or, if it comes in one only, in another number."""
    colours = THINGS[item.kind].colours
    return replace(item, colour=other(rng, colours, item.colour)) if len(colours) > 1 else recount(rng, item)


def recount(rng: Random, item: Item) -> Item:
    """Return so many more or fewer of an item that it shows."""
    crowd = THINGS[item.kind].crowd
    choices = [n for n in range(1, crowd + 1) if n != item.count and (crowd < 4 or abs(n - item.count) > 1)]
    return replace(item, count=rng.choice(choices)) if choices else item


def change(rng: Random, scene: Scene, what: str) -> Scene:
    """Return the scene with one detail changed; the very same scene if it has no such detail."""
    place = PLACES[scene.place]
    if what in ("kind", "colour", "count"):
        i = rng.randrange(len(scene.items))
        old = scene.items[i]
        if what == "kind":
            taken = [item.kind for item in scene.items]
            new = _item(rng, rng.choice([kind for kind in place.things if kind not in taken]), old.side)
        else:
            new = repaint(rng, old) if what == "colour" else recount(rng, old)
        return replace(scene, items=(*scene.items[:i], new, *scene.items[i + 1 :]))
    if what == "swap":
        first, *rest, last = scene.items
        items = (replace(last, side="left"), *rest, replace(first, side="right"))
        return replace(scene, items=items)
    if what == "light":
        return replace(scene, light=other(rng, LIGHTS, scene.light))
    if what == "weather":
        return replace(scene, weather=other(rng, place.weathers, scene.weather))
    if what == "season":
        return replace(scene, season=other(rng, place.seasons, scene.season))
    if what == "lamps":
        return replace(scene, lamps=place.lamps is not None and not scene.lamps)
    if what == "feature":
        return replace(scene, feature=repaint(rng, scene.feature))
    if what == "background":
        kind = other(rng, place.features, scene.feature.kind)
        return replace(scene, feature=_item(rng, kind, scene.feature.side))
    if what == "side":
        aloft = scene.aloft and replace(scene.aloft, side=scene.feature.side)
        feature = replace(scene.feature, side=other(rng, SIDES, scene.feature.side))
        return replace(scene, feature=feature, aloft=aloft)
    return replace(scene, aloft=None if scene.aloft else _aloft(rng, place, scene.feature))


# what may differ within a burst, and how often
CHANGES = {"kind": 6, "colour": 5, "count": 2, "swap": 1, "light": 5, "weather": 4, "season": 4, "lamps": 2,
           "feature": 3, "background": 3, "side": 1, "aloft": 3}


def vary(rng: Random, base: Scene) -> Scene:
    """Return a near-duplicate of a scene, with one or two details changed."""
    scene = base
    for what in rng.choices(tuple(CHANGES), tuple(CHANGES.values()), k=rng.choice((1, 2, 2))):
        scene = in_season(change(rng, scene, what))
    return scene


def plan(bursts: int, per_burst: int, seed: int) -> list[list[Scene]]:
    """Make up the scenes of an archive, burst by burst; no two read the same, all in WORDS words."""
    rng = Random(f"scenes/{seed}")
    names: list[str] = []
    while len(names) < bursts:
        names += rng.sample(tuple(PLACES), len(PLACES))
    said: set[str] = set()
    archive = []
    for number, name in enumerate(names[:bursts]):
        base = compose(rng, f"{seed}/{number}", name)
        burst: list[Scene] = []
        while len(burst) < per_burst:
            scene = vary(rng, base) if burst else base
            text = describe(scene)
            if text not in said and len(text.split()) in WORDS:
                said.add(text)
                burst.append(scene)
            elif not burst:
                base = compose(rng, f"{seed}/{number}", name)
        archive.append(burst)
    return archive


def split_bursts(bursts: int, seed: int) -> list[str]:
    """Return the split of every burst: about 70 % train, 12 % val, 18 % test."""
    test, val = math.ceil(0.18 * bursts), math.ceil(0.12 * bursts)
    splits = ["test"] * test + ["val"] * val + ["train"] * (bursts - test - val)
    splits = splits[::-1][:bursts]
    Random(f"splits/{seed}").shuffle(splits)
    return splits


def row_of(scene: Scene, burst: int, number: int, split: str) -> dict[str, str]:
    """Return the line of captions.jsonl for a scene."""
    name = f"{burst:04d}-{number}"
    return {
        "image": f"images/{name}.jpg",
        "caption": describe(scene),
        "id": name,
        "burst": f"{burst:04d}",
        "split": split,
        "place": scene.place,
        "season": scene.season,
        "light": scene.light,
        "weather": scene.weather,
        "feature": say(scene.feature),
        "things": ", ".join(say(item) for item in scene.items),
    }


def make_scenes(folder: Path, *, bursts: int = 180, per_burst: int = 4, size: int = 320, seed: int = 0,
                style: str = "plain", progress: Callable[[int, int], None] | None = None) -> Path:
    """Render the archive under folder and return the path of its captions.jsonl.

    The pictures lie in folder/images; captions.jsonl has one line for each: its path relative to folder, the
    caption, its burst and split, and plain columns that say what it shows.  The same seed gives the same
    bytes.  style: a key of STYLES (scene_styles.py), what became of the picture after it was drawn.
    """
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    archive = plan(bursts, per_burst, seed)
    done, lines = 0, []
    for number, (scenes, split) in enumerate(zip(archive, split_bursts(bursts, seed), strict=True)):
        for k, scene in enumerate(scenes):
            row = row_of(scene, number, k, split)
            picture = STYLES[style](render(scene, size), Random(f"{style}/{seed}/{row['id']}"))
            picture.save(folder / row["image"], quality=88)
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
            done += 1
            if progress:
                progress(done, bursts * per_burst)
    path = folder / "captions.jsonl"
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return path
