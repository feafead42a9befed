"""The socket that the page listens on."""

from __future__ import annotations

import socket

from densecap_search.ui.server import listen


def test_the_body_of_an_answer_does_not_wait_for_its_head_to_be_confirmed():
    with listen("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()), sock.accept()[0] as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
