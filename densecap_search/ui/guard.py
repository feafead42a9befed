"""What stands before every route of the page: host, login, origin, open routes, size of bodies, headers. Plain ASGI.

Reads no body and calls no handler for a request that is refused.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from densecap_search.ui.access import Access, host_name

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

log = logging.getLogger("densecap.page")
BODY_SECONDS = 30.0  # for a body to arrive
WRONG_LOGIN_SECONDS = 1.0  # before a wrong password is answered
# gradio has some forty routes (uploads, its queue, files of its folder); these are what its page needs
FRAME = re.compile(r"/|/theme\.css|/favicon\.ico|/(assets|static)/[\w./-]+")
OWN = re.compile(r"(/beside)?/(api|pictures)/.+|/page/.+")
ASKED = re.compile(r"(/beside)?/api/.+")  # by POST
_INLINE = re.compile(rb"<script(?![^>]*\bsrc\s*=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
HEADERS = {
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin", "x-frame-options": "SAMEORIGIN",
}


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the page's: a status and a sentence."""

    status: int
    sentence: str
    headers: tuple[tuple[str, str], ...] = ()


class _TooLargeError(Exception):
    pass


def refuse(access: Access, method: str, path: str, headers: Mapping[str, str], most_bytes: int) -> Refusal | None:
    """Why a request is not answered, or None. headers: names in small letters; most_bytes: of its body."""
    host = headers.get("host", "")
    if not access.serves(host):
        return Refusal(421, f"this server is not {host_name(host)[:80] or 'a host without name'}; "
                            "--allow-host NAME lets it answer to that name")
    if access.users and access.user_of(headers.get("authorization", "")) is None:
        return Refusal(401, "log in to search", (("www-authenticate", 'Basic realm="densecap", charset="UTF-8"'),))
    if ".." in path or not (OWN.fullmatch(path) or FRAME.fullmatch(path)):
        return Refusal(404, "there is nothing here")
    if method not in ("GET", "HEAD") and not (method == "POST" and ASKED.fullmatch(path)):
        return Refusal(405, "this cannot be asked for in that way", (("allow", "GET, HEAD"),))
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    if foreign or (headers.get("sec-fetch-site") == "cross-site" and OWN.fullmatch(path)):
        return Refusal(403, "pages of other hosts cannot ask here")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most_bytes:
        return Refusal(413, f"at most {most_bytes:,} bytes are taken")
    return None


def content_security_policy(page: bytes = b"") -> str:
    """Everything from this host alone; of inline scripts only those of this page, by their hashes."""
    hashes = sorted({base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE.findall(page)})
    scripts = " ".join(["'self'", *(f"'sha256-{value}'" for value in hashes)])
    return (f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            "font-src 'self' data:; connect-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'none'; "
            "frame-ancestors 'self'; object-src 'none'")


class Guard:
    """An ASGI application around another one. most_bytes: of the body of a request to a path."""

    def __init__(self, app: App, access: Access, most_bytes: Callable[[str], int]) -> None:
        self.app, self.access, self.most_bytes = app, access, most_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer, refuse, or hand on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        path, most = scope["path"], self.most_bytes(scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = refuse(self.access, scope["method"], path, headers, most)
        if refusal is not None:
            if refusal.status == 401 and "authorization" in headers:
                await asyncio.sleep(WRONG_LOGIN_SECONDS)
            await _answer(send, refusal)
            return
        answer = _Answer(send, whole=path == "/")
        try:
            await self.app(scope, _bounded(receive, most), answer)
        except _TooLargeError:
            await answer.instead(Refusal(413, f"at most {most:,} bytes are taken"))
        except TimeoutError:
            await answer.instead(Refusal(408, "the request did not arrive in time"))
        except Exception as error:
            log.error("%s %s: %s: %s", scope["method"], path[:200].encode("ascii", "backslashreplace").decode(),
                      type(error).__name__, " ".join(str(error).split())[:300])
            await answer.instead(Refusal(500, "something went wrong here; the server's log says what"))


class _Answer:
    """``send`` that puts our headers on. whole: the page, held until it is complete since its policy hashes it."""

    def __init__(self, send: Send, *, whole: bool) -> None:
        self._send, self._whole = send, whole
        self._start: Message | None = None
        self._body = b""
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self._whole:
            self._start = message
        elif message["type"] == "http.response.start":
            await self._begin(message, content_security_policy())
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._begin(self._start, content_security_policy(self._body))
                await self._send({"type": "http.response.body", "body": self._body})
        else:
            await self._send(message)

    async def instead(self, refusal: Refusal) -> None:
        """A refusal, where nothing was sent yet."""
        if not self.started:
            await _answer(self._send, refusal)

    async def _begin(self, message: Message, policy: str) -> None:
        self.started = True
        kept = [(name, value) for name, value in message.get("headers", [])
                if not name.lower().startswith(b"access-control-") and name.lower() != b"content-security-policy"]
        await self._send({**message, "headers": [*kept, *_encoded({**HEADERS, "content-security-policy": policy})]})


def _bounded(receive: Receive, most_bytes: int) -> Receive:
    """``receive`` that ends a body which is too large or does not arrive."""
    got, done = 0, False

    async def bounded() -> Message:
        nonlocal got, done
        if done:
            return await receive()  # only a client that goes away
        message = await asyncio.wait_for(receive(), BODY_SECONDS)
        got += len(message.get("body", b""))
        done = not message.get("more_body", False)
        if got > most_bytes:
            raise _TooLargeError
        return message

    return bounded


async def _answer(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.sentence}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close",
               **HEADERS, "content-security-policy": content_security_policy(), **dict(refusal.headers)}
    await send({"type": "http.response.start", "status": refusal.status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
