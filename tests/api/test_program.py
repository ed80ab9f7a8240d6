"""Programs are written from manifests alone, and played with their packages."""

from __future__ import annotations

import json
import shutil

import pytest
import rdrr
import wgpu
from rdrr_format.errors import FormatError, StoreError, UsageError
from rdrr_runtime.program.files import read_program
from support.commands import error_line
from support.commands import rdrr as command
from support.packages import VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of

CAPABILITIES = {"features": ["subgroup"], "limits": {}, "software": False}


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("program") / "package"
    manifest = llama_manifest("Q8_0", layers=1)
    manifest["architecture"]["maxSeqLen"] = 2560
    write_random_package(folder, manifest, generator_of(request))
    return folder


def test_a_program_is_written_and_played(folder, tmp_path, rng):
    """With the kernels of `tests/runtime/program/test_player.py`, which are compiled once."""
    pool, prompt = tmp_path / "shaders", rng.integers(0, VOCAB, 9).tolist()
    written = rdrr.export_program(folder, tmp_path / "program.json", shaders=pool)
    assert written.new_shaders == len(written.program.shaders)
    assert written.size == (tmp_path / "program.json").stat().st_size
    assert len(repr(written)) < 250
    with rdrr.load(folder, backend="wgpu", context=written.program.contexts.least) as model:
        greedy = model.generate(prompt, max_tokens=12)
        list(greedy)
    with rdrr.play(tmp_path / "program.json", folder, shaders=pool) as player:
        assert list(player.generate(prompt, max_tokens=12)) == greedy.token_ids


def test_a_bare_manifest_is_enough_for_a_described_device(folder, tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folder / "manifest.json", bare)
    described = tmp_path / "device.json"
    described.write_text(json.dumps(CAPABILITIES), encoding="utf-8")
    out = tmp_path / "program.json"
    words = ("export-program", bare / "manifest.json", out, "--capabilities", described)
    pool = tmp_path / "shaders"
    out.write_text("notes", encoding="utf-8")
    assert "--overwrite" in error_line(command(*words))
    assert out.read_text(encoding="utf-8") == "notes"
    words = (*words, "--overwrite")
    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", None)
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", None)
    facts = command(*words, "--json").json()
    program = read_program(out.read_bytes())
    assert facts["needs"]["features"] == list(program.needs.features) == ["subgroups"]
    assert facts["compressed"] < facts["size"] == out.stat().st_size
    assert facts["contexts"] == {"least": 2048, "most": 2560, "multiple": 256}
    assert facts["new_shaders"] is None
    assert "2,048 to 2,560" in command(*words, "--shaders", pool).out
    assert {path.stem for path in pool.iterdir()} == set(program.shaders)
    assert command(*words, "--shaders", pool, "--json").json()["new_shaders"] == 0


def test_what_is_no_program_is_not_played(folder, tmp_path):
    path = tmp_path / "program.json"
    with pytest.raises(StoreError):
        rdrr.play(path, folder)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(FormatError, match="not a program"):
        rdrr.play(path, folder)


def test_wrong_options_are_refused(folder, tmp_path):
    out = tmp_path / "program.json"
    with pytest.raises(UsageError, match="max_context"):
        rdrr.export_program(folder, out, max_context=9999)
    done = command("export-program", folder, out, "--max-context", "9999")
    assert "--max-context" in error_line(done)
    done = command("export-program", folder, out, "--adapter", "x", "--capabilities", "y")
    assert "--capabilities" in error_line(done)
    assert not out.exists()
