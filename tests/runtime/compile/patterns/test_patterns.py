"""Patterns match runs of ops that fused kernels may serve, and no others."""

from __future__ import annotations

from collections import Counter

import pytest
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_manifests.graph.ops import (
    Experts,
    GatedActivation,
    Linear,
    Norm,
    Op,
    Residual,
    Rope,
    Router,
    Scale,
    SigmoidGate,
    WeightUse,
)
from rdrr_runtime.compile.lowering.values import Values, Workspace, parts_refusal
from rdrr_runtime.compile.patterns.layers import (
    Body,
    Branch,
    match_branch,
    match_gated_feed_forward,
    match_normed_linears,
    may_defer,
)
from rdrr_runtime.compile.patterns.mixtures import match_mixture
from rdrr_runtime.compile.patterns.residual import StreamSum, is_read_next, match_normed_sum
from rdrr_runtime.compile.patterns.rows import match_normed_products

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
    branch = match_branch(Body.of((before, RESIDUAL, *after)), 0)
    assert branch.residual == (RESIDUAL if joins else None)


def test_a_scaled_residual_does_not_join_its_branch():
    op = Linear("x", "b", MATRIX)
    branch = match_branch(Body.of((op, Residual("stream", "b", "next", 0.5))), 0)
    assert branch == Branch(op)


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
    normed = match_normed_linears(Body.of((norm, linears[0], between, linears[1])), 0)
    assert (normed is not None) is matches


MIXTURE: tuple[Op, ...] = (
    Norm("stream", "n", GAIN, 1e-6, unit_offset=False),
    Router("n", "r", MATRIX, 2, normalize=True),
    Experts("n", "r", "e", (MATRIX,), (MATRIX,), (MATRIX,), "silu", K),
    Linear("n", "g", MATRIX),
    Linear("n", "u", MATRIX),
    GatedActivation("g", "u", "a", "silu", K),
    Linear("a", "d", MATRIX),
    SigmoidGate("n", "d", "s", GAIN),
    Residual("e", "s", "both"),
    Residual("stream", "both", "next"),
)


def test_a_mixture_with_a_shared_expert_is_matched_as_a_whole() -> None:
    mixture = match_mixture(Body.of(MIXTURE), 0)
    assert mixture.count == len(MIXTURE)
    assert mixture.shared.score == MIXTURE[7]


@pytest.mark.parametrize(
    ("fields", "matches"),
    [({}, True), ({"gate_scale": 0.5}, False), ({"up_parts": 2, "up_part": 1}, False)],
    ids=["plain", "a factor on the gate", "a part of up"],
)
def test_a_feed_forward_is_fused_unless_it_scales_its_gate_or_reads_a_part_of_up(fields, matches):
    norm, gate, up, down = MIXTURE[0], MIXTURE[3], MIXTURE[4], Linear("a", "b", MATRIX)
    activation = GatedActivation("g", "u", "a", "silu", K, **fields)
    block = match_gated_feed_forward(Body.of((norm, gate, up, activation, down, RESIDUAL)), 0)
    assert (block is not None) is matches
    mixture = Body.of((*MIXTURE[:5], activation, *MIXTURE[6:]))
    assert (match_mixture(mixture, 0) is not None) is matches


@pytest.mark.parametrize("value", ["stream", "n", "r", "e", "d", "both"])
def test_a_mixture_whose_inner_values_are_read_again_is_not_matched(value: str) -> None:
    again = Residual("next", value, "again")
    assert match_mixture(Body.of((*MIXTURE, again)), 0) is None


def test_a_mixture_without_its_sum_or_with_a_scaled_one_is_not_matched() -> None:
    scaled = Residual("stream", "both", "next", 0.5)
    assert match_mixture(Body.of((*MIXTURE[:-1], scaled)), 0) is None
    assert match_mixture(Body.of(MIXTURE[:8]), 0) is None
    alone = (*MIXTURE[:3], Residual("stream", "e", "next"))
    assert match_mixture(Body.of(alone), 0) is not None


@pytest.mark.parametrize(
    ("between", "may"),
    [
        ((), True),
        ((Residual("stream", "q", "next"),), False),  # changes what the norm reads
        ((Norm("stream", "other", GAIN, 1e-6, unit_offset=False),), True),
    ],
    ids=["nothing", "a residual", "another norm"],
)
def test_a_norm_is_computed_by_each_reader_if_its_input_is_unchanged_until_the_last(
    between: tuple[Op, ...], may: bool
) -> None:
    norm = Norm("stream", "n", GAIN, 1e-6, unit_offset=False)
    ops = (norm, Linear("n", "q", MATRIX), *between, Linear("n", "k", MATRIX))
    after = Residual("stream", "k", "last")
    assert may_defer(Body.of((*ops, after)), norm) is may


def test_a_norm_whose_output_becomes_the_stream_is_computed_once() -> None:
    norm = Norm("sum", "stream", GAIN, 1e-6, unit_offset=False, centred=True)
    q = Linear("stream", "b", MATRIX)
    assert not may_defer(Body.of((norm, q, RESIDUAL)), norm)
    assert may_defer(Body.of((norm, q, Residual("sum", "b", "next"))), norm)  # the control


def test_linears_that_read_a_norm_end_with_the_last_of_them() -> None:
    norm = Norm("stream", "n", GAIN, 1e-6, unit_offset=False, centred=True)
    q, k = Linear("n", "q", MATRIX), Linear("n", "k", MATRIX)
    after = Norm("k", "k2", GAIN, 1e-6, unit_offset=False), Linear("k2", "k3", MATRIX)
    normed = match_normed_products(Body.of((norm, q, Rope("q", "q2", 1, 0), k, *after)), 0)
    assert (normed.linears, normed.count) == ((q, k), 4)
    other = SigmoidGate("n", "q", "q2", GAIN)  # reads the norm too
    assert match_normed_products(Body.of((norm, q, k, other)), 0) is None


@pytest.mark.parametrize(
    ("scale", "matches"),
    [
        (Scale("next", "scaled", 2.0, WeightUse("w", (1,))), True),
        (Scale("next", "scaled", 2.0, GAIN), False),  # a weight for each element
        (Scale("next", "scaled", 2.0), False),
        (Scale("other", "scaled", 2.0, WeightUse("w", (1,))), False),
    ],
    ids=["one weight", "many weights", "no weight", "another value"],
)
def test_a_scale_joins_the_norm_and_the_residual_before_it(scale: Scale, matches: bool) -> None:
    norm = Norm("x", "b", GAIN, 1e-6, unit_offset=False)
    normed_sum = match_normed_sum(Body.of((norm, RESIDUAL, scale)), 0)
    assert normed_sum == StreamSum(norm, RESIDUAL, scale if matches else None)


@pytest.mark.parametrize(
    ("after", "is_read"),
    [
        ((Norm("next", "n", GAIN, 1e-6, unit_offset=False),), True),
        ((Linear("next", "y", MATRIX),), True),
        ((), True),  # the final norm follows
        ((Linear("other", "y", MATRIX), Linear("next", "z", MATRIX)), False),
        ((Scale("next", "scaled", 2.0),), False),
    ],
    ids=["a norm", "a linear", "the head", "a linear of another value", "another op"],
)
def test_a_product_may_compute_a_sum_that_the_next_op_reads(after, is_read):
    norm = Norm("x", "b", GAIN, 1e-6, unit_offset=False)
    body = Body.of((norm, RESIDUAL, *after))
    normed_sum = match_normed_sum(body, 0)
    assert normed_sum is not None
    assert is_read_next(body, 0, normed_sum) is is_read


def test_values_side_by_side_free_their_buffer_after_the_last_reader(device: Device) -> None:
    values = Values(
        Workspace(DryRunArena(device.capabilities), 1), Counter({"a": 1, "b": 1, "c": 1})
    )
    assert parts_refusal((64, 128, 3), 4) is None
    assert "66 elements" in str(parts_refusal((66, 128, 3), 4))
    whole = values.allocate_parts({"a": 64, "b": 128, "c": 3}, 4)
    slices = [values.get(name) for name in "abc"]
    assert [slice_.offset - whole.offset for slice_ in slices] == [0, 256, 768]
    assert [slice_.size for slice_ in slices] == [256, 512, 12]
    values.rename("a", "rotated")
    values.readers["rotated"] = 1
    assert values.get("rotated") == slices[0]
    values.mark_read("b", "c")
    assert values.allocate("other", 195) != whole  # a part is still to be read
    values.mark_read("rotated")
    assert values.allocate("later", 195) == whole


def test_a_value_alone_in_its_buffer_is_live_until_its_last_reader(device: Device) -> None:
    values = Values(Workspace(DryRunArena(device.capabilities), 1), Counter({"a": 2}))
    whole = values.allocate_parts({"a": 64}, 4)
    values.mark_read("a")
    assert values.get("a") == whole
    values.mark_read("a")
    assert values.allocate("later", 64) == whole
