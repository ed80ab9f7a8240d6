"""The memory that a dry run predicts equals the memory that the device then holds."""

from __future__ import annotations

import pytest
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.exec.footprint import footprint
from rdrr_runtime.gpu import GpuBackend
from support.packages import CONTEXT, VOCAB, llama_manifest, write_random_package


@pytest.mark.cover
@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("hints", [{}, {"q4kMatmul": "dequant_f32"}], ids=["stored", "expanded"])
def test_the_footprint_equals_the_memory_held_after_prefill_and_decode(
    device, tmp_path, rng, hints, kv_dtype
):
    package = write_random_package(tmp_path, llama_manifest(layers=1), rng)
    policy = resolve({"run flag": hints})
    wanted = footprint(package, device.capabilities, policy, context=CONTEXT, kv_dtype=kv_dtype)
    before = device.memory.live
    backend = GpuBackend(package, context=CONTEXT, kv_dtype=kv_dtype, device=device, policy=policy)
    ids = rng.integers(0, VOCAB, 9).tolist()
    backend.greedy(backend.greedy(ids, 0, 1), 9, 1)
    held = device.memory.live - before
    assert (wanted.weights, wanted.kv) == (backend.info.weights_bytes, backend.info.kv_bytes)
    backend.close()
    print(held, wanted)
    # The backend also rounds buffers up to 16 bytes, and has readback buffers.
    assert wanted.total <= held < 1.02 * wanted.total + 8192
