"""Layers with a selective state space (Mamba 2), whose sizes are in `architecture`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rdrr_manifests.models.base import WRITTEN_IF_SET, Block


class StateSpace(Block):
    """The state space of every layer that has one. Written by rdrr only.

    Attributes:
        gated_norm: Whether the output has an RMSNorm, group by group, beside its gate.
        norm_before_gate: Whether that norm comes before the gate.
        least_step: Lower limit of the lengths of steps, after softplus.
        most_step: Upper limit of them; None for none.
        gate_multiplier: Factor on the gate before its activation.
        input_multipliers: Factors on x, B and C before the convolution adds its bias; None for 1.
        step_multiplier: Factor on the steps before their bias is added.
        output_multiplier: Factor on what the state space adds to the residual stream.
        attention_multiplier: Factor on what the attention of the same layer adds to it.
    """

    gated_norm: bool = True
    norm_before_gate: Annotated[bool, WRITTEN_IF_SET] = False
    least_step: Annotated[float, WRITTEN_IF_SET] = Field(default=0.0, ge=0)
    most_step: Annotated[float | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    gate_multiplier: Annotated[float, WRITTEN_IF_SET] = 1.0
    input_multipliers: Annotated[tuple[float, float, float] | None, WRITTEN_IF_SET] = None
    step_multiplier: Annotated[float, WRITTEN_IF_SET] = 1.0
    output_multiplier: Annotated[float, WRITTEN_IF_SET] = 1.0
    attention_multiplier: Annotated[float, WRITTEN_IF_SET] = 1.0
