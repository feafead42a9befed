"""What each type of index costs: building, bytes a picture, time of a search, and how much of exact search it finds.

    python benchmarks/index.py                                  100,000 vectors
    python benchmarks/index.py --count 1000000 --types flat,hnsw,ivfpq
    python benchmarks/index.py --like COLLECTION                also how like real vectors the drawn ones are

Vectors of pictures and captions are drawn so that the quantiles of their cosines are those of the starter on real
photographs: all pictures are alike to a degree, and differ in few directions much and in many a little; captions lie
apart from pictures, and share a part of what is their picture's own. The same run searches with faiss' own flat index
and graph, and with hnswlib where it is installed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from measure import report

from densecap_search.config import ModelConfig
from densecap_search.retrieval.approximate import Asked
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.index_types import INDEX_TYPES
from densecap_search.retrieval.manifest import Manifest, Origin
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.writing import write_new

BLOCK, NEIGHBOURS = 1 << 14, 10
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


def blocks(drawn: Drawn, count: int) -> Iterator[tuple[list[Row], np.ndarray]]:
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        rows = [Row(-1, "drawn", f"{number}.jpg", f"/drawn/{number}.jpg", (), f"{number:032x}")
                for number in range(start, start + size)]
        yield rows, drawn.pictures(start, size)


def built(kind: str, folder: Path, drawn: Drawn, count: int, asked: np.ndarray) -> tuple[ImageIndex, float]:
    """An index of a type, and the seconds that it took."""
    manifest = Manifest(ModelConfig("drawn"), "", "fp32", drawn.dim, 0, 0, kind, kind, 0, "", (),
                        (Origin("drawn", "", ""),))
    started = time.perf_counter()
    write_new(folder, manifest, blocks(drawn, count), lambda rows, vectors, alive: Asked(asked, "captions"))
    return load_index(folder), time.perf_counter() - started


def timed(search: Callable[[np.ndarray], Any], queries: np.ndarray) -> tuple[list[list[int]], float, float]:
    """Numbers found for each query, and the median and the 99th percentile of the milliseconds of one."""
    search(queries[:1])
    seconds, found = [], []
    for query in queries:
        started = time.perf_counter()
        found.append(search(query[None]))
        seconds.append(time.perf_counter() - started)
    low, high = np.quantile(seconds, (0.5, 0.99))
    return found, 1000 * low, 1000 * high


def ours(index: ImageIndex, query: np.ndarray) -> list[int]:
    return [number for number, _ in index.search(query, NEIGHBOURS)[0]]


def theirs(index: Any, query: np.ndarray) -> list[int]:
    return index.search(query, NEIGHBOURS)[1][0].tolist()


Peer = tuple[str, Callable[[np.ndarray], list[int]], float, float]


def peers(count: int, dim: int, vectors: np.ndarray) -> Iterator[Peer]:
    """Name, search, seconds of building and bytes a vector of other indexes of the same vectors."""
    for name, index in (("faiss flat", faiss.IndexFlatIP(dim)),
                        ("faiss hnsw", faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT))):
        started = time.perf_counter()
        index.add(vectors)
        yield name, partial(theirs, index), time.perf_counter() - started, 4 * dim + (272 if "hnsw" in name else 0)
    try:
        import hnswlib
    except ImportError:
        return
    graph = hnswlib.Index("ip", dim)
    graph.init_index(count, ef_construction=200, M=16)
    graph.set_ef(128)
    started = time.perf_counter()
    graph.add_items(vectors)
    seconds = time.perf_counter() - started
    yield "hnswlib", lambda query: graph.knn_query(query, NEIGHBOURS)[0][0].tolist(), seconds, 4 * dim + 144


def real(collection: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The starter's vectors of pictures of a collection and of their first captions."""
    from densecap_search.collection.readers import read_collection
    from densecap_search.embedding.content import read_contents
    from densecap_search.embedding.towers import embed_images, embed_texts
    from densecap_search.model.loading import load_encoder

    records, _ = read_contents(read_collection(collection).captioned[:count])
    encoder = load_encoder(ModelConfig("starter"))
    made, _ = embed_images(encoder, records)
    caption_of = {record.image_id: record.captions[0] for record in records}
    return made.vectors, embed_texts(encoder, [caption_of[name] for name in made.image_ids])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--types", default=",".join(INDEX_TYPES))
    parser.add_argument("--like", type=Path)
    args = parser.parse_args()
    drawn = Drawn(args.dim)
    figures: dict[str, Any] = {"count": args.count, "dim": args.dim}
    if args.like:
        pictures, captions = real(args.like, 600)
        figures["like"] = [quantiles(pictures, captions),
                           quantiles(drawn.pictures(0, len(pictures)), drawn.captions(0, len(pictures), len(pictures)))]
        pairs = ("picture, picture", "caption, other picture", "caption, its own")
        for name, one, other in zip(pairs, *figures["like"], strict=True):
            print(f"cosines of {name}: real {one}, drawn {other}")
    block = min(BLOCK, args.count)
    queries, asked = np.split(drawn.captions(0, args.queries + 500, block), [args.queries])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        exact = None
        for kind in args.types.split(","):
            index, seconds = built(kind, Path(folder) / kind, drawn, args.count, asked)
            if exact is None:
                exact = [{number for number, _ in own} for own in index.search_exactly(queries, NEIGHBOURS)]
            rows.append((kind, *timed(partial(ours, index), queries), seconds, INDEX_TYPES[kind].memory(args.dim)))
        vectors = np.concatenate([block for _, block in blocks(drawn, args.count)])
        for name, search, seconds, size in peers(args.count, args.dim, vectors):
            rows.append((name, *timed(search, queries), seconds, size))
    flat = next(middle for name, _, middle, _, _, _ in rows if name == "faiss flat")
    for name, found, middle, high, seconds, size in rows:
        recall = float(np.mean([len(own & set(ids)) / len(own) for own, ids in zip(exact or [], found, strict=True)]))
        figures[name] = {"recall": recall, "p50": middle, "p99": high, "of_faiss_flat": middle / flat,
                         "build": seconds, "bytes": size}
        print(f"{name:>10}: recall@10 {recall:.3f}, p50 {middle:7.2f} ms ({middle / flat:.3f} of faiss flat), "
              f"p99 {high:7.2f} ms, built in {seconds:6.1f} s, {size:5.0f} bytes a vector in memory")
    report(f"{args.count} vectors of {args.dim} numbers, {args.queries} captions as queries", figures)


if __name__ == "__main__":
    main()
