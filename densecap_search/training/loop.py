"""finetune(): from a collection to a run folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from densecap_search import config as settings
from densecap_search.collection.records import Collection, Skipped
from densecap_search.collection.splits import Splits, group_numbers, split_collection
from densecap_search.config import RunConfig, TrainConfig
from densecap_search.errors import CollectionError, RunError, TrainingStopped
from densecap_search.evaluation.evaluate import Pairs
from densecap_search.evaluation.metrics import mean_figures
from densecap_search.files import write_json, write_text
from densecap_search.model import checkpoint, tuning
from densecap_search.model.device import describe
from densecap_search.model.encoder import DualEncoder, Features
from densecap_search.model.sources import RANDOM, load_encoder
from densecap_search.model.window import Truncation
from densecap_search.retrieval.embeddings import (
    check_images,
    embed_images,
    embed_texts,
    hash_images,
    image_rows,
    text_rows,
)
from densecap_search.talk import Talk
from densecap_search.training.batches import Batch, Batches, PixelBatches, RowBatches
from densecap_search.training.interrupt import Interruptions
from densecap_search.training.objectives import OBJECTIVES

LOG, BEST, CONFIG, SPLIT = "log.jsonl", "best.json", "config.yaml", "split.json"
SAVE_SECONDS = 30.0  # runs of a few seconds an epoch do not write the same 100 MB every time
MAX_LOGIT_SCALE = 100.0  # Radford et al. 2021, §2.5


@dataclass(frozen=True)
class Evaluated:
    """One row of a run's log: retrieval on the validation split after an epoch (0: before training)."""

    epoch: int
    step: int
    figures: Mapping[str, Any]  # direction → metric → value

    @property
    def mean_recall_at_1(self) -> float:
        """Mean of both directions, percent: what the best checkpoint is chosen by."""
        return float(np.mean([direction["R@1"] for direction in self.figures.values()]))


@dataclass(frozen=True)
class RunSummary:
    """What a finished run has to tell."""

    folder: Path
    epochs: int
    steps: int
    kept_epoch: int  # 0: the model before training was the best
    zero_shot: Evaluated | None
    kept: Evaluated | None
    skipped: tuple[Skipped, ...]
    seconds: float


@dataclass
class _Progress:
    """Where a run is; everything beside weights and optimiser that a resumed run continues from."""

    epoch: int = 1  # the one that is running
    step_in_epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)  # of the running epoch
    log: list[dict[str, Any]] = field(default_factory=list)
    kept_epoch: int = 0
    best: float = -1.0


def finetune(
    collection: Collection, config: RunConfig, run: Path, *, resume: bool = False, strict: bool = False,
    talk: Talk,
) -> RunSummary:
    """Fine-tune an encoder on a collection, into a run folder that holds all that is needed to encode.

    resume: continue the run that the folder holds; on a CPU in float32 the weights become those of an
    uninterrupted run. strict: a picture that cannot be read is an error.
    """
    started = time.monotonic()
    _check_folder(run, resume)
    model = config.model
    encoder = load_encoder(model.name, pretrained=model.pretrained, arch=model.arch,
                           context_length=model.context_length, device=config.train.device,
                           precision=config.train.precision)
    train = settings.with_tune_defaults(config.train, tuning.default_tune(encoder))
    talk.say(f"{encoder.name} on {describe(encoder.device)}, {encoder.precision}; {train.objective}"
             + (f" (γ = {train.gamma:g})" if "gamma" in OBJECTIVES[train.objective].settings else "")
             + f", tune {train.tune}, lr {train.lr:g}, seed {train.seed}")
    trained = tuning.select_parameters(encoder, str(train.tune), learn_logit_scale=train.logit_scale == "learned",
                                       rank=train.rank, seed=train.seed)
    talk.say(tuning.count_trained(encoder, trained))
    data = _prepare(collection, config, train, encoder, strict, talk)
    job = _Job(encoder, train, run, data, trained, talk)
    if resume:
        job.restore(checkpoint.load_state(run / checkpoint.STATE), collection)
    else:
        job.begin(config, collection)
    with Interruptions().handled() as interruptions:
        try:
            job.train_epochs(interruptions)
        except KeyboardInterrupt:
            job.save_state()
            talk.say(f"stopped after step {job.at.step}; continue with --resume -o {run}")
            raise
        finally:
            job.save_kept()
    return job.summary(time.monotonic() - started)


@dataclass(frozen=True)
class _Data:
    """What is trained and validated on."""

    splits: Splits
    hashes: Mapping[str, str]
    batches: Batches
    skipped: tuple[Skipped, ...]


class _Job:
    """The state of one run. Its methods are the steps of :func:`finetune`, in the order they are called."""

    def __init__(self, encoder: DualEncoder, train: TrainConfig, run: Path, data: _Data,
                 trained: dict[str, nn.Parameter], talk: Talk) -> None:
        self.encoder, self.train, self.run, self.data, self.talk = encoder, train, run, data, talk
        self.trained = trained
        objective = OBJECTIVES[train.objective]
        self.loss = partial(objective.loss, **{name: getattr(train, name) for name in objective.settings})
        groups = tuning.parameter_groups(encoder, trained, train.weight_decay, train.layer_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=float(train.lr or 0))
        self.scaler = torch.amp.GradScaler(encoder.device.type, enabled=encoder.precision == "fp16")
        self.at = _Progress()
        self.rng_state = torch.get_rng_state()  # after the last whole step
        self.unsaved: dict[str, Tensor] | None = None  # the kept checkpoint, while only memory has it
        self.saved = time.monotonic()

    @property
    def total_steps(self) -> int:
        return int(self.train.epochs or 0) * self.data.batches.steps

    def begin(self, config: RunConfig, collection: Collection) -> None:
        """Write what the folder needs from the start, and measure the model as it is: row 0."""
        torch.manual_seed(self.train.seed)
        if self.train.init_logit_scale is not None:
            with torch.no_grad():
                self.encoder.model.logit_scale.fill_(math.log(self.train.init_logit_scale))
        self.run.mkdir(parents=True, exist_ok=True)
        write_text(self.run / CONFIG, settings.to_yaml(config))
        splits, hashes = self.data.splits, self.data.hashes
        parts = {"train": splits.train, "val": splits.val, "test": splits.test}
        named = {name: {record.image_id: hashes[record.image_id] for record in part} for name, part in parts.items()}
        write_json(self.run / SPLIT, {"made": splits.made, "seed": self.train.seed,
                                      "collection": collection.fingerprint(), **named})
        self._log_epoch(0, self._validate(0), None, 0.0)
        checkpoint.save_encoder(self.encoder, self.run)
        self.save_state()

    def train_epochs(self, interruptions: Interruptions) -> None:
        """Train, and after every epoch validate, keep the best, save."""
        for epoch in range(self.at.epoch, int(self.train.epochs or 0) + 1):
            started = time.monotonic()
            tuning.set_training_mode(self.encoder)
            self._train_epoch(epoch, interruptions)
            evaluated = self._validate(epoch)
            with interruptions.deferred():
                self._end_epoch(epoch, evaluated, time.monotonic() - started)

    def _train_epoch(self, epoch: int, interruptions: Interruptions) -> None:
        with (
            self.talk.progress(f"epoch {epoch}/{self.train.epochs}", self.data.batches.steps, "steps") as advance,
            closing(self.data.batches.epoch(epoch, self.at.step_in_epoch)) as batches,
        ):
            advance(self.at.step_in_epoch)
            for batch in batches:
                loss = self.loss_of(batch)
                value = loss.item()
                if not math.isfinite(value):
                    raise TrainingStopped(
                        f"the loss became {value} at step {self.at.step + 1}; the last good checkpoint is in "
                        f"{self.run}; try a lower learning rate or --precision fp32"
                    )
                self.optimizer.zero_grad(set_to_none=True)
                if loss.requires_grad:
                    self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                with interruptions.deferred():
                    self._update()
                    self.at.step += 1
                    self.at.step_in_epoch += 1
                    self.at.losses.append(value)
                    self.rng_state = torch.get_rng_state()
                advance(1)

    def loss_of(self, batch: Batch) -> Tensor:
        """The objective on one batch."""
        if self.train.tune == "heads":
            features = Features(
                self.encoder.from_tower("image", batch.images.to(self.encoder.device)),
                self.encoder.from_tower("text", batch.tokens.to(self.encoder.device)),
                self.encoder.logit_scale(),
            )
        else:
            features = self.encoder.features(batch.images, batch.tokens)
        return self.loss(features.image, features.text, features.logit_scale,
                         groups=batch.groups.to(self.encoder.device))

    def _update(self) -> None:
        rate = learning_rate(self.at.step, self.total_steps, float(self.train.lr or 0), self.train.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        self.scaler.unscale_(self.optimizer)
        if self.train.max_grad_norm:
            nn.utils.clip_grad_norm_(self.trained.values(), self.train.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            self.encoder.model.logit_scale.clamp_(0.0, math.log(MAX_LOGIT_SCALE))

    def _end_epoch(self, epoch: int, evaluated: Evaluated | None, seconds: float) -> None:
        row = self._log_epoch(epoch, evaluated, float(np.mean(self.at.losses)) if self.at.losses else None, seconds)
        if self.at.kept_epoch == epoch:
            self.unsaved = {name: value.detach().cpu().clone() for name, value in self._changing().items()}
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self.save_kept()
        self.at.epoch, self.at.step_in_epoch, self.at.losses = epoch + 1, 0, []
        self.save_state()
        self.talk.say(_describe_epoch(row))

    def _log_epoch(self, epoch: int, evaluated: Evaluated | None, loss: float | None, seconds: float) -> dict[str, Any]:
        better = evaluated is not None and evaluated.mean_recall_at_1 > self.at.best
        if self.train.checkpoint == "last" or evaluated is None or better:
            self.at.kept_epoch = epoch
        if evaluated is not None and better:
            self.at.best = evaluated.mean_recall_at_1
        row = {
            "epoch": epoch, "step": self.at.step, "loss": loss,
            "lr": self.optimizer.param_groups[0]["lr"] if epoch else 0.0,
            "logit_scale": self.encoder.logit_scale().item(), "seconds": round(seconds, 2),
            "val": dict(evaluated.figures) if evaluated else None,
        }
        self.at.log.append(row)
        write_text(self.run / LOG, "".join(json.dumps(line) + "\n" for line in self.at.log))
        write_json(self.run / BEST, {"checkpoint": self.train.checkpoint, "epoch": self.at.kept_epoch,
                                     "val": self.at.log[self.at.kept_epoch]["val"], "zero_shot": self.at.log[0]["val"]})
        return row

    def save_kept(self) -> None:
        """Write the kept checkpoint into the run folder, where it is not there yet."""
        if self.unsaved is None:
            return
        checkpoint.save_weights(self.encoder, self.run, self.unsaved)
        self.unsaved, self.saved = None, time.monotonic()

    def _validate(self, epoch: int) -> Evaluated | None:
        records = self.data.splits.val
        if not records:
            return None
        self.encoder.model.eval()
        cached = self.train.tune == "heads" or epoch == 0  # a tower that trains is another after every epoch
        embeddings, _ = embed_images(self.encoder, records, self.data.hashes, cached=cached, workers=self.train.workers)
        kept = [record for record in records if record.image_id in set(embeddings.image_ids)]
        text, _ = embed_texts(self.encoder, [c for record in kept for c in record.captions], cached=cached)
        pairs = Pairs(embeddings.vectors, text, np.repeat(np.arange(len(kept)), [len(r.captions) for r in kept]))
        ranks = {"text_to_image": pairs.text_to_image(), "image_to_text": pairs.image_to_text()}
        return Evaluated(epoch, self.at.step, {name: mean_figures(value) for name, value in ranks.items()})

    def save_state(self) -> None:
        """All that --resume continues from, as it was after the last whole step."""
        at = self.at
        checkpoint.save_state({
            "epoch": at.epoch, "step_in_epoch": at.step_in_epoch, "step": at.step, "losses": at.losses,
            "log": json.dumps(at.log), "kept_epoch": at.kept_epoch, "best": at.best,
            "weights": {name: value.detach().cpu() for name, value in self._changing().items()},
            "kept": self.unsaved, "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict(),
            "rng": self.rng_state,
        }, self.run / checkpoint.STATE)

    def restore(self, state: Mapping[str, Any], collection: Collection) -> None:
        """Continue where :meth:`save_state` left off."""
        saved = json.loads((self.run / SPLIT).read_text(encoding="utf-8"))
        if saved["collection"] != collection.fingerprint():
            raise RunError(f"{collection.name} has changed since {self.run} was begun; train anew into another folder")
        with torch.no_grad():
            for name, value in self._changing().items():
                value.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        self.rng_state, self.unsaved = state["rng"], state["kept"]
        self.at = _Progress(
            state["epoch"], state["step_in_epoch"], state["step"], list(state["losses"]), json.loads(state["log"]),
            state["kept_epoch"], state["best"],
        )
        self.talk.say(f"continuing {self.run} after step {self.at.step} of {self.total_steps}")

    def _changing(self) -> dict[str, Tensor]:
        """What training changes; logit_scale always, for init_logit_scale may have set it."""
        return {**self.trained, "logit_scale": self.encoder.model.logit_scale}

    def summary(self, seconds: float) -> RunSummary:
        """What there is to tell at the end."""
        def evaluated(epoch: int) -> Evaluated | None:
            row = self.at.log[epoch]
            return Evaluated(epoch, row["step"], row["val"]) if row["val"] else None

        extra = tuple(getattr(self.data.batches, "skipped", ()))
        return RunSummary(self.run, int(self.train.epochs or 0), self.at.step, self.at.kept_epoch, evaluated(0),
                          evaluated(self.at.kept_epoch), (*self.data.skipped, *dict.fromkeys(extra)), seconds)


def learning_rate(step: int, total: int, peak: float, warmup: float) -> float:
    """Linear from 0 to peak over the warm-up's share of all steps, then a cosine to 0; step counts from 0."""
    warm = min(math.ceil(warmup * total), total - 1)
    if step < warm:
        return peak * (step + 1) / (warm + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def _check_folder(run: Path, resume: bool) -> None:
    if resume:
        return
    if (run / checkpoint.STATE).exists():
        raise RunError(f"{run} holds a run already; continue it with --resume, or choose another folder with -o")
    if run.is_file():
        raise RunError(f"{run} is a file; choose a folder with -o")


def _prepare(collection: Collection, config: RunConfig, train: TrainConfig, encoder: DualEncoder, strict: bool,
             talk: Talk) -> _Data:
    """Splits, groups and batches of the pictures that can be read."""
    hashes, unreadable = hash_images(collection.captioned, talk=talk, workers=train.workers)
    readable = [record for record in collection.captioned if record.image_id in hashes]
    if train.tune == "heads":  # the only pass that the towers make
        found = image_rows(encoder, readable, hashes, workers=train.workers, talk=talk)
        records, broken = [readable[row] for row in found.kept], found.skipped
    else:  # what cannot be opened must be known before the first step
        records, broken = check_images(encoder, readable, workers=train.workers, talk=talk)
    skipped = (*collection.skipped, *unreadable, *broken)
    if strict and skipped:
        raise CollectionError(f"{collection.name}: {len(skipped)} pictures cannot be used, the first: {skipped[0]}; "
                              "mend them or train without --strict")
    usable = Collection(collection.name, tuple(records), skipped)
    splits = split_collection(usable, val_share=config.data.val_share, test_share=config.data.test_share,
                              seed=train.seed, hashes=hashes)
    groups = group_numbers(splits.train, hashes)
    captions = [caption for record in splits.train for caption in record.captions]
    batch_size = int(train.batch_size or 1)
    if train.tune == "heads":
        texts, truncation = text_rows(encoder, captions, talk=talk)
        row_of = {record.image_id: row for row, record in enumerate(records)}
        images = found.rows[[row_of[record.image_id] for record in splits.train]]
        if config.model.pretrained == RANDOM:
            tuning.fit_standardisation(encoder, images, texts)
        counts = [len(record.captions) for record in splits.train]
        batches: Batches = RowBatches(images, texts, counts, groups, batch_size, train.seed)
    else:
        truncation = Truncation.of(encoder.tokenize(captions).lengths, encoder.context_length)
        batches = PixelBatches(encoder, splits.train, groups, batch_size, train.seed, train.workers)
    _tell_about(splits, groups, truncation, batches, batch_size, talk)
    return _Data(splits, hashes, batches, skipped)


def _tell_about(splits: Splits, groups: Sequence[int], truncation: Truncation, batches: Batches, batch_size: int,
                talk: Talk) -> None:
    pairs = len(splits.train)
    talk.say(f"train {pairs}, val {len(splits.val)}, test {len(splits.test)} pictures (splits {splits.made})")
    talk.say(str(truncation))
    if len(set(groups)) < pairs:
        talk.say(f"{pairs - len(set(groups))} training pictures share a picture or a caption with another; "
                 "they are never each other's negatives")
    largest = -(-pairs // batches.steps)
    if pairs < batch_size:
        talk.say(f"only {pairs} pairs: the batch size is {largest}, not {batch_size}")
    if pairs == 1:
        talk.say("a single pair has no negatives: the loss is 0 and nothing will change")
    if not splits.val:
        talk.say("no validation pictures: nothing is measured meanwhile, and the last checkpoint is kept")


def _describe_epoch(row: Mapping[str, Any]) -> str:
    text = f"epoch {row['epoch']}: loss {row['loss']:.4f}, logit_scale {row['logit_scale']:.1f}"
    if row["val"]:
        t2i, i2t = row["val"]["text_to_image"], row["val"]["image_to_text"]
        text += f", val R@1 text→image {t2i['R@1']:.1f}, image→text {i2t['R@1']:.1f}"
    return text


def read_splits(run: Path) -> tuple[dict[str, str], frozenset[str]]:
    """Of a run folder: image_id → split, and the content hashes of what it was trained on."""
    try:
        saved = json.loads((run / SPLIT).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}, frozenset()
    chosen = {image_id: split for split in ("train", "val", "test") for image_id in saved[split]}
    return chosen, frozenset(saved["train"].values())
