"""Shapes of models whose layers differ: their sizes, by the names that benchmarks use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from _shape_families import (
    ConfiguredShape,
    bert,
    deepseek_v2,
    gemma4,
    gpt_oss,
    qwen3_5,
    qwen3_vl,
)
from shapes import SHAPES, Shape

_E2B = {
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144,
    "num_attention_heads": 8,
    "vocab_size": 262144,
}

CONFIGURED: Mapping[str, ConfiguredShape] = MappingProxyType(
    {
        "tiny-bert": bert(
            2, hidden_size=64, intermediate_size=128, num_attention_heads=4, vocab_size=1000
        ),
        "minilm": bert(
            6, hidden_size=384, intermediate_size=1536, num_attention_heads=12, vocab_size=30522
        ),
        "tiny-qwen3.5": qwen3_5(
            4,
            hidden_size=256,
            intermediate_size=512,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            num_attention_heads=4,
            vocab_size=1024,
        ),
        "tiny-gpt-oss": gpt_oss(
            2,
            hidden_size=256,
            intermediate_size=256,
            num_attention_heads=16,
            num_local_experts=8,
            vocab_size=1024,
        ),
        "tiny-gemma4": gemma4(
            10,
            5,
            hidden_size=256,
            hidden_size_per_layer_input=64,
            intermediate_size=512,
            num_attention_heads=2,
            vocab_size=1024,
        ),
        "tiny-deepseek-v2": deepseek_v2(
            2,
            hidden_size=256,
            intermediate_size=512,
            moe_intermediate_size=256,
            n_routed_experts=8,
            num_attention_heads=4,
            num_key_value_heads=4,
            q_lora_rank=256,
            vocab_size=1024,
        ),
        "tiny-qwen3-vl": qwen3_vl(
            2,
            {
                "deepstack_visual_indexes": [0],
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 4,
                "out_hidden_size": 256,
            },
            hidden_size=256,
            intermediate_size=512,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
            vocab_size=1024,
        ),
        "qwen3-vl-2b": qwen3_vl(
            28,
            {
                "deepstack_visual_indexes": [5, 11, 17],
                "depth": 24,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "out_hidden_size": 2048,
            },
            hidden_size=2048,
            intermediate_size=6144,
            num_attention_heads=16,
            tie_word_embeddings=True,
        ),
        "qwen3-vl-8b": qwen3_vl(
            36,
            {
                "deepstack_visual_indexes": [8, 16, 24],
                "depth": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "out_hidden_size": 4096,
            },
            hidden_size=4096,
            intermediate_size=12288,
            num_attention_heads=32,
            tie_word_embeddings=False,
        ),
        "qwen3.5-0.8b": qwen3_5(
            24,
            hidden_size=1024,
            intermediate_size=3584,
            linear_num_key_heads=16,
            linear_num_value_heads=16,
            num_attention_heads=8,
            vocab_size=248320,
        ),
        "gpt-oss-20b-4-layers": gpt_oss(
            4,
            hidden_size=2880,
            intermediate_size=2880,
            num_attention_heads=64,
            num_local_experts=32,
            vocab_size=201088,
        ),
        "gemma4-e2b": gemma4(35, 20, **_E2B),
        "gemma4-e2b-10-layers": gemma4(10, 5, **_E2B),
        # DeepSeek-V2-Lite with 4 of its 27 layers, and with the compressed queries of DeepSeek-V2,
        # which llama.cpp expects of every file that does not have 27 layers.
        "deepseek-v2-lite-4-layers": deepseek_v2(
            4,
            hidden_size=2048,
            intermediate_size=10944,
            moe_intermediate_size=1408,
            n_routed_experts=64,
            num_attention_heads=16,
            num_key_value_heads=16,
            q_lora_rank=1536,
            vocab_size=102400,
        ),
        # DeepSeek-V2-Lite with 16 of its 64 experts: a token reads as many bytes as in the model.
        "deepseek-v2-lite-16-experts": deepseek_v2(
            27,
            hidden_size=2048,
            intermediate_size=10944,
            moe_intermediate_size=1408,
            n_routed_experts=16,
            num_attention_heads=16,
            num_key_value_heads=16,
            vocab_size=102400,
        ),
    }
)
"""The shapes by name. The tiny ones are for trying scripts and for tests."""

ALL_SHAPES: Mapping[str, Shape | ConfiguredShape] = MappingProxyType({**SHAPES, **CONFIGURED})
"""These shapes and those of `shapes.SHAPES`, by name."""
