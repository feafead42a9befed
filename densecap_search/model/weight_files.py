"""Files of weights → tensors by name. Nothing in a file is executed."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from densecap_search.errors import ModelError
from densecap_search.files import read_bytes
from densecap_search.model.layouts import State, strip_common_prefix, strip_prefixes

JSON_BYTES = 1 << 28  # of a configuration; the index of a model in a thousand shards has 10 MB
FOLDER_FILES = ("model.safetensors", "model.safetensors.index.json",
                "pytorch_model.bin", "pytorch_model.bin.index.json")
# Where training programs put the weights in a checkpoint.
_NESTED = ("state_dict", "model_state_dict", "state_dict_ema", "model", "module", "net", "weights")


def _numpy_scalar() -> Any:
    """What a pickled number of numpy names; it moved between numpy 1 and 2."""
    return np.float64(0).__reduce__()[0]


# What training programs put beside the weights: settings, and numbers of numpy. Making them runs nothing.
_HARMLESS: list[Any] = [
    Namespace, np.dtype, *{type(np.dtype(kind)) for kind in ("?", "i4", "i8", "f2", "f4", "f8")},
    (_numpy_scalar(), "numpy.core.multiarray.scalar"), (_numpy_scalar(), "numpy._core.multiarray.scalar"),
]


def read_state(path: Path, prefix: str | None = None) -> State:
    """The tensors of a model's file, by name, in float32, without what wrappers put before the names.

    prefix: of the names that are wanted, where a file holds more than one model.
    """
    tensors = read_tensors(path)
    if prefix is not None:
        prefix = prefix.rstrip(".") + "."
        begins = ", ".join(sorted({name.split(".")[0] for name in tensors})[:6])
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if not tensors:
            raise ModelError(f"{path} holds no tensor whose name begins with {prefix!r}; they begin with {begins}")
    try:
        return strip_common_prefix(strip_prefixes(tensors))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def read_tensors(path: Path) -> State:
    """The tensors of a .safetensors, .pt, .pth or .bin file, also of a TorchScript archive, by name, in float32."""
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        elif _is_torchscript(path):
            content = _read_torchscript(path)
        else:
            with torch.serialization.safe_globals(_HARMLESS):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}") from error
    except Exception as error:  # torch raises many kinds; each means that the file holds more than tensors, or less
        raise ModelError(f"{path} cannot be read as plain tensors ({type(error).__name__}); "
                         "save its state_dict as .safetensors and name that file") from error
    for key in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)} \
        if isinstance(content, Mapping) else {}
    if not tensors:
        raise ModelError(f"{path} holds no named tensors")
    return {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}


def read_folder(folder: Path) -> State:
    """The tensors of a Hugging Face folder, whole or in shards."""
    file = next((folder / name for name in FOLDER_FILES if (folder / name).is_file()), None)
    if file is None:
        raise ModelError(f"{folder} has a config.json but no weights; it needs one of {', '.join(FOLDER_FILES)}")
    if file.suffix != ".json":
        return read_state(file)
    shards = sorted(set(read_json(file).get("weight_map", {}).values()))
    missing = [name for name in shards if Path(name).name != name or not (folder / name).is_file()]
    if missing or not shards:
        raise ModelError(f"{file} names {', '.join(missing) or 'no files'}, which {folder} does not hold; "
                         "bring the whole folder")
    state: State = {}
    for name in shards:
        state.update(read_state(folder / name))
    return state


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else is an error."""
    try:
        value = json.loads(read_bytes(path, JSON_BYTES))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_torchscript(path: Path) -> State:
    """The tensors of a TorchScript archive, as OpenAI distributes CLIP; its program is neither compiled nor run.

    torch.jit.load would run the archive's own ``__setstate__``, in a language that can read and write files.
    """
    with zipfile.ZipFile(path) as archive:
        tree = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        module = _ModuleReader(archive, tree).load()
        return dict(_named_tensors(module, ""))


class _ModuleReader(pickle.Unpickler):
    """Reads the tree of modules in an archive: classes become empty records, and no other name is looked up."""

    def __init__(self, archive: zipfile.ZipFile, tree: str) -> None:
        super().__init__(io.BytesIO(archive.read(tree)))
        self._archive, self._folder = archive, tree.removesuffix("data.pkl")
        self._record = type("Record", (), {})
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "__torch__":
            return self._record
        known = _KNOWN_NAMES.get(f"{module}.{name}")
        if known is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a module's weights")
        return known

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, _ = pid
        if key not in self._storages:
            data = bytearray(self._archive.read(f"{self._folder}data/{key}"))
            self._storages[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self._storages[key]


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)


def _the_value(value: Any, *_: Any) -> Any:
    return value


_KNOWN_NAMES: dict[str, Any] = {
    "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16, "torch.BFloat16Storage": torch.bfloat16,
    "torch.DoubleStorage": torch.float64, "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.BoolStorage": torch.bool, "torch.ByteStorage": torch.uint8,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "collections.OrderedDict": OrderedDict,
    # lists with the types of their elements
    **{f"torch.jit._pickle.{name}": _the_value for name in (
        "restore_type_tag", "build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")},
}


def _named_tensors(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif type(value) is type(module):
            yield from _named_tensors(value, f"{prefix}{name}.")
