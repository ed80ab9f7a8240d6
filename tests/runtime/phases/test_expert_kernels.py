"""Tests of routing and of products with routed experts, against torch in float64."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_manifests.graph import Clamp
from rdrr_manifests.graph.ops import Router, WeightUse
from rdrr_runtime.phases.expert_int8 import expert_int8
from rdrr_runtime.phases.expert_linear import expert_linear
from rdrr_runtime.phases.expert_tiled import expert_tiled
from rdrr_runtime.phases.fusion import Output
from rdrr_runtime.phases.gated_activation import ExpertGates, gated_activation
from rdrr_runtime.phases.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.matvec_rows import weights_refusal
from rdrr_runtime.phases.packing import Uploader
from rdrr_runtime.phases.quantize_rows import QuantizedRows, int8_sizes, padded_rows, quantize_rows
from rdrr_runtime.phases.quantize_small_batch import quantize_small_batch, small_batch_bytes
from rdrr_runtime.phases.router_topk import RouterSpec, router_topk
from rdrr_runtime.phases.routing import Routed, expert_combine, expert_groups
from rdrr_runtime.phases.sigmoid_gate import sigmoid_gate
from rdrr_runtime.reference import ops
from rdrr_runtime.reference.routing import route
from support.gpu import F32, TOLERANCE, Bench, in_int8, normal, random_tensor, relative_error

TYPES = ("Q4_K", "Q6_K", "Q8_0", "F16", "F32")
INT8_CASES = (
    ("Q4_K", 1, 256),
    ("Q4_K", 5, 36),
    ("Q6_K", 3, 320),
    ("Q8_0", 2, 36),
    ("Q8_0", 4, 256),
)
"""Storage type, rows and inputs of int8 products."""

BY_ROW = {"by_route": False, "label": "t"}
BY_ROUTE = {"by_route": True, "label": "t"}


def routes_of(bench: Bench, buffer: BufferSlice, rows: int, top_k: int) -> tuple[F32, F32]:
    words = bench.device.read(buffer).view(np.uint32)[: 2 * rows * top_k].reshape(rows, top_k, 2)
    return words[:, :, 0], words[:, :, 1].copy().view(np.float32)


def routed(bench: Bench, rng: np.random.Generator, rows: int, experts: int, top_k: int):
    """Return random routes, on the device and as arrays of experts and routing weights."""
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(rows)]).astype(np.uint32)
    routing_weights = rng.random((rows, top_k), dtype=np.float32)
    words = np.stack([ids, routing_weights.view(np.uint32)], axis=-1)
    return Routed(bench.upload(words), experts, top_k), ids, routing_weights


def stacked(
    bench: Bench,
    rng: np.random.Generator,
    dtype: str,
    experts: int,
    shape: tuple[int, int],
    layout: Layout = Layout.ROW,
) -> tuple[GpuWeight, F32]:
    made = [random_tensor(rng, dtype, layout, shape) for _ in range(experts)]
    kind = DTYPES[dtype]
    weight = allocate_weight(bench.arena, kind, layout, shape, "experts", count=experts)
    with bench.arena.temporary() as temporary, Uploader(bench.arena, temporary) as uploader:
        uploader.fill(weight, layout, shape, (raw for raw, _ in made), "experts")
    return weight, np.stack([values for _, values in made])


ROUTERS = (
    RouterSpec(8, 2, normalize=True),
    RouterSpec(8, 2, normalize=False),
    RouterSpec(300, 12, normalize=True),
    RouterSpec(300, 12, normalize=False, scale=2.5),
    RouterSpec(1, 1, normalize=True),
    RouterSpec(60, 4, normalize=True, scoring="sigmoid"),
    RouterSpec(60, 4, normalize=False, scoring="sigmoid", scale=0.5),
    RouterSpec(256, 8, normalize=True, scoring="sigmoid", groups=8, top_groups=4, scale=2.5),
    RouterSpec(16, 2, normalize=False, scoring="sparsemixer", margin=0.6),
    RouterSpec(70, 5, normalize=False, scoring="sparsemixer", margin=0.02, scale=1.5),
    RouterSpec(24, 6, normalize=False, groups=8, top_groups=3),
    RouterSpec(40, 6, normalize=True, groups=4, top_groups=2, group_score="top2"),
    RouterSpec(6, 2, normalize=True, scoring="sigmoid", groups=6, top_groups=2, group_score="top2"),
)

BIASED_ROUTERS = [
    (spec, biased)
    for spec in ROUTERS
    for biased in ([False] if spec.scoring == "sparsemixer" else [False, True])
]
"""The routers, without and with a bias where they may have one."""


@pytest.mark.parametrize(("spec", "biased"), BIASED_ROUTERS)
def test_rows_are_routed_to_the_experts_of_the_reference(any_bench, rng, spec, biased):
    rows, experts, top_k = 5, spec.experts, spec.top_k
    logits = 3 * normal(rng, rows, experts)
    logits[1] = np.float32(0.25)  # all equal: the lowest indices win
    logits[2, : experts // 2] = logits[2].max()
    added = normal(rng, experts)
    added[: experts // 2] = added[0]
    options = asdict(spec)
    op = Router("x", "y", WeightUse("w", (options.pop("experts"), 1)), **options)
    expected = route(
        op,
        torch.from_numpy(logits).double(),
        torch.from_numpy(added).double() if biased else None,
    )
    out = any_bench.poisoned(rows + 1, top_k, 2)
    made = router_topk(
        any_bench.context(rows, max_rows=rows + 1),
        any_bench.upload(np.vstack([logits, logits[:1]])),
        out,
        spec,
        selection_bias=any_bench.upload(added) if biased else None,
        label="t",
    )
    any_bench.run(made, rows)
    ids, routing_weights = routes_of(any_bench, out, rows + 1, top_k)
    assert np.array_equal(ids[:rows], expected[0].numpy())
    assert relative_error(routing_weights[:rows], expected[1].numpy()) < TOLERANCE
    assert np.isnan(routing_weights[rows:]).all()  # rows beyond the step are unchanged


@pytest.mark.parametrize(("spec", "biased"), BIASED_ROUTERS)
def test_a_logit_that_is_nan_gives_a_weight_that_is_not_finite(any_bench, rng, spec, biased):
    logits = normal(rng, 2, spec.experts)
    logits[1, rng.integers(spec.experts)] = np.nan
    out, added = any_bench.poisoned(2, spec.top_k, 2), any_bench.upload(normal(rng, spec.experts))
    wanted = {"selection_bias": added if biased else None, "label": "t"}
    made = router_topk(any_bench.context(2), any_bench.upload(logits), out, spec, **wanted)
    any_bench.run(made, 2)
    _, routing_weights = routes_of(any_bench, out, 2, spec.top_k)
    assert np.isfinite(routing_weights[0]).all()
    assert not np.isfinite(routing_weights[1]).all()


def test_logits_far_apart_give_no_nan(bench):
    logits = np.array([[-3e38, 3e38, 0.0, 1e4]], np.float32)
    out, spec = bench.poisoned(1, 3, 2), RouterSpec(4, 3, normalize=True)
    bench.run(router_topk(bench.context(1), bench.upload(logits), out, spec, label="t"), 1)
    ids, routing_weights = routes_of(bench, out, 1, 3)
    assert ids.tolist() == [[1, 3, 2]]
    assert routing_weights.tolist() == [[1.0, 0.0, 0.0]]


def test_experts_of_negligible_probability_can_be_selected_by_their_bias(bench):
    logits = np.array([[0.0, 1e4, 1.0, 2.0]], np.float32)
    added = bench.upload(np.array([9.0, -9.0, 8.0, -9.0], np.float32))
    out, spec = bench.poisoned(1, 2, 2), RouterSpec(4, 2, normalize=True)
    logits_buffer = bench.upload(logits)
    made = router_topk(bench.context(1), logits_buffer, out, spec, selection_bias=added, label="t")
    bench.run(made, 1)
    ids, routing_weights = routes_of(bench, out, 1, 2)
    assert ids.tolist() == [[0, 2]]
    np.testing.assert_allclose(routing_weights, [[0.26894143, 0.7310586]], rtol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_each_route_is_multiplied_by_its_expert(bench, rng, dtype):
    rows, experts, top_k, n, k = 3, 5, 2, 70, 320
    weight, values = stacked(bench, rng, dtype, experts, (n, k))
    routes, ids, _ = routed(bench, rng, rows, experts, top_k)
    x = normal(rng, rows, k)
    y = bench.poisoned(rows, top_k, n)
    made = expert_linear(
        bench.context(rows), weight, routes, bench.upload(x), y, by_route=False, label="t"
    )
    bench.run(made, rows)
    expected = np.einsum("rsnk,rk->rsn", values[ids].astype(np.float64), x)
    assert relative_error(bench.download(y, rows, top_k, n), expected) < TOLERANCE


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("dtype", ["Q6_K", "F16"])
def test_the_experts_of_a_row_are_summed_by_their_weights(any_bench, rng, dtype, accumulate):
    rows, experts, top_k, n, k = 4, 6, 3, 67, 192
    weight, values = stacked(any_bench, rng, dtype, experts, (n, k))
    routes, ids, routing_weights = routed(any_bench, rng, rows, experts, top_k)
    x, before = normal(rng, rows, top_k, k), normal(rng, rows, n)
    expected = np.einsum("rsnk,rsk,rs->rn", values[ids].astype(np.float64), x, routing_weights)
    before *= np.float32(np.abs(expected).max())
    y = any_bench.upload(before) if accumulate else any_bench.poisoned(rows, n)
    ctx = any_bench.context(rows)
    x_on_gpu = any_bench.upload(x)
    made = expert_linear(
        ctx, weight, routes, x_on_gpu, y, accumulate=accumulate, by_route=True, label="t"
    )
    any_bench.run(made, rows)
    expected += before if accumulate else 0.0
    assert relative_error(any_bench.download(y, rows, n), expected) < TOLERANCE


def test_experts_beyond_the_binding_limit_are_split_at_any_row(bench, rng, monkeypatch):
    """Parts end within an expert, and even within the four outputs of a workgroup."""
    rows, experts, top_k, n, k = 3, 5, 2, 30, 64
    monkeypatch.setattr(type(bench.arena), "max_binding", 4 * k * 64)
    weight, values = stacked(bench, rng, "F32", experts, (n, k))
    assert [part.first_row for part in weight.parts] == [0, 64, 128]
    routes, ids, routing_weights = routed(bench, rng, rows, experts, top_k)
    x, inner = normal(rng, rows, k), normal(rng, rows, top_k, k)
    each, summed = bench.poisoned(rows, top_k, n), bench.poisoned(rows, n)
    ctx, products = bench.context(rows), values[ids].astype(np.float64)
    bench.run(expert_linear(ctx, weight, routes, bench.upload(x), each, **BY_ROW), rows)
    bench.run(
        expert_linear(ctx, weight, routes, bench.upload(inner), summed, **BY_ROUTE),
        rows,
    )
    expected = np.einsum("rsnk,rk->rsn", products, x)
    assert relative_error(bench.download(each, rows, top_k, n), expected) < TOLERANCE
    expected = np.einsum("rsnk,rsk,rs->rn", products, inner, routing_weights)
    assert relative_error(bench.download(summed, rows, n), expected) < TOLERANCE


def grouped(bench: Bench, routes: Routed, ids: F32, rows: int, max_rows: int):
    """Run expert_groups and check the groups that it writes."""
    ctx = bench.context(rows, max_rows=max_rows)
    groups = bench.upload(np.full((routes.experts, 1 + max_rows), 0xFFFF, np.uint32))
    bench.run(expert_groups(ctx, routes, groups, label="t"), rows)
    found = np.array(bench.words(groups)).reshape(routes.experts, -1)
    for expert, (count, *members) in enumerate(found.tolist()):
        expected = np.flatnonzero(ids[:rows].reshape(-1) == expert)
        assert members[:count] == expected.tolist()
    return ctx, groups


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        ("Q4_K", Layout.ROW),
        ("Q8_0", Layout.ROW),
        ("F16", Layout.ROW),
        ("Q4_K", Layout.COLUMN),
        ("Q8_0", Layout.COLUMN),
    ],
)
def test_tiles_over_the_routes_of_an_expert_equal_torch(any_bench, rng, dtype, layout):
    rows, experts, top_k, n, k = 150, 5, 2, 70, 320
    weight, values = stacked(any_bench, rng, dtype, experts, (n, k), layout)
    routes, ids, _ = routed(any_bench, rng, rows, experts, top_k)
    ctx, groups = grouped(any_bench, routes, ids, rows, rows)
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    options = {"by_route": False, "label": "t"}
    made = expert_tiled(ctx, weight, routes, groups, any_bench.upload(x), y, **options)
    any_bench.run(made, rows)
    expected = np.einsum("rsnk,rk->rsn", values[ids].astype(np.float64), x)
    found = any_bench.download(y, rows, top_k, n)
    assert relative_error(found, expected) < TOLERANCE


@pytest.mark.parametrize("accumulate", [True, False])
def test_products_by_route_are_summed_with_their_weights(bench, rng, monkeypatch, accumulate):
    """Parts end within an expert, and the pass has fewer rows than its maximum."""
    max_rows, rows, experts, top_k, n, k = 40, 37, 5, 2, 36, 64
    monkeypatch.setattr(type(bench.arena), "max_binding", 4 * k * 64)
    weight, values = stacked(bench, rng, "F32", experts, (n, k))
    assert len(weight.parts) == 3
    routes, ids, routing_weights = routed(bench, rng, max_rows, experts, top_k)
    ctx, groups = grouped(bench, routes, ids, rows, max_rows)
    x, before = normal(rng, max_rows, top_k, k), normal(rng, max_rows, n)
    inner = bench.poisoned(max_rows, top_k, n)
    y = bench.upload(before) if accumulate else bench.poisoned(max_rows, n)
    made = [
        *expert_tiled(
            ctx, weight, routes, groups, bench.upload(x), inner, by_route=True, label="t"
        ),
        *expert_combine(ctx, routes, inner, y, width=n, accumulate=accumulate, label="t"),
    ]
    bench.run(made, rows)
    expected = np.einsum("rsnk,rsk,rs->rn", values[ids].astype(np.float64), x, routing_weights)
    expected += before if accumulate else 0.0
    found = bench.download(y, max_rows, n)
    assert relative_error(found[:rows], expected[:rows]) < TOLERANCE
    assert np.array_equal(found[rows:], before[rows:]) or np.isnan(found[rows:]).all()


def test_an_expert_without_routes_has_an_empty_group(bench):
    ids = np.zeros((4, 1), np.uint32)
    words = np.stack([ids, np.ones((4, 1), np.float32).view(np.uint32)], axis=-1)
    grouped(bench, Routed(bench.upload(words), 3, 1), ids, 4, 4)


@pytest.mark.parametrize("dtype", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("split", [False, True], ids=["one part", "split"])
def test_column_major_experts_equal_torch(bench, rng, monkeypatch, dtype, split):
    rows, experts, top_k, n, k = 3, 5, 2, 70, 36
    if split:  # into parts that end within the rows of an expert, or between experts
        limit = {"Q4_K": 20_000, "Q8_0": 9_216}[dtype]
        monkeypatch.setattr(type(bench.arena), "max_binding", limit)
    weight, products = stacked(bench, rng, dtype, experts, (n, k), Layout.COLUMN)
    assert (len(weight.parts) > 2) == split
    routes, ids, routing_weights = routed(bench, rng, rows, experts, top_k)
    x, inner = normal(rng, rows, k), normal(rng, rows, top_k, k)
    each, summed = bench.poisoned(rows, top_k, n), bench.poisoned(rows, n)
    ctx, chosen = bench.context(rows), products[ids].astype(np.float64)
    bench.run(expert_linear(ctx, weight, routes, bench.upload(x), each, **BY_ROW), rows)
    bench.run(
        expert_linear(ctx, weight, routes, bench.upload(inner), summed, **BY_ROUTE),
        rows,
    )
    expected = np.einsum("rsnk,rk->rsn", chosen, x)
    assert relative_error(bench.download(each, rows, top_k, n), expected) < TOLERANCE
    expected = np.einsum("rsnk,rsk,rs->rn", chosen, inner, routing_weights)
    assert relative_error(bench.download(summed, rows, n), expected) < TOLERANCE


def test_the_output_of_a_shared_expert_is_multiplied_by_its_gate(any_bench, rng):
    rows, k, width = 3, 100, 36
    x, weight, branch = normal(rng, rows, k), normal(rng, k), normal(rng, rows, width)
    x[2] *= 1e4  # where the exponential alone would overflow
    expected = ops.sigmoid_gate(*(torch.from_numpy(a).double() for a in (x, branch, weight[None])))
    buffer = any_bench.upload(branch)
    operands = any_bench.upload(x), any_bench.upload(weight), buffer
    made = sigmoid_gate(any_bench.context(rows), *operands, k=k, width=width, label="t")
    any_bench.run(made, rows)
    assert relative_error(any_bench.download(buffer, rows, width), expected) < TOLERANCE


def test_a_gate_that_is_nan_stays_visible(any_bench, rng):
    rows, k, width = 2, 100, 36
    x, weight, branch = normal(rng, rows, k), normal(rng, k), normal(rng, rows, width)
    x[1, 3] = np.nan
    buffer = any_bench.upload(branch)
    operands = any_bench.upload(x), any_bench.upload(weight), buffer
    made = sigmoid_gate(any_bench.context(rows), *operands, k=k, width=width, label="t")
    any_bench.run(made, rows)
    found = np.isnan(any_bench.download(buffer, rows, width))
    assert not found[0].any()
    assert found[1].all()


def test_unsupported_experts_are_refused(bench, rng):
    weight, _ = stacked(bench, rng, "F16", 2, (4, 64), Layout.COLUMN)
    routes, _, _ = routed(bench, rng, 1, 2, 1)
    x = bench.poisoned(64)
    with pytest.raises(FormatError, match="column-major"):
        expert_linear(
            bench.context(1), weight, routes, x, bench.poisoned(8), by_route=False, label="t"
        )
    with pytest.raises(FormatError, match="number of experts"):
        router_topk(bench.context(1), x, x, RouterSpec(2, 3, normalize=True), label="t")
    grouped = RouterSpec(8, 2, normalize=True, groups=3, top_groups=1)
    with pytest.raises(FormatError, match="groups of equal size"):
        router_topk(bench.context(1), x, x, grouped, label="t")


def test_a_refusal_of_int8_experts_gives_the_reason(bench, rng, monkeypatch):
    ctx, k = bench.context(1), 64
    blocks, _ = stacked(bench, rng, "Q8_0", 3, (32, k))
    columns, _ = stacked(bench, rng, "Q8_0", 3, (32, k), Layout.COLUMN)
    values, _ = stacked(bench, rng, "F16", 3, (32, k))
    monkeypatch.setattr(type(bench.arena), "max_binding", blocks.size // 2)
    split, _ = stacked(bench, rng, "Q8_0", 3, (32, k))
    halves = bench.context(1, values="f16")
    assert weights_refusal(ctx, [blocks, blocks]) is None
    assert "F16 has no codes" in weights_refusal(ctx, [blocks, values])
    assert "column-major" in weights_refusal(ctx, [columns, blocks])
    assert f"a matrix of {split.size} bytes" in weights_refusal(ctx, [split])
    assert "f16" in weights_refusal(halves, [blocks])


@pytest.mark.parametrize(("dtype", "rows", "k"), INT8_CASES)
def test_experts_in_int8_equal_the_product_of_quantized_rows(any_bench, rng, dtype, rows, k):
    experts, top_k, n = 5, 2, 67
    gates, gate_values = stacked(any_bench, rng, dtype, experts, (n, k))
    ups, up_values = stacked(any_bench, rng, dtype, experts, (n, k))
    routes, ids, _ = routed(any_bench, rng, rows, experts, top_k)
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    ctx, target = any_bench.context(rows), any_bench.poisoned(small_batch_bytes(rows, k) // 4)
    output = Output((y,), "gate", activation="silu")
    made = [
        *quantize_small_batch(ctx, any_bench.upload(x), target, k=k, label="t"),
        *expert_int8(ctx, (gates, ups), routes, target, output, label="t"),
    ]
    any_bench.run(made, rows)
    near = in_int8(x).astype(np.float64)
    gate, up = (np.einsum("rsnk,rk->rsn", one[ids], near) for one in (gate_values, up_values))
    found = any_bench.download(y, rows, top_k, n)
    assert relative_error(found, gate / (1 + np.exp(-gate)) * up) < 10 * TOLERANCE


@pytest.mark.parametrize(("dtype", "rows", "k"), INT8_CASES)
def test_experts_without_gates_are_activated_in_int8(any_bench, rng, dtype, rows, k):
    experts, top_k, n = 5, 2, 67
    ups, values = stacked(any_bench, rng, dtype, experts, (n, k))
    routes, ids, _ = routed(any_bench, rng, rows, experts, top_k)
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    ctx, target = any_bench.context(rows), any_bench.poisoned(small_batch_bytes(rows, k) // 4)
    output = Output((y,), "activate", activation="relu2")
    made = [
        *quantize_small_batch(ctx, any_bench.upload(x), target, k=k, label="t"),
        *expert_int8(ctx, (ups,), routes, target, output, label="t"),
    ]
    any_bench.run(made, rows)
    near = in_int8(x).astype(np.float64)
    expected = np.maximum(np.einsum("rsnk,rk->rsn", values[ids], near), 0.0) ** 2
    assert relative_error(any_bench.download(y, rows, top_k, n), expected) < 10 * TOLERANCE


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize(("dtype", "rows", "k"), INT8_CASES)
def test_routes_in_int8_are_summed_by_their_weights(any_bench, rng, dtype, rows, k, accumulate):
    experts, top_k, n = 6, 3, 67
    downs, values = stacked(any_bench, rng, dtype, experts, (n, k))
    routes, ids, routing_weights = routed(any_bench, rng, rows, experts, top_k)
    x, before = normal(rng, rows, top_k, k), normal(rng, rows, n)
    near = in_int8(x.reshape(-1, k)).reshape(x.shape).astype(np.float64)
    expected = np.einsum("rsnk,rsk,rs->rn", values[ids], near, routing_weights)
    before *= np.float32(np.abs(expected).max())
    y = any_bench.upload(before) if accumulate else any_bench.poisoned(rows, n)
    target = any_bench.poisoned(small_batch_bytes(rows * top_k, k) // 4)
    ctx, output = any_bench.context(rows), Output((y,), "add" if accumulate else "store")
    made = [
        *quantize_small_batch(ctx, any_bench.upload(x), target, k=k, per_row=top_k, label="t"),
        *expert_int8(ctx, (downs,), routes, target, output, label="t"),
    ]
    any_bench.run(made, rows)
    expected += before if accumulate else 0.0
    assert relative_error(any_bench.download(y, rows, n), expected) < 10 * TOLERANCE


@pytest.mark.parametrize("by_route", [False, True], ids=["of rows", "of routes"])
@pytest.mark.parametrize(("dtype", "k"), [(dtype, k) for dtype, _, k in INT8_CASES])
def test_rows_of_an_expert_in_int8_equal_the_product_of_quantized_rows(
    bench, rng, dtype, k, by_route
):
    rows, held, experts, top_k, n = 75, 80, 5, 2, 70
    weight, values = stacked(bench, rng, dtype, experts, (n, k))
    routes, ids, _ = routed(bench, rng, held, experts, top_k)
    ctx, groups = grouped(bench, routes, ids, rows, held)
    per_row = top_k if by_route else 1
    x, y = normal(rng, held, per_row, k), bench.poisoned(held, top_k, n)
    sizes = int8_sizes(held * per_row, k)
    q, scales = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in sizes)
    target = QuantizedRows(q, scales, padded_rows(held * per_row), k)
    made = [
        *quantize_rows(ctx, bench.upload(x), target, per_row=per_row, label="t"),
        *expert_tiled(ctx, weight, routes, groups, target, y, by_route=by_route, label="t"),
    ]
    bench.run(made, rows)
    near = in_int8(x.reshape(-1, k)).reshape(x.shape).astype(np.float64)
    near = np.broadcast_to(near, (held, top_k, k))
    expected = np.einsum("rsnk,rsk->rsn", values[ids], near)
    found = bench.download(y, held, top_k, n)
    assert relative_error(found[:rows], expected[:rows]) < 10 * TOLERANCE
    assert np.isnan(found[rows:]).all()


MXFP4_CASE = ("MXFP4", 3, 96)
CLAMP = Clamp(0.8, 1.7, 0.5)


def clamped(gate: F32, up: F32) -> F32:
    """Return the clamped SwiGLU."""
    gate, up = np.minimum(gate, CLAMP.limit), np.clip(up, -CLAMP.limit, CLAMP.limit)
    return gate / (1 + np.exp(-CLAMP.alpha * gate)) * (up + CLAMP.up_offset)


@pytest.mark.parametrize("scales_inputs", [False, True])
@pytest.mark.parametrize(("dtype", "rows", "k"), [("Q4_K", 5, 36), ("Q6_K", 3, 320), MXFP4_CASE])
def test_biases_of_experts_are_added_in_int8(any_bench, rng, dtype, rows, k, scales_inputs):
    experts, top_k, n = 5, 2, 64
    gates, gate_values = stacked(any_bench, rng, dtype, experts, (n, k))
    ups, up_values = stacked(any_bench, rng, dtype, experts, (n, k))
    downs, down_values = stacked(any_bench, rng, dtype, experts, (k, n))
    routes, ids, factors = routed(any_bench, rng, rows, experts, top_k)
    routes = replace(routes, scales_inputs=scales_inputs)
    biases, down_bias = normal(rng, 2, experts, n), normal(rng, experts, k)
    x, inner = normal(rng, rows, k), any_bench.poisoned(rows, top_k, n)
    y = any_bench.poisoned(rows, k)
    ctx = any_bench.context(rows)
    wide = any_bench.poisoned(small_batch_bytes(rows, k) // 4)
    narrow = any_bench.poisoned(small_batch_bytes(rows * top_k, n) // 4)
    gated = Output((inner,), "gate", any_bench.upload(biases), activation="silu", clamp=CLAMP)
    made = [
        *quantize_small_batch(ctx, any_bench.upload(x), wide, k=k, label="t"),
        *expert_int8(ctx, (gates, ups), routes, wide, gated, label="t"),
        *quantize_small_batch(ctx, inner, narrow, k=n, per_row=top_k, label="t"),
        *expert_int8(
            ctx,
            (downs,),
            routes,
            narrow,
            Output((y,), "store", any_bench.upload(down_bias)),
            label="t",
        ),
    ]
    any_bench.run(made, rows)
    near, ones = in_int8(x).astype(np.float64), np.ones_like(factors)
    before, after = (factors, ones) if scales_inputs else (ones, factors)
    gate, up = (
        np.einsum("rsnk,rk,rs->rsn", values[ids], near, before) + bias[ids]
        for values, bias in zip((gate_values, up_values), biases, strict=True)
    )
    found = any_bench.download(inner, rows, top_k, n)
    assert relative_error(found, clamped(gate, up)) < 10 * TOLERANCE
    near = in_int8(found.reshape(-1, n)).reshape(found.shape).astype(np.float64)
    out = np.einsum("rskn,rsn->rsk", down_values[ids], near) + down_bias[ids]
    expected = np.einsum("rsk,rs->rk", out, after)
    assert relative_error(any_bench.download(y, rows, k), expected) < 10 * TOLERANCE


def test_biases_of_experts_are_added_before_the_activation_and_to_the_sum(any_bench, rng):
    """The input of a part ends within an expert, whose bias is added once."""
    rows, experts, top_k, n, k = 4, 6, 3, 64, 36
    routes, ids, factors = routed(any_bench, rng, rows, experts, top_k)
    gate, up = normal(rng, rows, top_k, n), normal(rng, rows, top_k, n)
    biases, down_bias = normal(rng, 2, experts, n), normal(rng, experts, k)
    downs, values = stacked(any_bench, rng, "F32", experts, (k, n))
    inner, summed = any_bench.poisoned(rows, top_k, n), any_bench.poisoned(rows, k)
    results, combined = any_bench.upload(normal(rng, rows, top_k, k)), any_bench.poisoned(rows, k)
    ctx, bias = any_bench.context(rows), any_bench.upload(down_bias)
    added = ExpertGates(routes, any_bench.upload(biases))
    made = [
        *gated_activation(
            ctx,
            any_bench.upload(gate),
            any_bench.upload(up),
            inner,
            width=top_k * n,
            activation="silu",
            clamp=CLAMP,
            gates=added,
            label="t",
        ),
        *expert_linear(ctx, downs, routes, inner, summed, bias=bias, **BY_ROUTE),
        *expert_combine(ctx, routes, results, combined, width=k, bias=bias, label="t"),
    ]
    any_bench.run(made, rows)
    expected = clamped(gate + biases[0][ids], up + biases[1][ids]).astype(np.float64)
    found = any_bench.download(inner, rows, top_k, n)
    assert relative_error(found, expected) < TOLERANCE
    out = np.einsum("rskn,rsn->rsk", values[ids], expected) + down_bias[ids]
    expected = np.einsum("rsk,rs->rk", out, factors)
    assert relative_error(any_bench.download(summed, rows, k), expected) < TOLERANCE
    out = any_bench.download(results, rows, top_k, k) + down_bias[ids]
    expected = np.einsum("rsk,rs->rk", out, factors)
    assert relative_error(any_bench.download(combined, rows, k), expected) < TOLERANCE
