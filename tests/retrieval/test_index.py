from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from helpers import make_tiny
from made_indexes import index_of, vectors

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.embedding.neighbours import near_codes, near_vectors
from densecap_search.errors import CollectionError, DensecapError, IndexFolderError, IndexMismatch
from densecap_search.model.checkpoint import save_encoder
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.index_types import INDEX_TYPES
from densecap_search.retrieval.searcher import Searcher, open_searcher
from densecap_search.retrieval.update import update_index


@pytest.mark.parametrize("kind", INDEX_TYPES)
def test_every_index_type_finds_an_image_by_its_own_embedding(kind: str, tmp_path: Path):
    matrix = vectors(100)
    found = index_of(matrix, tmp_path, kind).search(matrix[7:8], k=60)[0]
    assert found[0] == (7, pytest.approx(1.0, abs=1e-5))
    assert len({row for row, _ in found}) == 60


def test_scores_are_cosines_in_the_order_of_a_full_sort(tmp_path: Path):
    matrix, queries = vectors(50), vectors(5, seed=1)
    for query, found in zip(queries, index_of(matrix, tmp_path).search(queries, k=50), strict=True):
        cosines = matrix @ query
        assert [row for row, _ in found] == list(np.argsort(-cosines))
        assert [score for _, score in found] == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_more_hits_than_pictures_give_each_once(count: int, tmp_path: Path):
    found = index_of(vectors(count), tmp_path).search(vectors(2, seed=1), k=10)
    assert [sorted(row for row, _ in rows) for rows in found] == [list(range(count))] * 2


def test_the_top_5_are_the_head_of_the_top_50_even_among_copies(tmp_path: Path):
    matrix = np.repeat(vectors(8), 10, axis=0)
    index, query = index_of(matrix, tmp_path), vectors(1, seed=3)
    whole = index.search(query, k=80)[0]
    for k in (1, 5, 10, 13, 50, 79):
        assert [row for row, _ in index.search(query, k=k)[0]] == [row for row, _ in whole[:k]]
    assert [row for row, _ in whole] == sorted(range(80), key=lambda row: (-whole_score(whole, row), row))


def whole_score(found: list[tuple[int, float]], wanted: int) -> float:
    return next(score for row, score in found if row == wanted)


def test_a_query_of_another_width_names_both(tmp_path: Path):
    with pytest.raises(IndexMismatch, match="holds vectors of 16 numbers; the query has 8"):
        index_of(vectors(3), tmp_path).search(vectors(1, dim=8), k=1)


def test_saving_makes_generations_and_keeps_two_and_only_their_files(tmp_path: Path):
    folder = tmp_path / "Архив ü #索引"
    for count in (3, 4, 5):
        index_of(vectors(count), folder)
    assert (folder / "CURRENT").read_text() == "gen-000003\n"
    assert sorted(path.name for path in folder.glob("gen-*")) == ["gen-000002", "gen-000003"]
    assert sorted(path.name for path in folder.glob("rows-*")) == ["rows-000002.db", "rows-000003.db"]
    assert len(list((folder / "vectors").iterdir())) == 2
    loaded = load_index(folder)
    assert len(loaded) == len(loaded.rows) == len(list(loaded.rows)) == loaded.manifest.count == 5
    assert np.array_equal(loaded.vectors(), vectors(5))
    loaded.check_files()


def test_damage_is_named(tmp_path: Path):
    index = index_of(vectors(3), tmp_path / "i")
    with pytest.raises(IndexFolderError, match="nowhere is not an index"):
        load_index(tmp_path / "nowhere")
    stored = next((tmp_path / "i" / "vectors").iterdir())
    good = stored.read_bytes()
    stored.write_bytes(good[::-1])
    load_index(tmp_path / "i")  # sizes and headers; the bytes where it is asked for
    with pytest.raises(IndexFolderError, match=r"\.f32 is damaged \(its bytes are not those"):
        index.check_files()
    stored.write_bytes(good[:-4])
    with pytest.raises(IndexFolderError, match=r"\.f32 is damaged: it has 188 bytes, and 3 vectors of 16 numbers take 192"):
        load_index(tmp_path / "i")
    stored.write_bytes(good)
    rows = (tmp_path / "i" / "rows-000001.db").read_bytes()
    (tmp_path / "i" / "rows-000001.db").write_bytes(b"half" + rows[4:])
    with pytest.raises(IndexFolderError, match=r"rows-000001\.db is damaged"):
        load_index(tmp_path / "i")
    (tmp_path / "i" / "rows-000001.db").unlink()
    with pytest.raises(IndexFolderError, match=r"rows-000001\.db is missing"):
        load_index(tmp_path / "i")


@pytest.mark.parametrize(("change", "words"), [
    ({"format": 99}, r"written by a newer version of densecap \(index format 99, this reads 2\)"),
    ({"format": None}, "names no format"),
    ({"model": []}, "model is not a mapping"),
    ({"model": {"name": 3, "x": 1}}, "unknown key"),
    ({"count": "3"}, "count is '3', not int"),
    ({"count": True}, "count is True"),
    ({"count": 4}, "it counts 4 pictures, 3 vectors"),
    ({"vectors": {}}, "vectors is not a list"),
    ({"vectors": [{"name": "../../x.f32", "count": 3}]}, r"'\.\./\.\./x\.f32' is not a name"),
    ({"vectors": [{"count": 3}]}, r"vectors\[0\]\.name is missing"),
    ({"rows": "/etc/passwd"}, "'/etc/passwd' is not a name"),
    ({"origins": None}, "origins is not a list"),
    ({"libraries": {"a": 1}}, "libraries is not a mapping of texts"),
    ({"index_type": "quantum"}, "of the type quantum"),
    ({"unheard": 1}, "unknown key unheard"),
])
def test_a_manifest_that_is_not_one_gives_one_sentence(change: dict, words: str, tmp_path: Path):
    index_of(vectors(3), tmp_path)
    path = tmp_path / "gen-000001" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(IndexFolderError, match=words):
        load_index(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000, '{"format": 2}', '{"format": 1}', "\x00"])
def test_a_file_in_the_place_of_a_manifest_gives_one_sentence(text: str, tmp_path: Path):
    index_of(vectors(3), tmp_path)
    (tmp_path / "gen-000001" / "manifest.json").write_text(text)
    with pytest.raises(IndexFolderError, match=r"manifest\.json|vectors\.npy"):
        load_index(tmp_path)


@pytest.mark.parametrize("name", ["", "..", "../elsewhere", "gen-1/../..", "/etc", "gen-x", "x" * 1000])
def test_what_current_names_is_a_generation(name: str, tmp_path: Path):
    index_of(vectors(3), tmp_path)
    (tmp_path / "CURRENT").write_text(name)
    with pytest.raises(IndexFolderError, match="CURRENT is damaged"):
        load_index(tmp_path)


def test_a_hash_that_is_a_path_is_refused_where_it_is_read(tmp_path: Path):
    index = index_of(vectors(3), tmp_path)
    with sqlite3.connect(index.rows.path) as connection:
        connection.execute("UPDATE versions SET hash = '../../x' WHERE number = 1")
    assert index.rows[0].hash == f"{0:032x}"
    with pytest.raises(IndexFolderError, match=r"the hash of picture 1 is '\.\./\.\./x'"):
        list(load_index(tmp_path).rows)


def update(photos: Path, folder: Path, encoder=None):
    return update_index(read_collection(photos), encoder or make_tiny(), ModelConfig("tiny"), folder)


def test_an_update_encodes_only_what_is_new_or_changed(photos: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("densecap_search.embedding.cache.FLUSH_ROWS", 1 << 30)
    first = update(photos, tmp_path / "i")
    assert (first.encoded, first.reused, first.removed, first.changed) == (24, 0, 0, True)
    again = update(photos, tmp_path / "i")
    assert (again.encoded, again.reused, again.changed) == (0, 24, False)
    assert (tmp_path / "i" / "CURRENT").read_text() == "gen-000001\n"

    (photos / "moved").mkdir()
    shutil.move(photos / "red-left-ball.png", photos / "moved" / "red-left-ball.png")
    shutil.move(photos / "red-left-ball.txt", photos / "moved" / "red-left-ball.txt")
    (photos / "blue-left-ball.png").unlink()
    (photos / "green-left-ball.png").write_bytes((photos / "yellow-left-ball.png").read_bytes())
    (photos / "red-left-box.txt").write_text("another caption")
    moved = update(photos, tmp_path / "i")
    assert (moved.encoded, moved.reused, moved.removed, moved.changed) == (0, 23, 2, True)
    entries = {row.image_id: row for row in load_index(tmp_path / "i").rows}
    assert "moved/red-left-ball.png" in entries
    assert "red-left-ball.png" not in entries
    assert entries["red-left-box.png"].captions == ("another caption",)
    assert entries["green-left-ball.png"].hash == entries["yellow-left-ball.png"].hash


def test_another_model_rebuilds_and_says_so(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    other = update_index(read_collection(photos), make_tiny(seed=1), ModelConfig("other"), tmp_path / "i")
    assert (other.encoded, other.rebuilt_for) == (24, "tiny")


def test_broken_pictures_are_listed_and_never_fatal_unless_nothing_is_left(photos: Path, tmp_path: Path):
    names = sorted(path.name for path in photos.glob("*.png"))
    for name in names[:3]:
        (photos / name).write_bytes(b"")
    found = update(photos, tmp_path / "i")
    assert (len(found.index), [skip.reason for skip in found.skipped]) == (21, ["empty file"] * 3)
    for name in names:
        (photos / name).write_bytes(b"")
    with pytest.raises(CollectionError, match=r"no picture could be indexed; 24 were skipped, the first: .*: empty file"):
        update(photos, tmp_path / "j")
    with pytest.raises(CollectionError, match="24 pictures cannot be used"):
        update_index(read_collection(photos), make_tiny(), ModelConfig("tiny"), tmp_path / "k", strict=True)


def test_a_searcher_refuses_another_encoder_and_names_both(photos: Path, tiny_run: Path, tmp_path: Path):
    update_index(read_collection(photos), make_tiny(), ModelConfig(str(tiny_run)), tmp_path / "i")
    searcher = open_searcher(tmp_path / "i", device="cpu")
    assert len(searcher.by_captions(["a red ball"], 5)[0][0]) == 5
    other = tmp_path / "other"
    save_encoder(make_tiny(seed=1), other)
    with pytest.raises(IndexMismatch, match=rf"was built by {tiny_run} .*; you asked for {other} .*Rebuild with"):
        open_searcher(tmp_path / "i", model=ModelConfig(str(other)))
    manifest = tmp_path / "i" / "gen-000001" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(tiny_run), "/gone"))
    with pytest.raises(IndexMismatch, match=r"which cannot be loaded: .*say with --model where it is now"):
        open_searcher(tmp_path / "i")
    assert open_searcher(tmp_path / "i", model=ModelConfig(str(tiny_run))).index.manifest.count == 24


def test_hits_carry_rank_score_place_and_caption(photos: Path, tmp_path: Path):
    tiny = make_tiny()
    made = update(photos, tmp_path / "i", tiny)
    searcher = Searcher(tiny, made.index)
    hits = searcher.by_image(photos / "red-left-ball.png", 3)
    assert (hits[0].rank, hits[0].image_id, hits[0].score) == (1, "red-left-ball.png", pytest.approx(1.0, abs=1e-5))
    assert hits[0].image == str(photos / "red-left-ball.png")
    assert hits[0].caption == (photos / "red-left-ball.txt").read_text()
    assert [hit.rank for hit in hits] == [1, 2, 3]


@pytest.mark.parametrize("caption", ["10:30 train at the station", "1984: a man reading", "x" * 3000, "word " * 300, "東京 🚌"])
def test_any_caption_gives_the_same_hits_alone_and_in_a_list(photos: Path, tmp_path: Path, caption: str):
    tiny = make_tiny()
    searcher = Searcher(tiny, update(photos, tmp_path / "i", tiny).index)
    alone, _ = searcher.by_captions([caption], 5)
    together, truncation = searcher.by_captions(["other", caption, "word " * 250], 5)
    assert [hit.image_id for hit in alone[0]] == [hit.image_id for hit in together[1]]
    assert truncation.truncated >= 1


def test_an_empty_caption_is_refused(photos: Path, tmp_path: Path):
    tiny = make_tiny()
    searcher = Searcher(tiny, update(photos, tmp_path / "i", tiny).index)
    with pytest.raises(DensecapError, match="query 2 is empty"):
        searcher.by_captions(["fine", "  \n"], 5)


def test_a_damaged_index_is_built_anew_by_the_command_that_its_error_names(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    matrix = np.array(load_index(tmp_path / "i").vectors())
    stored = next((tmp_path / "i" / "vectors").iterdir())
    stored.write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(IndexFolderError, match=r"\.f32 is damaged"):
        load_index(tmp_path / "i")
    (photos / "blue-left-ball.png").unlink()
    again = update(photos, tmp_path / "i")
    assert np.array_equal(again.index.vectors(), matrix[1:])
    again.index.rows.path.write_bytes(b"half")
    repaired = update(photos, tmp_path / "i")
    assert len(load_index(tmp_path / "i")) == len(repaired.index) == 23


def test_a_model_that_has_moved_gets_into_the_manifest(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    moved = update_index(read_collection(photos), make_tiny(), ModelConfig("elsewhere"), tmp_path / "i")
    assert (moved.encoded, moved.changed) == (0, True)
    assert load_index(tmp_path / "i").manifest.model == ModelConfig("elsewhere")


def test_an_index_goes_on_reading_the_generation_that_it_was_loaded_from(photos: Path, tmp_path: Path):
    update(photos, tmp_path / "i")
    loaded = load_index(tmp_path / "i")
    before = np.array(loaded.vectors())
    update_index(read_collection(photos), make_tiny(seed=1), ModelConfig("other"), tmp_path / "i")
    assert np.array_equal(loaded.vectors(), before)


def test_a_place_that_cannot_be_written_is_named(photos: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexFolderError, match=r"cannot write the index .*file/i"):
        update(photos, tmp_path / "file" / "i")


def test_near_vectors_are_all_pairs_of_at_least_the_cosine_and_no_other():
    matrix = vectors(600, dim=3)
    matrix[17] = matrix[400]
    cosines = matrix @ matrix.T
    np.fill_diagonal(cosines, -1)
    found = {(row, int(other)) for row, others, _ in near_vectors(matrix, 0.99) for other in others}
    certain = {(int(row), int(other)) for row, other in np.argwhere(cosines > 0.99 + 1e-6)}
    possible = {(int(row), int(other)) for row, other in np.argwhere(cosines > 0.99 - 1e-6)}
    assert (17, 400) in certain <= found <= possible


def test_near_codes_are_all_pairs_within_four_bits_and_no_other():
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 2**63, 900, dtype=np.uint64)
    for row in range(0, 900, 2):  # its neighbour is one to six bits away
        bits = generator.permutation(64)[: 1 + row // 2 % 6].tolist()
        codes[row + 1] = int(codes[row]) ^ sum(1 << bit for bit in bits)
    apart = np.array([[(int(a) ^ int(b)).bit_count() for b in codes] for a in codes])
    np.fill_diagonal(apart, 64)
    found = {(row, int(other), int(bits)) for row, others, away in near_codes(codes, 4)
             for other, bits in zip(others, away, strict=True)}
    assert found == {(int(a), int(b), int(apart[a, b])) for a, b in np.argwhere(apart <= 4)}
    assert len(found) == 2 * 300  # 75 neighbours each at 1, 2, 3 and 4 bits, seen from both sides


def test_a_graph_finds_nearly_all_that_an_exact_index_finds_and_is_rebuilt_from_the_vectors(tmp_path: Path):
    matrix, queries = vectors(1500), vectors(40, seed=1)
    exact, graph = (index_of(matrix, tmp_path / kind, kind) for kind in ("flat", "hnsw"))
    assert graph.manifest.approximation.recall >= 0.95
    loaded = load_index(tmp_path / "hnsw")
    for index in (graph, loaded):
        shared = [len({row for row, _ in a} & {row for row, _ in b}) for a, b in
                  zip(exact.search(queries, k=10), index.search(queries, k=10), strict=True)]
        assert sum(shared) >= 0.97 * 400
    assert loaded.search(queries, k=5) == graph.search(queries, k=5)
    assert [row for row, _ in loaded.search(queries, k=50)[0]][:5] == [row for row, _ in loaded.search(queries, k=5)[0]]
