"""The text model of Qwen 3.5 and 3.6 with experts in every layer, beside a gated shared expert."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.hybrid import gated_attention, linear_attention
from rdrr_converter.architectures.qwen3_5 import QWEN3_5


def always_normalized(config: Config) -> bool:
    """Rule: the routing weights are normalized, as they always are in transformers.

    Raises:
        SourceError: `norm_topk_prob` denies it.
    """
    if config.get("norm_topk_prob") not in (None, True):
        raise config.fault("norm_topk_prob", "true", config.get("norm_topk_prob"))
    return True


QWEN3_5_MOE = replace(
    QWEN3_5,
    name="qwen3_5_moe",
    classes=(
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeModel",
        "Qwen3_5MoeTextModel",
    ),
    model_types=("qwen3_5_moe_text",),
    text_type="qwen3_5_moe_text",
    defaults={
        **QWEN3_5.defaults,
        "hidden_size": 2048,
        "intermediate_size": 512,  # of no layer; configurations do not state it
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
    },
    experts={
        **MIXTURE_KEYS,
        "expert_intermediate_size": read.integer("moe_intermediate_size"),
        "shared_expert_intermediate_size": read.integer("shared_expert_intermediate_size"),
        "normalize_weights": always_normalized,
    },
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *gated_attention(read.flag("attention_bias")),
        *linear_attention(),
        tensors.router("mlp.gate"),
        *tensors.QWEN_EXPERTS,
        *tensors.SHARED_EXPERT,
    ),
)
