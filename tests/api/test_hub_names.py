"""What a short name of a repository on the hub stands for."""

from __future__ import annotations

import pytest
from rdrr._hub_names import hub_location


@pytest.mark.parametrize(
    "name", ["org/name", "Org-1/name.v2_x", "org/name@main", "org/x-GGUF@v1%2Fa"]
)
def test_org_and_name_stand_for_a_repository(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub_location(name) == f"hf://{name}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "/org/name",
        "a/b/c",
        "./name",
        "../name",
        "~/name",
        "org/",
        "/name",
        "org/..",
        "org/na me",
        "org/name@",
        "hf://org/name",
        "https://host/name",
        "org/na\0me",
        "out/manifest.json",
        "models/a.gguf",
    ],
)
def test_other_texts_are_paths(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub_location(text) is None


@pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
def test_what_is_on_this_machine_comes_first(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    place = tmp_path / "org" / "name"
    assert hub_location("org/name") == "hf://org/name"
    if kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.write_bytes(b"")
    else:
        place.symlink_to("absent")
    assert hub_location("org/name") is None
