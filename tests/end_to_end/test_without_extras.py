"""Commands whose extra is not installed end with one line that says how to install it.

The packages are hidden from `import`, in the process that runs the tests. `.ci/wheel` runs the
commands that need no extra in an environment that has none.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch
from rdrr_converter.sources import open_source
from rdrr_device import implementations
from rdrr_device.adapters import NO_ADAPTER_HINT, list_adapters
from rdrr_format.errors import DeviceError, UsageError
from rdrr_format.extras import install_hint
from rdrr_manifests.package import Package
from rdrr_runtime.images.decode import read_image
from rdrr_runtime.reference.backend import CpuBackend
from support.commands import Done, rdrr


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every optional package look as if it were not installed."""
    implementations._loaded.cache_clear()  # another test may have loaded wgpudawn
    for name in ("torch", "ray", "llguidance", "wgpudawn", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)


def refused(done: Done) -> str:
    """Return the one line of a command that was refused."""
    assert done.code != 0
    assert done.out == ""
    (line,) = done.err.strip().splitlines()
    return line


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("--backend", "cpu"), "torch"),
        (("--regex", "a+"), "grammar"),
        (("--webgpu", "dawn"), "dawn"),
    ],
)
def test_generation_names_the_extra(shallow_package, words, extra):
    done = rdrr("generate", shallow_package, "--prompt", "a", "--max-tokens", "1", *words)
    assert refused(done).endswith(install_hint(extra))


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(
    ("words", "extra"),
    [(("--device", "cuda"), "torch"), (("--engine", "ray"), "ray")],
)
def test_conversion_names_the_extra_and_leaves_nothing(shallow_checkpoint, tmp_path, words, extra):
    done = rdrr("convert", shallow_checkpoint, tmp_path / "out", "--quiet", *words)
    assert refused(done).endswith(install_hint(extra))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("hidden")
def test_an_image_names_the_extra():
    with pytest.raises(UsageError) as refused:
        read_image(b"", "photo.png")
    assert refused.value.line().endswith(install_hint("images"))


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("is_remote", [False, True])
def test_a_pytorch_checkpoint_needs_no_extra(checkpoint, tmp_path, is_remote):
    weights = open_source(checkpoint).tensors
    with pytest.MonkeyPatch.context() as shown:
        shown.setitem(sys.modules, "torch", torch)
        state = {
            name: torch.from_numpy(tensor.read().reshape(tensor.shape))
            for name, tensor in weights.items()
        }
        torch.save(state, checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    source = checkpoint
    if is_remote:
        source = "memory://pickled"
        fsspec.filesystem("memory").put(str(checkpoint), "/pickled", recursive=True)
    rdrr("convert", source, tmp_path / "out", "--quiet", code=0)


@pytest.mark.usefixtures("hidden")
def test_an_importance_matrix_names_the_extra(shallow_package, tmp_path):
    text = tmp_path / "text"
    text.write_text("And it came to pass", encoding="utf-8")
    done = rdrr("imatrix", shallow_package, "--text", text, "--out", tmp_path / "out.gguf")
    assert refused(done).endswith(install_hint("torch"))


def without_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DeviceError("no WebGPU adapter on this machine", hint=NO_ADAPTER_HINT)

    monkeypatch.setattr("rdrr_device.adapters.choose", refuse)


@pytest.mark.usefixtures("hidden")
def test_without_an_adapter_both_ways_out_are_named(shallow_package, monkeypatch):
    without_adapter(monkeypatch)
    line = refused(rdrr("generate", shallow_package, "--prompt", "a", "--max-tokens", "1"))
    assert "no WebGPU adapter on this machine, and the CPU backend needs the package torch" in line
    assert "install a Vulkan driver" in line
    assert line.endswith(install_hint("torch"))


def test_without_an_adapter_but_with_torch_the_cpu_generates(shallow_package: Path, monkeypatch):
    without_adapter(monkeypatch)
    done = rdrr("generate", shallow_package, "--prompt", "a", "--max-tokens", "1", code=0)
    assert "backend cpu (torch): no WebGPU adapter on this machine; for the wgpu" in done.err


def computes_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load models for torch where the GPU was chosen, which is what the tests are about."""

    def load(package: Package, *_: object) -> tuple[CpuBackend, tuple[str, ...]]:
        return CpuBackend(package, context=64), ()

    monkeypatch.setattr("rdrr._backends.load_checked", load)


def adapters_are(monkeypatch: pytest.MonkeyPatch, *, software: bool) -> None:
    listed = [replace(info, software=software) for info in list_adapters()]
    monkeypatch.setattr("rdrr_device.adapters.list_adapters", lambda _: listed)


@pytest.mark.parametrize(
    ("software", "words", "line"),
    [
        (False, (), "backend wgpu on .*, the best hardware adapter; --backend cpu runs"),
        (True, (), "backend cpu .torch.: the only adapter, .* software .*; .* --backend wgpu"),
        (True, ("--adapter", "Vulkan"), "backend wgpu on .*, a software adapter.; --backend cpu"),
        (True, ("--backend", "wgpu"), "backend wgpu on .*, a software adapter.; --backend cpu"),
        (True, ("--max-vram", "1GB"), "backend wgpu .*, because an option is only for GPUs"),
    ],
)
def test_auto_takes_a_hardware_adapter_else_torch_unless_an_adapter_is_asked_for(
    shallow_package, monkeypatch, software, words, line
):
    adapters_are(monkeypatch, software=software)
    computes_in_torch(monkeypatch)
    done = rdrr("generate", shallow_package, "--prompt", "a", "--max-tokens", "1", *words, code=0)
    assert re.search(line, done.err), done.err


@pytest.mark.usefixtures("hidden")
def test_auto_without_torch_takes_a_software_adapter_and_says_what_is_faster(
    shallow_package, monkeypatch
):
    adapters_are(monkeypatch, software=True)
    done = rdrr("generate", shallow_package, "--prompt", "a", "--max-tokens", "1", code=0)
    assert "because there is neither a GPU nor torch" in done.err
    assert done.err.strip().endswith(install_hint("torch"))
