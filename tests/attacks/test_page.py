"""The page as a stranger on the network meets it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import free_port, make_photos

from densecap_search.cli import main
from densecap_search.ui.server import without_proxies


def test_serve_does_not_open_to_the_network_unless_somebody_must_log_in_or_it_was_said_aloud(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DENSECAP_AUTH", raising=False)
    done = CliRunner().invoke(main, ["serve", str(tmp_path), "--host", "0.0.0.0"])
    assert done.exit_code == 1
    assert "--auth-file FILE" in done.output
    assert "--no-auth" in done.output


def test_proxies_are_hidden_within_the_block_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with without_proxies():
        assert "ALL_PROXY" not in os.environ
    assert os.environ["ALL_PROXY"] == "socks5://127.0.0.1:9"


@dataclass(frozen=True)
class Server:
    """``densecap serve`` in a process of its own. log: the file of what it says."""

    port: int
    log: Path

    def ask(self, method: str, path: str, body: str | bytes | None = None) -> tuple[int, dict]:
        """The status and the JSON of an answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, {"content-type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return self.ask("GET", "/api/health")[0] == 200
        except OSError:
            return False

    def lines(self) -> list[str]:
        """What it has said so far."""
        return self.log.read_text().splitlines()


def wait_until(holds: Callable[[], bool]) -> None:
    """At most a minute."""
    for _ in range(240):
        if holds():
            return
        time.sleep(0.25)
    pytest.fail("it did not come")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    words = [sys.executable, "-m", "densecap_search"]
    subprocess.run([*words, "index", make_photos(folder / "photos"), "--model", tiny_run, "-o", folder / "index"], check=True,
                   capture_output=True)
    found = Server(free_port(), folder / "log")
    with found.log.open("w") as log, subprocess.Popen([*words, "serve", folder / "index", "--port", str(found.port)],
                                                      stderr=log, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(found.is_up)
            yield found
        finally:
            process.terminate()


def search_request(count: int) -> bytes:
    body = json.dumps({"caption": "a red ball on a table", "count": count}).encode()
    return (b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.slow
def test_two_hundred_clients_that_never_read_keep_nobody_from_an_answer(server: Server):
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)  # an answer does not fit
            client.connect(("127.0.0.1", server.port))
            client.sendall(search_request(count=24) * 20)  # one after the other on a connection, as far as it lets them
        answers: list[tuple[int, dict]] = []

        def is_answered() -> bool:
            answers.append(server.ask("POST", "/api/search", json.dumps({"caption": "a red ball", "count": 3})))
            return answers[-1][0] == 200

        wait_until(is_answered)
        assert len(answers[-1][1]["hits"]) == 3
        assert {status for status, _ in answers} <= {200, 503}
        assert server.ask("GET", "/api/health")[1]["in_flight"] <= 64
    wait_until(lambda: server.ask("GET", "/api/health")[1]["in_flight"] == 0)
    assert not [line for line in server.lines() if "Traceback" in line]


MALFORMED = {
    "no HTTP": b"HELLO\r\n\r\n",
    "a TLS greeting": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "two lengths": b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}",
    "a length that is no number": b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}",
    "a header without end": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000,
    "null bytes": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_one_line_in_the_log(server: Server, name: str):
    before = len(server.lines())
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(MALFORMED[name])
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
    wait_until(lambda: len(server.lines()) > before)
    assert server.ask("GET", "/api/health")[0] == 200
    (line,) = server.lines()[before:]
    assert "Invalid HTTP request" in line


@pytest.mark.slow
@pytest.mark.parametrize(("body", "status", "sentence"), [
    (json.dumps({"caption": "a " * 500_000}), 422, "the caption has 1,000,000 letters; at most 20,000 are read"),
    ("{", 422, ""), (b"\xff\xfe", 422, ""), ("[" * 100_000, 400, ""), (json.dumps({"caption": {"a": 1}}), 422, ""),
])
def test_a_caption_that_is_too_long_or_none_is_refused_in_a_sentence_and_without_a_line_in_the_log(
        server: Server, body: str | bytes, status: int, sentence: str):
    before = server.lines()
    found, answer = server.ask("POST", "/api/search", body)
    assert (found, list(answer)) == (status, ["error"])
    assert sentence in answer["error"]
    assert server.ask("GET", "/api/health")[1]["in_flight"] == 0
    assert server.lines() == before


@pytest.mark.slow
def test_a_body_that_is_too_large_is_refused_before_it_is_sent(server: Server):
    before = server.lines()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000000\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert server.ask("GET", "/api/health")[0] == 200
    assert server.lines() == before
