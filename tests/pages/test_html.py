"""Reports as one page: escaped, self-contained."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest
from helpers import make_photos

from densecap_search.pages import html


def page(body: str) -> str:
    environment = jinja2.Environment(loader=jinja2.PackageLoader("densecap_search.pages"), autoescape=True)
    environment.filters["thumbnail"] = html.thumbnail
    return environment.from_string('{% extends "base.html" %}{% import "parts.html" as parts %}{% block body %}'
                                   + body + "{% endblock %}").render(title="A & B", version="1", caption="<script>x")


def test_what_a_user_wrote_is_text_and_never_markup():
    found = page("{{ parts.table(['caption', 'n'], [[caption, 3]]) }}{{ parts.tile(3, caption) }}")
    assert "<script>" not in found
    assert found.count("&lt;script&gt;x") == 2
    assert "<title>A &amp; B</title>" in found


def test_a_page_names_no_outside_file(tmp_path: Path):
    picture = next(iter(make_photos(tmp_path).glob("*.png")))
    plot = html.plot(lambda axes: axes.plot([1, 2], [3, 4]) and None, alt="a line")
    found = page("") + str(html.thumbnail(picture)) + str(plot)
    assert set(re.findall(r'src="(\w+:[\w/+]+)', found)) == {"data:image/jpeg", "data:image/svg+xml"}
    assert not re.search(r'(src|href)="(?!data:)', found)


def test_a_picture_that_cannot_be_opened_is_its_reason_in_words(tmp_path: Path):
    (tmp_path / "empty.jpg").touch()
    assert html.thumbnail(tmp_path / "empty.jpg") == '<span class="missing">empty file</span>'


def test_a_value_that_a_template_needs_must_be_given():
    with pytest.raises(jinja2.UndefinedError, match="title"):
        html.render("base.html", {})
