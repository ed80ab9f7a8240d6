"""Patterns match runs of ops that fused kernels may serve, and no others."""

from __future__ import annotations

import pytest
from rdrr_manifests.graph.ops import Linear, Norm, Op, Residual, Rope, SigmoidGate, WeightUse
from rdrr_runtime.compile.patterns import Body, match_branch, match_normed_linears

K = 8
GAIN, MATRIX = WeightUse("gain", (K,)), WeightUse("w", (K, K))
RESIDUAL = Residual("stream", "b", "next")


@pytest.mark.parametrize(
    ("before", "after", "joins"),
    [
        (Linear("x", "b", MATRIX), (), True),
        (Linear("stream", "b", MATRIX), (), False),  # in place it would read its own output
        (Linear("x", "b", MATRIX), (Residual("next", "b", "y"),), False),
        (Linear("x", "b", MATRIX), (Residual("next", "stream", "y"),), False),
    ],
    ids=["alone", "of the stream itself", "branch read again", "stream read again"],
)
def test_a_residual_joins_its_branch_if_nothing_else_reads_either(before, after, joins):
    found = match_branch(Body.of((before, RESIDUAL, *after)), 0)
    assert found is not None
    assert found.residual == (RESIDUAL if joins else None)


@pytest.mark.parametrize(
    ("between", "matches"),
    [
        (Rope("q", "q2", 1, 0), True),
        (SigmoidGate("n", "q", "q2", GAIN), False),  # an op unknown to all patterns ends the run
    ],
    ids=["rope", "an unknown op"],
)
def test_an_op_that_no_pattern_knows_ends_a_run(between: Op, matches: bool) -> None:
    norm = Norm("x", "n", GAIN, 1e-6, unit_offset=False)
    linears = Linear("n", "q", MATRIX), Linear("n", "k", MATRIX)
    found = match_normed_linears(Body.of((norm, linears[0], between, linears[1])), 0)
    assert (found is not None) is matches
