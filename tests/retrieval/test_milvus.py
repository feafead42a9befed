"""An index whose vectors are in Milvus: the same hits, filters and updates as one in files, with the engine of a file."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from made_indexes import MANIFEST, rows_of, vectors

from densecap_search.cli import main
from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.errors import ConfigError, IndexFolderError, IndexMismatch, StoreError
from densecap_search.retrieval import update, writing
from densecap_search.retrieval.approximate import Asked
from densecap_search.retrieval.caption_store import update_captions
from densecap_search.retrieval.index import ImageIndex, load_index, open_index
from densecap_search.retrieval.manifest import StoredIn
from densecap_search.retrieval.milvus_filters import letters, number_letters
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import Narrowed, Searcher, open_searcher
from densecap_search.retrieval.update import Wanted, bring_up_to_date, remove_collection, update_index
from densecap_search.retrieval.writing import write_new

MODEL = ModelConfig("tiny")
NAMES = itertools.count()
WHERES = (
    "year >= 1990", "year < 1990", "year = 1990.5", "not (year >= 1990)", "year is missing", "year is not missing",
    "year = '1990'", "place = 'Lyon'", "place contains 'LYON'", "place contains '%'", "place contains '_'", "place = 'ly\"on'",
    "place > 'M'", "place in ('Lyon', 'x') or year between 1 and 1991", "folder under 'a'", "folder = '.'",
    "date = 2019", "date > '2019-05'", "date <= '2019-05'", "date < 2020 and not split = 'test'", "big > 9007199254740992",
    "big = 9007199254740993", "PLACE contains 'ü'", "place >= 5", "split is missing", "id contains 'i1'", "place = '\\'",
)


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file for all tests; each has an index of another name in it."""
    return f"milvus:{tmp_path_factory.mktemp('milvus')}/all.db"


@pytest.fixture
def store(milvus: str) -> str:
    return f"{milvus}#n{next(NAMES)}"


def indexed(photos: Path, tiny, folder: Path, store: str | None = None, **wanted) -> ImageIndex:
    made = Wanted(store=store, place=photos, **wanted)
    return bring_up_to_date(read_collection(photos), lambda: tiny, MODEL, folder, made).index


def told(index: ImageIndex, queries: np.ndarray, k: int, where: str | None = None) -> list[list[tuple[str, float]]]:
    return [[(index.rows[number].image_id, round(score, 4)) for number, score in own]
            for own in index.search(queries, k, where)]


def same_hits(one: ImageIndex, other: ImageIndex, wheres: tuple[str | None, ...] = (None,)) -> None:
    queries = vectors(3, one.manifest.dim)
    for where in wheres:
        for k in (3, len(one) + 5):
            for own, its in zip(told(one, queries, k, where), told(other, queries, k, where), strict=True):
                assert dict(own) == pytest.approx(dict(its), abs=2e-4)
                assert [score for _, score in own] == pytest.approx([score for _, score in its], abs=2e-4)


@given(st.lists(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False, allow_infinity=False)), min_size=2))
def test_letters_of_numbers_are_in_the_order_of_numbers(values):
    assert sorted(values, key=number_letters) == sorted(values)
    for one, other in itertools.pairwise(sorted(values)):
        assert (number_letters(one) == number_letters(other)) == (one == other)


@given(st.binary(max_size=6), st.binary(max_size=2))
def test_letters_keep_order_and_parts_of_bytes(one: bytes, other: bytes):
    assert (letters(one) < letters(other)) == (one < other)
    assert (letters(other) in letters(one)) == (other in one)
    assert letters(b"\x00\xffA%") == "a0pFe1c5"


def various() -> list:
    """40 rows with cells of every kind."""
    years = (1989, 1990, 1990.5, "1990", "soon", None, 2019)
    places = ("Lyon", "lyon 100 %", 'ly"on', "a_b", None, "Zürich", "\\", 7, "x' or '1' = '1")
    rows = []
    for number, row in enumerate(rows_of(40)):
        cells = {"year": years[number % 7], "place": places[number % 9], "big": 9007199254740992 + number % 3}
        rows.append(replace(row, split=("train", "test", None)[number % 3], folder=(".", "a", "a/b", "ab")[number % 4],
                            taken=(None, "2019-05-31 14:03:59", "2019-06-01 00:00:00", "2020-01-01 00:00:00")[number % 4],
                            columns={name: value for name, value in cells.items() if value is not None}))
    return rows


def stored_index(matrix: np.ndarray, rows: list, folder: Path, store: str | None, kind: str = "flat") -> ImageIndex:
    where = StoredIn(store, folder.name) if store else None
    manifest = replace(MANIFEST, dim=matrix.shape[1], index_type=kind, asked_type=kind, store=where)
    folder.mkdir()
    write_new(folder, manifest, [(rows, matrix)], lambda rows, stored, alive: Asked(matrix[:50], "pictures"))
    return load_index(folder)


@pytest.mark.slow
def test_every_filter_finds_the_same_in_milvus_as_in_files(tmp_path: Path, store: str):
    matrix, rows = vectors(40), various()
    files = stored_index(matrix, rows, tmp_path / "files", None)
    there = stored_index(matrix, rows, tmp_path / "there", store)
    remote = open_index(store)
    for where in WHERES:
        assert there.store.find(update_filter(where), there.rows.columns).tolist() == files.matching(where).tolist(), where
        assert remote.matching(where).tolist() == files.matching(where).tolist(), where
    assert any(0 < len(files.matching(where)) < 40 for where in WHERES)
    same_hits(files, there, (None, *WHERES[:4]))
    assert [remote.rows[number] for number in range(40)] == list(files.rows)
    for index in (there, remote):
        with pytest.raises(ConfigError, match=r"names 'yaer', which is no column .*year, place"):
            index.search(matrix[:1], 3, "yaer = 1")


def update_filter(where: str):
    from densecap_search.retrieval.filters import parse_filter

    return parse_filter(where)


def test_searches_in_milvus_give_the_hits_of_files_in_every_mode(photos: Path, tmp_path: Path, tiny, store: str):
    found = []
    for name, place in (("files", None), ("there", store)):
        index = indexed(photos, tiny, tmp_path / name, place)
        found.append(Searcher(tiny, index, update_captions(index, lambda: tiny)))
    for mode in ("image", "text", "words", "fused"):
        for narrowed in (Narrowed(), Narrowed(where="id contains 'left'"), Narrowed(must=("ball",)), Narrowed(min_score=0.0)):
            queries = [Query("a red ball"), Query("a blue box at the left")]
            (one, other), (its_one, its_other) = (searcher.find(queries, 8, mode=mode, narrowed=narrowed)[0] for searcher in found)
            for own, its in ((one, its_one), (other, its_other)):
                assert [hit.score for hit in own] == pytest.approx([hit.score for hit in its], abs=1e-4)
                assert {hit.image_id for hit in own} == {hit.image_id for hit in its}
    assert len(found[1].by_image(photos / "red-left-ball.png", 30)) == 24
    found[1].index.check_files()


@pytest.mark.slow
def test_another_machine_searches_with_the_name_of_the_store_and_the_model(photos, tmp_path, tiny, tiny_run, store):
    made = update_index(read_collection(photos), tiny, ModelConfig(str(tiny_run)), tmp_path / "gone")
    bring_up_to_date(read_collection(photos), lambda: tiny, ModelConfig(str(tiny_run)), tmp_path / "gone", Wanted(store=store))
    expected, _ = Searcher(tiny, made.index).by_captions(["a red ball"], 5, "id contains 'left'")
    (tmp_path / "gone").rename(tmp_path / "elsewhere")
    remote = open_searcher(store, model=ModelConfig(str(tiny_run)))
    hits, _ = remote.by_captions(["a red ball"], 5, "id contains 'left'")
    assert [(hit.image_id, hit.caption) for hit in hits[0]] == [(hit.image_id, hit.caption) for hit in expected[0]]
    assert [hit.score for hit in remote.find([Query()], 30, narrowed=Narrowed(where="id contains 'ball'"))[0][0]] == [None] * 12
    with pytest.raises(IndexFolderError, match="searched by its pictures alone here"):
        remote.find([Query("a ball", must=("ball",))], 5)
    with pytest.raises(IndexMismatch, match="was built by"):
        remote.index.check_encoder("other", "f" * 32)
    with pytest.raises(StoreError, match="holds no index"):
        open_index(store + "x")


def change(photos: Path) -> None:
    (photos / "new").mkdir()
    (photos / "red-left-ball.png").rename(photos / "new" / "red-left-ball.png")
    (photos / "red-left-ball.txt").rename(photos / "new" / "red-left-ball.txt")
    (photos / "blue-left-ball.png").unlink()
    (photos / "blue-left-ball.txt").unlink()
    (photos / "green-left-ball.txt").write_text("Said anew.", encoding="utf-8")
    (photos / "copy.png").write_bytes((photos / "red-right-ball.png").read_bytes() + b"another content")


@pytest.mark.slow
def test_an_update_costs_what_has_changed_and_equals_a_rebuilt_index(photos: Path, tmp_path: Path, tiny, store: str):
    index = indexed(photos, tiny, tmp_path / "i", store)
    change(photos)
    summary = bring_up_to_date(read_collection(photos), lambda: tiny, MODEL, tmp_path / "i", Wanted(place=photos))
    assert (summary.encoded, summary.changes.moved, len(summary.changes.gone)) == (1, 1, 1)
    same_hits(summary.index, indexed(photos, tiny, tmp_path / "anew"), (None, "folder = 'new'", "id contains 'ball'"))
    assert list(open_index(store).rows) == list(summary.index.rows)
    texts = {row.image_id: row.captions for row in open_index(store).rows}
    assert (texts["green-left-ball.png"], "blue-left-ball.png" in texts, len(texts)) == (("Said anew.",), False, 24)
    assert len(index.search(vectors(1, index.manifest.dim), 30)[0]) == 24  # a reader of the generation before goes on
    unchanged = bring_up_to_date(read_collection(photos), lambda: tiny, MODEL, tmp_path / "i", Wanted(place=photos))
    assert not unchanged.changed


@pytest.mark.slow
@pytest.mark.parametrize("place", ["publish", "publish_store"])
def test_what_a_killed_update_left_is_repaired_by_the_next(place: str, photos: Path, tmp_path: Path, tiny, store: str, monkeypatch):
    """Ended after the vectors are in Milvus and before the manifest, or before others are told."""
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    index = indexed(photos, tiny, tmp_path / "i", store)
    before = told(index, vectors(2, index.manifest.dim), 24)
    change(photos)
    with monkeypatch.context() as patch:
        patch.setattr(writing, place, killed)
        with pytest.raises(Killed):
            indexed(photos, tiny, tmp_path / "i")
    assert told(open_index(store), vectors(2, index.manifest.dim), 24) == before
    if place == "publish":
        assert told(load_index(tmp_path / "i"), vectors(2, index.manifest.dim), 24) == before
        (photos / "new" / "red-left-ball.png").rename(photos / "red-left-ball.png")  # and the change is another one now
    mended = indexed(photos, tiny, tmp_path / "i")
    same_hits(mended, indexed(photos, tiny, tmp_path / "anew"))
    same_hits(open_index(store), mended)
    mended.check_files()


@pytest.mark.slow
def test_an_index_moves_between_files_and_milvus_without_encoding(photos: Path, tmp_path: Path, tiny, store: str, monkeypatch):
    files = indexed(photos, tiny, tmp_path / "i")
    matrix = np.array(files.vectors())

    def refuse(*_, **__):
        raise AssertionError("nothing is to be encoded")

    monkeypatch.setattr(update, "embed_images", refuse)
    there = indexed(photos, tiny, tmp_path / "i", store)
    assert np.array_equal(there.vectors(), matrix)
    assert not list((tmp_path / "i" / "vectors").glob("*.f32")) or len(list((tmp_path / "i").glob("gen-*"))) == 2
    back = indexed(photos, tiny, tmp_path / "i", "faiss")
    assert back.manifest.store is None
    assert np.array_equal(back.vectors(), matrix)


@pytest.mark.slow
def test_a_collection_is_added_and_removed_and_an_update_undone(photos: Path, tmp_path: Path, tiny, store: str):
    index = indexed(photos, tiny, tmp_path / "i", store)
    more = tmp_path / "more"
    more.mkdir()
    for path in photos.glob("red-*"):
        (more / path.name).write_bytes(path.read_bytes() + (b"x" if path.suffix == ".png" else b""))
    both = indexed(more, tiny, tmp_path / "i", add=True, name="more")
    assert len(open_index(store)) == len(both) == 30
    assert {hit for hit, _ in told(both, vectors(1, both.manifest.dim), 30, "collection = 'more'")[0]} == {
        f"more/{path.name}" for path in more.glob("*.png")}
    result = CliRunner().invoke(main, ["index", "--undo", "-o", str(tmp_path / "i")])
    assert (result.exit_code, len(open_index(store))) == (0, 24)
    both = indexed(more, tiny, tmp_path / "i", add=True, name="more")
    left = remove_collection(tmp_path / "i", "photos")
    assert (len(left), len(open_index(store))) == (6, 6)
    assert len(index) == 24


@pytest.mark.slow
def test_what_another_folder_wrote_is_not_overwritten(photos: Path, tmp_path: Path, tiny, store: str):
    first = indexed(photos, tiny, tmp_path / "one", store)
    with pytest.raises(StoreError, match=r"holds the index of another folder already; add #NAME .*--prune"):
        indexed(photos, tiny, tmp_path / "two", store)
    indexed(photos, tiny, tmp_path / "two", store, prune=True)
    with pytest.raises(StoreError, match=r"holds another index, .*--rebuild"):
        load_index(tmp_path / "one")
    assert len(first) == 24
    with pytest.raises(ConfigError, match="unknown store 'mongo:x'; known: faiss, milvus:URI"):
        indexed(photos, tiny, tmp_path / "three", "mongo:x")
    with pytest.raises(ConfigError, match=r"milvus builds no index of the type sq8; it knows: flat, hnsw"):
        indexed(photos, tiny, tmp_path / "three", store + "y", kind="sq8")
    with pytest.raises(StoreError, match=r"cannot be read or written: .*DENSECAP_MILVUS_TOKEN"):
        indexed(photos, tiny, tmp_path / "three", "milvus:http://127.0.0.1:9#x")


@pytest.mark.slow
def test_a_token_is_written_nowhere(photos: Path, tmp_path: Path, tiny, store: str, monkeypatch):
    monkeypatch.setenv("DENSECAP_MILVUS_TOKEN", "root:S3cretWord")
    indexed(photos, tiny, tmp_path / "i", store)
    files = [path for path in (*(tmp_path / "i").rglob("*"), *Path(store[7:].partition("#")[0]).rglob("*")) if path.is_file()]
    assert len(files) > 3
    assert not any(b"S3cretWord" in path.read_bytes() for path in files)


@pytest.mark.slow
def test_a_graph_in_milvus_is_measured_and_finds_nearly_all(tmp_path: Path, store: str):
    matrix = vectors(1200)
    index = stored_index(matrix, rows_of(1200), tmp_path / "i", store, "hnsw")
    assert index.manifest.approximation is not None
    assert index.manifest.approximation.recall >= 0.95
    (found,) = index.search(matrix[7:8], 1200)
    assert (found[0][0], len(found)) == (7, 1200)
    assert [number for number, _ in index.search(matrix[7:8], 5)[0]] == [number for number, _ in found[:5]]


def test_commands_take_a_store(photos: Path, tmp_path: Path, tiny_run: Path, store: str):
    def run(*arguments: str):
        result = CliRunner().invoke(main, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    folder = str(tmp_path / "i")
    run("index", str(photos), "--model", str(tiny_run), "-o", folder, "--store", store)
    assert f"24 pictures by {tiny_run}, type flat, gen-000001, in {store}" in run("index", "--list", "-o", folder)
    assert "is as it was written" in run("index", "--check", "-o", folder)
    queries = tmp_path / "q.txt"
    queries.write_text("a red ball\na blue box\n")
    for place in (folder, store):
        lines = run("search", place, "--queries", str(queries), "-k", "3", "--json", "--mode", "image").splitlines()
        assert [json.loads(line)["rank"] for line in lines] == [1, 2, 3, 1, 2, 3]
    found = json.loads(run("evaluate", str(photos), "--model", str(tiny_run), "--split", "all", "--index", folder, "--json"))
    assert found["index"]["neighbours"] == 100
