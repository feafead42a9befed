"""finetune(): from a collection to a run folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from densecap_search import config as settings
from densecap_search.collection.records import Collection, Skipped
from densecap_search.config import RunConfig, TrainConfig
from densecap_search.errors import ConfigError, ModelError, RunError, TrainingStopped
from densecap_search.evaluation.pairs import PairRows, Pairs, mean_recall_at_1, pair_rows
from densecap_search.files import check_writable, json_lines, write_json, write_text
from densecap_search.locks import locked
from densecap_search.model import checkpoint, tuning
from densecap_search.model.device import describe
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.talk import SILENT, Advance, Talk
from densecap_search.training import choice, interpolate, plots, saturation
from densecap_search.training.added import add_questions, read_answers
from densecap_search.training.batches import Batch, Batches, Plan
from densecap_search.training.choice import Choice
from densecap_search.training.data import TrainingData, prepare
from densecap_search.training.distributed import ALONE, Processes, joined
from densecap_search.training.gradient_cache import backward_in_chunks
from densecap_search.training.interrupt import Interruptions
from densecap_search.training.objectives import OBJECTIVES, late_interaction
from densecap_search.training.run_folder import (
    BEST,
    CONFIG,
    LOG,
    SPLIT,
    STOPPED,
    read_split_file,
    trained_before,
    write_splits,
)

SAVE_SECONDS = 30.0  # runs of a few seconds an epoch do not write the same 100 MB every time
FUSED = ("cpu", "cuda")  # devices that have a fused AdamW in every version of torch that is allowed
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
        return mean_recall_at_1(self.figures)


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
    interpolation: interpolate.Curve | None = None
    saturated: float | None = None  # share of the measured batches on which InfoNCE is solved
    choice: Choice | None = None  # of the objective, where it was auto


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
    best_epoch: int = 0  # which it was
    plan: Plan | None = None  # of the running epoch

    @property
    def attempt(self) -> int:
        """Counted from 1: a loss that is not finite ends one."""
        return 1 + sum(STOPPED in row for row in self.log)


def finetune(
    collection: Collection, config: RunConfig, run: Path, *, resume: bool = False, strict: bool = False,
    talk: Talk,
) -> RunSummary:
    """Fine-tune an encoder on a collection, into a run folder that holds all that is needed to encode.

    resume: continue the run that the folder holds; on a CPU in float32 the weights become those of an
    uninterrupted run. Where a loss that is not finite stopped it, it is continued from the end of the epoch before,
    with the learning rate and precision of ``config``: another attempt, and so called in the log. strict: a picture
    that cannot be read is an error. Under torchrun all processes share the work and the first one writes and speaks.
    """
    started = time.monotonic()
    config = replace(config, model=config.model.resolved())  # the run is used from other folders too
    _check_folder(run, resume)
    if resume and config.train.objective == "auto":  # chosen when the run was begun, and never again
        saved = settings.load_config(run / CONFIG).train
        config = replace(config, train=choice.with_objective(config.train, saved.objective, saved.gamma))
    with joined() as processes, locked(run, "densecap finetune") if processes.first else nullcontext():
        _check_folder(run, resume)  # again: who held it may have finished
        talk = talk if processes.first else SILENT
        answers = read_answers(config.data.add)
        encoder, train = _load(config, talk)
        if train.late_interaction and (train.tune == "heads" or processes.count > 1):
            raise ConfigError("train.late_interaction needs the towers' tokens, in one process: choose another tune "
                              "mode than heads, and do not start it through torchrun")
        original = interpolate.snapshot(encoder) if train.interpolate else {}
        trained = tuning.select_parameters(encoder, str(train.tune), learn_logit_scale=train.logit_scale == "learned",
                                           rank=train.rank, alpha=train.lora_alpha, only=train.lora_targets,
                                           seed=train.seed)
        talk.say(tuning.count_trained(encoder, trained))
        if config.data.add:
            collection = add_questions(collection, answers, config, talk)
        data = prepare(collection, config, train, encoder, strict, processes, talk)
        chosen = None
        if train.objective == "auto":
            chosen = _choose(config, train, data, encoder, trained, processes, run, talk)
            train = choice.with_objective(train, chosen.objective, chosen.gamma)
            config = replace(config, train=choice.with_objective(config.train, chosen.objective, chosen.gamma))
        _check_shares(data.batches, processes)
        job = _Job(encoder, train, run, data, trained, processes, talk)
        with job.open_wandb(config):
            if resume:
                job.resume(config, collection)
            else:
                job.begin(config, collection)
                if chosen is not None and processes.first:
                    write_json(run / choice.CHOICE, chosen.as_json())
            processes.wait()
            with Interruptions().handled() as interruptions:
                try:
                    job.train_epochs(interruptions)
                except KeyboardInterrupt:
                    talk.say(f"stopped after step {job.at.step}; continue with --resume -o {run}")
                    raise
                except TrainingStopped as error:
                    job.go_back(str(error))
                    raise
                finally:  # however it ended: the kept weights into the folder, then the state that says they are there
                    job.save_kept()
                    job.save_state()
        processes.wait()
        mixed = original and processes.first
        curve = interpolate.apply(run, original, config, train, data, talk) if mixed else None
        job.draw_curves()
        return job.summary(time.monotonic() - started, curve, chosen)


def _load(config: RunConfig, talk: Talk) -> tuple[DualEncoder, TrainConfig]:
    encoder = load_encoder(config.model, device=config.train.device, precision=config.train.precision,
                           max_pixels=config.data.max_pixels)
    train = settings.with_tune_defaults(config.train, tuning.default_tune(encoder))
    objective = OBJECTIVES.get(train.objective)
    if objective and "logit_bias" in objective.needs and encoder.model.logit_bias is None:
        raise ConfigError(f"the objective {train.objective} needs a model with a logit_bias, which {encoder.name} "
                          "lacks; take a SigLIP model or another objective")
    if train.checkpointing:
        encoder.model.set_grad_checkpointing()
    if train.compile:
        for tower in (encoder.model.visual, encoder.model.text):
            tower.compile(dynamic=True)
    talk.say(f"{encoder.name} on {describe(encoder.device)}, {encoder.precision}; {train.objective}"
             + (f" (γ = {train.gamma:g})" if objective and "gamma" in objective.settings else "")
             + f", tune {train.tune}, lr {train.lr:g}, seed {train.seed}")
    return encoder, train


def _choose(config: RunConfig, train: TrainConfig, data: TrainingData, encoder: DualEncoder,
            trained: dict[str, nn.Parameter], processes: Processes, run: Path, talk: Talk) -> Choice:
    """The objective of ``auto``; the encoder is afterwards what it was."""
    plain = replace(train, diagnose=0)
    job = _Job(encoder, plain, run, data, trained, processes, SILENT, writes=False)
    if train.tune == "heads" and job.total_steps <= choice.LONG:
        chosen = choice.by_validation(config, plain, data, encoder, heads_trainer(encoder, trained, run), talk)
    else:
        encoder.model.eval()
        scale = train.init_logit_scale or encoder.logit_scale().item()
        chosen = choice.by_sample(plain, data, job.embed_without_gradient, scale)
    chosen = processes.of_the_first(chosen)
    talk.say(f"{choice.spelled(chosen.objective, chosen.gamma)} was chosen; {chosen.reason}")
    return chosen


def heads_trainer(encoder: DualEncoder, trained: dict[str, nn.Parameter], run: Path,
                  look: Callable[[], None] | None = None) -> choice.Train:
    """What trains heads as a run does, writes nothing, and leaves the encoder as it was.

    run: named in errors only. look: called while the encoder has the kept weights.
    """
    before = {name: value.detach().clone() for name, value in (*trained.items(), _logit_scale(encoder))}

    def train_heads(settings: TrainConfig, part: TrainingData) -> Pairs:
        job = _Job(encoder, settings, run, part, trained, ALONE, SILENT, writes=False)
        job.start()
        job.train_epochs(Interruptions())
        pairs = job.pairs_of_kept()
        if look is not None:
            look()
        with torch.no_grad():
            for name, value in (*trained.items(), _logit_scale(encoder)):
                value.copy_(before[name])
        return pairs

    return train_heads


def _logit_scale(encoder: DualEncoder) -> tuple[str, nn.Parameter]:
    return "logit_scale", encoder.model.logit_scale


class _Job:
    """The state of one run. Its methods are the steps of :func:`finetune`, in the order they are called."""

    def __init__(self, encoder: DualEncoder, train: TrainConfig, run: Path, data: TrainingData,
                 trained: dict[str, nn.Parameter], processes: Processes, talk: Talk, *, writes: bool = True) -> None:
        self.encoder, self.train, self.run, self.data, self.talk = encoder, train, run, data, talk
        self.trained, self.processes = trained, processes
        self.writes = writes and processes.first
        groups = tuning.parameter_groups(encoder, self.trained, train.weight_decay, train.layer_decay,
                                         {"image": train.image_lr, "text": train.text_lr})
        # one kernel for all parameters, where the device has it
        self.optimizer = torch.optim.AdamW(groups, lr=float(train.lr or 0), fused=encoder.device.type in FUSED)
        self.scaler = torch.amp.GradScaler(encoder.device.type, enabled=encoder.precision == "fp16")
        self.at = _Progress()
        self.average: dict[str, Tensor] = {}  # of the weights, where train.ema asks for it
        self.val_rows: PairRows | None = None  # where only heads train
        self.rng_state = torch.get_rng_state()  # after the last whole step
        self.unsaved: dict[str, Tensor] | None = None  # the kept checkpoint, while only memory has it
        self.saved = time.monotonic()
        self.good_step = 0  # up to which the state on the disk goes
        self.write_row: Callable[[dict[str, Any]], None] | None = None  # to wandb, while it is open

    @property
    def total_steps(self) -> int:
        return int(self.train.epochs or 0) * self.data.batches.steps

    @contextmanager
    def open_wandb(self, config: RunConfig) -> Iterator[None]:
        """Rows of the log go to wandb too, where that is asked for."""
        if not (self.writes and self.train.wandb):
            yield
            return
        with plots.wandb_writer(self.run, asdict(config)) as self.write_row:
            yield

    def begin(self, config: RunConfig, collection: Collection) -> None:
        """Write what the folder needs from the start, and measure the model as it is: row 0."""
        self.start()
        if self.writes:
            self.run.mkdir(parents=True, exist_ok=True)
            write_text(self.run / CONFIG, settings.to_yaml(config))
            write_splits(self.run, self.data.splits, config.split_seed, collection, trained_before(config.model.name))
        self._log_epoch(0, self._validate(0), None, 0.0)
        if self.writes:
            checkpoint.save_encoder(self.encoder, self.run)
            self._write_best()
        self.save_state()

    def start(self) -> None:
        """The weights and random numbers that training begins with."""
        torch.manual_seed(self.train.seed + self.processes.rank)
        if self.train.init_logit_scale is not None:
            with torch.no_grad():
                self.encoder.model.logit_scale.fill_(math.log(self.train.init_logit_scale))
        if self.train.ema is not None:
            self.average = {name: value.detach().clone() for name, value in self.trained.items()}

    def pairs_of_kept(self) -> Pairs:
        """The validation pairs by the kept weights."""
        with torch.no_grad():
            for name, value in (self.unsaved or {}).items():
                (self.encoder.model.logit_scale if name == "logit_scale" else self.trained[name]).copy_(value)
        self.encoder.model.eval()
        rows = self.val_rows or pair_rows(self.encoder, self.data.splits.val, workers=self.train.workers)
        return rows.pairs(self.encoder)

    def train_epochs(self, interruptions: Interruptions) -> None:
        """Train, and after every epoch validate, keep the best, save."""
        with self.talk.progress("training", self.total_steps - self.at.step, "steps") as advance:
            for epoch in range(self.at.epoch, int(self.train.epochs or 0) + 1):
                if self._is_patience_over(epoch):
                    self.talk.say(f"the last {self.train.patience} epochs were no better on validation than epoch "
                                  f"{self.at.best_epoch}: training ends here")
                    return
                started = time.monotonic()
                if self.at.plan is None:
                    self.at.plan = self.data.batches.plan(epoch)
                self._train_epoch(self.at.plan, interruptions, advance)
                evaluated = self._validate_finite(epoch)
                with interruptions.deferred():
                    self._end_epoch(epoch, evaluated, time.monotonic() - started)

    def _is_patience_over(self, epoch: int) -> bool:
        """Before an epoch: whether train.patience epochs in a row were no better than the kept one."""
        patience = self.train.patience
        return patience is not None and bool(self.data.splits.val) and epoch - 1 - self.at.best_epoch >= patience

    def _train_epoch(self, plan: Plan, interruptions: Interruptions, advance: Advance) -> None:
        tuning.set_training_mode(self.encoder)
        with closing(self.data.batches.read(plan, self.at.step_in_epoch)) as batches:  # its rest, in a resumed epoch
            for batch in batches:
                if self.processes.count > 1:  # every process's own, and after --resume the same as without
                    torch.manual_seed((self.train.seed * 1_000_003 + self.at.step) * 1_009 + self.processes.rank)
                measured = self._diagnose(batch)
                value = self._backward(batch)
                if not math.isfinite(value):
                    raise TrainingStopped(f"the loss became {value} at step {self.at.step + 1}; {self._advice()}")
                with interruptions.deferred():
                    self._update()
                    self.at.step += 1
                    self.at.step_in_epoch += 1
                    self.at.losses.append(value)
                    self.at.log.extend(measured)
                    self.rng_state = torch.get_rng_state()
                advance(1)

    def _validate_finite(self, epoch: int) -> Evaluated | None:
        """Validate; weights that give no numbers, which a finite loss may lead to, are not taken for good."""
        broken = next((name for name, value in self.trained.items() if not torch.isfinite(value).all()), None)
        if broken is not None:
            raise TrainingStopped(f"{broken} was no longer finite after step {self.at.step}; {self._advice()}")
        try:
            return self._validate(epoch)
        except ModelError as error:
            raise TrainingStopped(f"after step {self.at.step} {error}; {self._advice()}") from error

    def _advice(self) -> str:
        where = f"the last good checkpoint is in {self.run}; "
        if self.at.step == self.good_step:  # the same weights and the same batch: whatever the rate, the same loss
            return where + ("try --resume --precision fp32, or train anew into another folder with a lower learning "
                            "rate")
        return where + (f"go on from step {self.good_step} with --resume and a lower --lr (it was "
                        f"{self.train.lr:g}) or --precision fp32")

    def _backward(self, batch: Batch) -> float:
        """Leave the gradient of the whole batch, of all processes, in the parameters; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        chunks = batch.split(self.train.micro_batch or max(1, len(batch)))
        loss = backward_in_chunks(chunks, self.embed, partial(self.loss_of, batch), self._scaled_backward,
                                  self.encoder.device)
        self.processes.average_gradients(self.trained.values())
        return self.processes.mean(loss).item()

    def _scaled_backward(self, loss: Tensor) -> None:
        if loss.requires_grad:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def embed(self, batch: Batch) -> tuple[Tensor, ...]:
        """Pairs → image and text embeddings [b, D]; for late interaction also patches and words [b, T, D]."""
        if batch.encoded:
            device = self.encoder.device
            return (self.encoder.from_tower("image", batch.images.to(device)),
                    self.encoder.from_tower("text", batch.tokens.to(device)))
        if self.train.late_interaction:
            return self.encoder.encode_with_tokens(batch.images, batch.tokens)
        return self.encoder.encode_image(batch.images), self.encoder.encode_text(batch.tokens)

    @torch.no_grad()
    def embed_without_gradient(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Image and text embeddings [B, D], micro-batch by micro-batch."""
        chunks = [self.embed(part)[:2] for part in batch.split(self.train.micro_batch or max(1, len(batch)))]
        image, text = (torch.cat(column) for column in zip(*chunks, strict=True))
        return image, text

    def loss_of(self, batch: Batch, image: Tensor, text: Tensor, *tokens: Tensor) -> Tensor:
        """The objective, and λ times the late interaction of the tokens where it is asked for."""
        loss = self._pair_loss(batch, image, text)
        if not tokens:
            return loss
        (patches, words), device = tokens, self.encoder.device
        mask = self.encoder.word_mask(batch.tokens.to(device))
        return loss + self.train.late_interaction * late_interaction(
            patches, words, mask, self.encoder.logit_scale(), groups=batch.groups.to(device))

    def _pair_loss(self, batch: Batch, image: Tensor, text: Tensor) -> Tensor:
        """The objective of this process's rows against the columns of all, weighted so that processes average to it."""
        processes, groups = self.processes, batch.groups.to(self.encoder.device)
        columns: dict[str, Tensor] = {}
        reference = None if batch.reference is None else batch.reference.to(self.encoder.device)
        if reference is not None:
            columns["reference"] = reference
        if processes.count == 1:
            return self._objective()(image, text, self.encoder.logit_scale(), groups=groups, **columns)
        labels = torch.arange(len(image), device=image.device) + processes.offset(len(image))
        columns |= {"all_image": processes.gather(image), "all_text": processes.gather(text), "labels": labels,
                    "all_groups": processes.gather(groups)}
        if reference is not None:
            columns["all_reference"] = processes.gather(reference)
        loss = self._objective()(image, text, self.encoder.logit_scale(), groups=groups, **columns)
        return loss * (len(image) * processes.count / len(columns["all_image"]))

    def _objective(self) -> Callable[..., Tensor]:
        """The loss with its settings as they are at this step."""
        objective = OBJECTIVES[self.train.objective]
        values = {name: getattr(self.train, name) for name in objective.settings}
        if "gamma" in values and self.train.gamma_warmup:
            values["gamma"] *= min(1.0, self.at.step / (self.train.gamma_warmup * self.total_steps))
        if "logit_bias" in objective.needs:
            values["logit_bias"] = self.encoder.model.logit_bias.reshape(())
        return partial(objective.loss, **values)

    def _diagnose(self, batch: Batch) -> list[dict[str, Any]]:
        """Every train.diagnose steps: what saturation this batch shows, with the weights as they are."""
        if not self.train.diagnose or self.at.step % self.train.diagnose:
            return []
        self.encoder.model.eval()
        precision, self.encoder.precision = self.encoder.precision, "fp32"
        image, text = self.embed(batch)[:2]
        extra = {} if batch.reference is None else {"reference": batch.reference.to(image.device)}
        measured = saturation.measure(
            self.at.step, image, text, self.encoder.logit_scale(), partial(self._objective(), **extra),
            list(self.trained.values()), batch.groups.to(image.device),
        )
        self.encoder.precision = precision
        tuning.set_training_mode(self.encoder)
        return [measured.as_json()]

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
            if "logit_scale" in self.trained:
                self.encoder.model.logit_scale.clamp_(0.0, math.log(MAX_LOGIT_SCALE))
            for name, value in self.average.items():
                value.lerp_(self.trained[name], 1 - float(self.train.ema or 0))

    def _end_epoch(self, epoch: int, evaluated: Evaluated | None, seconds: float) -> None:
        row = self._log_epoch(epoch, evaluated, float(np.mean(self.at.losses)) if self.at.losses else None, seconds)
        if self.at.kept_epoch == epoch:
            self.unsaved = {name: value.detach().cpu().clone() for name, value in self._measured().items()}
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self.save_kept()
        self.at.epoch, self.at.step_in_epoch, self.at.losses, self.at.plan = epoch + 1, 0, [], None
        self.save_state()
        self.talk.say(_describe_epoch(row) + (" (the best so far)" if self.at.best_epoch == epoch else ""))

    def _log_epoch(self, epoch: int, evaluated: Evaluated | None, loss: float | None, seconds: float) -> dict[str, Any]:
        better = evaluated is not None and evaluated.mean_recall_at_1 > self.at.best
        if self.train.checkpoint == "last" or evaluated is None or better:
            self.at.kept_epoch = epoch
        if evaluated is not None and better:
            self.at.best, self.at.best_epoch = evaluated.mean_recall_at_1, epoch
        row = {
            "epoch": epoch, "attempt": self.at.attempt, "step": self.at.step, "loss": loss,
            "lr": self.optimizer.param_groups[0]["lr"] if epoch else 0.0,
            "logit_scale": self.encoder.logit_scale().item(), "seconds": round(seconds, 2),
            "weights": "average" if self.average and epoch else "trained",
            "val": dict(evaluated.figures) if evaluated else None,
        }
        self.at.log.append(row)
        self._write_log()
        if self.writes and self.train.tensorboard:
            plots.write_tensorboard(self.run, row)
        if self.write_row is not None:
            self.write_row(row)
        return row

    def _write_log(self) -> None:
        if self.writes:
            write_text(self.run / LOG, json_lines(self.at.log))

    def _write_best(self) -> None:
        """Beside the weights, which it describes: what only memory and state.pt have is not in it."""
        write_json(self.run / BEST, {
            "checkpoint": self.train.checkpoint, "epoch": self.at.kept_epoch,
            "val": self._row(self.at.kept_epoch)["val"], "zero_shot": self._row(0)["val"],
        })

    def _row(self, epoch: int) -> dict[str, Any]:
        return next(row for row in self.at.log if row.get("epoch") == epoch)

    def _validate(self, epoch: int) -> Evaluated | None:
        records = self.data.splits.val
        if not records:
            return None
        self.encoder.model.eval()
        frozen = self.train.tune == "heads"
        with self._measured_weights():
            rows = self.val_rows or pair_rows(
                self.encoder, records, workers=self.train.workers,
                cached=frozen or epoch == 0)  # a tower that trains is another after every epoch
            self.val_rows = rows if frozen else None
            return Evaluated(epoch, self.at.step, rows.pairs(self.encoder).mean_figures())

    def _measured(self) -> dict[str, Tensor]:
        """What training changes, as it is measured and kept: the average of the weights where there is one."""
        return {**self.trained, "logit_scale": self.encoder.model.logit_scale, **self.average}

    @contextmanager
    def _measured_weights(self) -> Iterator[None]:
        """Within the block the encoder has the weights that are measured and kept."""
        trained = {name: self.trained[name].detach().clone() for name in self.average}
        with torch.no_grad():
            for name, value in self.average.items():
                self.trained[name].copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in trained.items():
                    self.trained[name].copy_(value)

    def save_kept(self) -> None:
        """Write the kept checkpoint into the run folder, where it is not there yet."""
        if self.unsaved is None or not self.writes:
            return
        checkpoint.save_weights(self.encoder, self.run, self.unsaved)
        self._write_best()
        self.unsaved, self.saved = None, time.monotonic()

    def save_state(self) -> None:
        """All that --resume continues from, as it was after the last whole step."""
        if not self.writes:
            return
        at = self.at
        weights = {**self.trained, "logit_scale": self.encoder.model.logit_scale}
        checkpoint.save_state({
            "epoch": at.epoch, "step_in_epoch": at.step_in_epoch, "step": at.step, "losses": at.losses,
            "log": json.dumps(at.log), "kept_epoch": at.kept_epoch, "best": at.best,
            "best_epoch": at.best_epoch, "plan": None if at.plan is None else at.plan.as_tensors(),
            "weights": {name: value.detach().cpu() for name, value in weights.items()}, "average": self.average,
            "kept": self.unsaved, "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict(),
            "rng": self.rng_state, "processes": self.processes.count,
        }, self.run / checkpoint.STATE)
        self.good_step = at.step

    def resume(self, config: RunConfig, collection: Collection) -> None:
        """Continue where :meth:`save_state` left off; after :meth:`go_back` with the rate and precision of config."""
        state = checkpoint.load_state(self.run / checkpoint.STATE)
        self._check_resumed(state, collection)
        self._restore(state)
        if STOPPED in self.at.log[-1]:
            self.at.log.append({"attempt": self.at.attempt, "step": self.at.step, "lr": self.train.lr,
                                "precision": self.encoder.precision})
            self._write_log()
            if self.writes:
                write_text(self.run / CONFIG, settings.to_yaml(config))
        self.talk.say(f"continuing {self.run} after step {self.at.step} of {self.total_steps}")

    def go_back(self, reason: str) -> None:
        """To the last state on the disk: the weights as they are have led to no good."""
        if not self.writes:
            return
        attempt, step = self.at.attempt, self.at.step
        self._restore(checkpoint.load_state(self.run / checkpoint.STATE))
        self.at.log.append({"attempt": attempt, "step": step, STOPPED: reason})
        self._write_log()

    def _check_resumed(self, state: Mapping[str, Any], collection: Collection) -> None:
        before = state.get("processes", self.processes.count)
        if before != self.processes.count:
            raise RunError(f"{self.run} was begun by {before} processes and cannot be continued by "
                           f"{self.processes.count}; start as many as then, or train anew into another folder")
        saved = read_split_file(self.run)
        if saved is None:
            raise RunError(f"{self.run / SPLIT} is missing or damaged: the run cannot be continued; train anew")
        if saved["collection"] != collection.fingerprint():
            raise RunError(f"{collection.name} has changed since {self.run} was begun; train anew into another folder")

    def _restore(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, value in {**self.trained, "logit_scale": self.encoder.model.logit_scale}.items():
                value.copy_(state["weights"][name])
        self.average = {name: value.to(self.encoder.device) for name, value in state["average"].items()}
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # none where an attempt without fp16 came before
            self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        self.rng_state, self.unsaved = state["rng"], state["kept"]
        self.at = _Progress(
            state["epoch"], state["step_in_epoch"], state["step"], list(state["losses"]), json.loads(state["log"]),
            state["kept_epoch"], state["best"], state.get("best_epoch", state["kept_epoch"]),
            None if state["plan"] is None else Plan.from_tensors(state["plan"]),
        )
        self.good_step = self.at.step

    def draw_curves(self) -> None:
        """Loss, learning rate, validation and saturation as pictures."""
        if self.writes:
            plots.draw_run(self.run, self.at.log)

    def summary(self, seconds: float, curve: interpolate.Curve | None, chosen: Choice | None) -> RunSummary:
        """What there is to tell at the end."""
        def evaluated(epoch: int) -> Evaluated | None:
            row = self._row(epoch)
            return Evaluated(epoch, row["step"], row["val"]) if row["val"] else None

        extra = tuple(getattr(self.data.batches, "skipped", ()))
        measured = [row["diagnose"]["saturated"] for row in self.at.log if "diagnose" in row]
        return RunSummary(
            self.run, int(self.train.epochs or 0), self.at.step, self.at.kept_epoch, evaluated(0),
            evaluated(self.at.kept_epoch), (*self.data.skipped, *dict.fromkeys(extra)), seconds, curve,
            sum(measured) / len(measured) if measured else None, chosen,
        )


def learning_rate(step: int, total: int, peak: float, warmup: float) -> float:
    """Linear from 0 to peak over the warm-up's share of all steps, then a cosine to 0; step counts from 0."""
    warm = min(math.ceil(warmup * total), total - 1)
    if step < warm:
        return peak * (step + 1) / (warm + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def _check_folder(run: Path, resume: bool) -> None:
    """Before any work: a run must be there to resume, and must not be there to begin."""
    if resume:
        if not (run / checkpoint.STATE).exists():
            raise RunError(f"{run} holds no run: there is nothing to resume; train without --resume")
        return
    check_writable(run)
    if (run / checkpoint.STATE).exists():
        raise RunError(f"{run} holds a run already; continue it with --resume, or choose another folder with -o")


def _check_shares(batches: Batches, processes: Processes) -> None:
    """Several processes: each must have a pair of every batch."""
    if processes.count > 1:
        smallest = int(min(batches.plan(1).sizes))
        if smallest < processes.count:
            raise ConfigError(f"the smallest batch has {smallest} pairs, which {processes.count} processes cannot "
                              "share; start fewer, or take a larger --batch-size")


def _describe_epoch(row: Mapping[str, Any]) -> str:
    loss = "no batch" if row["loss"] is None else f"loss {row['loss']:.4f}"
    text = f"epoch {row['epoch']}: {loss}, logit_scale {row['logit_scale']:.1f}"
    if row["val"]:
        t2i, i2t = row["val"]["text_to_image"], row["val"]["image_to_text"]
        text += f", val R@1 text→image {t2i['R@1']:.1f}, image→text {i2t['R@1']:.1f}"
    return text
