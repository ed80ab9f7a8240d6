"""Every architecture runs within WebGPU's default limits and without optional features.

A binding is even smaller than the default, so that matrices are split. wgpu enforces all limits but
the size of workgroup memory; Dawn enforces that too, so it compiles the kernels afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_device.device import Device, open_device
from rdrr_device.kernels import Kernel
from rdrr_device.pipelines import Pipelines
from rdrr_device.shaders import Access, Binding
from rdrr_format.errors import DeviceError
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_checkpoint
from support.comparison import scored, stepped
from support.dawn_device import open_dawn_device, why_no_dawn
from support.devices import PLAIN, SMALL_LIMITS
from support.tiny_models import ALL_MODELS, COVERING, VOCAB, covering

CONTEXT, TOKENS, PREFILL, WINDOW = 20, 19, 16, 8
EXACT = 1e-3


@pytest.fixture(scope="module")
def small_device() -> Iterator[Device]:
    opened = open_device(without=PLAIN, limits=SMALL_LIMITS)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def small_dawn_device() -> Iterator[Device | None]:
    """The same device on Dawn, or None where Dawn is missing."""
    why = why_no_dawn()
    if why is not None:
        assert "CI" not in os.environ, why
        yield None
        return
    opened = open_dawn_device(without=PLAIN, limits=SMALL_LIMITS)
    yield opened
    opened.close()


@pytest.fixture
def kernels(monkeypatch) -> set[Kernel]:
    """The kernels that the test binds."""
    kernels: set[Kernel] = set()
    get = Pipelines.get

    def get_and_note(self, kernel):
        kernels.add(kernel)
        return get(self, kernel)

    monkeypatch.setattr(Pipelines, "get", get_and_note)
    return kernels


def error(ours, reference, share):
    """Return the quantile `share` over rows of the largest error of a row.

    In some rows of a mixture two experts are almost equally probable, and rounding decides between
    them.
    """
    worst = np.abs(ours - reference).max(axis=1) / np.abs(reference).max()
    return float(np.quantile(worst, share))


# tests/runtime/test_small_limits.py has a plain model and a mixture within the same limits.
@pytest.mark.parametrize("tiny", covering(ALL_MODELS, COVERING[1:2]))
def test_every_architecture_runs_within_the_default_limits(
    small_device, small_dawn_device, kernels, tmp_path, rng, tiny
):
    window = {"sliding_window": WINDOW} if "sliding_window" in dict(tiny.options) else {}
    source = make_checkpoint(tiny, tmp_path / "source", rng, num_hidden_layers=2, **window)
    convert(source, tmp_path / "package", quantize="q4_k_m")
    package = open_package(tmp_path / "package")
    ids = rng.integers(3, VOCAB, TOKENS).tolist()
    reference = CpuBackend(package, context=CONTEXT).logits(ids, 0, all_rows=True)
    exact = resolve({"run flag": {"computePrecision": "f32"}})
    backend = GpuBackend(
        package, context=CONTEXT, kv_dtype="f32", device=small_device, policy=exact
    )
    mixture = package.manifest.moe_config is not None
    try:
        many, single = scored(backend, ids), stepped(backend, ids, PREFILL)
    finally:
        backend.close()
    assert error(many, reference, 0.9 if mixture else 1.0) < EXACT
    assert error(single, reference[PREFILL - 1 :], 0.5 if mixture else 1.0) < EXACT
    for kernel in tuple(kernels) if small_dawn_device else ():
        small_dawn_device.pipeline(kernel)


def kernel(*, threads=64, floats=4, buffers=1):
    """Return a kernel with this many threads, floats of workgroup memory and storage buffers."""
    names = [f"x{index}" for index in range(buffers)]
    declared = "".join(
        f"@group(0) @binding({index}) var<storage, read_write> {name}: array<f32>;\n"
        for index, name in enumerate(names)
    )
    source = f"""
        {declared}
        var<workgroup> shared_values: array<f32, {floats}>;
        @compute @workgroup_size({threads})
        fn main(@builtin(local_invocation_index) t: u32) {{
            shared_values[t % {floats}u] = 1.0;
            {" ".join(f"{name}[t] = shared_values[0];" for name in names)}
        }}
    """
    bindings = tuple(Binding(name, Access.READ_WRITE) for name in names)
    return Kernel("small", source, "main", (), bindings)


BEYOND = [{"threads": 257}, {"floats": 4097}, {"buffers": 9}]


@pytest.mark.parametrize(
    ("runtime", "beyond"),
    [("wgpu", name) for name in BEYOND if "floats" not in name]
    + [("dawn", model) for model in BEYOND],
    ids=str,
)
def test_the_limits_are_enforced(small_device, small_dawn_device, runtime, beyond):
    device = small_device if runtime == "wgpu" else small_dawn_device
    if device is None:
        pytest.skip(why_no_dawn() or "")
    device.pipeline(kernel(threads=256, floats=4096, buffers=8))
    with pytest.raises(DeviceError, match="building kernel small failed"):
        device.pipeline(kernel(**beyond))
