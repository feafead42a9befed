"""A running ``densecap serve`` asked through its JSON API, with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from densecap_search.errors import ConfigError, DensecapError
from densecap_search.retrieval.hits import Hit

AUTH_VARIABLE = "DENSECAP_AUTH"  # USER:PASSWORD, as for the server
PAGE = 200  # hits that the server gives at a time
SECONDS = 120.0  # for an answer
MOST_BYTES = 64 << 20  # of an answer
BUSY = 503  # what a server says that has as much to do as it may have
WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds until a busy one is asked again


class Answer(NamedTuple):
    """Hits, best first, and what should be known of the caption; "" where there is nothing."""

    hits: list[Hit]
    note: str


class _Stay(urllib.request.HTTPRedirectHandler):
    """Another address is not followed: the login is for the one that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask_server(server: str, caption: str, k: int, *, mode: str = "auto", must: tuple[str, ...] = (),
               where: str | None = None, sort: str = "score", stacks: bool = False) -> Answer:
    """The best k hits for a caption, conditions, or both. Paths of pictures are as the server shows them.

    Errors: ConfigError for what is no address; DensecapError where nothing answers there, or in the server's words.
    """
    asked = {"caption": caption, "mode": mode, "must": list(must), "where": where, "sort": sort, "stacks": stacks}
    hits: list[Hit] = []
    note = ""
    while len(hits) < k:
        count = min(PAGE, k - len(hits))
        page, note = _answer(server, {**asked, "count": count, "offset": len(hits)})
        hits += page
        if len(page) < count:
            break
    return Answer(hits, note)


def _answer(server: str, asked: Mapping[str, Any]) -> Answer:
    request = _request(server, asked)
    try:
        told = json.loads(_reply(server, request))
        return Answer([_hit(one) for one in told["hits"]], str(told.get("note", "")))
    except HTTPError as error:
        raise DensecapError(f"{server} answers: {_sentence(error)}") from error
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DensecapError(f"{server} cannot be reached: {reason}; is `densecap serve` running there?") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DensecapError(f"what answers at {server} is no `densecap serve` of this version") from error


def _reply(server: str, request: urllib.request.Request) -> bytes:
    """Asked again after each of WAITS where the server is busy or cuts the connection; where nothing listens it is not,
    for the address may be wrong."""
    for wait in (*WAITS, None):
        try:
            with _opener(server).open(request, timeout=SECONDS) as reply:
                body: bytes = reply.read(MOST_BYTES)
                return body
        except (HTTPError, ConnectionError, HTTPException) as error:
            if wait is None or (isinstance(error, HTTPError) and error.code != BUSY):
                raise
            time.sleep(wait)
    raise AssertionError("unreachable")


def _request(server: str, asked: Mapping[str, Any]) -> urllib.request.Request:
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.hostname or "@" in address.netloc:
        raise ConfigError(f"--server is an address such as http://127.0.0.1:7860, not {server}; a login goes into "
                          f"{AUTH_VARIABLE}=USER:PASSWORD")
    headers = {"content-type": "application/json"}
    if login := os.environ.get(AUTH_VARIABLE):
        headers["authorization"] = f"Basic {base64.b64encode(login.encode('utf-8', 'surrogateescape')).decode()}"
    return urllib.request.Request(f"{server.rstrip('/')}/api/search", json.dumps(asked).encode(), headers)


def _opener(server: str) -> urllib.request.OpenerDirector:
    """A proxy of the environment is for other machines."""
    near = urlsplit(server).hostname in ("localhost", "127.0.0.1", "::1")
    return urllib.request.build_opener(_Stay, *([urllib.request.ProxyHandler({})] if near else []))


def _sentence(error: HTTPError) -> str:
    try:
        told = str(json.loads(error.read(1 << 16))["error"])
    except (OSError, ValueError, KeyError, TypeError):
        told = f"{error.code} {error.reason}"
    return f"{told}; set {AUTH_VARIABLE}=USER:PASSWORD" if error.code == 401 else told


def _hit(one: Mapping[str, Any]) -> Hit:
    return Hit(int(one["rank"]), one["score"], str(one["image_id"]), str(one["path"]), str(one["caption"]),
               match=one["match"], by=one["by"], strength=one["strength"], under=tuple(map(_hit, one["under"])))
