"""The things that may be in a picture of the demo archive: how each is drawn, and what it is called.

To add a thing, write a draw function and a line in ``THINGS``, and name it in a place of ``PLACES``
(scene_places.py).  A draw function is given a pen and the thing's colour; the thing stands on (0, 0) and is drawn
about as large as it is in the foreground of a picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from densecap_search.scenes.pen import (
    BLACK,
    BROWN,
    CLOTH,
    COLOURS,
    GLASS,
    GREY,
    LAMP,
    PAINT,
    RGB,
    SNOW,
    STONE,
    WHITE,
    WOOD,
    Pen,
    Point,
    dark,
    mix,
)

LEAVES: dict[str, RGB] = {"spring": (248, 176, 200), "summer": (46, 122, 62), "autumn": (226, 116, 36), "winter": SNOW}


# --- things: vehicles and boats ---------------------------------------------------------------------------


def wheels(p: Pen, r: float, *xs: float) -> None:
    """Draw wheels that stand on the ground."""
    for x in xs:
        p.disc(BLACK, x, r, r)
        p.disc(STONE, x, r, r * 0.45)


def car(p: Pen, c: RGB) -> None:
    p.poly(c, (-10, 8), (-6.5, 14), (5, 14), (10, 8))
    p.poly(GLASS, (-7.8, 8.6), (-5.6, 12.8), (-1, 12.8), (-1, 8.6))
    p.poly(GLASS, (0, 8.6), (0, 12.8), (4.4, 12.8), (7.6, 8.6))
    p.box(c, -16, 2.5, 16, 9, 2.2)
    p.box(LAMP, 14, 5.6, 16, 7.6, 0.5)
    wheels(p, 3, -9, 9)


def van(p: Pen, c: RGB) -> None:
    p.box(c, -15, 2.5, 15, 17, 3)
    p.box(WHITE, -15, 8, 15, 9.5)
    for x in (-12, -5, 2):
        p.box(GLASS, x, 10.4, x + 5.5, 15, 0.6)
    p.box(GLASS, 9, 10.4, 14, 15, 1)
    wheels(p, 3, -9, 9)


def bus(p: Pen, c: RGB) -> None:
    p.box(c, -19, 2.5, 19, 23, 2)
    p.box(WHITE, -19, 11.4, 19, 13)
    for x in (-17, -10, -3, 4, 11):
        p.window(x, 14.4, x + 5.5, 20)
    for x in (-17, -10, -3, 4):
        p.box(GLASS, x, 5.4, x + 5.5, 10.4)
    p.box(dark(c, 0.5), 12, 4, 16.4, 10.6)
    wheels(p, 3, -11, 8)


def tractor(p: Pen, c: RGB) -> None:
    p.box(c, -2, 5, 13, 11.5, 1)
    p.box(c, -11, 5, 0, 12)
    p.box(dark(c), -10, 12, -1, 19)
    p.box(GLASS, -9, 12.4, -2, 17.6)
    p.line(BLACK, 1.1, (8, 11), (8, 17))
    wheels(p, 5.6, -7)
    wheels(p, 3.4, 10)


def bicycle(p: Pen, c: RGB) -> None:
    for x in (-6.5, 6.5):
        p.disc(BLACK, x, 4.8, 4.8)
        p.disc(STONE, x, 4.8, 3.8)
    p.line(c, 1.3, (-6.5, 4.8), (-2.5, 10.5), (5, 10.5), (0, 4.8), (-6.5, 4.8))
    p.line(c, 1.3, (0, 4.8), (-2.9, 12))
    p.line(c, 1.3, (6.5, 4.8), (4.6, 13), (7, 13.6))
    p.box(BLACK, -5, 11.6, -0.8, 12.8, 0.5)


def sailing_boat(p: Pen, c: RGB) -> None:
    p.line(WOOD, 0.9, (0, 3), (0, 27))
    p.poly(c, (-1, 6), (-1, 26), (-10, 6))
    p.poly(c, (1, 6), (1, 23), (9, 6))
    p.poly(WHITE, (-11, 4.6), (11, 4.6), (8, 0), (-8, 0))


def rowing_boat(p: Pen, c: RGB) -> None:
    p.line(WOOD, 0.8, (-4, 6.5), (-10, 0))
    p.poly(c, (-13, 6.4), (13, 6.4), (9, 0), (-9, 0))
    p.box(WOOD, -12.4, 5.2, 12.4, 6.8, 0.6)


def trawler(p: Pen, c: RGB) -> None:
    p.line(BLACK, 0.8, (-7, 6), (-7, 21))
    p.line(BLACK, 0.6, (-7, 20), (12, 8))
    p.box(WHITE, -4, 7, 6, 15, 0.6)
    p.box(GLASS, -2.6, 10.6, 4.6, 13.4)
    p.poly(c, (-14, 8), (16, 9.5), (11, 0), (-11, 0))


def buoy(p: Pen, c: RGB) -> None:
    p.poly(c, (-3.6, 3), (-1.4, 13), (1.4, 13), (3.6, 3))
    p.poly(WHITE, (-2.8, 6.4), (-2.2, 9), (2.2, 9), (2.8, 6.4))
    p.lit().disc(LAMP, 0, 14, 1.6)
    p.disc(c, 0, 2, 5.4, 2.2)


# --- things: people and animals ---------------------------------------------------------------------------


def person(p: Pen, c: RGB) -> None:
    p.box((58, 62, 84), -2.4, 0, -0.3, 8)
    p.box((58, 62, 84), 0.3, 0, 2.4, 8)
    p.box(c, -3.6, 6.5, 3.6, 17, 2)
    p.line(c, 1.6, (-3, 15), (-4.8, 8.5))
    p.line(c, 1.6, (3, 15), (4.8, 8.5))
    p.disc((232, 184, 150), 0, 19.6, 2.7)
    p.disc((84, 54, 36), 0, 21, 2.6, 1.6)


def umbrella_person(p: Pen, c: RGB) -> None:
    person(p.at(0, 0, 0.92), (96, 100, 116))
    p.line(BLACK, 0.6, (4.6, 8), (4.6, 22))
    p.poly(c, *((4.6 + 9.4 * math.cos(a), 19.4 + 7.6 * math.sin(a)) for a in np.linspace(0, math.pi, 15)))


def beast(p: Pen, c: RGB, w: float, h: float, leg: float, head: Point, r: float, hoof: RGB | None = None) -> None:
    """Draw a four-legged animal that looks to the right: trunk w by h on legs, head of radius r."""
    for x in (-0.4, -0.22, 0.24, 0.42):
        p.box(hoof or dark(c), w * x - h * 0.11, 0, w * x + h * 0.11, leg + h / 2)
    p.line(c, h * 0.5, (w * 0.36, leg + h * 0.6), head)
    p.box(c, -w / 2, leg, w / 2, leg + h, h * 0.44)
    p.disc(c, head[0] + r * 0.3, head[1], r * 1.3, r)
    p.disc(BLACK, head[0] + r * 0.5, head[1] + r * 0.3, r * 0.2)


def dog(p: Pen, c: RGB) -> None:
    p.line(c, 1.3, (-6, 8), (-9.4, 12.6))
    beast(p, c, 13, 5.4, 3.6, (7, 11.4), 2.4)
    p.poly(dark(c, 0.4), (5, 13.4), (6.6, 13.4), (5.4, 8.6), (4, 9.4))


def cat(p: Pen, c: RGB) -> None:
    p.line(c, 1.3, (-4, 1.5), (-8, 2.5), (-8.4, 7))
    p.disc(c, 0, 5, 4.8, 5.4)
    p.disc(c, 1, 11.6, 3.6)
    for x in (-1.2, 3.2):
        p.poly(c, (x - 1.6, 13), (x, 17), (x + 1.6, 13))
    for x in (-0.2, 2.4):
        p.disc((120, 220, 110), x, 12, 0.7)


def cow(p: Pen, c: RGB) -> None:
    beast(p, c, 21, 9.4, 5.4, (12, 14.4), 3, c)
    for x, y, r in ((-5, 12, 2.8), (2.6, 10, 2.3)):
        p.disc(BLACK if c == WHITE else WHITE, x, y, r, r * 0.8)
    p.disc((240, 176, 170), 15.2, 13.4, 1.6)
    p.line(STONE, 0.8, (10.6, 17), (10.4, 19.4))


def sheep(p: Pen, c: RGB) -> None:
    beast(p, c, 13, 7, 3.6, (8, 9.4), 2.2, BLACK)
    for x, y in ((-5, 5.6), (-5.4, 9), (-2, 10.6), (2, 10.6), (5, 9), (5, 5.6), (0, 5)):
        p.disc(c, x, y, 2.7)
    p.disc(BLACK if c == WHITE else WHITE, 9, 9.4, 2.8, 2.1)


def horse(p: Pen, c: RGB) -> None:
    p.line(dark(c, 0.5), 2, (-8.6, 14), (-11.6, 6))
    beast(p, c, 18, 7.6, 8.4, (12, 22), 2.5)
    p.line(dark(c, 0.5), 1.8, (6.4, 16.6), (10.6, 24.4))


def pig(p: Pen, c: RGB) -> None:
    beast(p, c, 15, 8.6, 2.6, (8, 7.6), 3.4)
    p.box(dark(c, 0.2), 11.4, 5.6, 13.6, 8.6, 0.8)


def deer(p: Pen, c: RGB) -> None:
    del c
    beast(p, (170, 112, 66), 14, 6, 8.4, (8.6, 19), 2)
    for dx in (-2.4, 2):
        p.line((92, 60, 36), 0.9, (8.4, 20.4), (8 + dx, 24), (8 + dx * 2.2, 26.4))
        p.line((92, 60, 36), 0.8, (8 + dx, 24), (8 + dx * 0.6, 27))


def bear(p: Pen, c: RGB) -> None:
    beast(p, c, 20, 11, 4, (11, 13.4), 4)
    p.disc(c, 9.4, 17, 1.5)


def camel(p: Pen, c: RGB) -> None:
    beast(p, c, 18, 6.6, 9.4, (13.6, 21.4), 2.4)
    p.disc(c, -3, 16, 5.4, 5)


def hen(p: Pen, c: RGB) -> None:
    p.line(COLOURS["orange"], 0.6, (-0.6, 0), (-0.6, 3))
    p.line(COLOURS["orange"], 0.6, (1.2, 0), (1.2, 3))
    p.poly(c, (-6.6, 9.6), (-4, 3.4), (3.6, 3.4), (4.4, 9.6), (0, 6.4))
    p.disc(c, 3.6, 10, 2)
    p.disc(COLOURS["red"], 3.6, 12.2, 1.3, 0.9)
    p.poly(COLOURS["orange"], (5.4, 10.6), (7.4, 9.8), (5.4, 9))


def swan(p: Pen, c: RGB) -> None:
    p.disc(c, 0, 3, 8, 3.6)
    p.poly(c, (-9, 8), (-6, 2), (2, 3), (1, 6))
    p.line(c, 1.8, (6.4, 3.4), (4.8, 8), (7, 12), (8.2, 12.4))
    p.disc(c, 8, 12.2, 1.7)
    p.poly(COLOURS["orange"], (9.3, 12.9), (12, 11.6), (9.2, 11.4))


# --- things: plants and small things ----------------------------------------------------------------------


def tree(p: Pen, c: RGB) -> None:
    """A broad-leaved tree as the season has it; it has no colour of its own."""
    del c
    season = p.scene.season
    p.poly((104, 72, 50), (-1.5, 0), (-0.9, 15), (0.9, 15), (1.5, 0))
    if season == "winter":
        for x, y in ((-7.0, 20.0), (-4.0, 25.0), (0.0, 28.0), (4.0, 25.0), (7.0, 20.0)):
            p.line((104, 72, 50), 1.1, (0, 11), (x, y))
            p.line(SNOW, 0.8, (x * 0.6, 11 + (y - 11) * 0.6 + 0.8), (x, y + 0.8))
        return
    for x, y, r in ((-4.6, 16, 5.4), (4.6, 16, 5.4), (0, 22, 6.4)):
        p.disc(dark(LEAVES[season], 0.14), x + 0.5, y - 0.6, r)
    for x, y, r in ((-4.8, 16.8, 4.8), (4, 17, 4.8), (-0.6, 22.6, 5.6)):
        p.disc(LEAVES[season], x, y, r)


def pine(p: Pen, c: RGB) -> None:
    del c
    p.box((94, 66, 46), -1.2, 0, 1.2, 5)
    for y, w in ((3, 8.5), (10, 7), (17, 5.2)):
        p.poly((32, 96, 72), (-w, y), (w, y), (0, y + 12))
        if p.scene.season == "winter":
            p.poly(SNOW, (-w * 0.52, y + 6), (w * 0.3, y + 6.6), (0, y + 12))


def palm(p: Pen, c: RGB) -> None:
    del c
    p.line((142, 104, 66), 1.8, (-2, 0), (-0.6, 12), (1.5, 22))
    for dx, dy in ((-10, -1), (-8, 5), (0, 7), (8, 5), (10, -1)):
        p.poly((44, 142, 78), (1.5, 23), (1.5 + dx * 0.5, 24 + dy), (1.5 + dx, 19 + dy), (1.5 + dx * 0.5, 21.6 + dy))


def cactus(p: Pen, c: RGB) -> None:
    del c
    green = (52, 138, 84)
    p.line(green, 3, (-6, 17), (-6, 10.5), (0, 10.5))
    p.line(green, 3, (6, 20), (6, 13.5), (0, 13.5))
    p.box(green, -2.2, 0, 2.2, 26, 2.2)
    p.line(dark(green), 0.5, (0, 1), (0, 24))


def flowers(p: Pen, c: RGB) -> None:
    p.disc((58, 138, 66), 0, 2.6, 10, 3.4)
    for x, y in ((-7, 3), (-4, 5.4), (-1, 3.4), (2, 6), (5, 3.6), (7.6, 5), (-6.4, 6), (0.6, 8)):
        p.disc(c, x, y, 1.9)
        p.disc(COLOURS["yellow"] if c != COLOURS["yellow"] else WHITE, x, y, 0.6)


def pot_plant(p: Pen, c: RGB) -> None:
    for x, y in ((-7, 14), (-4.4, 20), (0, 23), (4.4, 20), (7, 14)):
        p.poly((48, 134, 72), (-1, 7), (x - 1.6, y - 3), (x, y), (x + 1.6, y - 4), (1, 7))
    p.poly(c, (-5, 8), (5, 8), (3.6, 0), (-3.6, 0))


def bench(p: Pen, c: RGB) -> None:
    for x in (-10, 9):
        p.box(BLACK, x, 0, x + 1.2, 10)
    for y in (4.4, 7.6, 10):
        p.box(c, -12, y, 12, y + 1.7, 0.4)


def street_lamp(p: Pen, c: RGB) -> None:
    if p.scene.light == "night":
        p.lit().disc(LAMP, 0, 27, 7, alpha=70)
    p.box(c, -0.8, 0, 0.8, 25)
    p.box(c, -2, 0, 2, 2.4)
    (p.lit() if p.scene.light == "night" else p).poly(LAMP, (-2.4, 29), (2.4, 29), (1.6, 24), (-1.6, 24))
    p.poly(c, (-3.2, 29), (3.2, 29), (0, 31.6))


def tent(p: Pen, c: RGB) -> None:
    p.poly(c, (-13, 0), (0, 17), (13, 0))
    p.poly(dark(c, 0.6), (-4, 0), (0, 11), (4, 0))
    p.poly(mix(c, WHITE, 0.35), (-13, 0), (0, 17), (-6, 0))


def campfire(p: Pen, c: RGB) -> None:
    del c
    p.lit().disc((255, 150, 40), 0, 6, 11, 9, alpha=60)
    p.line(BROWN, 2, (-7, 1), (6, 3.4))
    p.line(BROWN, 2, (7, 1), (-6, 3.4))
    p.lit().poly((250, 110, 30), (-5, 3), (-5.4, 9), (-2.6, 7), (0, 17), (2.6, 8), (5, 10), (5, 3))
    p.lit().poly(LAMP, (-2.6, 3), (-1, 8), (0, 11), (1.4, 7), (2.8, 3))


def hay(p: Pen, c: RGB) -> None:
    del c
    for r, shade in ((6.6, 0.0), (4.6, 0.16), (2.6, 0.0)):
        p.disc(dark((232, 190, 84), shade), 0, 6.6, r)


def snowman(p: Pen, c: RGB) -> None:
    for y, r in ((5, 5.6), (13, 4.4), (19.6, 3.3)):
        p.disc((214, 224, 238), 0.3, y, r + 0.3)
        p.disc(WHITE, 0, y, r)
    p.box(c, -3.4, 15.6, 3.4, 17.6, 0.8)
    p.box(c, 1, 10.4, 3, 16.4, 0.6)
    p.poly(COLOURS["orange"], (0.4, 20), (5, 19.2), (0.4, 18.8))
    p.box(BLACK, -2.6, 22, 2.6, 26.4)
    p.box(BLACK, -4, 21.6, 4, 22.8)


def sledge(p: Pen, c: RGB) -> None:
    p.line(BROWN, 1, (-9, 0.8), (9, 0.8), (12, 4.6))
    for x in (-6, 5):
        p.box(BROWN, x, 0.8, x + 1.2, 4.6)
    p.box(c, -9, 4.4, 9, 6.8, 0.8)


def parasol(p: Pen, c: RGB) -> None:
    p.line(WHITE, 1, (0, 0), (0, 22))
    for i in range(6):
        a, b = math.pi * i / 6, math.pi * (i + 1) / 6
        p.poly(c if i % 2 == 0 else WHITE, (0, 25), (13 * math.cos(a), 15 + 9 * math.sin(a)),
               (13 * math.cos(b), 15 + 9 * math.sin(b)))
    p.poly(c, (-13, 15), (-7, 21), (7, 21), (13, 15))
    p.poly(WHITE, (-4.4, 15), (-2.4, 21), (2.4, 21), (4.4, 15))


def deckchair(p: Pen, c: RGB) -> None:
    p.line(WOOD, 1.1, (-8, 13), (5, 0))
    p.line(WOOD, 1.1, (-5, 0), (8, 8))
    p.poly(c, (-8.4, 13), (-5.4, 13.6), (1, 5), (8, 8), (8, 6), (0, 2.6))


def ball(p: Pen, c: RGB) -> None:
    p.disc(WHITE, 0, 5, 5)
    for a in (0.3, 2.4, 4.5):
        p.poly(c, (0, 5), *((5 * math.cos(a + t), 5 + 5 * math.sin(a + t)) for t in (0, 0.3, 0.6, 0.9, 1.2)))


def surfboard(p: Pen, c: RGB) -> None:
    p.disc(c, 0, 12, 4, 12.6)
    p.disc(WHITE, 0, 12, 0.9, 11)


def suitcase(p: Pen, c: RGB) -> None:
    p.line(BLACK, 1, (-2.4, 11), (-2.4, 13.4), (2.4, 13.4), (2.4, 11))
    p.box(c, -7, 0.4, 7, 11.4, 1.2)
    for x in (-4.6, 3.4):
        p.box(dark(c, 0.45), x, 0.4, x + 1.2, 11.4)


def stall(p: Pen, c: RGB) -> None:
    for x in (-12, 11):
        p.box(BROWN, x, 0, x + 1.2, 18)
    p.box(WOOD, -13, 0, 13, 7)
    for i, fruit in enumerate(("red", "orange", "green", "yellow")):
        for dx in (0, 2.4):
            p.disc(COLOURS[fruit], -10 + i * 6 + dx, 7.8, 1.5)
    for i in range(7):
        x = -14 + i * 4
        p.poly(c if i % 2 == 0 else WHITE, (x, 15), (x + 4, 15), ((x + 4) * 0.82, 22), (x * 0.82, 22))


def barrel(p: Pen, c: RGB) -> None:
    del c
    p.box(WOOD, -5, 0, 5, 13, 2.2)
    for y in (2.4, 9.4):
        p.box(BLACK, -5.2, y, 5.2, y + 1.2)


def sofa(p: Pen, c: RGB) -> None:
    p.box(dark(c, 0.12), -14, 4, 14, 15, 2.4)
    p.box(c, -13, 3, 13, 8, 1)
    p.box(dark(c), -16, 1.4, -12, 10.6, 1.8)
    p.box(dark(c), 12, 1.4, 16, 10.6, 1.8)
    p.line(dark(c, 0.35), 0.4, (0, 3.4), (0, 14))


def armchair(p: Pen, c: RGB) -> None:
    p.box(dark(c, 0.12), -7, 4, 7, 18, 3)
    p.box(c, -6, 3, 6, 8.4, 1)
    p.box(dark(c), -9, 1.4, -5.6, 11, 1.6)
    p.box(dark(c), 5.6, 1.4, 9, 11, 1.6)


def chair(p: Pen, c: RGB) -> None:
    for x in (-4.4, 3.2):
        p.box(dark(c), x, 0, x + 1.2, 9)
    p.box(c, -5, 8, 5, 9.8, 0.5)
    p.box(c, -4.4, 9, -3.2, 20)
    p.box(c, 3.2, 9, 4.4, 20)
    p.box(c, -4.4, 14.6, 4.4, 20, 0.8)


def table(p: Pen, c: RGB) -> None:
    for x in (-11, 9.4):
        p.box(dark(WOOD), x, 0, x + 1.6, 10)
    p.box(WOOD, -13, 9, 13, 10.6, 0.5)
    p.poly(c, (-11, 10.8), (11, 10.8), (12.4, 5.6), (-12.4, 5.6))
    p.disc(WHITE, -4, 11.6, 3, 1)
    p.disc(COLOURS["red"], -4.8, 12.6, 1.4)
    p.disc(COLOURS["green"], -2.6, 12.6, 1.4)


def fridge(p: Pen, c: RGB) -> None:
    p.box(c, -7, 0, 7, 29, 1.6)
    p.box(dark(c, 0.35), -7, 18.4, 7, 19)
    p.box(STONE, 4.2, 20.4, 5.2, 25)
    p.box(STONE, 4.2, 11, 5.2, 17)


def floor_lamp(p: Pen, c: RGB) -> None:
    if p.scene.lamps:
        p.lit().disc(LAMP, 0, 22, 11, alpha=80)
    p.box(BLACK, -0.6, 0, 0.6, 22)
    p.disc(BLACK, 0, 0.8, 4, 1)
    p.poly(c, (-6.4, 19), (6.4, 19), (3.8, 28), (-3.8, 28))


# --- things: what stands in the background ----------------------------------------------------------------


def snow_on(p: Pen, *points: Point) -> None:
    """Cover a roof's ridge with snow in winter."""
    if p.scene.season == "winter":
        p.line(SNOW, 1.6, *points)


def lighthouse(p: Pen, c: RGB) -> None:
    p.disc((128, 122, 116), 0, 0, 11, 4.4)
    p.poly(WHITE, (-4.4, 2), (-2.8, 28), (2.8, 28), (4.4, 2))
    for y in (4, 12, 20):
        w = 4.4 - (y - 2) * 0.0615
        p.poly(c, (-w, y), (-w + 0.26, y + 4.2), (w - 0.26, y + 4.2), (w, y))
    p.lit().box(LAMP, -2, 28, 2, 31.6)
    p.poly(c, (-3, 31.6), (3, 31.6), (0, 35))
    if p.scene.light == "night":
        p.lit().poly(mix(LAMP, p.haze, 0.5), (2, 30.4), (26, 34), (26, 27))


def church(p: Pen, c: RGB) -> None:
    p.box(c, -4, 0, 12, 12)
    p.poly((98, 84, 92), (-5, 12), (13, 12), (9.6, 18), (-4, 18))
    snow_on(p, (-4, 18), (9.6, 18), (12.4, 13))
    p.box(dark(c, 0.12), -10, 0, -3, 22)
    p.poly((98, 84, 92), (-11, 22), (-2, 22), (-6.5, 35))
    snow_on(p, (-6.5, 34.6), (-3.4, 25))
    for x in (0, 4, 8):
        p.window(x, 4, x + 2, 9)
    p.window(-7.8, 14, -5.2, 18.6)


def windmill(p: Pen, c: RGB) -> None:
    p.poly(c, (-6, 0), (-3.6, 21), (3.6, 21), (6, 0))
    p.poly(dark(BROWN), (-4.4, 21), (4.4, 21), (0, 26))
    p.box(dark(BROWN), -1.5, 0, 1.5, 5)
    for a in (0.6, 2.17, 3.74, 5.31):
        x, y = math.cos(a), math.sin(a)
        p.poly((236, 228, 210), (0, 21), (x * 14, 21 + y * 14), (x * 14 - y * 3.4, 21 + y * 14 + x * 3.4),
               (x * 4 - y * 3.4, 21 + y * 4 + x * 3.4))
        p.line(BROWN, 0.7, (0, 21), (x * 14, 21 + y * 14))


def barn(p: Pen, c: RGB) -> None:
    p.box(c, -13, 0, 13, 13)
    p.poly(c, (-13, 13), (-9, 20), (0, 24), (9, 20), (13, 13))
    p.line(WHITE, 1.2, (-14, 12), (-9.4, 20.4), (0, 24.6), (9.4, 20.4), (14, 12))
    snow_on(p, (-9.4, 21), (0, 25.4), (9.4, 21))
    p.box(WHITE, -5.4, 0, 5.4, 9.6)
    p.box(dark(c, 0.3), -4.6, 0, 4.6, 8.8)
    p.line(WHITE, 0.8, (-4.6, 0.4), (4.6, 8.6))
    p.line(WHITE, 0.8, (4.6, 0.4), (-4.6, 8.6))


def silo(p: Pen, c: RGB) -> None:
    p.disc(dark(c, 0.2), 0, 26, 6)
    p.box(c, -6, 0, 6, 26)
    for y in (7, 14, 21):
        p.box(dark(c, 0.2), -6, y, 6, y + 0.8)


def cabin(p: Pen, c: RGB) -> None:
    p.box((118, 84, 72), 4, 14, 7, 23)
    p.box((150, 98, 60), -11, 0, 11, 11)
    for y in (2.5, 5, 7.5):
        p.box((120, 76, 46), -11, y, 11, y + 0.5)
    p.poly(c, (-13.4, 10.4), (0, 21), (13.4, 10.4))
    snow_on(p, (-12, 12), (0, 21.4), (12, 12))
    p.box(dark(BROWN), -2, 0, 2, 7)
    p.window(-8.4, 4, -4.4, 8)
    p.window(4.4, 4, 8.4, 8)


def castle(p: Pen, c: RGB) -> None:
    p.box(STONE, -11, 0, 11, 15)
    for x in (-13, 9, -3):
        top = 20 if x != -3 else 26
        p.box(dark(STONE, 0.12), x, 0, x + 5.4, top)
        p.poly(c, (x - 1, top), (x + 6.4, top), (x + 2.7, top + 9))
        p.window(x + 1.7, top - 7, x + 3.7, top - 3)
    p.box(dark(BROWN), 3.6, 0, 7.6, 7, 1.6)


def clock_tower(p: Pen, c: RGB) -> None:
    p.box(c, -5, 0, 5, 30)
    p.box(dark(c), -5.8, 19.4, 5.8, 20.6)
    p.poly((84, 96, 104), (-6, 30), (6, 30), (0, 39))
    snow_on(p, (-5, 31), (0, 38.6), (5, 31))
    p.disc(WHITE, 0, 25.2, 3.6)
    p.line(BLACK, 0.6, (0, 28), (0, 25.2), (2, 24.4))
    for y in (6, 12):
        p.window(-1.5, y, 1.5, y + 4)


def fountain(p: Pen, c: RGB) -> None:
    water = (150, 206, 236)
    for dx in (-7, -3.6, 3.6, 7):
        p.line(water, 1.2, (0, 21), (dx * 0.6, 21.6 - abs(dx) * 0.2), (dx, 14), (dx * 1.1, 6))
    p.line(water, 1.4, (0, 12), (0, 24))
    p.box(c, -1.4, 3, 1.4, 15)
    p.disc(c, 0, 14, 5, 1.6)
    p.poly(c, (-13, 6), (13, 6), (10, 0), (-10, 0))
    p.disc(water, 0, 6, 12.4, 1.8)


def bandstand(p: Pen, c: RGB) -> None:
    p.box(STONE, -12, 0, 12, 3)
    for x in (-10, -3.6, 2.4, 8.8):
        p.box(WHITE, x, 3, x + 1.2, 15)
    p.poly(c, (-13.6, 15), (13.6, 15), (4, 22), (-4, 22))
    p.disc(c, 0, 23, 1.6)
    snow_on(p, (-11, 16.8), (-4, 22.2), (4, 22.2), (11, 16.8))


def train(p: Pen, c: RGB) -> None:
    for x in (-20, 1):
        p.box(c, x, 3, x + 19.6, 17, 1.6)
        p.box(WHITE, x, 6.4, x + 19.6, 7.8)
        for i in range(3):
            p.window(x + 1.8 + i * 5.8, 9.4, x + 6 + i * 5.8, 14.4)
        wheels(p, 1.9, x + 4, x + 15.6)
    p.box(BLACK, -1, 4, 1.4, 6)


def steam_engine(p: Pen, c: RGB) -> None:
    for x, y, r in ((12, 24, 2.6), (9, 27.6, 3.6), (4, 31, 4.6)):
        p.disc((226, 226, 230), x, y, r, alpha=210)
    p.box(c, -18, 4, -6, 20, 1)
    p.box(BLACK, -19, 19, -5, 21, 0.6)
    p.window(-15, 12.4, -9, 17)
    p.box(c, -7, 4, 17, 13.6, 2.6)
    p.box(BLACK, 10.6, 13, 14, 21)
    p.box(COLOURS["yellow"], 0, 13, 4, 15.6, 1)
    p.box(BLACK, -18, 3, 18, 5)
    wheels(p, 3.4, -12, -4, 4)
    wheels(p, 2.2, 12)


def big_wheel(p: Pen, c: RGB) -> None:
    p.line(STONE, 1.6, (-9, 0), (0, 19), (9, 0))
    spots = [(15 * math.cos(a), 19 + 15 * math.sin(a)) for a in np.linspace(0, 2 * math.pi, 11)]
    p.line(WHITE, 1.2, *spots)
    for x, y in spots[:-1]:
        p.line(WHITE, 0.5, (0, 19), (x, y))
        p.disc(c, x, y - 1.4, 2.4)


def circus_tent(p: Pen, c: RGB) -> None:
    p.line(BROWN, 0.6, (0, 20), (0, 28))
    p.poly(COLOURS["yellow"], (0, 28), (5, 26.4), (0, 24.8))
    for i in range(6):
        x = -15 + 5 * i
        stripe = c if i % 2 == 0 else WHITE
        p.poly(stripe, (x, 11), (x + 5, 11), (0, 24))
        p.box(dark(stripe, 0.1), x * 0.94, 0, (x + 5) * 0.94, 11)


def mesa(p: Pen, c: RGB) -> None:
    p.poly(c, (-15, 0), (-9, 22), (8, 22), (15, 0))
    p.poly(dark(c, 0.18), (2, 0), (3, 22), (8, 22), (15, 0))
    p.poly(mix(c, WHITE, 0.25), (-11.2, 14), (-10.4, 17), (9.3, 17), (10.4, 14))


def pyramid(p: Pen, c: RGB) -> None:
    p.poly(c, (-18, 0), (0, 24), (18, 0))
    p.poly(dark(c, 0.3), (5, 0), (0, 24), (18, 0))


def bookcase(p: Pen, c: RGB) -> None:
    p.box(c, -9, 0, 9, 34, 0.6)
    books = tuple(COLOURS[name] for name in ("red", "blue", "yellow", "green", "orange", "purple"))
    for row, y in enumerate((2, 10, 18, 26)):
        p.box(dark(c, 0.45), -7.8, y, 7.8, y + 6.6)
        for i in range(8):
            p.box(books[(i * 5 + row * 2) % 6], -7.4 + i * 1.85, y, -5.8 + i * 1.85, y + 4.6 + (i + row) % 3 * 0.7)


def fireplace(p: Pen, c: RGB) -> None:
    p.box(c, -7.4, 0, 7.4, 38)
    p.box(c, -11, 0, 11, 19)
    p.box(dark(BROWN), -12.4, 18.4, 12.4, 20.8, 0.6)
    p.box(BLACK, -7, 0, 7, 13, 1)
    campfire(p.at(0, 0.4, 0.72), c)


def dresser(p: Pen, c: RGB) -> None:
    p.box(c, -11, 0, 11, 13, 0.6)
    p.box(dark(c, 0.12), -10, 13, 10, 33, 0.6)
    for y in (16, 24):
        p.box(dark(c, 0.5), -8.8, y, 8.8, y + 6.4)
        for x in (-5.6, 0, 5.6):
            p.disc(WHITE, x, y + 2.6, 2.4)
    for x in (-9.6, 0.8):
        p.box(dark(c), x, 1.6, x + 8.8, 11.4)
        p.disc(LAMP, x + 4.4, 8, 0.8)


def cooker(p: Pen, c: RGB) -> None:
    p.box(STONE, -5, 24, 5, 40)
    p.poly(STONE, (-11, 21), (11, 21), (5, 26), (-5, 26))
    p.box(c, -11, 0, 11, 14.6, 0.8)
    p.box(BLACK, -8, 2.4, 8, 9.4, 0.8)
    for x in (-7.5, -2.5, 2.5, 7.5):
        p.disc(BLACK, x, 12, 1)
    p.box(dark(GREY), -8, 14.6, -1, 18.6, 0.6)
    p.box(dark(GREY), 2.4, 14.6, 8, 17.4, 0.6)


# --- things: what hangs or flies --------------------------------------------------------------------------


def balloon(p: Pen, c: RGB) -> None:
    for x in (-2, 2):
        p.line(BROWN, 0.4, (x * 0.8, -5), (x * 1.9, 0.6))
    p.box(WOOD, -1.8, -7.6, 1.8, -4.6, 0.4)
    p.poly(c, (-5.6, 3), (5.6, 3), (1.9, -2.6), (-1.9, -2.6))
    p.disc(c, 0, 5.4, 7)
    p.disc(mix(c, WHITE, 0.45), 0, 5.4, 2.6, 7)


def kite(p: Pen, c: RGB) -> None:
    p.line(WHITE, 0.5, (0, -6), (-2, -9), (1, -12))
    p.poly(c, (0, 9), (6, 2), (0, -7), (-6, 2))
    p.poly(mix(c, WHITE, 0.5), (0, 9), (6, 2), (0, 2))
    p.poly(mix(c, WHITE, 0.5), (0, -7), (-6, 2), (0, 2))


def aeroplane(p: Pen, c: RGB) -> None:
    p.poly(c, (-10, 1), (-13, 7), (-10.4, 7), (-6, 1.4))
    p.box(c, -12, -2, 11, 2.2, 2)
    p.poly(dark(c, 0.35), (-3, -0.4), (4, -0.4), (-4, -7), (-7, -7))
    for x in (-6, -2, 2, 6):
        p.disc(WHITE, x, 0.8, 0.7)


def gull(p: Pen, c: RGB) -> None:
    del c
    p.line(BLACK, 2.2, (-8.4, 2.8), (-4, 4.6), (0, 0), (4, 4.6), (8.4, 2.8))
    p.disc(BLACK, 0, -0.4, 2.9, 1.8)
    p.line(WHITE, 1.4, (-6.4, 3.7), (-4, 4.6), (0, 0), (4, 4.6), (6.4, 3.7))
    p.disc(WHITE, 0, -0.4, 2.4, 1.3)


def pendant(p: Pen, c: RGB) -> None:
    p.line(BLACK, 0.5, (0, 2), (0, 30))
    if p.scene.lamps:
        p.lit().disc(LAMP, 0, -3, 8, alpha=90)
    p.poly(c, (-6.4, -3), (6.4, -3), (2.4, 5), (-2.4, 5))
    (p.lit() if p.scene.lamps else p).disc(LAMP if p.scene.lamps else WHITE, 0, -3, 2.6, 1.6)


def picture(p: Pen, c: RGB) -> None:
    p.box(WOOD, -6.4, -7, 6.4, 7)
    p.box(WHITE, -5.4, -6, 5.4, 6)
    p.box(c, -4.4, -5, 4.4, 5)


@dataclass(frozen=True)
class Thing:
    """How a thing is drawn (within width x height) and spoken of; ``names`` and ``does``: one, many."""

    draw: Callable[[Pen, RGB], None]
    width: float
    height: float
    names: tuple[str, str]
    does: tuple[str, str] = ("stands", "stand")
    colours: tuple[str, ...] = ()
    crowd: int = 1
    floats: bool = False


STANDS, LIES, FLOATS = ("stands", "stand"), ("lies", "lie"), ("floats", "float")
PARKED, WAITS, FLIES = ("is parked", "are parked"), ("waits", "wait"), ("flies in the sky", "fly in the sky")
HIDES = ("white", "black", "brown")


def _names(one: str, many: str = "") -> tuple[str, str]:
    return one, many or one + "s"


THINGS: dict[str, Thing] = {
    "car": Thing(car, 34, 15, _names("car"), PARKED, PAINT, 3),
    "van": Thing(van, 32, 18, _names("camper van"), PARKED, CLOTH, 2),
    "bus": Thing(bus, 39, 24, _names("double-decker bus", "double-decker buses"), WAITS, PAINT),
    "tractor": Thing(tractor, 27, 20, _names("tractor"), PARKED, ("red", "blue", "green", "orange")),
    "bicycle": Thing(bicycle, 24, 15, _names("bicycle"), STANDS, CLOTH, 3),
    "sailing boat": Thing(sailing_boat, 23, 28, _names("sailing boat"), FLOATS, (*CLOTH, "white"), 5, True),
    "rowing boat": Thing(rowing_boat, 28, 9, _names("rowing boat"), FLOATS, PAINT, 4, True),
    "trawler": Thing(trawler, 32, 22, _names("fishing boat"), FLOATS, PAINT, 3, True),
    "buoy": Thing(buoy, 12, 16, _names("buoy"), FLOATS, ("red", "yellow", "green", "orange"), 3, True),
    "person": Thing(person, 11, 23, _names("person in a {} coat", "people in {} coats"), STANDS, CLOTH, 5),
    "umbrella": Thing(umbrella_person, 20, 28, _names("person with a {} umbrella", "people with {} umbrellas"), STANDS,
        CLOTH, 3),
    "dog": Thing(dog, 21, 15, _names("dog"), STANDS, HIDES, 4),
    "cat": Thing(cat, 14, 18, _names("cat"), ("sits", "sit"), ("white", "black", "orange", "grey"), 3),
    "cow": Thing(cow, 28, 20, _names("cow"), ("grazes", "graze"), HIDES, 5),
    "sheep": Thing(sheep, 20, 14, _names("sheep", "sheep"), ("grazes", "graze"), ("white", "black"), 5),
    "horse": Thing(horse, 28, 26, _names("horse"), STANDS, HIDES, 4),
    "pig": Thing(pig, 24, 12, _names("pig"), STANDS, ("pink", "black"), 5),
    "deer": Thing(deer, 20, 27, _names("deer", "deer"), STANDS, (), 4),
    "bear": Thing(bear, 27, 19, _names("bear"), ("walks", "walk"), HIDES, 3),
    "camel": Thing(camel, 27, 25, _names("camel"), STANDS, ("brown", "white"), 4),
    "hen": Thing(hen, 14, 14, _names("hen"), ("pecks", "peck"), ("white", "brown", "black"), 5),
    "swan": Thing(swan, 21, 14, _names("swan"), ("swims", "swim"), ("white", "black"), 5, True),
    "tree": Thing(tree, 21, 29, _names("tree"), ("grows", "grow"), (), 3),
    "pine": Thing(pine, 18, 30, _names("pine tree"), ("grows", "grow"), (), 5),
    "palm": Thing(palm, 22, 30, _names("palm tree"), ("grows", "grow"), (), 4),
    "cactus": Thing(cactus, 16, 26, _names("tall cactus", "tall cacti"), ("grows", "grow"), (), 5),
    "flowers": Thing(flowers, 20, 10, _names("flower bed"), ("blooms", "bloom"), CLOTH, 3),
    "pot plant": Thing(pot_plant, 15, 23, _names("leafy plant in a {} pot", "leafy plants in {} pots"), STANDS, CLOTH,
        3),
    "bench": Thing(bench, 25, 12, _names("bench", "benches"), STANDS, ("red", "blue", "green", "white", "brown"), 2),
    "street lamp": Thing(street_lamp, 10, 32, _names("street lamp"), STANDS, ("black", "green", "red"), 3),
    "tent": Thing(tent, 27, 17, _names("tent"), ("is pitched", "are pitched"), CLOTH, 4),
    "campfire": Thing(campfire, 20, 17, _names("campfire"), ("burns", "burn")),
    "hay": Thing(hay, 14, 13, _names("round hay bale"), LIES, (), 5),
    "snowman": Thing(snowman, 13, 27, _names("snowman in a {} scarf", "snowmen in {} scarves"), STANDS, CLOTH),
    "sledge": Thing(sledge, 24, 8, _names("sledge"), LIES, CLOTH, 3),
    "parasol": Thing(parasol, 27, 26, _names("striped parasol"), STANDS, CLOTH, 4),
    "deckchair": Thing(deckchair, 19, 14, _names("deckchair"), STANDS, CLOTH, 4),
    "ball": Thing(ball, 11, 10, _names("beach ball"), LIES, CLOTH, 4),
    "surfboard": Thing(surfboard, 10, 25, _names("surfboard"), STANDS, CLOTH, 5),
    "suitcase": Thing(suitcase, 16, 14, _names("suitcase"), STANDS, CLOTH, 5),
    "stall": Thing(stall, 29, 22, _names("fruit stall"), STANDS, CLOTH, 2),
    "barrel": Thing(barrel, 12, 13, _names("wooden barrel"), STANDS, (), 5),
    "sofa": Thing(sofa, 33, 16, _names("sofa"), STANDS, CLOTH),
    "armchair": Thing(armchair, 20, 19, _names("armchair"), STANDS, CLOTH, 2),
    "chair": Thing(chair, 12, 20, _names("wooden chair"), STANDS, PAINT, 4),
    "table": Thing(table, 28, 14, _names("table with a {} cloth"), STANDS, CLOTH),
    "fridge": Thing(fridge, 15, 29, _names("fridge"), STANDS, (*PAINT, "pink")),
    "floor lamp": Thing(floor_lamp, 14, 29, _names("floor lamp"), STANDS, CLOTH),
    "lighthouse": Thing(lighthouse, 22, 35, _names("striped lighthouse"), STANDS, ("red", "blue", "green", "black")),
    "church": Thing(church, 24, 36, _names("church", "churches"), STANDS, ("white", "yellow", "pink", "red")),
    "windmill": Thing(windmill, 30, 36, _names("windmill"), STANDS, ("white", "red", "blue", "green")),
    "barn": Thing(barn, 28, 25, _names("barn"), STANDS, ("red", "blue", "green", "yellow")),
    "silo": Thing(silo, 13, 32, _names("silo"), STANDS, ("white", "red", "blue", "orange")),
    "cabin": Thing(cabin, 27, 23, _names("log cabin with a {} roof"), STANDS, PAINT[:4]),
    "castle": Thing(castle, 28, 35, _names("stone castle with {} roofs"), STANDS, PAINT[:4]),
    "clock tower": Thing(clock_tower, 12, 39, _names("clock tower"), STANDS, ("white", "red", "yellow", "blue")),
    "fountain": Thing(fountain, 26, 25, _names("fountain"), ("splashes", "splash"), ("white", "pink", "black")),
    "bandstand": Thing(bandstand, 28, 24, _names("bandstand with a {} roof"), STANDS, CLOTH[:5]),
    "train": Thing(train, 42, 18, _names("train"), WAITS, PAINT),
    "steam engine": Thing(steam_engine, 38, 34, _names("steam engine"), WAITS, ("red", "blue", "green", "black")),
    "big wheel": Thing(big_wheel, 35, 37, _names("big wheel"), STANDS, CLOTH),
    "circus tent": Thing(circus_tent, 31, 28, _names("circus tent"), STANDS, CLOTH),
    "mesa": Thing(mesa, 31, 22, _names("flat-topped rock"), ("rises", "rise"), ("red", "orange", "brown", "grey")),
    "pyramid": Thing(pyramid, 37, 24, _names("pyramid"), ("rises", "rise"), ("yellow", "white", "brown", "grey")),
    "bookcase": Thing(bookcase, 18, 34, _names("bookcase"), STANDS, ("brown", "white", "green", "blue")),
    "fireplace": Thing(fireplace, 25, 38, _names("fire in a {} fireplace", "fires in {} fireplaces"), ("burns", "burn"),
        ("red", "white", "grey", "green")),
    "dresser": Thing(dresser, 22, 33, _names("dresser"), STANDS, ("blue", "green", "white", "red", "yellow")),
    "cooker": Thing(cooker, 23, 40, _names("cooker"), STANDS, ("red", "blue", "green", "white", "yellow")),
    "balloon": Thing(balloon, 15, 20, _names("hot-air balloon"), ("floats in the sky", "float in the sky"), CLOTH, 3),
    "kite": Thing(kite, 13, 21, _names("kite"), FLIES, CLOTH, 3),
    "aeroplane": Thing(aeroplane, 25, 14, _names("aeroplane"), FLIES, ("red", "blue", "yellow", "white", "orange"), 2),
    "gull": Thing(gull, 17, 7, _names("gull"), FLIES, (), 5),
    "pendant": Thing(pendant, 14, 12, _names("pendant lamp"), ("hangs from the ceiling", "hang from the ceiling"),
        CLOTH, 3),
    "picture": Thing(picture, 14, 14, _names("framed picture"), ("hangs on the wall", "hang on the wall"), CLOTH, 2),
}
