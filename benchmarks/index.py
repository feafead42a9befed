"""What each type of index costs: building, bytes a picture, time of a search, and how much of exact search it finds.

    python benchmarks/index.py draw --folder DIR [--count 1000000] [--dim 512]     once: vectors and rows on the disk
    python benchmarks/index.py hnsw --folder DIR                                   one type, ours (flat, hnsw, ivf, …)
    python benchmarks/index.py "faiss hnsw" --folder DIR                           one of others
    python benchmarks/index.py caption --folder DIR                                once: captions for all its pictures
    python benchmarks/index.py load --folder DIR                                   seconds and memory of loading
    python benchmarks/index.py like --folder DIR --like COLLECTION                 how like real vectors the drawn are
    python benchmarks/index.py table --folder DIR                                  what has been measured, side by side

A graph that is not built within --seconds is kept, and the same command goes on with it. Each measurement is a line of
DIR/measured.jsonl. --recall 0.98 widens the search of a type further.

Vectors of pictures and captions are drawn so that the quantiles of their cosines are those of the starter on real
photographs: all pictures are alike to a degree, and differ in few directions much and in many a little; captions lie
apart from pictures, and share a part of what is their picture's own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from densecap_search.config import ModelConfig
from densecap_search.model.segments import Truncation
from densecap_search.retrieval import caption_store
from densecap_search.retrieval.approximate import RECALL, Asked, measured
from densecap_search.retrieval.calibration import Calibration
from densecap_search.retrieval.captioned import Scale, Texts
from densecap_search.retrieval.fuse import RANKINGS, Weights
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.index_folder import VECTORS
from densecap_search.retrieval.index_types import ADDED, INDEX_TYPES, fill, read_index, write_index
from densecap_search.retrieval.manifest import Manifest, Origin
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.strength import Foreign
from densecap_search.retrieval.vectors import Vectors
from densecap_search.retrieval.writing import write_new

BLOCK, NEIGHBOURS = 1 << 14, 10
VOCABULARY, CAPTION_WIDTH = 50_000, 384  # words of captions; numbers that the text tower hands to its head
ASKED = 100  # captions that widen a search, and as many others that time it
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99, 0.999)


@dataclass(frozen=True)
class Shape:
    """common: squared length of what all pictures share. amount: spread (of the logarithm) of how much is a picture's
    own. power, offset: of the directions' variances, (number + offset) to the −power. text, gap: squared length of what
    all captions share, and how much of that pictures do not. shared: cosine of a caption's own part with its picture's.
    """

    common: float = 0.50
    amount: float = 0.35
    power: float = 1.5
    offset: float = 3.0
    text: float = 0.65
    gap: float = 0.60
    shared: float = 0.20


class Drawn:
    """Pictures by their numbers, and captions of them; equal for equal numbers."""

    def __init__(self, dim: int, shape: Shape = Shape()) -> None:
        self.dim, self.shape = dim, shape
        variance = (np.arange(dim) + shape.offset) ** -shape.power
        self._spread = np.sqrt(variance / variance.sum()).astype(np.float32)
        two = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, 2)))[0]
        self._common, self._apart = two.T.astype(np.float32)

    def _own(self, start: int, count: int) -> np.ndarray:
        return np.random.default_rng((1, start)).standard_normal((count, self.dim), np.float32) * self._spread

    def pictures(self, start: int, count: int) -> np.ndarray:
        """Unit rows float32 [count, dim] of the block that begins with a number."""
        amount = np.exp(self.shape.amount * np.random.default_rng((2, start)).standard_normal((count, 1), np.float32))
        own = amount * self._own(start, count)
        return unit(self.shape.common ** 0.5 * self._common + (1 - self.shape.common) ** 0.5 * own)

    def captions(self, start: int, count: int, within: int) -> np.ndarray:
        """Unit rows of captions of the first pictures of a block of ``within`` pictures."""
        shape, others = self.shape, np.random.default_rng((3, start)).standard_normal((count, self.dim), np.float32)
        own = shape.shared * self._own(start, within)[:count] + (1 - shape.shared ** 2) ** 0.5 * others * self._spread
        middle = (1 - shape.gap) ** 0.5 * self._common + shape.gap ** 0.5 * self._apart
        return unit(shape.text ** 0.5 * middle + (1 - shape.text) ** 0.5 * own)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def quantiles(pictures: np.ndarray, captions: np.ndarray) -> list[list[float]]:
    """Of the cosines between pictures, between captions and other pictures, and between captions and their own."""
    pairs, across = pictures @ pictures.T, captions @ pictures.T
    other = ~np.eye(len(pictures), dtype=bool)
    kinds = (pairs[other], across[other], across.diagonal())
    return [np.quantile(values, QUANTILES).round(3).tolist() for values in kinds]


def real(collection: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The starter's vectors of pictures of a collection and of their first captions."""
    from densecap_search.collection.readers import read_collection
    from densecap_search.embedding.content import read_contents
    from densecap_search.embedding.texts import embed_texts
    from densecap_search.embedding.towers import embed_images
    from densecap_search.model.loading import load_encoder

    records, _ = read_contents(read_collection(collection).captioned[:count])
    encoder = load_encoder(ModelConfig("starter"))
    made, _ = embed_images(encoder, records)
    caption_of = {record.image_id: record.captions[0] for record in records}
    return made.vectors, embed_texts(encoder, [caption_of[name] for name in made.image_ids])[0]


def said(number: int) -> str:
    """A caption of 20 words, of which some are frequent and most are rare."""
    places = np.random.default_rng((4, number)).pareto(1.0, 20)
    return " ".join(f"w{int(place * 20) % VOCABULARY}" for place in places)


def caption(folder: Path) -> dict[str, Any]:
    """Put captions beside the vectors, as an index run does; what the text tower says of them is drawn."""
    drawn, width = Drawn(CAPTION_WIDTH), CAPTION_WIDTH

    def read(encoder: Any, captions: list[tuple[str, ...]], talk: Any) -> Texts:
        rows = drawn.pictures(len(captions), len(captions))
        return Texts(tuple(map("\n".join, captions)), rows, rows, Truncation.of([], 77))

    def scale(encoder: Any, index: ImageIndex, numbers: Any, talk: Any) -> Scale:
        return Scale.of(read(None, [("",)] * 2 * width, None), index.stored.take(np.arange(1000)))

    caption_store.read_texts, caption_store.learn_scale = read, scale
    caption_store.calibrate = lambda *_: Calibration(Weights(dict.fromkeys(RANKINGS, 1.0), "fused"), Foreign((), ()), 1)
    started = time.perf_counter()
    caption_store.update_captions(load_index(folder), lambda: None)
    return {"count": len(load_index(folder)), "seconds": time.perf_counter() - started}


def blocks(drawn: Drawn, count: int) -> Iterator[tuple[list[Row], np.ndarray]]:
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        rows = [Row(-1, "drawn", f"{number}.jpg", f"/drawn/{number}.jpg", (said(number),), f"{number:032x}")
                for number in range(start, start + size)]
        yield rows, drawn.pictures(start, size)


def draw(folder: Path, count: int, dim: int) -> dict[str, Any]:
    """An index of the type flat, with which all others share vectors and rows."""
    drawn = Drawn(dim)
    manifest = Manifest(ModelConfig("drawn"), "", "fp32", dim, 0, 0, "flat", "flat", 0, "", (),
                        (Origin("drawn", "", ""),))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    write_new(folder, manifest, blocks(drawn, count), lambda rows, vectors, alive: Asked(np.empty((0, dim)), ""))
    return {"count": count, "dim": dim, "seconds": time.perf_counter() - started}


def captions(index: ImageIndex) -> list[np.ndarray]:
    """Queries that are timed, and others that a search is widened with; captions of the first pictures."""
    drawn = Drawn(index.manifest.dim)
    return np.split(drawn.captions(0, 2 * ASKED, min(BLOCK, len(index))), 2)


def exact(index: ImageIndex, queries: np.ndarray, folder: Path) -> list[set[int]]:
    """Numbers of the first ten of each query; they are kept."""
    path = folder / "exact.npy"
    if not path.is_file():
        np.save(path, [[number for number, _ in own] for own in index.search_exactly(queries, NEIGHBOURS)])
    return [set(row) for row in np.load(path).tolist()]


@dataclass(frozen=True)
class Peer:
    """An index of another library. start: count, dim → an empty one; fill, save, read: as for faiss."""

    start: Callable[[int, int], Any]
    search: Callable[[Any, np.ndarray], list[int]]
    fill: Callable[[Any, Vectors, float], bool]
    save: Callable[[Any, Path], None]
    read: Callable[[Path, int], Any]


def of_faiss(start: Callable[[int, int], Any]) -> Peer:
    return Peer(start, lambda index, query: index.search(query, NEIGHBOURS)[1][0].tolist(), fill, write_index,
                lambda path, dim: read_index(path, faiss.__version__))


def start_hnswlib(count: int, dim: int) -> Any:
    import hnswlib

    graph = hnswlib.Index("ip", dim)
    graph.init_index(count, ef_construction=200, M=16)  # its defaults
    return graph


def read_hnswlib(path: Path, dim: int) -> Any:
    import hnswlib

    graph = hnswlib.Index("ip", dim)
    graph.load_index(str(path))
    return graph


def fill_hnswlib(graph: Any, vectors: Vectors, seconds: float) -> bool:
    started = time.perf_counter()
    for begin, block in vectors.blocks(start=graph.get_current_count(), size=ADDED):
        if time.perf_counter() - started > seconds:
            return False
        graph.add_items(block, np.arange(begin, begin + len(block)))
    graph.set_ef(128)
    return True


PEERS = {
    "faiss flat": of_faiss(lambda count, dim: faiss.IndexFlatIP(dim)),
    "faiss hnsw": of_faiss(lambda count, dim: faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)),
    "hnswlib": Peer(start_hnswlib, lambda graph, query: graph.knn_query(query, NEIGHBOURS)[0][0].tolist(), fill_hnswlib,
                    lambda graph, path: graph.save_index(str(path)), read_hnswlib),
}


def built(folder: Path, name: str, peer: Peer, vectors: Vectors, seconds: float) -> tuple[Any, float, float]:
    """An index, None where the time was up before it was whole; the seconds that it has taken; its bytes."""
    part, spent = folder / f"{name.replace(' ', '-')}.part", folder / f"{name.replace(' ', '-')}.seconds"
    index = peer.read(part, vectors.dim) if part.is_file() else peer.start(len(vectors), vectors.dim)
    started = time.perf_counter()
    whole = peer.fill(index, vectors, seconds)
    took = time.perf_counter() - started + (float(spent.read_text()) if spent.is_file() else 0.0)
    peer.save(index, part)
    spent.write_text(str(took))
    return (index if whole else None), took, part.stat().st_size


def timed(search: Callable[[np.ndarray], list[int]], queries: np.ndarray) -> tuple[list[list[int]], float, float]:
    """Numbers found for each query, and the median and the 99th percentile of the milliseconds of one."""
    for query in queries[:3]:
        search(query[None])
    seconds, found = [], []
    for query in queries:
        started = time.perf_counter()
        found.append(search(query[None]))
        seconds.append(time.perf_counter() - started)
    low, high = np.quantile(seconds, (0.5, 0.99))
    return found, 1000 * low, 1000 * high


def ours(index: ImageIndex, query: np.ndarray) -> list[int]:
    return [number for number, _ in index.search(query, NEIGHBOURS)[0]]


def measure(folder: Path, name: str, seconds: float, enough: float) -> dict[str, Any] | None:
    """One type; None where it is not built yet."""
    flat = load_index(folder)
    queries, asked = captions(flat)
    stored: Any = flat.stored
    took = size = 0.0
    search = partial(ours, flat)
    if name in PEERS or not INDEX_TYPES[name].exact:
        peer = PEERS[name] if name in PEERS else of_faiss(lambda count, dim: INDEX_TYPES[name].start(stored))
        index, took, size = built(folder, name, peer, stored, seconds)
        if index is None:
            return None
        search = partial(peer.search, index)
        if name not in PEERS:
            search = partial(ours, approximated(flat, name, index, asked, enough))
    found, middle, high = timed(search, queries)
    wanted = exact(flat, queries, folder)
    recall = float(np.mean([len(own & set(ids)) / len(own) for own, ids in zip(wanted, found, strict=True)]))
    return {"recall": recall, "p50": middle, "p99": high, "build": took, "bytes": size / len(flat)}


def approximated(flat: ImageIndex, name: str, index: Any, asked: np.ndarray, enough: float) -> ImageIndex:
    """The same pictures, searched by a type."""
    made = measured(index, flat.stored, flat.alive, name, flat.folder / VECTORS, Asked(asked, "captions"), enough)
    manifest = replace(flat.manifest, index_type=name, asked_type=name, approximation=made)
    return replace(flat, manifest=manifest, approximation=index)


def load(folder: Path) -> dict[str, Any]:
    """Seconds and megabytes of the process's own memory that loading takes beside imports."""
    before, started = own_memory(), time.perf_counter()
    index = load_index(folder)
    captioned = caption_store.load_captions(index)
    seconds = time.perf_counter() - started
    loaded = own_memory() - before
    index.search(captions(index)[0][:1], NEIGHBOURS)
    return {"count": len(index), "captioned": captioned is not None, "seconds": seconds, "megabytes": loaded,
            "after a search": own_memory() - before}


def own_memory() -> float:
    """Megabytes, without pages of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def like(folder: Path, collection: Path) -> dict[str, Any]:
    """Quantiles of cosines, of the starter on a collection and as drawn."""
    drawn = Drawn(load_index(folder).manifest.dim)
    pictures, said = real(collection, 600)
    both = quantiles(pictures, said), quantiles(drawn.pictures(0, len(pictures)),
                                                drawn.captions(0, len(pictures), len(pictures)))
    pairs = ("two pictures", "a caption and another picture", "a caption and its own")
    return {name: {"real": one, "drawn": other} for name, one, other in zip(pairs, *both, strict=True)}


def table(folder: Path) -> str:
    """What was measured last of each, in Markdown."""
    made = {line["what"]: line for line in map(json.loads, (folder / "measured.jsonl").read_text().splitlines())}
    lines = []
    if "like" in made:
        lines += [f"| cosines of | | {' | '.join(f'{100 * q:g} %' for q in QUANTILES)} |",
                  "|---|---|" + "---|" * len(QUANTILES)]
        lines += [f"| {name} | {kind} | {' | '.join(f'{value:.3f}' for value in values)} |"
                  for name, both in made["like"].items() if name != "what" for kind, values in both.items()]
    if "load" in made:
        kind = "with captions" if made["load"]["captioned"] else "without captions"
        lines += ["", "loading {count:,} {kind}: {seconds:.2f} s, {megabytes:.0f} MB of own memory".format(
            **made["load"], kind=kind), ""]
    lines += ["| | recall@10 | p50 ms | of faiss flat | p99 ms | built in s | bytes a picture |",
              "|---|---|---|---|---|---|---|"]
    base = made.get("faiss flat", {}).get("p50", float("nan"))
    for name in (*INDEX_TYPES, *PEERS):
        for what, own in made.items():
            if what == name or what.startswith(f"{name}, "):
                lines.append(f"| {what} | {own['recall']:.3f} | {own['p50']:.2f} | 1/{base / own['p50']:.1f} | "
                             f"{own['p99']:.2f} | {own['build']:.0f} | {own['bytes']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "caption", "load", "like", "table", *INDEX_TYPES, *PEERS])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--seconds", type=float, default=130.0, help="of building, at most, in one run")
    parser.add_argument("--recall", type=float, default=RECALL, help="of the exact first ten, that is enough")
    args = parser.parse_args()
    if args.what == "table":
        print(table(args.folder))
        return
    if args.what == "draw":
        figures: dict[str, Any] | None = draw(args.folder, args.count, args.dim)
    elif args.what == "caption":
        figures = caption(args.folder)
    elif args.what == "load":
        figures = load(args.folder)
    elif args.what == "like":
        figures = like(args.folder, args.like)
    else:
        figures = measure(args.folder, args.what, args.seconds, args.recall)
    if figures is None:
        print(f"{args.what} is not whole yet; the same command goes on")
        return
    what = args.what if args.recall == RECALL else f"{args.what}, recall {args.recall:g} asked"
    line = json.dumps({"what": what, **figures})
    with (args.folder / "measured.jsonl").open("a") as file:
        file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
