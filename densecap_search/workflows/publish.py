"""A run as other libraries read one: written, loaded back by the library it is for, compared, described."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from densecap_search.config import INDEX_PUBLISHED_AS, ModelConfig, load_config, parse_tune
from densecap_search.errors import ConfigError, DensecapError
from densecap_search.files import check_writable
from densecap_search.model.checkpoint import ADAPTER
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.model.publishing.agreement import Agreement, Loaded, compare, require
from densecap_search.model.publishing.card import CardFacts, write_card
from densecap_search.model.publishing.formats import FORMATS
from densecap_search.model.publishing.peft_adapters import Adapters
from densecap_search.model.weight_files import read_tensors
from densecap_search.retrieval.index_folder import is_index
from densecap_search.scenes.archive import describe, plan
from densecap_search.scenes.picture import render
from densecap_search.talk import Talk
from densecap_search.training.run_folder import BEST, CONFIG

CHECKED = 10  # pictures, and captions, that both libraries encode
_SHAPES = ((320, 320), (320, 240), (240, 320), (320, 180))  # width and height of the pictures, in turn


def publish_run(model: ModelConfig, folder: Path, name: str, *, dtype: str, licence: str, talk: Talk) -> Agreement:
    """Write an encoder into a new folder, for the library of this name.

    The folder appears whole, and only where the other library gave the same vectors.
    """
    form = FORMATS[name]
    if dtype not in form.dtypes:
        raise ConfigError(f"--as {name} is written in {', '.join(form.dtypes)} only, not {dtype}")
    if is_index(Path(model.name)):
        raise ConfigError(f"{model.name} is an index; --as {' or '.join(INDEX_PUBLISHED_AS)} writes it for other "
                          f"programs, and --as {name} is for a run")
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        raise DensecapError(f"{folder} is not empty; name a new folder with -o")
    encoder = load_encoder(model, device="cpu", precision="fp32")
    talk.say(f"writing {encoder.name} for {name} …")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent) as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        if form.write is not None:
            form.write(encoder, made, dtype)
        if form.write_adapters is not None:
            form.write_adapters(read_adapters(Path(model.name), encoder), made)
        agreement = check(encoder, form.load(made), dtype)
        write_card(made, encoder, form, dtype, agreement, _facts(Path(model.name), licence))
        _move(made, folder)
    return agreement


def read_adapters(run: Path, encoder: DualEncoder) -> Adapters:
    """What a run of lora or dora trained, and the model that it began with. encoder: the run's own."""
    if not (run / ADAPTER).is_file():
        raise DensecapError(f"{run} holds no {ADAPTER}: --as peft is for runs that were trained with --tune lora or "
                            "dora; publish it whole, with --as huggingface or open_clip")
    config = load_config(run / CONFIG)
    try:
        base = load_encoder(replace(config.model, context_length=encoder.context_length), device="cpu",
                            precision="fp32")
    except DensecapError as error:
        raise DensecapError(f"the model that {run} began with is needed for --as peft: {error}") from error
    kind, rank, alpha = parse_tune(str(config.train.tune))[0], config.train.rank, config.train.lora_alpha
    return Adapters(base, read_tensors(run / ADAPTER), kind, rank, float(rank if alpha is None else alpha))


def check(encoder: DualEncoder, loaded: Loaded, dtype: str) -> Agreement:
    """Compare on generated scenes with their captions, all longer than CLIP's 77 tokens but two."""
    pictures, captions = check_inputs()
    agreement = compare(encoder, loaded, pictures, captions)
    require(agreement, dtype)
    return agreement


def check_inputs() -> tuple[list[Image.Image], list[str]]:
    """Pictures of several shapes and captions of several lengths; the same every time."""
    scenes = [burst[0] for burst in plan(CHECKED, 1, seed=0)]
    pictures = []
    for number, scene in enumerate(scenes):
        width, height = _SHAPES[number % len(_SHAPES)]
        left, top = Random(number).randrange(321 - width), Random(number).randrange(321 - height)
        pictures.append(render(scene, 320).crop((left, top, left + width, top + height)))
    captions = [describe(scene) for scene in scenes]
    return pictures, ["a red boat", "Ein Schloß am Fluss; it's 3 o'clock!", " ".join(captions[:4]), *captions[3:]]


def _move(made: Path, folder: Path) -> None:
    if folder.exists():
        folder.rmdir()
    made.replace(folder)


def _facts(run: Path, licence: str) -> CardFacts:
    """From what a run folder tells; nothing where the model was not trained here."""
    best = _read_json(run / BEST)
    if best is None:
        return CardFacts(licence, {}, "")
    rows = {"before training": best.get("zero_shot"), f"epoch {best.get('epoch')}": best.get("val")}
    return CardFacts(licence, {name: values for name, values in rows.items() if values}, _training(run))


def _training(run: Path) -> str:
    train = load_config(run / CONFIG).train
    tune = "" if train.tune is None else f", tune {train.tune}"
    return f"Fine-tuned with {train.objective}{tune}, seed {train.seed}."


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
