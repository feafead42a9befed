"""Settings of a run: a YAML file and ``--set key=value`` become frozen dataclasses."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from densecap_search.errors import ConfigError
from densecap_search.files import read_bytes

OBJECTIVE_NAMES = ("auto", "info_nce", "hn_clip", "constant_margin", "label_smoothing", "siglip")
STORE_NAMES = ("milvus:",)  # how an index in a store is named in place of its folder
INDEX_NAMES = ("flat", "hnsw", "ivf", "ivfpq", "sq8", "fp16")
MARGIN_KEYS = frozenset({"train.gamma", "train.gamma_warmup", "train.similarity", "train.guard"})  # mean hn_clip
SIMILARITIES = ("live", "frozen", "centred")
BATCHES = ("random", "neighbours")
TUNE_MODES = ("full", "heads", "last", "lora", "dora")
TUNE_FORMS = ("full", "heads", "last:N", "lora", "dora")  # as people write them
RESIZES = ("crop", "pad", "squash")  # how a picture is brought to the tower's size
LONG_TEXT = ("cut", "mean", "best")  # what becomes of a caption beyond the text window
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DEVICES = ("auto", "cpu", "cuda", "mps")
PUBLISHED_AS = ("open_clip", "huggingface", "sentence-transformers", "onnx", "immich", "peft")
INDEX_PUBLISHED_AS = ("parquet", "npy")
DTYPES = ("fp32", "fp16", "int8")  # of published weights
_SETTINGS_BYTES = 1 << 24
STARTER = "starter"  # the name of the embedded model


@dataclass(frozen=True)
class Reading:
    """How a collection is to be read, where its content does not tell: the same words as the options."""

    image_column: str | None = None
    caption_column: tuple[str, ...] = ()  # several: the captions of all of them
    format: str | None = None  # a name of collection.readers.READERS; None: told by the content
    hidden: bool = False  # also pictures that a dot or a system folder hides
    images: tuple[str, ...] = ()  # folders in which the pictures of a table lie
    exclude: tuple[str, ...] = ()  # patterns as in a .gitignore: files and folders that are left out
    skip_lines: int | None = None  # above a table's header; None: what is plainly no header is passed over
    corrections: str | None = None  # a file of captions that were corrected on the page, put in place of what is read


BY_CONTENT = Reading()


@dataclass(frozen=True)
class DataConfig:
    """How to read the collection, and how much to set aside where the table names no split."""

    image_column: str | None = None
    caption_column: tuple[str, ...] = ()
    format: str | None = None
    hidden: bool = False
    images: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    skip_lines: int | None = None
    corrections: str | None = None
    use_split: bool = True  # false: the table's split column is ignored, and splits are made
    val_share: float = 0.1
    test_share: float = 0.1
    split_seed: int | None = None  # of the splits that are made; None: train.seed
    fraction: float = 1.0  # share of the training pictures that is used, drawn by train.seed
    max_pixels: int | None = None  # larger pictures are left out; None: 178,956,970, which are 0.5 GiB of memory
    add: tuple[str, ...] = ()  # files of answers to searches, whose questions are trained on too
    retain: str | None = None  # another collection, whose retrieval `train.interpolate: auto` must keep

    @property
    def reading(self) -> Reading:
        """What of this concerns the reading."""
        return Reading(**{item.name: getattr(self, item.name) for item in dataclasses.fields(Reading)})


@dataclass(frozen=True)
class ModelConfig:
    """Which encoder: the same words in settings, in manifests and on the command line.

    name: ``starter``, a run folder, an open_clip name (also ``hf-hub:…`` and ``local-dir:…``), a checkpoint file, or a
    Hugging Face folder. pretrained: for open_clip names a tag, a checkpoint file, or ``random`` (weights from seed 0).
    arch: the open_clip name of a checkpoint file whose keys do not tell. prefix: what stands before the names of the
    model's tensors in such a file, where it is not found by itself, as with two models in one file.
    """

    name: str = STARTER
    pretrained: str | None = None
    arch: str | None = None
    context_length: int | None = None  # tokens; None: 248 for causal CLIP towers, others keep their own
    resize: str | None = None  # one of RESIZES; None: as the model has it, which for CLIP is crop
    long_text: str | None = None  # one of LONG_TEXT; None: as the model has it, which is cut
    prefix: str | None = None  # of tensor names in a checkpoint file, such as student.

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str) -> ModelConfig:
        """From a manifest or a settings file; ``where`` names it in errors. Unknown keys and wrong types raise."""
        made: ModelConfig = _build(cls, values, f"{where}: model.")
        return made

    def settings(self) -> dict[str, Any]:
        """What was said, by key: what a manifest keeps."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}

    def resolved(self) -> ModelConfig:
        """Names of files and folders as absolute paths, the others without blanks around them.

        ``starter`` is the embedded one, whatever lies in the working folder; a folder of that name is ``./starter``.
        """
        name = self.name.strip()
        return dataclasses.replace(
            self, name=name if name == STARTER else _absolute_if_there(name),
            pretrained=None if self.pretrained is None else _absolute_if_there(self.pretrained.strip()))


@dataclass(frozen=True)
class TrainConfig:
    """How to train. None means: the value of TUNE_DEFAULTS for this tune mode."""

    objective: str = "auto"  # or a key of OBJECTIVES; auto: chosen by evidence before training, and then written here
    gamma: float = 0.5  # cosine units per unit of caption similarity
    gamma_warmup: float = 0.0  # share of all steps in which gamma rises from 0
    similarity: str = "live"  # hn_clip's Ḡ: live, frozen (the text tower before training) or centred
    guard: float | None = None  # captions at least this similar (cosine) are no negatives
    margin: float | None = None  # of constant_margin, in cosine; None: gamma times the mean similarity
    smoothing: float = 0.1  # of label_smoothing
    late_interaction: float = 0.0  # λ of the token term that is added to the objective; 0: none
    tune: str | None = None  # one of TUNE_FORMS; None: heads for the starter, full for everything else
    rank: int = 16  # of the adapters of lora and dora
    lora_alpha: float | None = None  # adapters count alpha / rank; None: rank, which is 1
    lora_targets: str | None = None  # a regular expression that names of adapted layers hold; None: all
    batch_size: int | None = None  # pairs that are each other's negatives
    micro_batch: int | None = None  # pairs in memory at once; adds no negatives, takes none away; None: all
    sub_captions: float = 0.0  # share of the captions in whose place a random run of their sentences is read
    batches: str = "random"  # or neighbours: nearest captions come into the same batch
    epochs: int | None = None
    lr: float | None = None
    image_lr: float = 1.0  # factor on lr for the image tower and its head; 0 leaves both as they are
    text_lr: float = 1.0  # the same for the text tower
    layer_decay: float = 1.0  # factor on the learning rate from a block to the one below it; heads have the full rate
    weight_decay: float = 0.05
    warmup: float = 0.1  # share of all steps
    max_grad_norm: float = 1.0
    logit_scale: str = "learned"  # or "frozen"
    init_logit_scale: float | None = None  # s to start from, 1 to 100; None: the model's own
    ema: float | None = None  # decay a step of an average of the weights, which is then what is measured and kept
    interpolate: str | None = None  # α of α·tuned + (1 − α)·original, or auto: chosen on val (and data.retain)
    checkpoint: str = "best"  # by validation, or "last"
    patience: int | None = None  # epochs without a better one on validation, after which training ends; None: never
    diagnose: int = 0  # steps between two measurements of saturation; 0: none
    checkpointing: bool = False  # recompute activations in the backward pass: less memory, a third more time
    compile: bool = False  # torch.compile for both towers
    tensorboard: bool = False  # also write events for TensorBoard (package tensorboard)
    wandb: bool = False  # also write for Weights & Biases (package wandb), offline unless WANDB_MODE is set
    seed: int = 0
    precision: str = "auto"
    device: str = "auto"
    workers: int | None = None  # threads that decode pictures; None: one a core, at most 8


@dataclass(frozen=True)
class RunConfig:
    """All settings of one fine-tuning run, in the sections of the YAML file."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def split_seed(self) -> int:
        """Of the splits that are made."""
        return self.train.seed if self.data.split_seed is None else self.data.split_seed


TUNE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "heads": {"batch_size": 128, "epochs": 30, "lr": 5e-4},
    "full": {"batch_size": 32, "epochs": 10, "lr": 1e-5},
    "last": {"batch_size": 32, "epochs": 10, "lr": 2e-5},
    "lora": {"batch_size": 32, "epochs": 10, "lr": 2e-4},
    "dora": {"batch_size": 32, "epochs": 10, "lr": 2e-4},
}


def _absolute_if_there(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def load_config(file: Path | None = None, overrides: Sequence[tuple[str, Any]] = ()) -> RunConfig:
    """Read a YAML file (or none) and apply overrides, pairs of dotted key and value, in their order."""
    tree: dict[str, Any] = _read_sections(file) if file else {}
    if isinstance(tree.get("model"), str):
        tree["model"] = {"name": tree["model"]}  # `model: starter` is what people write first
    config = _build(RunConfig, tree, "")
    for key, value in overrides:
        config = _replace(config, key.split("."), value, key)
    named = {f"train.{key}" for key in (tree.get("train") or ())} | {key for key, _ in overrides}
    if "train.objective" not in named and named & MARGIN_KEYS:
        config = _replace(config, ["train", "objective"], "hn_clip", "train.objective")
    return check(config)


def parse_setting(text: str) -> tuple[str, Any]:
    """``train.lr=1e-4`` → ``("train.lr", 1e-4)``; the value is read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes key=value, not {text!r}; for example --set train.lr=1e-4")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {key.strip()}: {value!r} is not a YAML value") from error


def to_yaml(config: RunConfig) -> str:
    """The settings as a YAML file that :func:`load_config` reads back to an equal object."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def parse_tune(text: str) -> tuple[str, int]:
    """``last:2`` → ``("last", 2)``, ``lora`` → ``("lora", 0)``: a key of TUNE_MODES and a number of blocks."""
    mode, colon, number = text.partition(":")
    if mode == "last" and re.fullmatch("[0-9]+", number) and int(number):
        return mode, int(number)
    if mode == "last":
        raise ConfigError(f"train.tune: last takes a number of blocks, 1 or more, as in last:2, not {text!r}")
    if colon or mode not in TUNE_MODES:
        raise ConfigError(f"train.tune must be one of {', '.join(TUNE_FORMS)}, not {text!r}")
    return mode, 0


def with_tune_defaults(train: TrainConfig, default_tune: str) -> TrainConfig:
    """Fill what was left open with the values that suit the tune mode."""
    tune = train.tune or default_tune
    missing = {key: value for key, value in TUNE_DEFAULTS[parse_tune(tune)[0]].items() if getattr(train, key) is None}
    return dataclasses.replace(train, tune=tune, **missing)


def check(config: RunConfig) -> RunConfig:
    """Refuse values that cannot be, by name."""
    train, data = config.train, config.data
    _one_of("train.objective", train.objective, OBJECTIVE_NAMES)
    _one_of("train.precision", train.precision, PRECISIONS)
    _one_of("train.device", train.device, DEVICES)
    _one_of("train.logit_scale", train.logit_scale, ("learned", "frozen"))
    _one_of("train.checkpoint", train.checkpoint, ("best", "last"))
    _one_of("train.similarity", train.similarity, SIMILARITIES)
    _one_of("train.batches", train.batches, BATCHES)
    _within("train.gamma", train.gamma, 0, 10)
    _within("train.gamma_warmup", train.gamma_warmup, 0, 1)
    _within("train.guard", train.guard, -1, 1)
    _within("train.margin", train.margin, 0, 2)
    _within("train.smoothing", train.smoothing, 0, 1)
    _within("train.late_interaction", train.late_interaction, 0, 100)
    _within("train.ema", train.ema, 0, 1)
    _within("train.diagnose", train.diagnose, 0, None)
    if train.tune is not None:
        parse_tune(train.tune)
    _within("train.rank", train.rank, 1, None)
    _within("train.sub_captions", train.sub_captions, 0, 1)
    _within("train.lora_alpha", train.lora_alpha, 0, None)
    _within("train.image_lr", train.image_lr, 0, 1000)
    _within("train.text_lr", train.text_lr, 0, 1000)
    _within("train.patience", train.patience, 1, None)
    if train.lora_targets is not None:
        try:
            re.compile(train.lora_targets)
        except re.error as error:
            raise ConfigError(f"train.lora_targets {train.lora_targets!r} is no regular expression: {error}") from error
    _within("train.layer_decay", train.layer_decay, 0, 1)
    _within("train.batch_size", train.batch_size, 1, None)
    _within("train.micro_batch", train.micro_batch, 1, None)
    if train.interpolate is not None and train.interpolate != "auto":
        _within("train.interpolate", _coerce("train.interpolate", train.interpolate, float), 0, 1)
    _within("train.epochs", train.epochs, 1, None)
    _within("train.lr", train.lr, 0, None)
    _within("train.weight_decay", train.weight_decay, 0, None)
    _within("train.warmup", train.warmup, 0, 1)
    _within("train.max_grad_norm", train.max_grad_norm, 0, None)
    _within("train.init_logit_scale", train.init_logit_scale, 1, 100)
    _within("train.workers", train.workers, 0, None)
    _within("train.seed", train.seed, 0, 2**31 - 1)
    _within("data.val_share", data.val_share, 0, 0.9)
    _within("data.test_share", data.test_share, 0, 0.9)
    _within("data.split_seed", data.split_seed, 0, 2**31 - 1)
    _within("data.fraction", data.fraction, 0, 1)
    _within("data.val_share and data.test_share together", data.val_share + data.test_share, 0, 0.9)
    _within("data.max_pixels", data.max_pixels, 1, None)
    _within("data.skip_lines", data.skip_lines, 0, None)
    _within("model.context_length", config.model.context_length, 3, None)
    for key, value, allowed in (("resize", config.model.resize, RESIZES),
                                ("long_text", config.model.long_text, LONG_TEXT)):
        if value is not None:
            _one_of(f"model.{key}", value, allowed)
    return config


def read_yaml(file: Path, what: str) -> Any:
    """What a YAML file holds. what: the kind of file, for the message if it cannot be read."""
    try:
        return yaml.safe_load(read_bytes(file, _SETTINGS_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {file}: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{file} is nested too deeply for a settings file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not a YAML file: {' '.join(str(error).split())}") from error


def _read_sections(file: Path) -> dict[str, Any]:
    tree = read_yaml(file, "settings file")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} must hold sections ({', '.join(_fields(RunConfig))}), not a {type(tree).__name__}")
    return tree


def _fields(kind: type) -> dict[str, dataclasses.Field[Any]]:
    return {item.name: item for item in dataclasses.fields(kind)}


def _build(kind: type, tree: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a mapping, every value checked against its annotation."""
    known, hints = _fields(kind), typing.get_type_hints(kind)
    values = {}
    for key, value in tree.items():
        name = f"{where}{key}"
        if key not in known:
            raise ConfigError(f"unknown key {name}; known keys here: {', '.join(sorted(known))}")
        if dataclasses.is_dataclass(hints[key]):
            if value is None:
                continue  # a section without keys
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name} must be a section with keys, not {value!r}")
            values[key] = _build(typing.cast(type, hints[key]), value, f"{name}.")
        else:
            values[key] = _coerce(name, value, hints[key])
    return kind(**values)


def _replace(config: Any, path: Sequence[str], value: Any, name: str) -> Any:
    key, known = path[0], _fields(type(config))
    if key not in known:
        raise ConfigError(f"unknown key {name}; known keys here: {', '.join(sorted(known))}")
    current = getattr(config, key)
    if len(path) > 1:
        if not dataclasses.is_dataclass(current):
            raise ConfigError(f"unknown key {name}; {key} has no keys below it")
        return dataclasses.replace(config, **{key: _replace(current, path[1:], value, name)})
    if dataclasses.is_dataclass(current):
        raise ConfigError(f"{name} is a section; set one of its keys: {', '.join(sorted(_fields(type(current))))}")
    return dataclasses.replace(config, **{key: _coerce(name, value, typing.get_type_hints(type(config))[key])})


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """The value as its annotation wants it; YAML reads 1e-4 as text, and people quote numbers."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and types.NoneType in kinds:
        return None
    if typing.get_origin(hint) is tuple:
        items = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
        return tuple(_coerce(name, item, str) for item in items)
    kind = next(item for item in kinds if item is not types.NoneType)
    wrong = ConfigError(f"{name} must be {_KIND_WORDS[kind]}, not {value!r}")
    if kind is bool and isinstance(value, bool):
        return value
    if kind is bool or isinstance(value, bool) or value is None:
        raise wrong
    if kind is int and isinstance(value, float) and not math.isfinite(value):
        raise wrong
    if isinstance(value, list | dict | set | tuple):  # text can be made of anything
        raise wrong
    try:
        converted = kind(value.strip() if isinstance(value, str) else value)
    except (TypeError, ValueError) as error:
        raise wrong from error
    if kind is int and isinstance(value, float) and value != converted:
        raise wrong
    return converted


_KIND_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(str(a) for a in allowed if a)}, not {value!r}")


def _within(name: str, value: float | None, low: float, high: float | None) -> None:
    if value is None or (low <= value <= (sys.float_info.max if high is None else high)):
        return
    allowed = f"{low} or more" if high is None else f"from {low} to {high}"
    raise ConfigError(f"{name} must be {allowed}, not {value}")
