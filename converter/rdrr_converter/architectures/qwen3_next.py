"""Qwen 3 Next: the layers of Qwen 3.5, whose projections checkpoints store head by head."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import StackRule
from rdrr_converter.architectures.hybrid import gated_attention, linear_attention
from rdrr_converter.architectures.layers import layers_with_experts, layers_without_experts
from rdrr_converter.architectures.qwen3_5_moe import QWEN3_5_MOE

_STEM = "model.layers.{layer}.linear_attn"
_QUERIES_TO_GATES = StackRule(
    f"{_STEM}.in_proj_qkvz.weight",
    (f"{_STEM}.in_proj_qkv.weight", f"{_STEM}.in_proj_z.weight"),
    groups="linear_key_heads",
    pieces=(
        (0, "linear_key_head"),
        (0, "linear_key_head"),
        (0, "linear_v_per_key"),
        (1, "linear_v_per_key"),
    ),
)
_STRENGTHS_AND_DECAYS = StackRule(
    f"{_STEM}.in_proj_ba.weight",
    (f"{_STEM}.in_proj_b.weight", f"{_STEM}.in_proj_a.weight"),
    groups="linear_key_heads",
    pieces=((0, "linear_heads_per_key"), (1, "linear_heads_per_key")),
)

QWEN3_NEXT = replace(
    QWEN3_5_MOE,
    name="qwen3_next",
    classes=("Qwen3NextForCausalLM", "Qwen3NextModel"),
    model_types=(),
    text_type="",
    defaults={
        **QWEN3_5_MOE.defaults,
        "decoder_sparse_step": 1,
        "intermediate_size": 5632,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "vocab_size": 151936,
    },
    experts={**(QWEN3_5_MOE.experts or {}), "normalize_weights": read.flag("norm_topk_prob")},
    stacks=(*QWEN3_5_MOE.stacks, _QUERIES_TO_GATES, _STRENGTHS_AND_DECAYS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *gated_attention(read.flag("attention_bias")),
        *linear_attention(),
        *tensors.in_layers(layers_without_experts, *tensors.FEED_FORWARD),
        *tensors.in_layers(
            layers_with_experts,
            tensors.router("mlp.gate"),
            *tensors.QWEN_EXPERTS,
            *tensors.SHARED_EXPERT,
        ),
    ),
)
