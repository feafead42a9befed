"""The picture of a scene: :func:`render` paints sky, place, things and weather, from the back to the front.

Nothing is decided here but where on its side a thing finds room.  To add a weather, draw it in :func:`hang_sky` or
:func:`fall`, let a place of ``PLACES`` (scene_places.py) have it, and give it words in ``SKY_WORDS`` (scenes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from densecap_search.scenes.pen import (
    BLACK,
    COLOURS,
    GREY,
    RGB,
    SKIES,
    WHITE,
    Item,
    Pen,
    Scene,
    Tint,
    dark,
    mix,
)
from densecap_search.scenes.places import PLACES
from densecap_search.scenes.things import THINGS


def haze_of(scene: Scene) -> RGB:
    """Return the colour that distant things fade into."""
    _, low, _, grey = SKIES[scene.light]
    return low if scene.weather == "clear" else mix(low, grey, 0.75)


def tints(scene: Scene) -> tuple[Tint, Tint]:
    """Return what the light does to the colours of the place, and to those of the things in it.

    The things are kept brighter at night, or nobody could tell a blue boat from a green one.
    """
    if PLACES[scene.place].indoors and scene.lamps:
        return (1.0, 0.95, 0.86), (1.0, 0.95, 0.86)
    r, g, b = SKIES[scene.light][2]
    if scene.weather in ("rain", "cloudy"):
        r, g, b = r * 0.93, g * 0.94, b * 0.96
    return (r, g, b), ((0.78, 0.8, 0.94) if scene.light == "night" else (r, g, b))


def paint_sky(scene: Scene, side: int) -> Image.Image:
    """Return a picture of the bare sky, from its top colour to that of the horizon."""
    high, _, _, grey = SKIES[scene.light]
    veil = {"clear": 0.0, "cloudy": 0.3}.get(scene.weather, 0.85)
    if scene.weather == "rain":
        grey = dark(grey, 0.2)
    top, foot = np.array(mix(high, grey, veil), float), np.array(haze_of(scene), float)
    steps = np.clip(np.linspace(0, 1.5, side), 0, 1)[:, None]
    column = (top + (foot - top) * steps).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.repeat(column[:, None, :], side, axis=1)))


def hang_sky(p: Pen, rng: Random) -> None:
    """Draw the sun, the moon and stars, or clouds."""
    scene, lit = p.scene, p.lit()
    x = rng.uniform(38, 62)
    if scene.weather == "clear" and scene.light == "night":
        for _ in range(46):
            lit.disc(WHITE, rng.uniform(0, 100), rng.uniform(45, 99), rng.uniform(0.25, 0.6))
        lit.disc((255, 246, 214), x, 84, 5.4)
        lit.disc(SKIES["night"][0], x + 2.6, 85.4, 4.6)
    elif scene.weather == "clear":
        y, r, colour = {"dawn": (74.0, 4.6, (255, 236, 190)), "noon": (86.0, 5.4, (255, 234, 92)),
                        "sunset": (75.0, 7.6, (255, 112, 44))}[scene.light]
        lit.disc(mix(colour, WHITE, 0.4), x, y, r * 1.7, alpha=90)
        lit.disc(colour, x, y, r)
    elif scene.weather != "fog":
        white = {"cloudy": WHITE, "rain": dark(GREY, 0.35), "snow": (206, 212, 222)}[scene.weather]
        if scene.light == "night":
            white = dark(white, 0.25)
        for i in range(6):
            cx, cy = i * 19 + rng.uniform(-5, 5), 90 - i % 2 * 13 + rng.uniform(-3, 3)
            for dx, dy, r in ((-7, -1, 5), (0, 1.6, 6.6), (7, -1, 4.6)):
                p.disc(white, cx + dx, cy + dy, r * 1.3, r * 0.8)


def fall(p: Pen, rng: Random) -> None:
    """Draw the rain or snow in the air."""
    if p.scene.weather == "rain":
        for _ in range(130):
            x, y, n = rng.uniform(0, 106), rng.uniform(0, 100), rng.uniform(4, 8)
            p.lit().line((206, 222, 240), 0.4, (x, y), (x - n * 0.35, y - n), alpha=190)
    elif p.scene.weather == "snow":
        for _ in range(150):
            p.lit().disc(WHITE, rng.uniform(0, 100), rng.uniform(0, 100), rng.uniform(0.5, 1.1))


def group(item: Item, centre: float, base: float, width: float, height: float) -> Iterator[tuple[float, float, float]]:
    """Yield x, y and scale of every copy of an item, the far ones first, filling width x height."""
    thing, n = THINGS[item.kind], item.count
    step = 0.74 if thing.width > thing.height else 0.52

    def scale_of(rows: tuple[int, ...]) -> float:
        tall = thing.height * (1 + step * (len(rows) - 1))
        return min(1.5, width / (max(rows) * thing.width * 1.04), height / tall)

    rows: tuple[int, ...] = (n,)
    if n > 2 and scale_of((n // 2, n - n // 2)) > 1.3 * scale_of(rows):
        rows = (n // 2, n - n // 2)
    scale = scale_of(rows) * (0.9 if rows == (2, 2) else 1)
    for i, row in enumerate(rows):
        shift = (0.5 - i) * 0.5 * thing.width * scale if rows == (2, 2) else 0.0
        for k in range(row):
            x = centre + (k - (row - 1) / 2) * thing.width * scale * 1.04 + shift
            yield x, base + (len(rows) - 1 - i) * thing.height * scale * step, scale


def place_item(p: Pen, item: Item, rng: Random, spot: tuple[float, float, float, float], shadow: bool) -> None:
    """Draw all copies of an item in its spot (centre, base, width, height)."""
    thing = THINGS[item.kind]
    colour = COLOURS.get(item.colour, WHITE)
    flip = rng.random() < 0.4 and thing.width < 37
    for x, y, scale in group(item, *spot):
        if shadow:
            p.disc(BLACK, x, y + 0.2, thing.width * scale * 0.5, 1.3, alpha=60)
        thing.draw(p.at(x, y, scale, flip), colour)


def spots(scene: Scene) -> Iterator[tuple[Item, tuple[float, float, float, float]]]:
    """Yield the items in the foreground with their spots."""
    place = PLACES[scene.place]
    width = 94 / len(scene.items)
    for i, item in enumerate(scene.items):
        floats = THINGS[item.kind].floats
        base = (place.water if floats else 4.0) + Random(f"{scene.key}/{i}").uniform(-1.5, 1.5)
        height = (16.0 if place.water > 10 else 25.0) if floats else 29.0
        yield item, (3 + width * (i + 0.5), base, width * 0.96, height)


def background(p: Pen, foggy: bool) -> None:
    """Draw what stands in the background and what is up in the air."""
    scene, place = p.scene, PLACES[p.scene.place]
    rng = Random(f"{scene.key}/feature")
    x = (19 if scene.feature.side == "left" else 81) + rng.uniform(-2, 2)
    p = p.far(0.45 if foggy else 0.0)
    place_item(p, scene.feature, rng, (x, place.far - 1, 38, 40), False)
    if scene.aloft:
        x = (16 if scene.aloft.side == "left" else 84) + rng.uniform(-1, 1)
        base = 84.0 if place.indoors else 82.0
        place_item(p, scene.aloft, Random(f"{scene.key}/aloft"), (x, base, 30, 20), False)


def render(scene: Scene, size: int = 320) -> Image.Image:
    """Draw a scene as a square picture."""
    place, side = PLACES[scene.place], size * 2
    image = paint_sky(scene, side)
    tint, near_tint = tints(scene)
    draw = ImageDraw.Draw(image, "RGBA")
    pen = Pen(draw, side / 100, scene, tint, haze_of(scene))
    hang_sky(replace(pen, tint=SKIES[scene.light][2]), Random(f"{scene.key}/sky"))
    if place.indoors:
        fall(pen, Random(f"{scene.key}/fall"))
    place.draw(pen, Random(f"{scene.key}/backdrop"))
    foggy = scene.weather == "fog" and not place.indoors
    if foggy:
        draw.rectangle((0, 0, side, side), (*haze_of(scene), 125))
    near = replace(pen, tint=near_tint)
    background(near, foggy)
    for item, spot in spots(scene):
        rng = Random(f"{scene.key}/{item.side}")
        place_item(near.far(0.12 if foggy else 0.0), item, rng, spot, not THINGS[item.kind].floats)
    if not place.indoors:
        fall(pen, Random(f"{scene.key}/fall"))
    return image.reduce(2)
