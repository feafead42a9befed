"""The places that a picture of the demo archive may show: the backdrop of each, and what may be in it.

To add a place, write a function that draws its backdrop, from what is far away to what is near, and an entry in
``PLACES`` that says what may stand, lie and fly there and how the place is spoken of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from densecap_search.scenes.pen import (
    BROWN,
    CLOTH,
    COLOURS,
    GREY,
    RGB,
    SKIES,
    SNOW,
    STONE,
    WHITE,
    WOOD,
    Pen,
    dark,
    mix,
)
from densecap_search.scenes.things import pine, snow_on, tree

WALLS: tuple[RGB, ...] = ((226, 168, 140), (240, 218, 172), (176, 200, 204), (214, 148, 126), (198, 206, 168),
                          (232, 196, 190), (190, 180, 206))
GRASS: dict[str, RGB] = {"spring": (152, 204, 96), "summer": (104, 172, 76), "autumn": (196, 164, 84), "winter": SNOW}


def hills(p: Pen, rng: Random, colour: RGB, y: float, rise: float) -> None:
    """Draw a range of soft hills whose feet are hidden."""
    a, b = rng.uniform(0, 6), rng.uniform(0, 6)
    tops = [(x, y + rise * (0.6 + 0.3 * math.sin(x / 13 + a) + 0.2 * math.sin(x / 6.1 + b))) for x in range(0, 103, 3)]
    p.poly(colour, (0, 0), *tops, (102, 0))


def mountains(p: Pen, rng: Random, y: float, rise: float) -> None:
    """Draw a row of snow-capped peaks."""
    for i in range(4):
        x, h = 8 + 28 * i + rng.uniform(-6, 6), rise * rng.uniform(0.7, 1)
        w, rock = h * 0.95, (112, 122, 148)
        p.poly(rock, (x - w, y), (x, y + h), (x + w, y))
        p.poly(dark(rock, 0.2), (x + w * 0.1, y), (x, y + h), (x + w, y))
        cap = 0.62 if p.scene.season != "winter" else 0.25
        side = w * (1 - cap)
        p.poly(SNOW, (x, y + h), (x - side, y + h * cap), (x - side * 0.3, y + h * (cap + 0.1)),
               (x, y + h * (cap - 0.06)), (x + side * 0.4, y + h * (cap + 0.1)), (x + side, y + h * cap))


def trees(p: Pen, rng: Random, y: float, count: int, size: float, draw: Callable[[Pen, RGB], None] = tree) -> None:
    """Draw trees along a line."""
    for i in range(count):
        x = (i + rng.uniform(0.2, 0.8)) * 100 / count
        draw(p.at(x, y + rng.uniform(-1, 1), size * rng.uniform(0.85, 1.15)), WHITE)


def houses(p: Pen, rng: Random, y: float, h: float, shops: bool = False, gaps: float = 0.0) -> None:
    """Draw a row of house fronts, with awnings over the shops if there are any."""
    x = -rng.uniform(0, 8)
    last: RGB = WHITE
    while x < 100:
        w, top = rng.uniform(12, 17), y + h * rng.uniform(0.75, 1.1)
        last = rng.choice([wall for wall in WALLS if wall != last])
        p.box(last, x, y, x + w, top)
        p.poly((150, 88, 76), (x - 0.6, top), (x + w + 0.6, top), (x + w / 2, top + 7))
        snow_on(p, (x, top + 0.4), (x + w / 2, top + 7), (x + w, top + 0.4))
        floor = y + (10 if shops else 3)
        while floor < top - 5:
            for share in (0.2, 0.62):
                p.window(x + w * share, floor + 1, x + w * share + 2.8, floor + 5)
            floor += 8
        if shops:
            p.window(x + 1.6, y + 1, x + w - 1.6, y + 5.6)
            p.poly(dark(rng.choice(WALLS), 0.45), (x + 1, y + 8.4), (x + w - 1, y + 8.4), (x + w, y + 5.4),
                   (x, y + 5.4))
        x += w + rng.uniform(0, gaps)


def ground(p: Pen, colour: RGB, y: float) -> None:
    """Fill everything below y."""
    p.box(colour, 0, -1, 101, y)


def snowy(p: Pen, colour: RGB) -> RGB:
    """Return the colour of a surface, whitened in winter."""
    return mix(colour, SNOW, 0.75) if p.scene.season == "winter" else colour


def grass(p: Pen, rng: Random, y: float) -> None:
    """Draw a meadow with some tufts."""
    green = GRASS[p.scene.season]
    ground(p, green, y)
    for _ in range(14):
        tx, ty = rng.uniform(2, 98), rng.uniform(1, y - 4)
        p.line(dark(green, 0.14), 0.5, (tx - 1, ty + 1.6), (tx, ty), (tx + 0.8, ty + 1.8))


def sea(p: Pen, rng: Random, y: float, bottom: float = 0) -> None:
    """Draw water with little waves, from y down to the bottom."""
    blue = (58, 138, 184)
    p.box(blue, 0, bottom, 101, y)
    p.box(mix(blue, WHITE, 0.25), 0, y - (y - bottom) * 0.2, 101, y)
    for _ in range(16):
        x, wy = rng.uniform(0, 96), rng.uniform(bottom + 1, y - 2)
        p.line(mix(blue, WHITE, 0.45), 0.5, (x, wy), (x + rng.uniform(3, 8), wy))


def harbour(p: Pen, rng: Random) -> None:
    hills(p.far(0.3), rng, GRASS[p.scene.season], 36, 14)
    houses(p, rng, 38, 13)
    ground(p, snowy(p, STONE), 38)
    trees(p, rng, 36, 6, 0.5)
    sea(p, rng, 34)


def lake(p: Pen, rng: Random) -> None:
    mountains(p.far(0.25), rng, 38, 34)
    hills(p.far(0.1), rng, snowy(p, (66, 118, 86)), 34, 7)
    trees(p, rng, 37, 9, 0.45)
    sea(p, rng, 37, 18)
    grass(p, rng, 18)


def street(p: Pen, rng: Random) -> None:
    houses(p.far(0.35), rng, 36, 40)
    houses(p, rng, 36, 24, shops=True)
    ground(p, snowy(p, (196, 190, 182)), 37)
    trees(p, rng, 33, 3, 0.75)
    ground(p, snowy(p, (110, 112, 120)), 28)
    for x in range(0, 100, 14):
        p.box(WHITE, x, 3, x + 7, 4)


def farm(p: Pen, rng: Random) -> None:
    hills(p.far(0.3), rng, GRASS[p.scene.season], 38, 15)
    trees(p.far(0.1), rng, 40, 6, 0.5)
    grass(p, rng, 42)
    for x in range(0, 101, 9):
        p.box(snowy(p, WOOD), x, 30, x + 1.4, 37)
    for y in (32, 35):
        p.box(snowy(p, WOOD), 0, y, 101, y + 0.9)


def beach(p: Pen, rng: Random) -> None:
    sea(p, rng, 50, 28)
    sand = (240, 216, 160)
    hills(p, rng, WHITE, 31, 3)
    hills(p, rng, sand, 29.4, 3)
    ground(p, sand, 28)


def village(p: Pen, rng: Random) -> None:
    mountains(p.far(0.4), rng, 40, 30)
    hills(p, rng, mix(SNOW, (160, 184, 214), 0.4), 36, 12)
    trees(p, rng, 42, 9, 0.5, pine)
    houses(p, rng, 36, 11, gaps=8)
    ground(p, SNOW, 37)
    hills(p, rng, mix(SNOW, (150, 180, 214), 0.22), 16, 6)


def desert(p: Pen, rng: Random) -> None:
    hills(p.far(0.3), rng, (206, 140, 96), 36, 16)
    hills(p, rng, (230, 180, 112), 32, 10)
    ground(p, (238, 198, 130), 36)
    hills(p, rng, (226, 180, 112), 12, 7)


def park(p: Pen, rng: Random) -> None:
    houses(p.far(0.5), rng, 38, 18)
    trees(p.far(0.1), rng, 40, 8, 0.8)
    grass(p, rng, 42)
    path = snowy(p, (226, 206, 170))
    p.poly(path, (30, 0), (70, 0), (56, 22), (60, 38), (54, 38), (46, 22))


def station(p: Pen, rng: Random) -> None:
    hills(p.far(0.35), rng, GRASS[p.scene.season], 36, 15)
    trees(p.far(0.1), rng, 38, 8, 0.6)
    ground(p, snowy(p, (150, 140, 132)), 38)
    for x in range(0, 104, 4):
        p.box(BROWN, x, 31.4, x + 1.8, 34.6)
    for y in (32, 34.4):
        p.box(dark(GREY), 0, y, 101, y + 0.8)
    ground(p, snowy(p, (204, 192, 180)), 28)
    p.box(COLOURS["yellow"], 0, 25.6, 101, 27)


def market(p: Pen, rng: Random) -> None:
    houses(p, rng, 36, 22)
    ground(p, snowy(p, (206, 186, 164)), 37)
    trees(p, rng, 35, 4, 0.6)
    for _ in range(26):
        x, y = rng.uniform(0, 95), rng.uniform(1, 31)
        p.box(snowy(p, (188, 166, 144)), x, y, x + 4, y + 1.4, 0.5)


def campsite(p: Pen, rng: Random) -> None:
    mountains(p.far(0.45), rng, 40, 26)
    trees(p.far(0.3), rng, 40, 12, 0.9, pine)
    trees(p.far(0.1), rng, 38, 6, 0.75)
    grass(p, rng, 41)


def canal(p: Pen, rng: Random) -> None:
    houses(p, rng, 38, 26)
    ground(p, snowy(p, (176, 120, 98)), 38)
    trees(p, rng, 37, 5, 0.6)
    p.box(dark((176, 120, 98), 0.25), 0, 30, 101, 34)
    sea(p, rng, 31)


def fair(p: Pen, rng: Random) -> None:
    trees(p.far(0.1), rng, 38, 8, 0.65)
    grass(p, rng, 40)
    ground(p, snowy(p, (222, 200, 160)), 30)
    for i in range(20):
        x = 2.5 + i * 5
        colour = COLOURS[CLOTH[i % len(CLOTH)]]
        y = 62 - 7 * math.sin(math.pi * (x % 50) / 50)
        p.poly(colour, (x - 1.8, y), (x + 1.8, y), (x, y - 4))


def tulips(p: Pen, rng: Random) -> None:
    hills(p.far(0.3), rng, GRASS[p.scene.season], 38, 8)
    trees(p.far(0.1), rng, 39, 8, 0.5)
    grass(p, rng, 41)
    for i, name in enumerate(("red", "yellow", "pink", "purple", "orange")):
        y = 36 - i * 2.6
        p.box(COLOURS[name], 0, y - 1.6, 101, y)


def room(p: Pen, rng: Random, wall: RGB, floor: RGB) -> None:
    """Draw a room around the window that the sky is seen through."""
    outside = replace(p, tint=SKIES[p.scene.light][2])
    trees(outside.far(0.6 if p.scene.weather == "fog" else 0.0), rng, 46, 5, 0.8)
    p.box(wall, 0, 92, 101, 101)
    p.box(wall, 0, 0, 30, 101)
    p.box(wall, 70, 0, 101, 101)
    p.box(wall, 0, 0, 101, 54)
    for x in (29, 49, 69):
        p.box(WHITE, x, 53, x + 2, 93)
    for y in (53, 72, 91):
        p.box(WHITE, 29, y, 71, y + 2)
    p.box(WHITE, 0, 33, 101, 35.6)
    ground(p, floor, 34)
    for y in (9, 18, 27):
        p.box(dark(floor, 0.12), 0, y, 101, y + 0.6)


def living_room(p: Pen, rng: Random) -> None:
    room(p, rng, rng.choice(((206, 216, 196), (236, 214, 186), (196, 208, 224), (226, 200, 200))), (176, 126, 84))
    for x in (26, 68):
        p.box((196, 92, 84), x, 48, x + 6, 95, 1)
    p.disc((214, 192, 168), 50, 11, 42, 8)


def kitchen(p: Pen, rng: Random) -> None:
    room(p, rng, rng.choice(((240, 232, 206), (206, 226, 226), (244, 216, 190))), (216, 208, 198))
    for x in range(0, 100, 12):
        for y in (0, 9, 18, 27):
            if (x // 12 + y // 9) % 2:
                p.box((182, 170, 160), x, y, x + 12, min(y + 9, 34))
    p.box(WHITE, 33, 34, 67, 47)
    p.box(WOOD, 31, 46, 69, 49)
    for tap in (44.5, 55.5):
        p.box(STONE, tap, 35, tap + 0.7, 45)


@dataclass(frozen=True)
class Place:
    """A place: its backdrop, what may be in it, how it is spoken of (``setting`` is always true of it)."""

    draw: Callable[[Pen, Random], None]
    names: tuple[str, ...]
    setting: tuple[str, ...]
    features: tuple[str, ...]
    things: tuple[str, ...]
    aloft: tuple[str, ...] = ("balloon", "aeroplane", "gull")
    seasons: tuple[str, ...] = ("spring", "summer", "autumn", "winter")
    weathers: tuple[str, ...] = ("clear", "cloudy", "rain", "fog")
    lamps: tuple[str, str] | None = None
    far: float = 37
    water: float = 7
    indoors: bool = False


WINDOWS = ("warm yellow light shines from the windows", "the windows of the houses are dark")
ROOM = ("the lamps are on and the room is bright", "the lamps are off and the room is dim")

PLACES: dict[str, Place] = {
    "harbour": Place(harbour, ("a fishing harbour", "a small seaport", "a harbour town"),
        ("a row of colourful houses lines the stone quay",
         "colourful houses stand side by side along the quay"), ("lighthouse", "church", "windmill"),
        ("sailing boat", "rowing boat", "trawler", "buoy", "swan"), lamps=WINDOWS),
    "lake": Place(lake, ("a mountain lake", "a lake in the mountains", "an alpine lake"),
        ("snow-capped peaks rise behind the water", "high peaks with white caps stand beyond the lake"),
        ("cabin", "castle", "church"),
        ("rowing boat", "sailing boat", "swan", "tent", "deer", "bench", "pine", "bear", "person"),
        water=21),
    "street": Place(street, ("a city street", "a shopping street in a city", "a busy street in town"),
        ("shop fronts with awnings line the pavement behind the road",
         "tall houses with shops line the road"), ("clock tower", "church"),
        ("car", "bus", "van", "bicycle", "person", "umbrella", "dog", "street lamp"),
        ("balloon", "aeroplane"), lamps=WINDOWS),
    "farm": Place(farm, ("a farm", "a farmyard in the country", "a country farm"),
        ("a wooden fence runs in front of rolling hills", "hills roll away behind a long wooden fence"),
        ("barn", "silo", "windmill"),
        ("cow", "sheep", "horse", "pig", "hen", "tractor", "hay", "dog", "tree")),
    "beach": Place(beach, ("a sandy beach", "a beach by the sea", "a seaside beach"),
        ("small waves roll from the blue sea on to pale sand",
         "behind the pale sand the sea stretches away to the far horizon"), ("lighthouse", "windmill"),
        ("parasol", "deckchair", "ball", "surfboard", "palm", "dog", "person", "van"),
        ("kite", "gull", "aeroplane", "balloon"), ("summer",), far=47),
    "village": Place(village,
        ("a snowy village", "a mountain village deep in snow", "a village under snow"),
        ("snow covers the roofs and pine trees grow behind the houses",
         "houses with white roofs stand before pines"), ("church", "castle", "windmill"),
        ("snowman", "sledge", "person", "dog", "pine", "car", "horse"), ("balloon", "gull"), ("winter",),
        ("clear", "cloudy", "snow", "fog"), WINDOWS),
    "desert": Place(desert, ("a sandy desert", "a desert", "a dry desert"),
        ("yellow dunes of sand lie before low brown hills far away",
         "beyond the yellow dunes of sand are low brown hills far away"), ("mesa", "pyramid"),
        ("cactus", "camel", "tent", "palm", "van", "person", "campfire"),
        ("balloon", "aeroplane", "kite"), ("summer",), ("clear", "cloudy")),
    "park": Place(park, ("a city park", "a park", "a park in town"),
        ("a pale path winds through the park towards a line of trees",
         "a pale path leads to a line of trees"), ("fountain", "bandstand"),
        ("bench", "person", "dog", "flowers", "bicycle", "umbrella", "tree", "street lamp"),
        ("kite", "balloon")),
    "living room": Place(living_room, ("a living room", "a cosy living room", "a sitting room"),
        ("trees can be seen through the big window between red curtains",
         "red curtains frame a window on to trees"), ("bookcase", "fireplace"),
        ("sofa", "armchair", "cat", "dog", "pot plant", "floor lamp", "table"), ("pendant", "picture"),
        lamps=ROOM, far=33.6, indoors=True),
    "kitchen": Place(kitchen, ("a kitchen", "a farmhouse kitchen", "a country kitchen"),
        ("a white counter stands under the window, above a chequered floor",
         "a chequered floor lies in front of the white counter"), ("dresser", "cooker"),
        ("table", "chair", "fridge", "cat", "dog", "pot plant"), ("pendant", "picture"), lamps=ROOM,
        far=33.6, indoors=True),
    "station": Place(station, ("a railway station", "a country railway station", "a small train station"),
        ("rails run behind the platform with its yellow line",
         "a yellow line marks the platform beside the rails"), ("train", "steam engine"),
        ("suitcase", "person", "umbrella", "bench", "dog", "bicycle", "street lamp"),
        ("aeroplane", "balloon", "gull"), far=33),
    "market": Place(market, ("a market square", "a market in an old town", "an open-air market"),
        ("old town houses surround the paved square", "the paved square lies before a row of old houses"),
        ("clock tower", "church", "fountain"),
        ("stall", "barrel", "flowers", "person", "umbrella", "bicycle", "hen"), ("balloon", "gull"),
        lamps=WINDOWS),
    "campsite": Place(campsite, ("a forest campsite", "a clearing in the forest", "a woodland camp"),
        ("dark pines stand close together behind the clearing",
         "a wall of dark pine trees closes off the clearing"), ("cabin", "windmill"),
        ("tent", "campfire", "deer", "bear", "van", "bicycle", "pine", "person"), ("balloon", "kite")),
    "canal": Place(canal, ("a canal in an old town", "a town canal", "a canal lined with houses"),
        ("narrow houses stand behind the brick bank of the canal",
         "tall narrow houses look over the brick bank"), ("church", "clock tower", "windmill"),
        ("rowing boat", "swan", "sailing boat", "buoy", "trawler"), lamps=WINDOWS),
    "fair": Place(fair, ("a funfair", "a fairground", "a country fair"),
        ("strings of bright bunting hang across the fairground",
         "bright bunting hangs in strings above the fairground"), ("big wheel", "circus tent"),
        ("stall", "person", "umbrella", "horse", "bicycle", "van", "street lamp"), ("balloon", "kite"),
        far=34),
    "tulip fields": Place(tulips, ("a field of tulips", "tulip fields", "a wide tulip field"),
        ("rows of red, yellow, pink, purple and orange tulips cross the field",
         "tulips bloom in long bands of colour across the whole field"), ("windmill", "barn", "silo"),
        ("cow", "horse", "tractor", "bicycle", "person", "sheep", "umbrella"),
        ("kite", "balloon", "gull"), ("spring",)),
}
