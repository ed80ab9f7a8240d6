"""`rdrr push`: the output of a dry run, and the files on the hub afterwards."""

from __future__ import annotations

import json

import pytest
from support.commands import error_line, rdrr
from support.object_store import files

NAME = "org/small-llama"
URL = f"hf://{NAME}"


def card_of(text):
    from huggingface_hub import ModelCard

    return ModelCard(text)


def test_a_dry_run_prints_the_card_and_the_files_without_the_network(package, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    words = ("push", package, URL, "--dry-run", "--base-model", "org/base", "--message", "First")
    pushed = rdrr(*words, "--json").json()
    contents = files(package)
    assert pushed["files"].pop("README.md") == len(pushed["card"].encode())
    assert pushed["files"] == {name: len(content) for name, content in contents.items()}
    assert (pushed["url"], pushed["message"]) == (None, "First")
    card = card_of(pushed["card"])
    assert card.data.library_name == "rdrr"
    assert card.data.base_model == "org/base"
    assert card.data.tags[:2] == ["rdrr", "webgpu"]
    manifest = json.loads(contents["manifest.json"])
    report = json.loads(contents["conversion-report.json"])
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in card.text.splitlines()
        if line.startswith("|")
    ]
    assert sum(int(row[1]) for row in rows[2:]) == len(manifest["tensors"])
    worst = max(100 * tensor["relativeRmse"] for tensor in report["tensors"])
    assert f"{worst:.2f} %" in {row[5] for row in rows}
    assert rdrr("push", package, NAME, *words[3:], "--json").json()["location"] == URL
    shown = rdrr(*words, code=0)
    assert pushed["card"].splitlines()[-1] in shown.out
    assert "shard_00000.bin" in shown.out
    assert "would be uploaded" in shown.out
    assert hub.requests == []


def test_a_card_claims_no_base_model_that_nobody_stated(package):
    card = rdrr("push", package, URL, "--dry-run", "--json").json()["card"]
    assert card_of(card).data.base_model is None
    (package / "README.md").write_text("---\nlicense: mit\n---\nMine.\n", encoding="utf-8")
    assert "Mine." in rdrr("push", package, URL, "--dry-run", "--json").json()["card"]


def test_a_card_that_is_not_text_is_refused(package):
    for content, code in ((b"na\xffve", 2), (b"naive", 0)):
        (package / "README.md").write_bytes(content)
        done = rdrr("push", package, URL, "--dry-run")
        assert done.code == code
        assert ("not text in UTF-8" in done.err) == bool(code)


def test_a_pushed_package_is_read_back_unchanged(shallow_checkpoint, package, hub_here, tmp_path):
    small = tmp_path / "small"
    words = ("convert", shallow_checkpoint, small, "--shard-size", "1MiB", "--quiet")
    assert rdrr(*words).code == 0
    first = rdrr("push", small, URL, "--private", "--json", code=0)
    listed, valid = rdrr("inspect", URL, "--json"), rdrr("validate", URL, "--deep")
    repository = hub_here.repositories[NAME]
    assert repository.private
    there = dict(repository.revisions["main"])
    assert there.pop("README.md").decode() == first.json()["card"]
    assert there == files(small)
    assert len(repository.messages) == 1
    assert listed.json() == rdrr("inspect", small, "--json").json()
    assert valid.code == 0, valid.out
    rdrr("push", package, URL, "--message", "One shard", code=0)
    there = dict(repository.revisions["main"])
    assert there.pop("README.md")
    assert there == files(package)
    assert repository.messages[1:] == ["One shard"]


def test_nothing_unsound_is_pushed_and_a_public_place_is_not_a_private_one(
    package, shallow_package, hub_here
):
    shard = package / "shard_00000.bin"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    hub_here.add("org/public", {})
    public = rdrr("push", shallow_package, "hf://org/public", "--private")
    assert "is public" in error_line(public)
    assert "no such revision" in error_line(rdrr("push", shallow_package, "hf://org/public@v9"))
    assert hub_here.repositories["org/public"].revisions == {"main": {}}
    del hub_here.requests[:]
    damaged = rdrr("push", package, URL)
    assert "not valid, so it is not pushed" in error_line(damaged, 1)
    assert hub_here.requests == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("s3://bucket/package", URL), "only a package in a folder"),
        (("{package}", "name"), "expected org/name"),
        (("{package}", f"{URL}/manifest.json"), "a whole repository"),
        (("{package}", URL, "--base-model", "base"), "--base-model"),
    ],
)
def test_invalid_arguments_are_usage_errors(package, words, message):
    done = rdrr("push", *(word.format(package=package) for word in words), "--dry-run")
    assert message in error_line(done, 2)


def test_a_folder_without_a_package_is_refused(tmp_path):
    done = rdrr("push", tmp_path, URL, "--dry-run")
    assert "no manifest.json" in error_line(done, 1)
