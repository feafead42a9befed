"""Reports as one self-contained page: no script, no outside file; plots and pictures lie inside as data."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from densecap_search.collection.images import open_image
from densecap_search.collection.records import Skipped
from densecap_search.talk import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THUMBNAIL = 180  # longer side in pixels
COLOURS = ("#1f6f8b", "#d1603d", "#6a994e", "#7b5ea7", "#c9a227", "#555555")  # of curves, in their order


def render(template: str, values: Mapping[str, Any]) -> str:
    """A page from a file in ``templates/``, which extends ``base.html``. Texts are escaped, half characters and control
    characters visibly; a missing value raises."""
    return "".join(render_parts(template, values))


def render_parts(template: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The same piece by piece: of an iterator among the values no more is held than its template asks for at a time."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader("densecap_search.pages"), autoescape=True,
                                     undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["thumbnail"] = thumbnail
    parts = environment.get_template(template).stream(values)
    parts.enable_buffering(64)
    yield from map(printable, parts)


def thumbnail(path: str | Path, side: int = THUMBNAIL) -> Markup:
    """An <img> of the picture, at most side pixels long; its reason in words where it cannot be opened."""
    image = open_image(Path(path), min_side=side)
    if isinstance(image, Skipped):
        return Markup('<span class="missing">{}</span>').format(image.reason)
    image.thumbnail((side, side))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return Markup('<img src="data:image/jpeg;base64,{}" alt="{}">').format(
        base64.b64encode(data.getvalue()).decode(), Path(path).name)


def plot(draw: Callable[[Axes], None], *, alt: str, width: float = 6.0, height: float = 3.2) -> Markup:
    """An <img> of a plot. draw: puts curves and labels on the axes; width and height in inches."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"axes.prop_cycle": _cycle(), "axes.spines.top": False, "axes.spines.right": False,
                     "font.size": 9, "svg.hashsalt": "densecap"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.subplots())
        data = io.BytesIO()
        figure.savefig(data, format="svg", metadata={"Date": None})
    return Markup('<img class="plot" src="data:image/svg+xml;base64,{}" alt="{}">').format(
        base64.b64encode(data.getvalue()).decode(), escape(alt))


def _cycle() -> Any:
    from cycler import cycler

    return cycler(color=COLOURS)
