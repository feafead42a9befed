"""The page's HTTP server: uvicorn with bounds, in this process."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from densecap_search.errors import DensecapError

MOST_CONNECTIONS = 512
IDLE_SECONDS = 20  # that a connection without requests is kept


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or a sentence why not. port 0: any free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise DensecapError(f"cannot serve on {host}:{port}, which is taken or not allowed; "
                            "choose another --port") from error
    # connections inherit it; without it the body of an answer waits 40 ms for the other side to confirm the head
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def address(sock: socket.socket) -> str:
    """The URL under which this machine reaches a listening socket."""
    host, port = sock.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def serve(app: Callable[..., Any], sock: socket.socket) -> None:
    """Answer until Ctrl-C. A malformed request is one line in the log."""
    _quiet_logs()
    config = uvicorn.Config(
        app, ws="none", http="h11", log_config=None, access_log=False, server_header=False, lifespan="on",
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=3, limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=64 << 10, proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[sock])


@contextmanager
def without_proxies() -> Iterator[None]:
    """Within the block the environment names no proxy."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.lower().endswith("_proxy")}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _quiet_logs() -> None:
    """Warnings and errors of the server as a line each on stderr, without tracebacks."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    for name in ("uvicorn", "uvicorn.error", "densecap.page", "asyncio"):
        logging.getLogger(name).addFilter(_one_line)


def _one_line(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[0]:
        record.msg, record.args = f"{record.getMessage().splitlines()[0]} {record.exc_info[1]!r}"[:500], ()
    record.exc_info = record.exc_text = record.stack_info = None
    return True
