"""Sarvam 105B: DeepSeek V3 without a latent of queries, and with other names of some keys."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures._latent import ATTENTION, SIZES
from rdrr_converter.architectures._rope import softmax_correction
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.deepseek_v3 import DEEPSEEK_V3


def query_dim(config: Config) -> int:
    """Rule: elements of a head's query and key.

    `head_dim` is not read: it is the size of what is cached for a token.
    """
    return config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")


def query_scalar(config: Config) -> float:
    """Rule: the number whose inverse square root is the softmax scale, corrected for YaRN."""
    return query_dim(config) / softmax_correction(config) ** 4


SARVAM_MLA = replace(
    DEEPSEEK_V3,
    name="sarvam_mla",
    classes=("SarvamMLAForCausalLM", "SarvamMLAModel"),
    model_types=(),
    defaults={
        **DEEPSEEK_V3.defaults,
        "first_k_dense_replace": 1,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "n_group": 16,
        "n_routed_experts": 128,
        "num_attention_heads": 64,
        "num_hidden_layers": 32,
        "num_key_value_heads": None,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": None,
        "topk_group": 2,
        "vocab_size": 262144,
    },
    sizes={**SIZES, "head_dim": query_dim},
    attention={**ATTENTION, "query_pre_attn_scalar": query_scalar},
    keys={"n_shared_experts": "num_shared_experts"},
    stated_by_tensors=(
        "head_dim",
        "moe_shared_expert_intermediate_size",
        "q_head_dim",
        "qk_head_dim",
    ),
)
