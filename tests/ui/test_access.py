from __future__ import annotations

import base64
from pathlib import Path

import pytest

from densecap_search.errors import ConfigError
from densecap_search.ui.access import check_open, host_name, is_loopback, make_access, open_to, read_users


@pytest.mark.parametrize(("host", "name"), [
    ("LocalHost:7860", "localhost"), ("127.0.0.1", "127.0.0.1"), ("[::1]:80", "::1"), ("::1", "::1"),
    ("pictures.lan.:8080", "pictures.lan"), ("", ""),
])
def test_a_host_is_told_by_its_name_and_not_by_its_port(host: str, name: str):
    assert host_name(host) == name


def test_a_page_on_this_machine_answers_to_no_other_name():
    access = make_access("127.0.0.1")
    assert all(access.serves(host) for host in ("localhost:7860", "127.0.0.1:7860", "[::1]:7860", "LOCALHOST"))
    assert not any(access.serves(host) for host in ("evil.example", "10.0.0.5", "localhost.evil.example", "", "::2"))
    assert make_access("127.0.0.1", ["Pictures.lan:80"]).serves("pictures.lan:8080")


def test_a_page_on_every_network_answers_to_addresses_and_not_to_names_of_others():
    access = make_access("0.0.0.0")
    assert all(access.serves(host) for host in ("192.168.1.7:7860", "[fe80::1]:7860", "localhost"))
    assert not access.serves("evil.example")


@pytest.mark.parametrize(("host", "loopback"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("10.0.0.1", False),
    ("pictures.lan", False), ("::", False),
])
def test_loopback_is_told_from_the_network(host: str, loopback: bool):
    assert is_loopback(host) is loopback


def test_the_network_is_opened_only_with_a_login_or_when_it_was_said_aloud():
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0 opens the page to other machines: .*--auth-file.*--no-auth"):
        check_open("0.0.0.0", {}, no_auth=False)
    check_open("0.0.0.0", {}, no_auth=True)
    check_open("0.0.0.0", {"anna": "x"}, no_auth=False)
    check_open("127.0.0.1", {}, no_auth=False)
    with pytest.raises(ConfigError, match="contradict"):
        check_open("127.0.0.1", {"anna": "x"}, no_auth=True)


def test_users_come_from_the_file_before_the_environment_before_the_arguments(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DENSECAP_AUTH", raising=False)
    assert read_users(None, None) == {}
    assert read_users(None, "anna:a:b") == {"anna": "a:b"}
    monkeypatch.setenv("DENSECAP_AUTH", "ben:secret")
    assert read_users(None, "anna:a") == {"ben": "secret"}
    (tmp_path / "users").write_text("# who\ncarla:c\n\ndora:d\n", encoding="utf-8")
    assert read_users(tmp_path / "users", "anna:a") == {"carla": "c", "dora": "d"}
    (tmp_path / "users").write_text("carla\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"users, line 1: write USER:PASSWORD"):
        read_users(tmp_path / "users", None)
    with pytest.raises(ConfigError, match="cannot read --auth-file"):
        read_users(tmp_path / "none", None)


def test_a_login_is_proven_by_name_and_password_together():
    access = make_access("0.0.0.0", users={"anna": "pass:wörd", "ben": "b"})

    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    assert access.user_of(basic("anna:pass:wörd")) == "anna"
    for wrong in ("anna:b", "anna:", "nobody:", ":", "", "anna"):
        assert access.user_of(basic(wrong)) is None
    for broken in ("", "Basic", "Basic ***", "Bearer x", "Basic /w=="):
        assert access.user_of(broken) is None


def test_what_is_open_to_whom_is_one_sentence():
    assert open_to("127.0.0.1", {}, True) == "open to this machine only, without login; paths of pictures are shown"
    assert open_to("0.0.0.0", {"ben": "b", "anna": "a"}, False) == (
        "open to everyone who reaches 0.0.0.0 of this machine, after login as anna or ben; paths of pictures are shown "
        "from the archive on only")
