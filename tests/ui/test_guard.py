from __future__ import annotations

import base64
import hashlib
import logging

import pytest
from starlette.responses import HTMLResponse, JSONResponse
from starlette.testclient import TestClient

from densecap_search.ui import guard
from densecap_search.ui.access import make_access
from densecap_search.ui.guard import Guard, content_security_policy, refuse

HERE = {"host": "localhost:7860"}


def status(method: str = "GET", path: str = "/api/health", **headers: str) -> int | None:
    given = {**HERE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    refusal = refuse(make_access("127.0.0.1"), method, path, given, 1000)
    return refusal and refusal.status


def test_a_host_that_is_not_served_is_refused():
    assert status() is None
    assert status(host="evil.example:7860") == 421
    assert status(host="") == 421


@pytest.mark.parametrize("path", [
    "/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/file=/etc/passwd", "/config", "/gradio_api/call/search",
    "/upload", "/file=/etc/passwd", "/monitoring/x", "/login", "/docs", "/openapi.json", "/api", "/page/../../x",
    "/assets/../../etc/passwd", "/static/%2e%2e/x", "/gradio_api/heartbeat/x", "/gradio_api/mcp/sse", "/manifest.json",
])
def test_routes_that_the_page_does_not_need_are_closed(path: str):
    assert status(path=path) == 404
    assert status("POST", path) in (404, 405)


@pytest.mark.parametrize("path", ["/", "/theme.css", "/assets/index-AB_c.js", "/static/js/x.min.js", "/page/page.js"])
def test_what_the_page_is_made_of_can_be_read_and_not_written(path: str):
    assert status(path=path) is None
    assert [status(method, path) for method in ("POST", "PUT", "DELETE", "OPTIONS")] == [405] * 4


def test_pages_of_other_hosts_cannot_ask():
    assert status("POST", "/api/search", origin="http://localhost:7860") is None
    assert status("POST", "/api/search", origin="http://evil.example") == 403
    assert status("POST", "/api/search", origin="null") == 403
    assert status("GET", "/pictures/ab/small", sec_fetch_site="cross-site") == 403
    assert status("GET", "/", sec_fetch_site="cross-site") is None  # a link to the page


def test_a_body_is_measured_before_it_is_read():
    assert status("POST", "/api/search", content_length="1000") is None
    assert status("POST", "/api/search", content_length="1001") == 413
    assert status("POST", "/api/search", content_length="-1") == 413


def test_who_has_not_logged_in_sees_nothing_at_all():
    access = make_access("0.0.0.0", users={"anna": "a"})
    right = {**HERE, "authorization": "Basic " + base64.b64encode(b"anna:a").decode()}
    for path in ("/", "/api/search", "/page/page.js", "/nothing"):
        assert refuse(access, "GET", path, HERE, 9).status == 401
    assert refuse(access, "GET", "/", right, 9) is None


async def handler(scope, receive, send):
    """Reads the body; "/" is a page with a script, and /api/boom breaks."""
    if scope["path"] == "/api/boom":
        raise RuntimeError("two\nlines")
    got, more = 0, True
    while more:
        message = await receive()
        got, more = got + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/":
        answer = HTMLResponse("<script>let a = 1;</script><script src='x.js'></script><p>é</p>",
                              headers={"access-control-allow-origin": "*"})
    else:
        answer = JSONResponse({"bytes": got})
    await answer(scope, receive, send)


@pytest.fixture
def client() -> TestClient:
    return TestClient(Guard(handler, make_access("127.0.0.1"), lambda path: 1000), base_url="http://localhost")


def test_a_body_without_a_length_is_cut_off_where_it_is_too_long(client: TestClient):
    assert client.post("/api/x", content=iter([b"x" * 400] * 2)).json() == {"bytes": 800}
    assert client.post("/api/x", content=iter([b"x" * 400] * 3)).status_code == 413


def test_a_fault_of_ours_is_one_line_in_the_log_and_tells_nothing(client: TestClient, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR):
        answer = client.get("/api/boom")
    assert (answer.status_code, "two" in answer.text) == (500, False)
    assert [record.getMessage() for record in caplog.records] == ["GET /api/boom: RuntimeError: two lines"]


def test_the_page_lets_the_browser_ask_no_other_host_and_run_only_its_own_scripts(client: TestClient):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    script = base64.b64encode(hashlib.sha256(b"let a = 1;").digest()).decode()
    assert f"script-src 'self' 'sha256-{script}';" in policy
    assert "unsafe-eval" not in policy
    assert "default-src 'none'" in policy
    assert not [word for word in policy.split() if "http" in word or word == "*"]
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text.endswith("<p>é</p>")
    assert client.get("/api/x").headers["content-security-policy"] == content_security_policy()


def test_a_wrong_password_is_answered_late(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(guard.asyncio, "sleep", sleep)
    asked = TestClient(Guard(handler, make_access("127.0.0.1", users={"anna": "a"}), lambda path: 9), base_url="http://localhost")
    assert asked.get("/api/x").headers["www-authenticate"].startswith("Basic")
    assert slept == []
    assert asked.get("/api/x", auth=("anna", "b")).status_code == 401
    assert slept == [1.0]
    assert asked.get("/api/x", auth=("anna", "a")).status_code == 200
