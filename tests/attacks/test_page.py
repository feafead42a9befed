"""The page as a stranger on the network meets it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

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
