"""Which objective suits a collection: ``--objective auto``, by evidence before training. Never reads test.

Where only heads train, each candidate is trained and validation decides; of larger models, batches are looked at as
they are, with the model before training. What was seen is kept in the run folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
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
ENOUGH = 400  # validation pictures that tell objectives apart; with fewer, train and val are split into FOLDS parts,
FOLDS = 5  # each of which validates what the others train,
ROUNDS = 2  # and once more, where that tells no candidate from the others
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

    These are split up to ROUNDS times, until one candidate is told from all others. Of those that are not told
    from the best, the first of CANDIDATES is kept. trained: what trains heads on given data with given settings.
    """
    seen = _Seen({candidate: [] for candidate in CANDIDATES}, [])
    rounds = 1 if len(data.splits.val) >= ENOUGH else ROUNDS
    splits = 1 if rounds == 1 else FOLDS
    with talk.progress("choosing the objective", rounds * splits * len(CANDIDATES), "trials") as advance:
        for number in range(rounds):
            for part in _parts(config, train, data, encoder, number):
                for candidate in CANDIDATES:
                    pairs = trained(with_objective(train, *candidate), part)
                    seen.scores[candidate].append(_reciprocal_ranks(pairs))
                    advance(1)
                seen.pictures.append(_pictures(pairs))
            if not seen.pictures:
                return Choice("info_nce", 0.0, "there are too few pictures to compare objectives on")
            if len(_not_told(seen)) == 1:
                break
    trials = tuple(_trial(candidate, seen) for candidate in CANDIDATES)
    close = _not_told(seen)
    parts = len(seen.pictures)
    where = f"{parts} splits of train and val" if parts > 1 else f"{len(data.splits.val)} validation pictures"
    reason = f"MRR on {where}: {', '.join(str(trial) for trial in trials)}"
    if len(close) > 1:
        names = " and ".join(spelled(*one) for one in close)
        reason += f"; the intervals tell {names} not apart, and the first is kept"
    return Choice(*close[0], reason, trials)


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


@dataclass(frozen=True)
class _Seen:
    """Of every split that was tried: reciprocal ranks of its queries by candidate, and what picture each is about."""

    scores: Mapping[tuple[str, float], list[Floats]]
    pictures: list[list[str]]

    def of(self, candidate: tuple[str, float]) -> Floats:
        """All queries of all splits."""
        return np.concatenate(self.scores[candidate])

    def clusters(self) -> Ints:
        """A number for the picture of each query; a picture is the same one in each round."""
        _, numbers = np.unique([name for part in self.pictures for name in part], return_inverse=True)
        return numbers.astype(np.int64)


def _not_told(seen: _Seen) -> list[tuple[str, float]]:
    """The best candidate, and those whose paired 95 % interval to it holds 0; in the order of CANDIDATES."""
    best = max(CANDIDATES, key=lambda candidate: seen.of(candidate).mean())
    clusters = seen.clusters()
    return [candidate for candidate in CANDIDATES
            if candidate == best or paired(seen.of(best), seen.of(candidate), clusters).low <= 0]


def _parts(config: RunConfig, train: TrainConfig, data: TrainingData, encoder: DualEncoder, number: int
           ) -> Iterator[TrainingData]:
    """What one round trains on and validates with; nothing where there are too few pictures."""
    splits = data.splits
    if len(splits.val) >= ENOUGH:
        yield fold(splits.train, splits.val, config, train, encoder)  # data's own batches may be a process's share
        return
    parts = [part for part in folds((*splits.train, *splits.val), FOLDS, config.split_seed + number) if part]
    for part in parts if len(parts) > 1 else ():
        yield fold([record for other in parts if other is not part for record in other], part, config, train, encoder)


def _reciprocal_ranks(pairs: Pairs) -> Floats:
    """Of the queries of both directions, each direction weighing as much as the other."""
    text, image = (METRICS["MRR"](ranks) for ranks in (pairs.text_to_image(1), pairs.image_to_text(1)))
    both: Floats = np.concatenate([text / len(text), image / len(image)]) * (len(text) + len(image)) / 2
    return both


def _pictures(pairs: Pairs) -> list[str]:
    """The picture that each of those queries is about, by the least image_id of those that are the same picture."""
    least: dict[int, str] = {}
    for number, record in zip(pairs.picture.tolist(), pairs.records, strict=True):
        least[number] = min(least.get(number, record.image_id), record.image_id)
    return [least[number] for number in (*pairs.picture[pairs.owner].tolist(), *pairs.picture.tolist())]


def _trial(candidate: tuple[str, float], seen: _Seen) -> Trial:
    own = seen.of(candidate)
    means = [float(values.mean()) for values in seen.scores[candidate]]
    against_first = paired(own, seen.of(CANDIDATES[0]), seen.clusters())
    spread = float(np.std(means)) if len(means) > 1 else float(own.std() / len(own) ** 0.5)
    return Trial(*candidate, float(own.mean()), spread, against_first.value, against_first.low, against_first.high)


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
