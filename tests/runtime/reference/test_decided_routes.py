"""Prompts of tests leave no choice of experts to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rdrr_manifests.graph.ops import Router, WeightUse
from support import routes
from support.packages import llama_manifest, write_random_package
from support.routes import decided_ids, is_decided

NEAR = 1e-6
MOE = {
    "numExperts": 6,
    "numExpertsPerToken": 2,
    "expertFormat": "mixtral",
    "expertIntermediateSize": 64,
}
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sigmoid": {"scoring": "sigmoid"},
    "groups": {"scoring": "sigmoid", "groups": 3, "top_groups": 2, "group_score": "top2"},
    "sparsemixer": {"scoring": "sparsemixer", "margin": 0.1},
}


def router(top_k: int = 2, **options: Any) -> Router:
    return Router("x", "y", WeightUse("w", (6, 16)), top_k, True, **options)


def logits(**changed: float) -> torch.Tensor:
    """Return two rows of logits of experts a to f, some of them changed in the second."""
    usual = dict(zip("abcdef", (3.0, 2.0, 1.0, 0.0, -1.0, -2.0), strict=True))
    return torch.tensor([[*usual.values()], [*(usual | changed).values()]])


@pytest.mark.parametrize("kind", KINDS)
def test_an_expert_as_near_as_rounding_to_a_chosen_one_is_not_decided(kind):
    op = router(**KINDS[kind])
    assert is_decided(op, logits())
    assert is_decided(op, logits(c=2.0 - 1e-3))
    for near in (2.0 - NEAR, 2.0, 2.0 + NEAR):
        assert not is_decided(op, logits(c=near))


@pytest.mark.parametrize("kind", KINDS)
def test_experts_that_are_not_chosen_may_be_equal(kind):
    assert is_decided(router(**KINDS[kind]), logits(e=0.0))


def test_the_order_of_chosen_experts_matters_only_where_their_weights_follow_from_it():
    equal = logits(a=2.0)
    assert is_decided(router(), equal)
    assert not is_decided(router(**KINDS["sparsemixer"]), equal)


def test_the_experts_that_weigh_a_choice_matter_too():
    """Sparsemixer weighs the first expert, 3, among those down to 2.7."""
    op = router(**KINDS["sparsemixer"])
    assert is_decided(op, logits(b=2.71))
    assert not is_decided(op, logits(b=2.7 + NEAR))
    assert not is_decided(op, logits(b=2.7 - NEAR))


def test_equal_groups_are_not_decided():
    op = router(1, scoring="sigmoid", groups=3, top_groups=1, group_score="max")
    assert is_decided(op, logits(c=3.0 - 1e-3))
    assert not is_decided(op, logits(c=3.0 - NEAR))


def test_the_selection_bias_counts():
    op = router(scoring="sigmoid")
    scores, bias = torch.sigmoid(logits())[0], torch.zeros(6)
    assert is_decided(op, logits(), bias)
    bias[2] = scores[1] - scores[2] - NEAR
    assert not is_decided(op, logits(), bias)


def test_prompts_have_the_margin(tmp_path, rng, monkeypatch):
    mixture = write_random_package(tmp_path / "moe", llama_manifest(moe=MOE), rng)
    dense = write_random_package(tmp_path / "dense", llama_manifest(), rng)
    assert len(decided_ids(mixture, rng, 9)) == 9
    monkeypatch.setattr(routes, "MARGIN", 0.5)
    monkeypatch.setattr(routes, "TRIES", 2)
    assert len(decided_ids(dense, rng, 9)) == 9
    with pytest.raises(AssertionError, match="rounding would decide"):
        decided_ids(mixture, rng, 9)
