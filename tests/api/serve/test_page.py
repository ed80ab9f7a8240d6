"""The page for people is served at `/`, and only its own files are."""

from __future__ import annotations

import pytest
from rdrr.serve.app import application
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def client():
    # No route of the page asks the service.
    return TestClient(application(None, key="secret", hosts=frozenset({"testserver"})))


@pytest.mark.parametrize(
    ("path", "media_type"),
    [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")],
)
def test_the_page_needs_no_key_and_may_load_only_its_own_files(client, path, media_type):
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (
        200,
        f"{media_type}; charset=utf-8",
    )
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/v1/models").status_code == 401


@pytest.mark.parametrize("path", ["/browser/page.js", "/page.ts", "/..%2fapp.py", "/__init__.py"])
def test_no_other_file_is_served(client, path):
    key = {"x-api-key": "secret"}
    assert client.get(path, headers=key).status_code == 404
    assert client.get("/page.js", headers=key).status_code == 200


def test_a_page_of_another_host_gets_nothing(client):
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.get("/").status_code == 200
