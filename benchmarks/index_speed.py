"""Pictures a second of `densecap index`, against a plain loop and a loop with ONNX Runtime; and its second run.

The plain loop is what people write: Pillow, open_clip's transform, batches of 32, encode_image. The other one hands the
same pixels to ONNX Runtime in batches of 8, as rclip does, without decoding ahead. Both have glibc's own setting of
memory. Ours is all of `densecap index` but loading the model: reading and hashing the files, encoding, writing the
index. Every picture is another file, and the cache is empty.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from measure import a_second, in_turns, machine, quartiles, report, times_as_fast
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from densecap_search.cli.memory import keep_freed_memory
from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.model.publishing.onnx_towers import IMAGE, TEXT, write_towers
from densecap_search.retrieval.update import update_index

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of mallopt's parameters in glibc's malloc.h
SIZES = {"500 px": (500, 375), "12 MP": (4000, 3000)}


def make_pictures(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    """Different JPEGs with the detail of photographs: smooth shapes and some grain."""
    folder.mkdir(parents=True)
    generator, paths = np.random.default_rng(0), []
    noise = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    coarse = noise.resize(size, Image.Resampling.BICUBIC)
    grain = generator.normal(0, 6, (size[1], size[0], 1))
    Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(folder / "0.jpg", quality=90)
    data = (folder / "0.jpg").read_bytes()
    for number in range(count):
        paths.append(folder / f"{number}.jpg")
        paths[-1].write_bytes(data + f"{number}".encode())  # behind the end of the picture: other content, same work
    return paths


def plain_loop(encoder: DualEncoder, paths: Sequence[Path]) -> Callable[[], None]:
    transform = image_transform_v2(PreprocessCfg(**encoder.spec.preprocess), is_train=False)

    @torch.no_grad()
    def run() -> None:
        for at in range(0, len(paths), 32):
            batch = torch.stack([transform(Image.open(path)) for path in paths[at:at + 32]])
            torch.nn.functional.normalize(encoder.model.visual(batch), dim=-1).numpy()

    return run


def onnx_loop(encoder: DualEncoder, paths: Sequence[Path], folder: Path) -> Callable[[], None]:
    import onnxruntime

    write_towers(encoder, folder / IMAGE, folder / TEXT, "fp32", encoder.dim)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / IMAGE), options, providers=["CPUExecutionProvider"])
    transform = image_transform_v2(PreprocessCfg(**encoder.spec.preprocess), is_train=False)

    def run() -> None:
        for at in range(0, len(paths), 8):
            session.run(None, {"image": np.stack([transform(Image.open(path)).numpy() for path in paths[at:at + 8]])})

    return run


def ours(encoder: DualEncoder, model: ModelConfig, pictures: Path, work: Path) -> Callable[[], None]:
    numbers = itertools.count()

    def run() -> None:
        fresh = work / f"run-{next(numbers)}"
        os.environ["DENSECAP_CACHE"] = str(fresh / "cache")
        update_index(read_collection(pictures), encoder, model, fresh / "index")

    return run


def with_glibcs_memory(run: Callable[[], None]) -> Callable[[], None]:
    """As a script has it that sets nothing: the limits that glibc's own rule reaches after the first large tensors."""
    library = ctypes.CDLL(None)

    def go() -> None:
        library.mallopt(MMAP_THRESHOLD, 32 << 20)
        library.mallopt(TRIM_THRESHOLD, 64 << 20)
        try:
            run()
        finally:
            keep_freed_memory()

    return go


def measure(model: ModelConfig, name: str, count: int, rounds: int, work: Path) -> dict[str, object]:
    encoder = load_encoder(model, device="cpu")
    paths = make_pictures(work / "pictures", SIZES[name], count)
    index = ours(encoder, model, work / "pictures", work)
    seconds = in_turns({"ours": index, "plain": with_glibcs_memory(plain_loop(encoder, paths)),
                        "onnxruntime": with_glibcs_memory(onnx_loop(encoder, paths, work / "onnx"))}, rounds)
    latest = max((work).glob("run-*"), key=lambda path: int(path.name[4:]))
    os.environ["DENSECAP_CACHE"] = str(latest / "cache")

    def second() -> None:
        update_index(read_collection(work / "pictures"), encoder, model, latest / "index")

    again = in_turns({"second": second}, rounds)
    return {"times_as_fast": times_as_fast(seconds), "pictures_a_second": a_second(seconds, count), "pictures": count,
            "second_run_seconds": [round(value, 3) for value in quartiles(again["second"])]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["starter", "ViT-B-32"])
    parser.add_argument("--small", type=int, default=192, help="Pictures of 500 pixels; 0: none.")
    parser.add_argument("--large", type=int, default=48, help="Pictures of 12 megapixels; 0: none.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()
    found: dict[str, object] = {}
    for model in options.models:
        for name, count in zip(SIZES, (options.small, options.large), strict=True):
            if count:
                chosen = ModelConfig(model, pretrained=None if model == "starter" else "random")
                with tempfile.TemporaryDirectory() as work:
                    found[f"{model}, {name}"] = measure(chosen, name, count, options.rounds, Path(work))
    lines = [f"{name}: {row['times_as_fast']['onnxruntime'][1]:.2f} times as fast as the ONNX Runtime loop, "  # type: ignore[index]
             f"{row['times_as_fast']['plain'][1]:.2f} times the plain loop" for name, row in found.items()]  # type: ignore[index]
    report("\n".join(lines), {"benchmark": "index", "runs": found, "machine": machine()})


if __name__ == "__main__":
    main()
