"""Granite mixtures: Granite's factors, with experts instead of a dense feed-forward network.

All experts of a layer are in one tensor, gate and up side by side.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule, Arrangement, StackRule
from rdrr_converter.architectures.granite import GRANITE

ATTENTION_BIAS = read.flag("attention_bias")
MIXTURE = "model.layers.{layer}.block_sparse_moe"

EXPERTS = tensors.expert_projections(
    "block_sparse_moe.experts", "gate_proj", "up_proj", "down_proj"
)
PUBLISHED = Arrangement(written=True)


GRANITEMOE = ArchitectureRule(
    name="granitemoe",
    classes=("GraniteMoeForCausalLM", "GraniteMoeModel"),
    defaults={
        **GRANITE.defaults,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    },
    attention=GRANITE.attention,
    normalization=GRANITE.normalization,
    ffn=GRANITE.ffn,
    output=GRANITE.output,
    branch_scale=GRANITE.branch_scale,
    experts={
        "num_experts": read.integer("num_local_experts", "num_experts"),
        "num_experts_per_token": read.integer("num_experts_per_tok"),
        "expert_format": "mixtral",
        "expert_intermediate_size": read.integer("intermediate_size"),
        "normalize_weights": True,
    },
    stacks=(
        StackRule(
            f"{MIXTURE}.input_linear.weight",
            tuple(row.name for row in EXPERTS[:2]),
            arrangement=PUBLISHED,
        ),
        StackRule(f"{MIXTURE}.output_linear.weight", (EXPERTS[2].name,), arrangement=PUBLISHED),
        *tensors.stacked_experts(*EXPERTS, part="block_sparse_moe.experts"),
    ),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(*[ATTENTION_BIAS] * 4),
        tensors.router("block_sparse_moe.router.layer", aliases=("block_sparse_moe.router",)),
        *EXPERTS,
    ),
)
