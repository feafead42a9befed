"""A collection before training: what is found, in JSON and as a page."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import draw_photo
from markupsafe import escape

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection, Skipped
from densecap_search.config import ModelConfig
from densecap_search.embedding import content
from densecap_search.errors import DensecapError
from densecap_search.files import hash_file
from densecap_search.inspection.findings import by_reason
from densecap_search.inspection.geometry import look_at_captions
from densecap_search.inspection.inspect import Inspection, as_json, inspect, take_inventory
from densecap_search.inspection.page import inspection_page, marked_differences
from densecap_search.inspection.pictures import look_at_pictures
from densecap_search.model.encoder import DualEncoder
from densecap_search.workflows.inspect import inspect_collection


def looked_at(collection: Collection, encoder: DualEncoder | None = None) -> Inspection:
    geometry = encoder and look_at_captions(collection, encoder, model="tiny", batch_size=4, logit_scale=5.0)
    return inspect(collection, look_at_pictures(collection.records), geometry)


def kinds(inspection: Inspection) -> dict[str, int]:
    return {finding.kind: finding.count for finding in inspection.findings if finding.do}


@pytest.fixture
def flawed(tmp_path: Path) -> Path:
    """A table in which everything that can be found is there once."""
    rows = []
    for number, (colour, place) in enumerate([("red", "left"), ("red", "middle"), ("blue", "right"), ("green", "left")]):
        caption = draw_photo(tmp_path / f"{number}.png", colour, place, "ball")
        rows.append({"image": f"{number}.png", "caption": caption, "split": "test" if number == 3 else "train"})
    (tmp_path / "copy.png").write_bytes((tmp_path / "0.png").read_bytes())
    (tmp_path / "cut.png").write_bytes((tmp_path / "0.png").read_bytes()[:90])
    rows += [
        {"image": "copy.png", "caption": "Nothing <but> a copy of it.", "split": "test"},
        {"image": "cut.png", "caption": rows[2]["caption"].upper(), "split": "train"},
        {"image": "gone.png", "caption": "Not there.", "split": "train"},
    ]
    table = tmp_path / "table.jsonl"
    table.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return table


def test_an_inventory_counts_pictures_captions_and_words(collection):
    records = list(collection.records)
    records[0] = replace(records[0], captions=())
    records[1] = replace(records[1], captions=records[2].captions, split="test")
    found = take_inventory(replace(collection, records=tuple(records)))
    assert (found.pictures, found.captions, found.without_caption, found.sharing_a_caption) == (24, 23, 1, 2)
    assert found.splits == {"(none)": 22, "test": 1}
    assert found.words["p50"] == 17
    assert (found.lengths.edges[:2], found.lengths.counts[0]) == ((17.0, 18.0), 23)


def test_duplicates_in_train_and_test_are_flagged(flawed: Path):
    found = kinds(looked_at(read_collection(flawed)))
    assert found["leak: same picture"] == 1  # copy.png
    assert found["leak: nearly the same picture"] == 1  # the green ball of 3.png where 0.png has a red one
    assert found["same picture"] == 1


def test_every_flaw_is_one_finding_that_says_what_to_do_and_shows_an_example(flawed: Path):
    found = looked_at(read_collection(flawed))
    assert kinds(found) == {"skipped": 1, "broken": 1, "leak: same picture": 1, "leak: nearly the same picture": 1,
                            "same picture": 1, "nearly the same caption": 2,
                            "mirrored": 3}  # a ball on the left, its copy, and a green one, to one on the right
    for finding in found.findings:
        assert finding.examples, finding.kind
    broken = next(finding for finding in found.findings if finding.kind == "broken")
    assert broken.what.startswith("1 picture cannot be opened: damaged picture")
    assert broken.examples[0].note.startswith("cut.png: damaged picture")


def test_pictures_that_the_table_groups_or_a_burst_holds_together_are_no_flaw(photos: Path):
    for name in ("copy", "again"):
        (photos / f"{name}.png").write_bytes((photos / "red-left-ball.png").read_bytes())
    plain = read_collection(photos)
    assert kinds(looked_at(plain))["same picture"] == 2
    told = [replace(record, group="g" if record.image_id in ("copy.png", "again.png", "red-left-ball.png") else None,
                    burst="b") for record in plain.records]
    found = kinds(looked_at(replace(plain, records=tuple(told))))
    assert "same picture" not in found
    assert "nearly the same picture" not in found


def test_skips_are_grouped_by_kind_of_reason_with_numbers_and_examples():
    skips = [Skipped("a", "5 cells where the header has 3; put captions in quotes", 1), Skipped("c", "no such file", 2),
             Skipped("b", "7 cells where the header has 3; put captions in quotes", 3), Skipped("d", "damaged picture (x (8 bytes))")]
    assert [(found.reason, found.count, found.examples[0]) for found in by_reason(skips)] == [
        ("N cells where the header has N; put captions in quotes", 2, "row 1: a: 5 cells where the header has 3; put captions in quotes"),
        ("no such file", 1, "row 2: c: no such file"),
        ("damaged picture", 1, "d: damaged picture (x (8 bytes))"),
    ]


def test_the_share_of_cut_captions_is_a_finding_from_a_twentieth_on(collection, tiny: DualEncoder):
    long = " ".join(["house"] * 300)
    for cut, mended in ((1, False), (2, True)):  # of 24: 4.2 % and 8.3 %
        records = [replace(record, captions=(f"{row} {long}",)) if row < cut else record
                   for row, record in enumerate(collection.records)]
        found = looked_at(replace(collection, records=tuple(records)), tiny)
        finding = next(finding for finding in found.findings if finding.kind == "cut captions")
        assert (finding.count, bool(finding.do)) == (cut, mended)
        assert f"{100 * cut / 24:.1f} % of the captions are cut" in finding.what


def test_the_json_is_strict_json_and_has_what_the_page_has(flawed: Path, tiny: DualEncoder):
    found = looked_at(read_collection(flawed), tiny)
    values = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert (values["pictures"], values["skipped"], values["files"]["broken"], values["files"]["copies"]) == (6, 1, 1, 1)
    assert {leak["kind"]: leak["count"] for leak in values["leaks"]}["same picture"] == 1
    assert values["captions_by_model"]["truncation"]["truncated"] == 0
    assert [finding["kind"] for finding in values["findings"]] == [finding.kind for finding in found.findings]


def test_one_caption_or_none_is_inspected_without_a_warning(photos: Path, tiny: DualEncoder):
    one = read_collection(photos).records[0]
    found = looked_at(Collection("one", (one,)), tiny)
    json.dumps(as_json(found), allow_nan=False)
    assert "<title>one, before training</title>" in inspection_page(found)
    bare = looked_at(Collection("bare", (replace(one, captions=()),)))
    assert kinds(bare) == {"no caption": 1}
    assert "<title>bare, before training</title>" in inspection_page(bare)


def test_a_page_is_self_contained_escaped_and_has_all_that_the_json_has(flawed: Path, tiny: DualEncoder):
    found = looked_at(read_collection(flawed), tiny)
    page = inspection_page(found)
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "Nothing &lt;but&gt; a copy of it." in page
    assert page.count("data:image/svg+xml") == 4
    assert page.count("data:image/jpeg") >= 4
    anchors = re.findall(r'href="#([^"]+)"', page)
    assert len(anchors) == 7
    assert all(f'id="{anchor}"' in page for anchor in anchors)
    assert "nan" not in re.sub(r'"data:[^"]*"', "", page)
    for finding in found.findings:
        assert escape(finding.what[1:]) in page, finding.kind
    for suggestion in found.suggestions:
        assert suggestion.words in page


def test_words_that_two_similar_captions_do_not_share_are_marked():
    first, second = marked_differences("A red boat lies <here> in fog.", "A red barge lies <here> in fog.")
    assert first == "A red <mark>boat</mark> lies &lt;here&gt; in fog."
    assert second == "A red <mark>barge</mark> lies &lt;here&gt; in fog."
    assert marked_differences("one <two> three", "four five six") == ["one &lt;two&gt; three", "four five six"]


def test_with_a_model_every_file_is_read_once(photos: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[Path] = []
    for picture in photos.glob("*.png"):
        os.utime(picture, (1e9, 1e9))  # one that changed just now is read again after it was decoded
    monkeypatch.setattr(content, "hash_file", lambda path: read.append(path) or hash_file(path))
    inspect_collection(read_collection(photos), ModelConfig(str(tiny_run)))
    assert sorted(read) == sorted(photos.glob("*.png"))


def test_a_model_that_is_not_there_is_told_also_where_there_are_no_captions(tmp_path: Path):
    draw_photo(tmp_path / "1.png", "red", "left", "ball")
    with pytest.raises(DensecapError, match="no model is called 'nope'"):
        inspect_collection(read_collection(tmp_path), ModelConfig("nope"))
