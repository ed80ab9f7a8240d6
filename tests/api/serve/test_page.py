"""The page for people is served at `/`, and only its own files are."""

from __future__ import annotations

import json

import pytest
from rdrr.serve.app import application
from rdrr.serve.metrics import Metrics
from rdrr.serve.pool import Pool
from rdrr_manifests.package import open_package
from starlette.testclient import TestClient
from support.packages import llama_manifest, write_random_package
from support.seeds import generator_of


def served(**options):
    """Return a client of a server without models, which the page's files do not need."""
    return TestClient(application(Pool([], Metrics(), 0), **options))


@pytest.fixture(scope="module")
def client():
    return served(key="secret", hosts=frozenset({"testserver"}))


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


INDEX = {
    "format": "rdrr-web",
    "package": "../",
    "text": {"tokenizer": "tokenizer.json"},
    "programs": [{"file": "programs/a.json"}],
}


def of_package(folder, index):
    (folder / "web/programs").mkdir(parents=True, exist_ok=True)
    (folder / "web/programs/a.json").write_text("{}", encoding="utf-8")
    (folder / "web/index.json").write_text(json.dumps(index), encoding="utf-8")
    return served(package=open_package(folder))


def test_a_package_for_browsers_is_served_by_the_names_in_its_index(tmp_path, request):
    write_random_package(tmp_path, llama_manifest("F16"), generator_of(request))
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    client = of_package(tmp_path, INDEX)
    assert client.get("/package/web/index.json").json() == INDEX
    shard = client.get("/package/shard_00000.bin", headers={"range": "bytes=0-3"})
    assert (shard.status_code, len(shard.content)) == (206, 4)
    for path in ("web/programs/a.json", "manifest.json", "tokenizer.json"):
        assert client.get(f"/package/{path}").status_code == 200
    for path in ("secret.txt", "web/", "../secret.txt", "web/programs/b.json"):
        assert client.get(f"/package/{path}").status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"package": "https://x.example/"},
        {"programs": [{"file": "../../../etc/passwd"}]},
        {"text": 5},
    ],
    ids=["elsewhere", "a path that leads out", "no names"],
)
def test_an_index_that_leads_elsewhere_is_not_served(tmp_path, request, change):
    write_random_package(tmp_path, llama_manifest("F16"), generator_of(request))
    assert of_package(tmp_path, INDEX).get("/package/manifest.json").status_code == 200
    changed = of_package(tmp_path, INDEX | change)
    assert changed.get("/package/manifest.json").status_code == 404
    assert changed.get("/package/web/index.json").status_code == 404


def test_a_package_behind_a_key_needs_it(tmp_path, request):
    write_random_package(tmp_path, llama_manifest("F16"), generator_of(request))
    of_package(tmp_path, INDEX)
    client = served(key="secret", package=open_package(tmp_path))
    assert client.get("/package/manifest.json").status_code == 401
    assert client.get("/package/manifest.json", headers={"x-api-key": "secret"}).status_code == 200
