"""Gemma 3n and Gemma 4."""

from __future__ import annotations

from support.tiny_models.model import VOCAB, TinyModel

_GEMMA4 = (
    ("final_logit_softcapping", 30.0),
    ("global_head_dim", 96),
    ("sliding_window", 24),
    ("tie_word_embeddings", True),
)
GEMMA4_MODELS = (
    TinyModel(
        "gemma4_text",
        256,
        (
            *_GEMMA4,
            ("attention_k_eq_v", True),
            ("hidden_size_per_layer_input", 0),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_global_key_value_heads", 1),
        ),
    ),
    TinyModel(
        "gemma4_text",
        384,
        (
            *_GEMMA4,
            ("hidden_size_per_layer_input", 32),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_kv_shared_layers", 2),
            ("use_double_wide_mlp", True),
            ("vocab_size_per_layer_input", VOCAB),
        ),
        least_layers=4,
    ),
    TinyModel(
        "gemma4_text",
        320,
        (
            *_GEMMA4,
            ("enable_moe_block", True),
            ("hidden_size_per_layer_input", 0),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("moe_intermediate_size", 96),
            ("num_experts", 6),
            ("top_k_experts", 2),
        ),
    ),
    TinyModel(
        "gemma4_unified_text",
        320,
        (
            *_GEMMA4,
            ("attention_k_eq_v", True),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_global_key_value_heads", 1),
        ),
    ),
)
"""Gemma 4: dense with shared projections of keys and values; with inputs for each layer and shared
keys; with experts; the text model of those without towers."""
GEMMA3N_MODELS = (
    TinyModel(
        "gemma3n_text",
        256,
        (
            ("activation_sparsity_pattern", [0.6, 0.0, 0.9, 0.0]),
            ("altup_active_idx", 1),
            ("hidden_size_per_layer_input", 32),
            ("laurel_rank", 24),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_kv_shared_layers", 2),
            ("sliding_window", 24),
            ("tie_word_embeddings", True),
            ("vocab_size_per_layer_input", 300),
        ),
        least_layers=4,
    ),
)
"""Gemma 3n, with fewer rows in the table of the layers than tokens in the vocabulary."""
