"""README.md of a published model: what it is, how good it was, how to use it, what was checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densecap_search.model.encoder import DualEncoder
from densecap_search.model.letters import unknown_words
from densecap_search.model.publishing.agreement import Agreement
from densecap_search.model.publishing.formats import Format

OTHER_SCRIPTS = "红色的公共汽车 حافلة حمراء красный автобус \N{BUS}"  # a red bus in three languages and a sign
ARROWS = {"text_to_image": "text→image", "image_to_text": "image→text"}


@dataclass(frozen=True)
class CardFacts:
    """What the card says that neither encoder nor format knows.

    figures: of the run on its validation split, rows such as "before training" → direction → metric → value.
    training: how it was trained, one line; empty where it was not trained here. licence: as the hub names it.
    """

    licence: str
    figures: Mapping[str, Mapping[str, Mapping[str, float]]]
    training: str


def write_card(folder: Path, encoder: DualEncoder, form: Format, dtype: str, agreement: Agreement,
               facts: CardFacts) -> None:
    """Write README.md, whose head Hugging Face's hub reads."""
    usage = form.usage.replace("FOLDER", folder.name)
    parts = [
        "---\n" + f"library_name: {form.library}\nlicense: {facts.licence}\n"
        "pipeline_tag: zero-shot-image-classification\ntags: [clip, image-retrieval, densecap-search]\n---",
        f"# {folder.name}",
        f"A dual encoder for pictures and long captions, made from {encoder.name} with densecap_search."
        + (f" {facts.training}" if facts.training else ""),
        f"* window: {encoder.context_length} tokens; longer captions are cut{_long_text(encoder)}\n"
        f"{language_of(encoder)}"
        f"* vectors: {encoder.dim} numbers of {dtype} weights; compare them by cosine\n"
        f"* preprocessing: {_preprocessing(encoder.spec.preprocess)}\n"
        f"* licence: {facts.licence}; the terms of the weights and pictures that it was trained from hold too",
        f"```python\n{usage}\n```",
        f"Checked when it was written: {agreement}.",
        _figures(facts.figures),
    ]
    (folder / "README.md").write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _long_text(encoder: DualEncoder) -> str:
    if encoder.spec.long_text == "cut":
        return ""
    return f" (densecap_search splits them and takes the {encoder.spec.long_text}; other libraries do not)"


def language_of(encoder: DualEncoder) -> str:
    """A line about what a model cannot read; empty where its vocabulary holds all."""
    if not unknown_words(encoder.tokenizer, OTHER_SCRIPTS)[0]:
        return ""
    return ("* language: that of its vocabulary, which does not know words in all scripts; of what it does not know "
            "(Chinese, Arabic or emoji, for one) captions are next to empty\n")


def _preprocessing(settings: Mapping[str, Any]) -> str:
    shown = {name: settings[name] for name in ("size", "resize_mode", "interpolation", "mean", "std")
             if name in settings}
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in shown.items())


def _figures(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    if not figures:
        return ""
    first = next(iter(figures.values()))
    metrics = [(direction, metric) for direction in ARROWS if direction in first for metric in first[direction]]
    lines = ["| validation | " + " | ".join(f"{ARROWS[direction]} {metric}" for direction, metric in metrics) + " |",
             "|---" * (1 + len(metrics)) + "|"]
    lines += [f"| {name} | " + " | ".join(f"{values[direction][metric]:.3g}" for direction, metric in metrics) + " |"
              for name, values in figures.items()]
    return "\n".join(lines)
