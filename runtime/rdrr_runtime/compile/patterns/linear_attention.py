"""The pattern of a layer's linear attention, from its first norm to its output projection."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.ops import (
    DeltaRule,
    GatedActivation,
    Linear,
    Norm,
    ShortConvolution,
)

from rdrr_runtime.compile.patterns.layers import Body, Branch, match_branch, match_normed_linears


@dataclass(frozen=True)
class LinearAttention:
    """The ops of a layer's linear attention, from the norm before it to its output projection.

    Attributes:
        norm: The norm before the projections.
        linears: Queries, keys and values in one; gates; strengths; and decays.
        convolution: The convolution of queries, keys and values.
        rule: The delta rule.
        head_norm: The norm of each head of its output.
        output: The projection of the gated output.
    """

    norm: Norm
    linears: tuple[Linear, Linear, Linear, Linear]
    convolution: ShortConvolution
    rule: DeltaRule
    head_norm: Norm
    output: Branch

    @property
    def count(self) -> int:
        """Number of ops."""
        return 9 + self.output.count


def match_linear_attention(body: Body, index: int) -> LinearAttention | None:
    """Match norm, four linears, convolution, delta rule, norm of heads, gate and output."""
    projections = match_normed_linears(body, index)
    if projections is None or len(projections.linears) != 4 or projections.others:
        return None
    at = index + projections.count
    convolution, rule, head_norm, gate = (body.at(at + offset) for offset in range(4))
    if not isinstance(convolution, ShortConvolution) or not isinstance(rule, DeltaRule):
        return None
    if not isinstance(head_norm, Norm) or not isinstance(gate, GatedActivation):
        return None
    output = match_branch(body, at + 4)
    if output is None or not isinstance(output.op, Linear):
        return None
    by_name = {linear.out: linear for linear in projections.linears}
    inputs = (convolution.x, gate.gate, rule.strength, rule.decay)
    follow = (
        (convolution.out, rule.qkv),
        (rule.out, head_norm.x),
        (head_norm.out, gate.up),
        (gate.out, output.op.x),
    )
    inner = (*inputs, *(written for written, _ in follow))
    if set(inputs) != set(by_name) or any(written != read for written, read in follow):
        return None
    if any(body.readers[name] != 1 for name in inner):
        return None
    is_usual = convolution.activation == "silu" and convolution.parts == 1
    is_usual = is_usual and convolution.factors is None
    is_gated = gate.activation == "silu" and gate.clamp is None and gate.is_plain
    normed = head_norm.is_plain and head_norm.groups == rule.heads
    if not (is_usual and is_gated and normed) or convolution.bias is not None:
        return None
    qkv, gates, strength, decay = (by_name[name] for name in inputs)
    linears = (qkv, gates, strength, decay)
    return LinearAttention(projections.norm, linears, convolution, rule, head_norm, output)
