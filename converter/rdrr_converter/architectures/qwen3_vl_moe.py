"""The text model of Qwen 3 VL with experts: Qwen 3 MoE whose published experts are transposed."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ATTENTION, Arrangement, StackRule
from rdrr_converter.architectures.layers import all_full
from rdrr_converter.architectures.qwen3_moe import QWEN3_MOE
from rdrr_converter.architectures.qwen3_vl import QWEN3_VL

GATE, UP, DOWN = tensors.QWEN_EXPERTS
EXPERTS = "model.layers.{layer}.mlp.experts"
TRANSPOSED = Arrangement(transposed=True, written=True, or_plain=True)

QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    name="qwen3_vl_moe",
    classes=("Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeModel", "Qwen3VLMoeTextModel"),
    model_types=("qwen3_vl_moe_text",),
    text_type="qwen3_vl_moe_text",
    defaults={
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "max_position_embeddings": 128000,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": True,  # always, and no key says so
        "num_attention_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    attention=ATTENTION,
    layer_types=all_full,
    stacks=(
        StackRule(f"{EXPERTS}.gate_up_proj", (GATE.name, UP.name), arrangement=TRANSPOSED),
        StackRule(f"{EXPERTS}.down_proj", (DOWN.name,), arrangement=TRANSPOSED),
        *tensors.stacked_experts(*tensors.QWEN_EXPERTS)[3:],
    ),
    prefixes=QWEN3_VL.prefixes,
    other_parts=QWEN3_VL.other_parts,
    tower=QWEN3_VL.tower,
)
