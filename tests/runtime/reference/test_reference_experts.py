"""Routing and experts of the reference, compared with sums computed row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rdrr_manifests.graph.ops import Router, WeightUse
from rdrr_runtime.reference import ops
from rdrr_runtime.reference.routing import route

EXPERTS, ROWS, K, WIDTH = 6, 9, 16, 24


def router(top_k: int, *, normalize: bool, **options: Any) -> Router:
    return Router("x", "y", WeightUse("w", (EXPERTS, K)), top_k, normalize, **options)


def tensor(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
def test_a_row_goes_to_its_most_probable_experts(rng, top_k, normalize):
    x, weight = tensor(rng, ROWS, K), tensor(rng, EXPERTS, K)
    ids, factors = route(router(top_k, normalize=normalize), x @ weight.T)
    for row in range(ROWS):
        logits = (weight @ x[row]).numpy()
        probabilities = np.exp(logits) / np.exp(logits).sum()
        best = np.argsort(-probabilities)[:top_k]
        assert ids[row].tolist() == best.tolist()
        expected = probabilities[best] / (probabilities[best].sum() if normalize else 1.0)
        np.testing.assert_allclose(factors[row].numpy(), expected, rtol=1e-12)


def test_equally_probable_experts_are_ordered_by_their_number():
    x = torch.ones(2, K)
    weight = torch.zeros(EXPERTS, K)
    weight[4] = 1.0
    ids, _ = route(router(3, normalize=True), x @ weight.T)
    assert ids.tolist() == [[4, 0, 1]] * 2


def test_the_softmax_over_the_chosen_is_the_normalized_softmax_over_all(rng):
    """Mixtral and Qwen define the routing weights differently; the results are equal."""
    x, weight = tensor(rng, ROWS, K), tensor(rng, EXPERTS, K)
    ids, factors = route(router(2, normalize=True), x @ weight.T)
    chosen = torch.softmax((x @ weight.T).gather(1, ids), dim=-1)
    torch.testing.assert_close(factors, chosen)


@pytest.mark.parametrize("group_score", ["max", "top2"])
def test_experts_are_selected_in_the_best_groups_with_their_bias(rng, group_score):
    logits, added = tensor(rng, ROWS, EXPERTS), tensor(rng, EXPERTS)
    grouped = {"groups": 3, "top_groups": 2, "group_score": group_score}
    op = router(3, normalize=True, scoring="sigmoid", scale=2.5, **grouped)
    ids, factors = route(op, logits, added)
    for row in range(ROWS):
        scores = 1 / (1 + np.exp(-logits[row].numpy()))
        choices = scores + added.numpy()
        pairs = choices.reshape(3, 2)
        of_groups = pairs.max(axis=1) if group_score == "max" else pairs.sum(axis=1)
        worst = int(of_groups.argmin())
        choices[2 * worst : 2 * worst + 2] = -np.inf
        best = np.argsort(-choices)[:3]
        assert ids[row].tolist() == best.tolist()
        expected = 2.5 * scores[best] / scores[best].sum()
        np.testing.assert_allclose(factors[row].numpy(), expected, rtol=1e-12)


def test_sparsemixer_weighs_each_expert_among_the_near_ones_that_are_left(rng):
    """Written out for two experts, as in the paper and in transformers."""
    logits = tensor(rng, 50, EXPERTS)
    margin = 0.5
    ids, factors = route(
        router(2, normalize=False, scoring="sparsemixer", margin=margin, scale=1.5), logits
    )
    counts = set()
    for row in range(len(logits)):
        left = logits[row].numpy().copy()
        for rank in range(2):
            best = int(np.argmax(left))
            near = left[best] - left <= margin * np.maximum(np.abs(left), left[best])
            counts.add(int(near.sum()))
            assert ids[row, rank] == best
            expected = 1.5 * np.exp(left[best]) / np.exp(left[near]).sum()
            np.testing.assert_allclose(factors[row, rank].numpy(), expected, rtol=1e-12)
            left[best] = -np.inf
    assert len(counts) > 1  # some experts have near rivals, and some have none


def test_the_selection_bias_selects_and_does_not_weigh(rng):
    logits, added = tensor(rng, ROWS, EXPERTS), torch.zeros(EXPERTS, dtype=torch.float64)
    added[4] = 10.0
    ids, factors = route(router(2, normalize=False), logits, added)
    assert (ids[:, 0] == 4).all()
    torch.testing.assert_close(factors[:, 0], torch.softmax(logits, dim=-1)[:, 4])


def test_the_outputs_of_experts_are_summed_with_their_routing_weights(rng):
    x = tensor(rng, ROWS, K)
    gates, ups = tensor(rng, EXPERTS, WIDTH, K), tensor(rng, EXPERTS, WIDTH, K)
    downs = tensor(rng, EXPERTS, K, WIDTH)
    ids, factors = route(router(3, normalize=False), tensor(rng, ROWS, EXPERTS))
    bias = tensor(rng, EXPERTS, K)

    def expert(e):
        return (gates[e], None), (ups[e], None), (downs[e], bias[e])

    result = ops.experts(x, ids, factors, expert, lambda gate, up: ops.silu(gate) * up)
    for row in range(ROWS):
        expected = torch.zeros(K, dtype=torch.float64)
        for expert, factor in zip(ids[row].tolist(), factors[row], strict=True):
            gate, up = gates[expert] @ x[row], ups[expert] @ x[row]
            inner = gate * torch.sigmoid(gate) * up
            expected += factor * (downs[expert] @ inner + bias[expert])
        torch.testing.assert_close(result[row], expected)


def test_experts_without_gates_activate_their_ups(rng):
    x, ups, downs = (
        tensor(rng, ROWS, K),
        tensor(rng, EXPERTS, WIDTH, K),
        tensor(rng, EXPERTS, K, WIDTH),
    )
    ids, factors = route(router(2, normalize=True), tensor(rng, ROWS, EXPERTS))
    seen = []

    def activate(gate, up):
        seen.append(gate)
        return torch.relu(up).square()

    result = ops.experts(
        x, ids, factors, lambda e: (None, (ups[e], None), (downs[e], None)), activate
    )
    assert set(seen) == {None}
    for row in range(ROWS):
        expected = sum(
            factor * (downs[expert] @ torch.relu(ups[expert] @ x[row]) ** 2)
            for expert, factor in zip(ids[row].tolist(), factors[row], strict=True)
        )
        torch.testing.assert_close(result[row], expected)


def test_the_sigmoid_gate_scales_each_row_of_the_branch(rng):
    x, branch, weight = tensor(rng, ROWS, K), tensor(rng, ROWS, 5), tensor(rng, 1, K)
    factors = 1 / (1 + np.exp(-(x.numpy() @ weight[0].numpy())))
    expected = branch.numpy() * factors[:, None]
    np.testing.assert_allclose(ops.sigmoid_gate(x, branch, weight).numpy(), expected)
