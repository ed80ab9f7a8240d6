"""`rdrr hints` changes the hints of a manifest and nothing else, completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rdrr_manifests import editing
from support.commands import error_line, rdrr


def _files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_ino) for path in folder.iterdir()}


def test_hints_are_shown_and_changed_and_the_old_manifest_can_be_restored(package):
    before = _files(package)
    shown = rdrr("hints", package, "--json").json()
    assert shown["kernelHints"]["q4kMatmul"] == "auto"
    assert shown["changed"] == []
    words = ("q4kMatmul=dequant_f16", "attentionDecode=auto", "computePrecision=f32")
    result = rdrr("hints", package, *words, "--json").json()
    assert result["changed"] == ["q4kMatmul", "computePrecision"]
    assert result["kernelHints"]["q4kMatmul"] == "dequant_f16"
    after = _files(package)
    assert {name for name in after if after[name] != before[name]} == {"manifest.json"}
    assert rdrr("validate", package, "--deep", "--strict").code == 0
    done = rdrr("hints", package, "q4kMatmul=", "computePrecision=auto")
    assert "changed: q4kMatmul, computePrecision" in done.err
    assert _files(package)["manifest.json"][0] == before["manifest.json"][0]


def test_setting_a_hint_to_its_present_value_writes_nothing(package):
    rdrr("hints", package, "f16Matmul=tiled")
    before = _files(package)
    assert "nothing changed" in rdrr("hints", package, "f16Matmul=tiled").err
    assert _files(package) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("q4kMatmul=fast",), "q4kMatmul has no such value"),
        (("speed=high",), "unknown kernel hint"),
        (("q4kMatmul",), "KEY=VALUE"),
        (("f16Matmul=gemv", "f16Matmul=tiled"), "given twice"),
        (("f16Matmul=gemv", "q4kMatmul=fast"), "q4kMatmul has no such value"),
    ],
)
def test_a_wrong_hint_is_wrong_usage_and_changes_nothing(package, words, said):
    before = _files(package)
    done = rdrr("hints", package, *words)
    assert said in error_line(done, 2)
    assert _files(package) == before


def test_unknown_keys_of_the_manifest_are_kept(package):
    path = package / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["optimizations"]["kernelPath"] = "q4k-dequant-f16a"
    data["artifactIdentity"] = {"weightPackId": "ä"}
    del data["optimizations"]["kernelHints"]["f16Matmul"]
    path.write_text(json.dumps(data), encoding="utf-8")
    assert rdrr("hints", package, "attentionDecode=streaming", "f16Matmul=auto").code == 0
    data["optimizations"]["kernelHints"]["attentionDecode"] = "streaming"
    assert json.loads(path.read_text(encoding="utf-8")) == data


def test_a_write_that_fails_leaves_the_old_manifest_and_nothing_else(package, monkeypatch):
    before = _files(package)

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(editing.os, "fsync", refuse)
    done = rdrr("hints", package, "q4kMatmul=fused_q4k")
    assert "the disk is full" in error_line(done, 1)
    assert _files(package) == before
    monkeypatch.undo()
    assert rdrr("hints", package, "q4kMatmul=fused_q4k").code == 0


def test_schema_prints_json_schema():
    for of, key in (("manifest", "tensors"), ("report", "byDtype")):
        printed = rdrr("schema", "--of", of).json()
        assert key in printed["properties"]
        assert printed["$schema"].startswith("https://json-schema.org/")
