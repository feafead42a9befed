"""Captions in letters that the text tower's vocabulary lacks: said wherever somebody asks or describes with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import make_mixed, make_photos, make_tiny
from open_clip.tokenizer import HFTokenizer
from starlette.testclient import TestClient
from transformers import BertTokenizerFast

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.inspection.geometry import look_at_captions
from densecap_search.inspection.inspect import inspect
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing.card import language_of
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.talk import Talk
from densecap_search.ui.access import make_access
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex
from densecap_search.workflows import ask_server as asking
from densecap_search.workflows.search_file import answers

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ".", "a", "red", "green", "blue", "yellow", "ball", "box", "lies", "on",
         "the", "left", "middle", "right", "of", "white", "table", "and", "nothing", "else", "can", "be", "seen"]
NOTE = ("The model's vocabulary does not know 2 of 3 words or signs (кот, \U0001f68c), and they say next to nothing to it; ask in the "
        "language that it was trained on (the starter: English only).")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> DualEncoder:
    """It knows the words of the drawn pictures' captions."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder / "tokenizer")
    encoder = make_mixed(folder / "model")
    encoder.tokenizer = HFTokenizer(str(folder / "tokenizer"), context_length=32)
    return encoder


@pytest.fixture(scope="module")
def searcher(reader: DualEncoder, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    folder = tmp_path_factory.mktemp("page")
    update_index(read_collection(make_photos(folder / "photos")), reader, ModelConfig("mixed"), folder / "index")
    return Searcher(reader, load_index(folder / "index"))


@pytest.fixture
def page(searcher: Searcher) -> Iterator[TestClient]:
    with TestClient(build_app(LiveIndex(lambda: searcher), make_access("127.0.0.1"), paths=True), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(("caption", "note"), [("red кот \U0001f68c", NOTE), ("a red ball", "")])
def test_the_api_says_it_beside_the_hits(page: TestClient, caption: str, note: str):
    found = page.post("/api/search", json={"caption": caption}).json()
    assert found["note"] == note
    assert found["message"] == "1 to 24 of 24 pictures, best first."


def test_a_server_s_note_comes_with_its_hits(page: TestClient, monkeypatch: pytest.MonkeyPatch):
    def send(server: str, asked: dict) -> asking.Answer:
        reply = page.post("/api/search", json=json.loads(asking._request(server, asked).data)).json()
        return asking.Answer([asking._hit(one) for one in reply["hits"]], reply["note"])

    monkeypatch.setattr(asking, "_answer", send)
    found = asking.ask_server("http://localhost", "red кот \U0001f68c", 3)
    assert (len(found.hits), found.note) == (3, NOTE)


def test_a_file_of_queries_says_how_many_hold_such_words(searcher: Searcher):
    lines: list[str] = []
    asked = iter([Query("a red ball"), Query("кот"), Query("red", also=((0.5, "автобус"),))])
    assert len(list(answers(searcher, asked, 2, talk=Talk(say=lines.append)))) == 3
    assert ("2 of 3 captions hold words or signs that the model's vocabulary does not know (кот, автобус), and that say next to "
            "nothing to it") in lines


def test_inspect_says_what_share_of_the_captions_holds_such_words(reader: DualEncoder, tmp_path: Path):
    photos = make_photos(tmp_path / "photos")
    for path in sorted(photos.glob("*.txt"))[:6]:
        path.write_text(f"кот {path.stem}", encoding="utf-8")
    collection = read_collection(photos)
    geometry = look_at_captions(collection, reader, model="mixed", batch_size=8, logit_scale=10.0)
    (found,) = (finding for finding in inspect(collection, None, geometry).findings if finding.kind == "unknown words")
    assert found.count == 6
    assert found.what.startswith("25.0 % of the captions, 6 of 24 captions hold words or signs")
    assert "кот" in found.what
    assert found.examples[0].note == "кот blue-left-ball"


def test_a_card_says_whether_a_model_reads_all_scripts(reader: DualEncoder):
    assert language_of(reader).startswith("* language: that of its vocabulary")
    assert language_of(make_tiny()) == ""  # CLIP's tokenizer works on bytes
