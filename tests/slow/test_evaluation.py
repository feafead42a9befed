"""Figures of real photographs, computed again by other means; and the report in a real browser."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import load

from densecap_search.cli import main
from densecap_search.collection.images import open_image
from densecap_search.collection.readers import read_collection
from densecap_search.collection.splits import select_splits
from densecap_search.evaluation.evaluate import evaluate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_cache")]


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def figures_by_sorting(scores: np.ndarray, right: list[set[int]]) -> dict[str, float]:
    """Every figure from sorted rows, in plain loops, without any of the evaluation's code; without ties."""
    ranks, precisions, gains = [], [], []
    for row, wanted in zip(scores, right, strict=True):
        order = [int(column) for column in np.argsort(-row, kind="stable")]
        places = sorted(order.index(column) + 1 for column in wanted)
        ranks.append(places[0])
        precisions.append(sum((number + 1) / place for number, place in enumerate(places) if place <= 10) / len(places))
        ideal = sum(1 / math.log2(place + 1) for place in range(1, min(10, len(places)) + 1))
        gains.append(sum(1 / math.log2(place + 1) for place in places if place <= 10) / ideal)
    count, middle = len(ranks), sorted(ranks)
    return {
        **{f"R@{k}": 100 * sum(rank <= k for rank in ranks) / count for k in (1, 5, 10, 25, 50)},
        "MRR": sum(1 / rank for rank in ranks) / count, "nDCG@10": sum(gains) / count, "mAP@10": sum(precisions) / count,
        "mean_rank": sum(ranks) / count, "median_rank": (middle[(count - 1) // 2] + middle[count // 2]) / 2,
    }


def test_flickr8k_figures_agree_with_an_independent_recomputation(real_data: Path):
    table = real_data / "flickr8k" / "captions.jsonl"
    reported = json.loads(run("evaluate", table, "--model", "starter", "--split", "test", "--json"))
    records = select_splits(read_collection(table), ["test"])
    encoder = load("starter")
    report = evaluate(encoder, records, model="starter", collection="flickr8k", splits=["test"])
    assert report.pairs is not None
    captions = [caption for record in records for caption in record.captions]
    owner = [row for row, record in enumerate(records) for _ in record.captions]
    content = [record.image.read_bytes() for record in records]

    def belong(caption: int, picture: int) -> bool:
        return any(captions[other].strip() == captions[caption].strip() and content[owner[other]] == content[picture]
                   for other in same[captions[caption].strip()])

    same: dict[str, list[int]] = {}
    for number, caption in enumerate(captions):
        same.setdefault(caption.strip(), []).append(number)
    right_pictures = [{picture for picture in range(len(records)) if belong(caption, picture)} for caption in range(len(captions))]
    right_captions = [{caption for caption, found in enumerate(right_pictures) if picture in found} for picture in range(len(records))]

    scores = report.pairs.text @ report.pairs.image.T
    again = {"text_to_image": figures_by_sorting(scores, right_pictures), "image_to_text": figures_by_sorting(scores.T, right_captions)}
    for direction, figures in again.items():
        assert reported[direction]["ties"] == 0
        for name, value in figures.items():
            found = reported[direction][name]
            assert (found if name == "median_rank" else found["value"]) == pytest.approx(value, abs=1e-9), (direction, name)

    # encoded anew by open_clip's own calls, in other batches: only the last bits may differ
    image, text = [], []
    with torch.no_grad():
        for start in range(0, len(records), 50):
            pixels = [encoder.preprocess(open_image(record.image, min_side=224)) for record in records[start:start + 50]]
            image.append(encoder.model.encode_image((torch.stack(pixels) / 255 - 0.5) / 0.5, normalize=True))
        for start in range(0, len(captions), 50):
            tokens = encoder.tokenizer(captions[start:start + 50], context_length=256)
            text.append(encoder.model.encode_text(tokens, normalize=True))
    anew = (torch.cat(text) @ torch.cat(image).T).numpy()
    assert np.abs(anew - scores).max() < 1e-4
    for direction, found in (("text_to_image", figures_by_sorting(anew, right_pictures)),
                             ("image_to_text", figures_by_sorting(anew.T, right_captions))):
        for name in ("R@1", "R@5", "R@10", "R@25", "R@50"):  # a query whose answer is all but level with another
            assert found[name] == pytest.approx(reported[direction][name]["value"], abs=100 * 2 / len(records) + 1e-9)


def test_the_report_of_two_models_is_whole_in_a_browser(real_data: Path, tmp_path: Path, look):
    table, tuned, page_file = real_data / "ids-ade" / "captions.jsonl", tmp_path / "tuned", tmp_path / "report.html"
    run("finetune", table, "--model", "starter", "--tune", "heads", "--epochs", 15, "--checkpoint", "last", "-o", tuned)
    output = run("evaluate", table, "--model", "starter", "--against", tuned, "--split", "val,test", "--report", page_file)
    assert "chance is an unlikely explanation" in output
    found = [json.loads(line) for line in run("evaluate", table, "--model", "starter", "--against", tuned, "--split", "val,test",
                                              "--json").splitlines()]
    difference = found[0]["against"][0]["text_to_image"]["R@10"]
    assert difference["high"] < 0
    assert difference["p_value"] < 0.01
    text, widths = look(page_file, "evaluate")
    assert len(widths) >= 2 * 2 + 1 + 2 + 2 * (12 + 6)
    assert min(widths) > 60
    for expected in ("116 captions search 116 pictures", "starter against tuned", "What came first instead, text→image",
                     "Slices, image→text", "bootstrap over pictures"):
        assert expected in text, expected
    for model in found:  # the numbers on the page are those of the JSON
        r1 = model["text_to_image"]["R@1"]
        assert f"{r1['value']:.1f} ({r1['low']:.1f}–{r1['high']:.1f})" in text
    assert f"{difference['value']:+.1f}" in text
