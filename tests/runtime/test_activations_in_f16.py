"""Activations in f16: each op rounds its result exactly once, and whole models stay accurate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.compile.choice.decision import unhonoured
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.exec.plan import decisions_for
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.attention.attention import AttentionKernel, attention
from rdrr_runtime.phases.attention.rope import rope
from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.experts.sigmoid_gate import sigmoid_gate
from rdrr_runtime.phases.generation_state import HEADER_WORDS, ROW_WORDS
from rdrr_runtime.phases.norms.norm import NormForm, add_normalized, normalize
from rdrr_runtime.phases.products.fusion import Input, Output, RowNorm
from rdrr_runtime.phases.products.linear import linear
from rdrr_runtime.phases.products.matvec import matvec
from rdrr_runtime.phases.rows.copy import copy_row
from rdrr_runtime.phases.rows.elementwise import residual_add, scale, softcap
from rdrr_runtime.phases.rows.embed import embed
from rdrr_runtime.phases.rows.gated_activation import gated_activation
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight
from rdrr_runtime.phases.weights.packing import upload_weight
from rdrr_runtime.reference import ops
from rdrr_runtime.reference.backend import CpuBackend
from support.comparison import relative_error, scored, stepped
from support.gpu import TOLERANCE, Bench, normal, random_tensor
from support.packages import SMALL, VOCAB, llama_manifest, write_random_package

ROWS, WIDTH, CONTEXT = 5, 192, 96
ROUNDING = 2.0**-11
SMALLEST_ROUNDING = 2.0**-25
"""Half a step of f16 below 2^-14, where its steps no longer become smaller with the value."""
F16 = np.float16
Array = np.ndarray


@dataclass
class Operands:
    """Random operands of one op, each as a device buffer and as an array in float64."""

    bench: Bench
    rng: np.random.Generator
    ctx: OpContext

    def value(self, *shape: int) -> tuple[BufferSlice, Array]:
        """Upload a random activation in f16; return it with its values."""
        array = normal(self.rng, *shape).astype(F16)
        return self.bench.upload(array), array.astype(np.float64)

    def vector(self, *shape: int) -> tuple[BufferSlice, Array]:
        array = normal(self.rng, *shape)
        return self.bench.upload(array), array.astype(np.float64)

    def out(self, *shape: int) -> BufferSlice:
        return self.bench.upload(np.full(shape, np.nan, F16))

    def weight(self, dtype: str, layout: Layout, n: int, k: int) -> tuple[GpuWeight, Array]:
        raw, values = random_tensor(self.rng, dtype, layout, (n, k))
        weight = upload_weight(self.bench.arena, DTYPES[dtype], layout, (n, k), raw, "w")
        return weight, values.astype(np.float64)


Made = tuple[Sequence[Dispatch], BufferSlice, Array]
"""The dispatches of an op, its output buffer, and the expected values in float64."""


def tensors(*arrays: Array) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def a_norm(on: Operands) -> Made:
    (x, xs), (w, ws), y = on.value(ROWS, WIDTH), on.vector(WIDTH), on.out(ROWS, WIDTH)
    made = normalize(on.ctx, x, y, NormForm(width=WIDTH, eps=1e-5, weight=w), label="t")
    return made, y, ops.rms_norm(*tensors(xs, ws), 1e-5, 0.0).numpy()


def a_branch_norm(on: Operands) -> Made:
    (x, xs), (r, rs), (w, ws) = on.value(ROWS, WIDTH), on.value(ROWS, WIDTH), on.vector(WIDTH)
    form = NormForm(width=WIDTH, eps=1e-5, weight=w)
    made = add_normalized(on.ctx, x, r, form, label="t")
    return made, x, xs + ops.rms_norm(*tensors(rs, ws), 1e-5, 0.0).numpy()


def a_rope(on: Operands) -> Made:
    (x, xs), (table, angles) = on.value(ROWS, 3, 64), on.vector(ROWS, 16, 2)
    phases = rope(on.ctx, x, table, heads=3, head_dim=64, rotary_dim=32, label="t")
    expected = ops.rope(torch.from_numpy(xs), torch.arange(ROWS), torch.from_numpy(angles))
    return phases, x, expected.numpy()


def an_activation(on: Operands) -> Made:
    (gate, gates), (up, ups), y = (*(on.value(ROWS, WIDTH) for _ in range(2)), on.out(ROWS, WIDTH))
    phases = gated_activation(on.ctx, gate, up, y, width=WIDTH, activation="silu", label="t")
    return phases, y, ops.gated_activation(*tensors(gates, ups), "silu").numpy()


def a_sum(on: Operands) -> Made:
    (x, xs), (r, rs) = on.value(ROWS, WIDTH), on.value(ROWS, WIDTH)
    return residual_add(on.ctx, x, r, width=WIDTH, label="t"), x, xs + rs


def a_copy(on: Operands) -> Made:
    (x, xs), y = on.value(ROWS, WIDTH), on.out(1, WIDTH)
    return copy_row(on.ctx, x, y, width=WIDTH, label="t"), y, xs[-1:]


def a_gate(on: Operands) -> Made:
    (x, xs), (w, ws), (b, bs) = on.value(ROWS, WIDTH), on.vector(WIDTH), on.value(ROWS, 36)
    phases = sigmoid_gate(on.ctx, x, w, b, k=WIDTH, width=36, label="t")
    return phases, b, ops.sigmoid_gate(*tensors(xs, bs, ws[None])).numpy()


def an_embedding(on: Operands) -> Made:
    (table, values), x = on.weight("Q8_0", Layout.ROW, 40, WIDTH), on.out(ROWS, WIDTH)
    ids = on.bench.words(on.ctx.state.step)[HEADER_WORDS::ROW_WORDS][:ROWS]
    return embed(on.ctx, table, x, scale=8.0, label="t"), x, 8.0 * values[ids]


def product(dtype: str, layout: Layout, *, tiled: bool) -> Callable[[Operands], Made]:
    def made(on: Operands) -> Made:
        (weight, values), (x, xs) = on.weight(dtype, layout, 70, WIDTH), on.value(ROWS, WIDTH)
        (bias, added), (y, before) = on.vector(70), on.value(ROWS, 70)
        options = {"bias": bias, "accumulate": True, "tiled": tiled, "label": "t"}
        return linear(on.ctx, weight, x, y, **options), y, xs @ values.T + added + before

    return made


def scores(which: AttentionKernel, *, splits: bool = False) -> Callable[[Operands], Made]:
    def made(on: Operands) -> Made:
        (q, qs), out = on.value(ROWS, 4, 64), on.out(ROWS, 4, 64)
        (k, ks), (v, vs) = on.vector(2, 640, 64), on.vector(2, 640, 64)
        spec = AttentionSpec(4, KvSpec(2, 64, 640, "f32"), 0.125)
        scratch = on.bench.poisoned(spec.scratch_bytes(ROWS) // 4) if splits else None
        options = {"spec": spec, "which": which, "scratch": scratch, "label": "t"}
        cached = tensors(qs, ks[:, :ROWS], vs[:, :ROWS])
        expected = ops.attention(*cached, 0.125, base=0, window=0, softcap=0.0)
        return attention(on.ctx, q, LayerCache(k, v), out, **options), out, expected.numpy()

    return made


def one_row(kind: str) -> Callable[[Operands], Made]:
    """Return the decode pass's matrix-vector product whose input is normalized first."""

    def made(on: Operands) -> Made:
        ctx = replace(on.ctx, max_rows=1)
        (weight, values), (x, xs) = on.weight("Q4_K", Layout.ROW, 64, WIDTH), on.value(WIDTH)
        (gain, gains), (y, before) = on.vector(WIDTH), on.value(64)
        normed = ops.rms_norm(*tensors(xs, gains), 1e-5, 0.0).numpy()
        out = values @ normed
        gated = _silu(out[:32]) * out[32:]
        expected = {"store": out, "add": out + before[: len(out)], "gate": gated}[kind]
        source, target = Input(x, RowNorm(gain, 1e-5)), Output((y,), kind, activation="silu")
        return matvec(ctx, (weight,), source, target, label="t"), y, expected

    return made


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


OPS = {
    "decode, store": one_row("store"),
    "decode, add": one_row("add"),
    "decode, gate": one_row("gate"),
    "norm": a_norm,
    "branch norm": a_branch_norm,
    "rope": a_rope,
    "activation": an_activation,
    "residual": a_sum,
    "last row": a_copy,
    "sigmoid gate": a_gate,
    "embedding": an_embedding,
    "row-major gemv": product("Q4_K", Layout.ROW, tiled=False),
    "column-major gemv": product("Q8_0", Layout.COLUMN, tiled=False),
    "row-major tiles": product("Q6_K", Layout.ROW, tiled=True),
    "column-major tiles": product("Q4_K", Layout.COLUMN, tiled=True),
    "streaming": scores(AttentionKernel.STREAMING),
    "split_kv": scores(AttentionKernel.SPLIT_KV, splits=True),
    "tiled_small": scores(AttentionKernel.TILED_SMALL),
    "tiled_small in splits": scores(AttentionKernel.TILED_SMALL, splits=True),
}


SUMS = ("decode, add", "norm", "sigmoid gate", "row-major gemv", "streaming")
"""Ops that reduce over a workgroup; on devices with subgroups they use those."""


@pytest.mark.parametrize(
    ("op", "subgroups"),
    [*((op, True) for op in OPS), *((op, False) for op in SUMS)],
)
def test_an_op_rounds_its_result_exactly_once(bench, rng, op, subgroups):
    ids = rng.integers(0, 40, ROWS).tolist()
    ctx = bench.context(ROWS, tokens=ids, values="f16")
    if not subgroups:
        ctx = ctx.without_subgroups()
    phases, buffer, expected = OPS[op](Operands(bench, rng, ctx))
    bench.run(phases, ROWS)
    result = bench.device.read(buffer).view(F16)[: expected.size].reshape(expected.shape)
    rounding = np.maximum(ROUNDING * np.abs(expected), SMALLEST_ROUNDING)
    limit = TOLERANCE * np.abs(expected).max() + rounding
    assert (np.abs(result.astype(np.float64) - expected) <= limit).all()


def test_logits_and_operations_on_them_stay_in_f32(bench, rng):
    on = Operands(bench, rng, bench.context(ROWS, values="f16"))
    (weight, values), (x, xs) = on.weight("F16", Layout.ROW, 70, WIDTH), on.value(ROWS, WIDTH)
    y = bench.poisoned(ROWS, 70)
    phases = [
        *linear(on.ctx, weight, x, y, logits=True, label="t"),
        *scale(on.ctx, y, width=70, factor=0.5, logits=True, label="t"),
        *softcap(on.ctx, y, width=70, cap=20.0, label="t"),
    ]
    bench.run(phases, ROWS)
    expected = 20.0 * np.tanh(0.5 * (xs @ values.T) / 20.0)
    assert relative_error(bench.download(y, ROWS, 70), expected) < TOLERANCE


def test_values_beyond_the_range_of_f16_become_infinite(bench):
    x = bench.upload(np.array([[60000.0, -60000.0, 60000.0, np.nan]], F16))
    r = bench.upload(np.array([[60000.0, -60000.0, 5504.0, 1.0]], F16))
    ctx = bench.context(1, values="f16")
    bench.run(residual_add(ctx, x, r, width=4, label="t"), 1)
    result = bench.device.read(x).view(F16)[:4]
    assert result[:3].tolist() == [np.inf, -np.inf, 65504.0]
    assert np.isnan(result[3])


def hinted(**hints: str):
    return resolve({"manifest": hints})


@pytest.mark.thorough
def test_a_model_with_f16_activations_stays_near_torch(device, tmp_path, rng):
    moe = {"numExperts": 4, "numExpertsPerToken": 2, "expertIntermediateSize": 128}
    package = write_random_package(tmp_path / "package", llama_manifest(moe=moe), rng)
    ids = rng.integers(0, VOCAB, 24).tolist()
    policy = hinted(computePrecision="f16")
    backend = GpuBackend(package, context=CONTEXT, device=device, policy=policy)
    choices = backend.info.decisions
    assert (choices[0].op, choices[0].kernel) == ("activations", "f16")
    assert unhonoured(choices) == ()
    kernels = {choice.op: choice.kernel for choice in choices if choice.step == "decode"}
    assert kernels["layer 0 attention"].startswith("attention_decode")
    assert kernels["head"].startswith("matvec")
    reference = scored(CpuBackend(package, context=CONTEXT), ids)[19:]
    error = relative_error(stepped(backend, ids, 20), reference)
    assert 1e-5 < error < 5e-3
    assert len(backend.greedy(ids, 0, 3)) == 3
    backend.close()


def test_a_device_without_f16_keeps_f32_and_says_so(plain_device, tmp_path, rng):
    package = write_random_package(tmp_path / "package", llama_manifest(**SMALL), rng)
    ids = rng.integers(0, VOCAB, 12).tolist()
    policy = hinted(computePrecision="f16")
    options = {"context": CONTEXT, "kv_dtype": "f32", "device": plain_device}
    backend = GpuBackend(package, policy=policy, **options)
    (line,) = unhonoured(backend.info.decisions)
    assert "hint computePrecision=f16 is not honoured: the device has no feature shader-f16" in line
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 10)
    assert relative_error(stepped(backend, ids, 10), reference) < 1e-5
    backend.close()


def test_int8_activations_from_a_stronger_source_exclude_f16(device, tmp_path, rng):
    package = write_random_package(tmp_path / "package", llama_manifest(), rng)
    stated = {
        "manifest": {"computePrecision": "f16"},
        "run flag": {"q4kMatmul": "fused_q4k_int8"},
    }
    choices = decisions_for(package, device.capabilities, resolve(stated), CONTEXT, "f16")
    assert choices[0].kernel == "f32"
    (line,) = unhonoured(choices)
    assert "computePrecision=f16 is not honoured: q4kMatmul=fused_q4k_int8 (run flag)" in line
