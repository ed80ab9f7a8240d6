"""Granite mixtures with an expert that every token uses beside those that are selected."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures.base import StackRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.granitemoe import GRANITEMOE, PUBLISHED
from rdrr_converter.architectures.tensors import SHARED_EXPERT, in_layers

SHARED_WIDTH = "shared_intermediate_size"
SHARED = "model.layers.{layer}.shared_mlp"
GATE, UP, DOWN = SHARED_EXPERT[:3]


def shared_layers(config: Config) -> range:
    """Rule: all layers have a shared expert unless its width is 0."""
    return range(config.layers if config.get(SHARED_WIDTH) else 0)


def shared_width(config: Config) -> int | None:
    """Rule: the width of the shared expert, or None."""
    if not config.get(SHARED_WIDTH):
        return None
    return read.integer(SHARED_WIDTH, "shared_expert_intermediate_size")(config)


GRANITEMOESHARED = replace(
    GRANITEMOE,
    name="granitemoeshared",
    classes=("GraniteMoeSharedForCausalLM", "GraniteMoeSharedModel"),
    defaults={**GRANITEMOE.defaults, SHARED_WIDTH: 0},
    experts={**(GRANITEMOE.experts or {}), "shared_expert_intermediate_size": shared_width},
    stacks=(
        *GRANITEMOE.stacks,
        StackRule(f"{SHARED}.input_linear.weight", (GATE.name, UP.name), arrangement=PUBLISHED),
        StackRule(f"{SHARED}.output_linear.weight", (DOWN.name,), arrangement=PUBLISHED),
    ),
    tensors=(
        *GRANITEMOE.tensors[:-2],
        *in_layers(shared_layers, GATE, UP, DOWN),
        *GRANITEMOE.tensors[-2:],
    ),
)
