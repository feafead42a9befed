"""Which objective suits a collection: ``--objective auto``, by evidence before training. Never reads test.

Where only heads train, each candidate is trained and validation decides; of larger models, batches are looked at as
they are, with the model before training. What was seen is kept in the run folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from densecap_search.collection.splits import folds
from densecap_search.config import RunConfig, TrainConfig
from densecap_search.evaluation.compare import paired
from densecap_search.evaluation.metrics import METRICS, Floats, Ints
from densecap_search.evaluation.pairs import Pairs
from densecap_search.inspection.geometry import SOLVED
from densecap_search.model.encoder import DualEncoder
from densecap_search.talk import Talk
from densecap_search.training.batches import Batch
from densecap_search.training.data import TrainingData, fold
from densecap_search.training.objectives import info_nce

CHOICE = "choice.json"
CANDIDATES = (("info_nce", 0.0), ("hn_clip", 0.25), ("hn_clip", 0.5))  # objective, γ
ENOUGH = 400  # validation pictures that tell objectives apart; with fewer, train and val are split again FOLDS times
FOLDS = 5
LONG = 3000  # steps of one run of heads, beyond which candidates are not all trained
SAMPLED = 512  # pairs of a long run that are looked at, in whole batches
MOSTLY = 0.5  # of the batches solved: the margin of the paper; see docs/results.md
SOME = 0.1  # of the batches solved, or of the captions with a near-twin: half of it
TWIN, ABOVE = 0.8, 0.5  # cosine of two captions of a batch that are near-twins, and how far above the batch's mean


@dataclass(frozen=True)
class Trial:
    """A candidate on validation: mean reciprocal rank, mean of both directions, and its deviation over splits.

    difference, low, high: to the first candidate on the same queries, with the 95 % interval by paired bootstrap.
    """

    objective: str
    gamma: float
    mrr: float
    spread: float
    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{spelled(self.objective, self.gamma)} {self.mrr:.3f} ± {self.spread:.3f}"


@dataclass(frozen=True)
class Sample:
    """Batches of a long run before it begins: how many, of how many pairs; shares from 0 to 1.

    solved: of the batches, on which InfoNCE is below SOLVED with real pictures and the model's logit_scale; twins: of
    the captions, that have a companion in their batch with at least TWIN, and ABOVE the mean of the batch.
    """

    batches: int
    pairs: int
    solved: float
    twins: float
    similarity: float


@dataclass(frozen=True)
class Choice:
    """What was chosen, why in a sentence, and the figures."""

    objective: str
    gamma: float
    reason: str
    trials: tuple[Trial, ...] = ()
    sample: Sample | None = None

    def as_json(self) -> dict[str, Any]:
        """The file CHOICE."""
        return asdict(self)


Train = Callable[[TrainConfig, TrainingData], Pairs]  # trains and returns the validation pairs; the encoder stays


def spelled(objective: str, gamma: float) -> str:
    """As people write it."""
    return f"{objective} γ {gamma:g}" if objective == "hn_clip" else objective


def by_validation(config: RunConfig, train: TrainConfig, data: TrainingData, encoder: DualEncoder, trained: Train,
                  talk: Talk) -> Choice:
    """Train every candidate on the training split, or on splits of train and val where val is small.

    trained: what trains heads on given data with given settings.
    """
    parts = _parts(config, train, data, encoder)
    if not parts:
        return Choice("info_nce", 0.0, "there are too few pictures to compare objectives on")
    scores: dict[tuple[str, float], list[Floats]] = {candidate: [] for candidate in CANDIDATES}
    clusters: list[Ints] = []
    with talk.progress("choosing the objective", len(parts) * len(CANDIDATES), "trials") as advance:
        for number, part in enumerate(parts):
            for candidate in CANDIDATES:
                pairs = trained(with_objective(train, *candidate), part)
                scores[candidate].append(_reciprocal_ranks(pairs))
                advance(1)
            clusters.append(_pictures(pairs, number))
    trials = tuple(_trial(candidate, scores, np.concatenate(clusters)) for candidate in CANDIDATES)
    best = max(trials, key=lambda trial: trial.mrr)
    where = f"{len(parts)} splits of train and val" if len(parts) > 1 else f"{len(data.splits.val)} validation pictures"
    reason = f"MRR on {where}: {', '.join(str(trial) for trial in trials)}"
    return Choice(best.objective, best.gamma, reason, trials)


def by_sample(train: TrainConfig, data: TrainingData, embed: Callable[[Batch], tuple[torch.Tensor, torch.Tensor]],
              logit_scale: float) -> Choice:
    """Look at the first batches of the run. embed: a batch → image and text embeddings, without gradient."""
    size = max(1, int(train.batch_size or 1))
    batches = data.batches.read(data.batches.plan(1))
    seen = [_look(*embed(batch), batch, logit_scale)
            for batch in itertools.islice(batches, max(1, min(8, SAMPLED // size)))]
    batches.close()
    if not seen:
        return Choice("info_nce", 0.0, "there is no batch to look at")
    losses, twins, means, counts = (np.array(column) for column in zip(*seen, strict=True))
    sample = Sample(len(seen), int(counts.sum()), float((losses < SOLVED).mean()),
                    float((twins * counts).sum() / counts.sum()), float(means.mean()))
    return Choice(*rule(sample), sample=sample)


def rule(sample: Sample) -> tuple[str, float, str]:
    """Objective, γ and the reason, from what batches are like; the thresholds follow docs/results.md."""
    measured = (f"of {sample.batches} batches InfoNCE is solved on {100 * sample.solved:.0f} %, and "
                f"{100 * sample.twins:.0f} % of the captions have a near-twin in theirs")
    if sample.solved >= MOSTLY:
        return "hn_clip", 0.5, f"{measured}: a margin keeps them training"
    if sample.solved >= SOME or sample.twins >= SOME:
        return "hn_clip", 0.25, f"{measured}: a small margin tells the twins apart"
    return "info_nce", 0.0, f"{measured}: there is nothing for a margin to mend"


def with_objective(train: TrainConfig, objective: str, gamma: float) -> TrainConfig:
    """The settings with another objective; γ stays what it is where the objective has none."""
    return replace(train, objective=objective, gamma=gamma if objective == "hn_clip" else train.gamma)


def _parts(config: RunConfig, train: TrainConfig, data: TrainingData, encoder: DualEncoder) -> Sequence[TrainingData]:
    splits = data.splits
    if len(splits.val) >= ENOUGH:
        return [fold(splits.train, splits.val, config, train, encoder)]  # data's own batches may be a process's share
    parts = [part for part in folds((*splits.train, *splits.val), FOLDS, config.split_seed) if part]
    if len(parts) < 2:
        return []
    return [fold([record for other in parts if other is not part for record in other], part, config, train, encoder)
            for part in parts]


def _reciprocal_ranks(pairs: Pairs) -> Floats:
    """Of the queries of both directions, each direction weighing as much as the other."""
    text, image = (METRICS["MRR"](ranks) for ranks in (pairs.text_to_image(1), pairs.image_to_text(1)))
    both: Floats = np.concatenate([text / len(text), image / len(image)]) * (len(text) + len(image)) / 2
    return both


def _pictures(pairs: Pairs, number: int) -> Ints:
    """The picture that each of those queries is about; numbers of one split are not those of another."""
    own: Ints = np.concatenate([pairs.picture[pairs.owner], pairs.picture]).astype(np.int64) + number * 10**9
    return own


def _trial(candidate: tuple[str, float], scores: Mapping[tuple[str, float], Sequence[Floats]], clusters: Ints) -> Trial:
    own, first = (np.concatenate(scores[name]) for name in (candidate, CANDIDATES[0]))
    means = [float(values.mean()) for values in scores[candidate]]
    found = paired(own, first, clusters)
    spread = float(np.std(means)) if len(means) > 1 else float(own.std() / len(own) ** 0.5)
    return Trial(*candidate, float(own.mean()), spread, found.value, found.low, found.high)


def _look(image: torch.Tensor, text: torch.Tensor, batch: Batch, scale: float) -> tuple[float, float, float, int]:
    """InfoNCE of a batch, the share of its captions with a near-twin, their mean similarity, and its pairs."""
    image, text, groups = image.float(), text.float(), batch.groups.to(image.device)
    loss = info_nce(image, text, torch.tensor(scale, device=image.device), groups=groups).item()
    other = groups[:, None] != groups[None, :]
    if not other.any():
        return loss, 0.0, 0.0, len(batch)
    similarity = text @ text.T
    mean = similarity[other].mean()
    hardest = similarity.masked_fill(~other, -1.0).max(dim=1).values
    twins = (hardest >= TWIN) & (hardest >= mean + ABOVE)
    return loss, twins.float().mean().item(), mean.item(), len(batch)
