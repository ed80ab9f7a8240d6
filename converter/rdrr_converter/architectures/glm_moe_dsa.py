"""GLM-5: latent attention like that of DeepSeek V3.2, exact within a shorter context."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.deepseek_v32 import DEEPSEEK_V32

GLM_MOE_DSA = replace(
    DEEPSEEK_V32,
    name="glm_moe_dsa",
    classes=("GlmMoeDsaForCausalLM", "GlmMoeDsaModel"),
    defaults={
        **DEEPSEEK_V32.defaults,
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "max_position_embeddings": 202752,
        "n_group": 1,
        "num_attention_heads": 64,
        "num_hidden_layers": 78,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "rms_norm_eps": 1e-5,
        "topk_group": 1,
        "v_head_dim": 256,
        "vocab_size": 154880,
    },
)
