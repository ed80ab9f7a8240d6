"""Tests of routing: the experts of a row and their weights, against torch in float64."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Router, WeightUse
from rdrr_runtime.phases.experts.router_topk import RouterSpec, router_topk
from rdrr_runtime.reference.routing import route
from support.comparison import relative_error
from support.gpu import F32, TOLERANCE, Bench, normal


def routes_of(bench: Bench, buffer: BufferSlice, rows: int, top_k: int) -> tuple[F32, F32]:
    words = bench.device.read(buffer).view(np.uint32)[: 2 * rows * top_k].reshape(rows, top_k, 2)
    return words[:, :, 0], words[:, :, 1].copy().view(np.float32)


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
    logits[3] = -np.abs(logits[3])
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
    phases = router_topk(
        any_bench.context(rows, max_rows=rows + 1),
        any_bench.upload(np.vstack([logits, logits[:1]])),
        out,
        spec,
        selection_bias=any_bench.upload(added) if biased else None,
        label="t",
    )
    any_bench.run(phases, rows)
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
    phases = router_topk(any_bench.context(2), any_bench.upload(logits), out, spec, **wanted)
    any_bench.run(phases, 2)
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
    phases = router_topk(
        bench.context(1), logits_buffer, out, spec, selection_bias=added, label="t"
    )
    bench.run(phases, 1)
    ids, routing_weights = routes_of(bench, out, 1, 2)
    assert ids.tolist() == [[0, 2]]
    np.testing.assert_allclose(routing_weights, [[0.26894143, 0.7310586]], rtol=1e-5)
