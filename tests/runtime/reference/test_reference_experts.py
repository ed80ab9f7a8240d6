"""Routing and experts of the reference, against sums written out row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_runtime.reference import ops

EXPERTS, ROWS, K, WIDTH = 6, 9, 16, 24


def tensor(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
def test_a_row_goes_to_its_likeliest_experts(rng, top_k, normalize):
    x, weight = tensor(rng, ROWS, K), tensor(rng, EXPERTS, K)
    ids, shares = ops.route(x, weight, top_k, normalize)
    for row in range(ROWS):
        logits = (weight @ x[row]).numpy()
        likely = np.exp(logits) / np.exp(logits).sum()
        best = np.argsort(-likely)[:top_k]
        assert ids[row].tolist() == best.tolist()
        expected = likely[best] / (likely[best].sum() if normalize else 1.0)
        np.testing.assert_allclose(shares[row].numpy(), expected, rtol=1e-12)


def test_of_equal_experts_the_lower_comes_first():
    x = torch.ones(2, K)
    weight = torch.zeros(EXPERTS, K)
    weight[4] = 1.0
    ids, _ = ops.route(x, weight, 3, normalize=True)
    assert ids.tolist() == [[4, 0, 1]] * 2


def test_the_softmax_over_the_chosen_is_the_normalized_softmax_over_all(rng):
    """Mixtral's way of stating the weights and Qwen's are one."""
    x, weight = tensor(rng, ROWS, K), tensor(rng, EXPERTS, K)
    ids, shares = ops.route(x, weight, 2, normalize=True)
    chosen = torch.softmax((x @ weight.T).gather(1, ids), dim=-1)
    torch.testing.assert_close(shares, chosen)


def test_what_experts_give_is_summed_by_their_weights(rng):
    x = tensor(rng, ROWS, K)
    gates, ups = tensor(rng, EXPERTS, WIDTH, K), tensor(rng, EXPERTS, WIDTH, K)
    downs = tensor(rng, EXPERTS, K, WIDTH)
    ids, shares = ops.route(x, tensor(rng, EXPERTS, K), 3, normalize=False)
    ours = ops.experts(x, ids, shares, lambda e: (gates[e], ups[e], downs[e]), "silu")
    for row in range(ROWS):
        expected = torch.zeros(K, dtype=torch.float64)
        for expert, share in zip(ids[row].tolist(), shares[row], strict=True):
            gate, up = gates[expert] @ x[row], ups[expert] @ x[row]
            expected += share * (downs[expert] @ (gate * torch.sigmoid(gate) * up))
        torch.testing.assert_close(ours[row], expected)


def test_a_sigmoid_of_each_row_scales_its_branch(rng):
    x, branch, weight = tensor(rng, ROWS, K), tensor(rng, ROWS, 5), tensor(rng, 1, K)
    factors = 1 / (1 + np.exp(-(x.numpy() @ weight[0].numpy())))
    expected = branch.numpy() * factors[:, None]
    np.testing.assert_allclose(ops.sigmoid_gate(x, branch, weight).numpy(), expected)
