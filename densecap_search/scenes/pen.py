"""What the pictures of the demo archive are made with: a palette, the pen, and what a picture holds.

A :class:`Scene` with its :class:`Item` objects says everything that is in a picture, and the :class:`Pen` draws shapes
in the light of a scene.  The pen works in per cent of the picture's side, with x to the right and y *upwards*.  Add
the next colour, or shape that the pen can draw, here; this module imports none of the other ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from PIL import ImageDraw

RGB = tuple[int, int, int]
Tint = tuple[float, float, float]
Point = tuple[float, float]

COLOURS: dict[str, RGB] = {
    "red": (208, 44, 42), "blue": (38, 92, 200), "yellow": (250, 204, 40), "green": (40, 140, 66),
    "white": (248, 246, 240), "orange": (242, 124, 30), "purple": (128, 62, 168), "pink": (244, 138, 176),
    "black": (44, 44, 50), "brown": (126, 78, 44), "turquoise": (36, 180, 178), "grey": (140, 144, 150),
}
WHITE, BLACK, BROWN, GREY = (COLOURS[name] for name in ("white", "black", "brown", "grey"))
WOOD, STONE, SNOW, GLASS, LAMP = ((158, 108, 66), (178, 172, 162), (240, 244, 250), (70, 96, 122), (255, 216, 112))
PAINT = ("red", "blue", "yellow", "green", "white", "purple")
CLOTH = ("red", "blue", "yellow", "green", "orange", "purple", "pink")

# light -> (sky above, sky at the horizon, what daylight does to colours, overcast sky)
SKIES: dict[str, tuple[RGB, RGB, Tint, RGB]] = {
    "dawn": ((136, 160, 222), (255, 206, 200), (1.0, 0.92, 0.95), (196, 186, 200)),
    "noon": ((64, 148, 232), (196, 230, 248), (1.0, 1.0, 1.0), (176, 188, 198)),
    "sunset": ((96, 66, 140), (255, 146, 66), (1.0, 0.86, 0.76), (206, 150, 126)),
    "night": ((10, 16, 50), (46, 60, 116), (0.62, 0.6, 0.78), (38, 42, 62)),
}


@dataclass(frozen=True)
class Item:
    """So many things of one kind and colour (empty: it has just its own) on one side of the picture."""

    kind: str
    colour: str
    count: int
    side: str


@dataclass(frozen=True)
class Scene:
    """All that is in one picture; ``key`` seeds what the caption does not speak of, as the shape of hills."""

    key: str
    place: str
    season: str
    light: str
    weather: str
    lamps: bool
    feature: Item
    items: tuple[Item, ...]
    aloft: Item | None


def mix(a: RGB, b: RGB, share: float) -> RGB:
    """Return the colour that lies ``share`` of the way from a to b."""
    return (round(a[0] + (b[0] - a[0]) * share), round(a[1] + (b[1] - a[1]) * share),
            round(a[2] + (b[2] - a[2]) * share))


def dark(colour: RGB, share: float = 0.25) -> RGB:
    """Return a darker shade of the colour."""
    return mix(colour, (0, 0, 0), share)


@dataclass(frozen=True)
class Pen:
    """Draws shapes in per cent of the picture, in the light of the scene."""

    draw: ImageDraw.ImageDraw
    unit: float
    scene: Scene
    tint: Tint
    haze: RGB
    distance: float = 0.0
    x: float = 0.0
    y: float = 0.0
    scale: float = 1.0

    def at(self, x: float, y: float, scale: float = 1.0, flip: bool = False) -> Pen:
        """Return a pen whose origin is at (x, y); flip mirrors what it draws."""
        return replace(self, x=self.x + x * self.scale, y=self.y + y * abs(self.scale),
                       scale=self.scale * (-scale if flip else scale))

    def far(self, distance: float) -> Pen:
        """Return a pen whose colours fade into the air, 0 (near) to 1."""
        return replace(self, distance=distance)

    def lit(self) -> Pen:
        """Return a pen that draws lights: colours untouched by the hour."""
        return replace(self, tint=(1.0, 1.0, 1.0), distance=self.distance / 2)

    def ink(self, colour: RGB, alpha: int = 255) -> tuple[int, int, int, int]:
        """Return the colour as it looks at this hour and distance."""
        r, g, b = (round(value * share) for value, share in zip(colour, self.tint, strict=True))
        return (*mix((r, g, b), self.haze, self.distance), alpha)

    def spots(self, points: Iterable[Point]) -> list[Point]:
        """Return the points in pixels."""
        size, rise = self.scale * self.unit, abs(self.scale) * self.unit
        left, base = self.x * self.unit, (100 - self.y) * self.unit
        return [(left + x * size, base - y * rise) for x, y in points]

    def poly(self, colour: RGB, *points: Point) -> None:
        """Fill a polygon."""
        self.draw.polygon(self.spots(points), self.ink(colour))

    def box(self, colour: RGB, x0: float, y0: float, x1: float, y1: float, r: float = 0.0, alpha: int = 255) -> None:
        """Fill a box, its corners rounded by r."""
        (ax, ay), (bx, by) = self.spots(((x0, y0), (x1, y1)))
        corners = (min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))
        self.draw.rounded_rectangle(corners, r * abs(self.scale) * self.unit, self.ink(colour, alpha))

    def disc(self, colour: RGB, x: float, y: float, rx: float, ry: float | None = None, alpha: int = 255) -> None:
        """Fill a circle or, with ry, an ellipse."""
        ry = rx if ry is None else ry
        (ax, ay), (bx, by) = self.spots(((x - rx, y + ry), (x + rx, y - ry)))
        self.draw.ellipse((min(ax, bx), ay, max(ax, bx), by), self.ink(colour, alpha))

    def line(self, colour: RGB, width: float, *points: Point, alpha: int = 255) -> None:
        """Draw a line through the points."""
        pixels = max(1, round(width * abs(self.scale) * self.unit))
        self.draw.line(self.spots(points), self.ink(colour, alpha), pixels, joint="curve")

    def window(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw a window, lit when the scene's lamps are on."""
        if self.scene.lamps:
            self.lit().box(LAMP, x0, y0, x1, y1)
        else:
            self.box(GLASS, x0, y0, x1, y1)
