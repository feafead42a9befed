"""``densecap search --server`` against the real server on a port of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import uvicorn
from click.testing import CliRunner, Result
from helpers import free_port, make_photos

from densecap_search.cli import main
from densecap_search.retrieval.searcher import open_searcher
from densecap_search.ui.access import make_access
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex
from densecap_search.ui.server import address, listen
from densecap_search.workflows import ask_server

CAPTION = "A red ball lies on the left of a white table, and nothing else can be seen."


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Path:
    folder = tmp_path_factory.mktemp("served")
    run("index", make_photos(folder / "photos"), "--model", tiny_run, "-o", folder / "index")
    return folder / "index"


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    """The application of ``densecap serve`` on a free port, which asks for a login."""
    app = build_app(LiveIndex(lambda: open_searcher(index, device="cpu")),
                    make_access("127.0.0.1", users={"zoë": "a:b"}), paths=True)
    sock = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    yield address(sock)
    server.should_exit = True
    thread.join()


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSECAP_AUTH", "zoë:a:b")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # is not there, and not asked for this machine


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("words", [
    [], ["--mode", "image"], ["--must", "red", "--must", "left", "-k", "3"], ["--where", "split is missing", "-k", "500"],
])
def test_a_server_gives_what_its_index_gives(index: Path, url: str, words: list[str]):
    asked, searched = ([json.loads(line) for line in run("search", *where, CAPTION, *words, "--json").stdout.splitlines()]
                       for where in (["--server", url], [index]))
    assert asked
    rounded = ("score", "match")  # in the server's answers
    assert [{name: hit[name] for name in hit if name not in rounded} for hit in asked] == [
        {name: hit[name] for name in hit if name not in rounded} for hit in searched]
    for name in rounded:
        assert [hit.get(name) for hit in asked] == pytest.approx([hit.get(name) for hit in searched], abs=1e-4)


@pytest.mark.usefixtures("login")
def test_a_server_is_asked_for_words_without_a_caption(index: Path, url: str):
    asked, searched = (run("search", *where, "--must", "red ball", "--must", "left").stdout
                       for where in (["--server", url], [index]))
    assert asked == searched
    assert "red-left-ball" in asked


def test_a_login_that_lacks_and_a_filter_that_is_wrong_are_told(url: str, monkeypatch: pytest.MonkeyPatch):
    assert "log in to search; set DENSECAP_AUTH=USER:PASSWORD" in run("search", "--server", url, CAPTION, code=1).output
    monkeypatch.setenv("DENSECAP_AUTH", "zoë:a:b")
    assert "is no column of this index" in run("search", "--server", url, CAPTION, "--where", "x = 1", code=1).output


def test_what_is_no_server_is_told():
    away = f"http://127.0.0.1:{free_port()}"
    assert f"{away} cannot be reached" in run("search", "--server", away, CAPTION, code=1).output
    assert "an address such as http://" in run("search", "--server", "file:///etc", CAPTION, code=1).output
    assert "--image does not go with --server" in run("search", "--server", away, "--image", "a.png", code=2).output
    assert "in place of INDEX" in run("search", "--server", away, "idx", CAPTION, code=2).output


@pytest.mark.parametrize(("refusals", "code"), [(2, 0), (9, 1)])
def test_a_busy_server_and_one_that_cuts_the_connection_are_asked_again(refusals: int, code: int, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    waited: list[float] = []
    hit = {"rank": 1, "score": 0.5, "image_id": "a.jpg", "path": "a.jpg", "caption": "A boat.", "match": None, "by": None,
           "strength": None, "under": []}

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.path)
            if len(asked) == 1:  # the connection ends without an answer
                return
            busy = len(asked) <= refusals
            body = json.dumps({"error": "64 searches are waiting already"} if busy else {"hits": [hit], "note": ""}).encode()
            self.send_response(503 if busy else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(ask_server.time, "sleep", waited.append)
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = run("search", "--server", f"http://127.0.0.1:{server.server_port}", CAPTION, "-k", "1", code=code)
        server.shutdown()
    if code:
        assert "answers: 64 searches are waiting already" in done.output
        assert waited == [0.5, 1.0, 2.0, 4.0]
    else:
        assert "A boat." in done.output
        assert waited == [0.5, 1.0]
