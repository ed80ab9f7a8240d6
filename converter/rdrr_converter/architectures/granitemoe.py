"""Granite mixtures: Granite's factors, with experts instead of a dense feed-forward network.

All experts of a layer are in one tensor, gate and up side by side.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures.base import ArchitectureRule, Arrangement, StackRule
from rdrr_converter.architectures.granite import GRANITE

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
        **MIXTURE_KEYS,
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
        *tensors.attention_biases(),
        tensors.router("block_sparse_moe.router.layer", aliases=("block_sparse_moe.router",)),
        *EXPERTS,
    ),
)
