"""Every kind of bad input gives one clear line and exit code 1, and leaves nothing half-written.

The control of the conversions is `test_the_undamaged_checkpoint_converts`, that of the packages
`test_the_undamaged_package_generates`: each case differs from them by the fault in its name.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rdrr import convert
from rdrr.cli.app import Command, run
from rdrr_format.errors import StoreError
from rdrr_format.stores import LocalStore
from support.commands import environment, error_line, rdrr, rdrr_each
from support.safetensor_files import llama_tensors, write_llama

NO_ADAPTER = {"VK_DRIVER_FILES": "/none", "__EGL_VENDOR_LIBRARY_FILENAMES": "/none"}
NORM = "model.layers.0.input_layernorm.weight"


def _entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _refused(source: object, parent: Path) -> str:
    """Convert; fail unless the error is one line and nothing is left next to the destination."""
    before = _entries(parent)
    done = rdrr("convert", source, parent / "out")
    assert done.code == 1
    assert done.out == ""
    assert _entries(parent) == before
    return error_line(done)


def _edit_config(checkpoint: Path, **changes: object) -> None:
    path = checkpoint / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8"
    )


def _edit_tensors(checkpoint: Path, name: str, value: np.ndarray | None) -> None:
    """Replace a tensor of the checkpoint, or remove it.

    The others are copied as raw 16-bit numbers, since NumPy has no bfloat16.
    """
    path = checkpoint / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    del header[name]
    # A gap in the data would be a fault of its own, so the later tensors move up.
    data, header = _packed(data, header)
    if value is not None:
        end = len(data)
        data += value.tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(value.shape),
            "data_offsets": [end, len(data)],
        }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _packed(data: bytes, header: dict) -> tuple[bytes, dict]:
    out, entries = b"", {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        entries[name] = entry | {"data_offsets": [len(out), len(out) + end - start]}
        out += data[start:end]
    return out, entries


def test_the_undamaged_checkpoint_converts(checkpoint, tmp_path):
    done = rdrr("convert", checkpoint, tmp_path / "out", "--quantize", "f16", code=0)
    assert _entries(tmp_path) == {"checkpoint", "out"}
    assert "small" not in done.err
    assert rdrr("validate", tmp_path / "out", "--deep", "--strict").code == 0


def test_the_undamaged_package_generates(package):
    done = rdrr(
        "generate", package, "--prompt", "The", "--max-tokens", 2, "--backend", "cpu", code=0
    )
    assert done.out.strip()


def test_a_source_that_does_not_exist(tmp_path):
    line = _refused(tmp_path / "absent", tmp_path)
    assert "absent: no such" in line


def test_a_folder_that_is_not_a_checkpoint(tmp_path):
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "photo.txt").write_text("not a model", encoding="utf-8")
    assert "config.json" in _refused(tmp_path / "holiday", tmp_path)


def test_a_package_is_not_a_checkpoint(package, tmp_path):
    assert "rdrr export" in _refused(package, tmp_path)


def test_a_file_that_is_not_a_checkpoint(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a model", encoding="utf-8")
    assert "notes.txt" in _refused(path, tmp_path)


def test_an_unknown_architecture_is_answered_with_the_list_of_the_known_ones(checkpoint, tmp_path):
    _edit_config(checkpoint, architectures=["AbacusForCausalLM"], model_type="abacus")
    line = _refused(checkpoint, tmp_path)
    assert "abacus" in line.lower()
    assert "`rdrr architectures` lists" in line
    listed = rdrr("architectures").out
    assert "abacus" not in listed
    for known in ("llama", "mistral", "qwen2", "qwen3", "gemma3"):
        assert known in listed


@pytest.mark.parametrize("value", [[], {}, 7, "tanh"])
def test_an_activation_that_does_not_exist(checkpoint, tmp_path, value):
    _edit_config(checkpoint, hidden_act=value)
    assert "hidden_act" in _refused(checkpoint, tmp_path)


def test_a_configuration_that_is_not_json_is_refused(checkpoint, tmp_path):
    (checkpoint / "config.json").write_text("{ architecture: llama }", encoding="utf-8")
    assert "config.json" in _refused(checkpoint, tmp_path)


def test_a_missing_shard_of_the_checkpoint_is_named(checkpoint, tmp_path):
    (checkpoint / "model.safetensors").unlink()
    index = {"weight_map": {NORM: "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert "model-00002-of-00002.safetensors" in _refused(checkpoint, tmp_path)


@pytest.mark.parametrize("kept", [4, 1000, 5_000_000])
def test_a_truncated_safetensors_file_is_refused(checkpoint, tmp_path, kept):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors" in _refused(checkpoint, tmp_path)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "a.gguf", "a.bin"]
)
def test_a_git_lfs_pointer_is_recognized(checkpoint, tmp_path, name):
    path = checkpoint / name
    path.write_text(POINTER, encoding="utf-8")
    source = checkpoint if name.endswith(("json", "safetensors")) else path
    line = _refused(source, tmp_path)
    assert name in line
    assert "git lfs pull" in line
    path.write_text("another text that is none of these" * 9, encoding="utf-8")  # control
    assert "git lfs" not in _refused(source, tmp_path)


def test_a_link_that_leads_nowhere_is_named(checkpoint, tmp_path):
    weights = checkpoint / "model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to(tmp_path / "blob")
    assert rdrr("convert", checkpoint, tmp_path / "out", "--dry-run").code == 0
    (tmp_path / "blob").unlink()
    assert "broken links: model.safetensors" in _refused(checkpoint, tmp_path)


def test_a_missing_tensor_is_named(checkpoint, tmp_path):
    _edit_tensors(checkpoint, NORM, None)
    assert NORM in _refused(checkpoint, tmp_path)


def test_a_tensor_of_the_wrong_shape_is_refused(checkpoint, tmp_path, rng):
    _edit_tensors(checkpoint, NORM, rng.standard_normal(255, dtype=np.float32))
    line = _refused(checkpoint, tmp_path)
    assert NORM in line
    assert "255" in line
    assert "256" in line


def test_a_tensor_of_the_right_shape_in_another_type_is_accepted(checkpoint, tmp_path, rng):
    _edit_tensors(checkpoint, NORM, rng.standard_normal(256, dtype=np.float32))
    assert rdrr("convert", checkpoint, tmp_path / "out", "--quiet").code == 0


def test_an_existing_destination_is_left_unchanged(shallow_checkpoint, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    for flags in ((), ("--overwrite",)):
        done = rdrr("convert", shallow_checkpoint, out, *flags)
        assert "out" in error_line(done, 1)
        assert _entries(tmp_path) == {"out"}
        assert (out / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_an_existing_package_is_replaced_only_with_overwrite(shallow_checkpoint, package):
    stamp = package / "manifest.json"
    stamp.write_text(
        stamp.read_text(encoding="utf-8").replace("small-llama", "older"), encoding="utf-8"
    )
    refused = rdrr("convert", shallow_checkpoint, package)
    assert "--overwrite" in error_line(refused, 1)
    assert "older" in stamp.read_text(encoding="utf-8")
    assert rdrr("convert", shallow_checkpoint, package, "--overwrite", "--quiet").code == 0
    assert "older" not in stamp.read_text(encoding="utf-8")


class _FullDisk(io.BytesIO):
    """A file that cannot be written because the disk is full."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, f"No space left for {type(data).__name__}")


def test_a_full_disk_is_an_error_and_leaves_nothing(monkeypatch, tmp_path, rng):
    source = write_llama(tmp_path / "source", llama_tensors(rng))
    control = convert(source, tmp_path / "control")
    monkeypatch.setattr(LocalStore, "open_write", lambda self, name: _FullDisk())  # noqa: ARG005
    with pytest.raises(StoreError, match="the disk is full"):
        convert(source, tmp_path / "out")
    assert _entries(tmp_path) == {source.name, control.destination.name}


@pytest.mark.parametrize("command", ["validate", "inspect", "generate"])
def test_a_package_that_does_not_exist(tmp_path, command):
    prompt = ("--prompt", "x") if command == "generate" else ()
    done = rdrr(command, tmp_path / "absent", *prompt)
    assert "absent" in error_line(done, 1)


@pytest.mark.parametrize("command", ["inspect", "generate"])
def test_a_manifest_that_is_not_json_is_refused(package, command):
    (package / "manifest.json").write_text("rdrr: yes\n", encoding="utf-8")
    prompt = ("--prompt", "x") if command == "generate" else ()
    done = rdrr(command, package, *prompt)
    assert "not an RDRR manifest" in error_line(done, 1)


def test_validate_reports_a_manifest_that_is_not_json_as_a_fault(package):
    (package / "manifest.json").write_text("rdrr: yes\n", encoding="utf-8")
    done = rdrr("validate", package)
    assert done.code == 1
    assert "error [not-rdrr]" in done.out
    assert done.err == ""


@pytest.mark.parametrize("command", ["inspect", "generate"])
def test_a_shard_that_is_too_short_is_refused(package, command):
    shard = package / "shard_00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    prompt = ("--prompt", "x") if command == "generate" else ()
    done = rdrr(command, package, *prompt)
    assert "shard_00000.bin" in error_line(done, 1)


def test_a_missing_shard_of_a_package_is_named(package):
    (package / "shard_00000.bin").unlink()
    done = rdrr("generate", package, "--prompt", "x")
    assert "shard_00000.bin" in error_line(done, 1)


def test_a_wrong_hash_is_found_by_deep_validation_only(package):
    shard = package / "shard_00000.bin"
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    assert rdrr("validate", package).code == 0
    deep = rdrr("validate", package, "--deep")
    assert deep.code == 1
    assert "hash" in deep.out


def test_a_prompt_longer_than_the_context_is_refused(package):
    words = ("--max-tokens", 2, "--context", 16, "--backend", "cpu", "--prompt")
    done = rdrr("generate", package, *words, "word " * 40)
    assert "longer than the context" in error_line(done, 1)
    assert done.out == ""
    assert rdrr("generate", package, *words, "word " * 4).code == 0


def test_an_empty_prompt_is_refused(package):
    done = rdrr("generate", package, "--backend", "cpu", stdin="")
    assert "prompt" in error_line(done, 1)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_prompt_that_is_not_utf8_is_refused(package, command):
    # Python decodes bytes of a pipe or command line that are not UTF-8 to lone surrogates.
    good, bad = "naïve", b"na\xffve".decode("utf-8", "surrogateescape")
    options = (command, package, "--max-tokens", 1, "--backend", "cpu")
    assert rdrr(*options, stdin=good).code == 0
    done = rdrr(*options, stdin=bad)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "error: the text is not in UTF-8" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "command",
    [
        "--help",
        *(
            pytest.param(command, marks=pytest.mark.thorough)
            for command in ("schema", "inspect /absent --json")
        ),
    ],
)
def test_standard_output_on_a_full_disk_is_one_line(command):
    code = "from rdrr.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == f"error: standard output: {os.strerror(errno.ENOSPC)}\n"


def test_too_little_memory_is_one_line(capsys):
    def count(fails: bool = False) -> int:
        if fails:
            raise MemoryError("Unable to allocate 7.28 TiB")
        return 0

    for words, code in (([], 0), (["--fails"], 1)):
        assert run([Command("count", count, "Run")], words, program="count") == code
    assert (
        capsys.readouterr().err == "error: not enough memory (found Unable to allocate 7.28 TiB)\n"
    )


def test_a_model_whose_logits_are_not_numbers(package):
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    words = ("generate", package, "--prompt", "x", "--max-tokens", 1, "--backend", "cpu")
    assert rdrr(*words).code == 0
    manifest["inference"]["layerPattern"]["residualBranchScale"] = 1e308
    (package / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    done = rdrr(*words)
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("error: the model's logits are not finite numbers")


def test_without_an_adapter_wgpu_is_refused_and_devices_says_what_to_install(shallow_package):
    words = ("generate", shallow_package, "--prompt", "The", "--max-tokens", 2, "--backend", "wgpu")
    refused, done, listed = rdrr_each(words, ["devices"], ["devices", "--json"], **NO_ADAPTER)
    assert "no WebGPU adapter" in error_line(refused, 1)
    assert "--backend cpu" in refused.err
    assert "mesa-vulkan-drivers" in error_line(done, 1)
    assert (listed.code, listed.json()["adapters"]) == (1, [])


# test_without_extras.py has the same with an adapter that is hidden in this process.
@pytest.mark.thorough
def test_without_an_adapter_auto_falls_back(shallow_package):
    words = ("generate", shallow_package, "--prompt", "The", "--max-tokens", 2)
    auto = rdrr(*words, extra=NO_ADAPTER, code=0)
    assert "backend cpu" in auto.err
    assert "mesa-vulkan-drivers" in auto.err


def test_an_error_is_an_object_with_json(tmp_path):
    done = rdrr("convert", tmp_path / "absent", tmp_path / "out", "--json")
    assert done.code == 1
    assert done.err == ""
    assert done.json()["error"] == "SourceError"
