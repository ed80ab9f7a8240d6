"""Models with LayerNorm: parallel branches, no gate, learned positions, transposed matrices."""

from __future__ import annotations

from support.tiny_models.model import TinyModel

NOT_OF_FALCON = ("head_dim", "intermediate_size", "num_key_value_heads")
"""Usual keys that configurations of Falcon do not have."""
OLDER_MODELS = (
    TinyModel("starcoder2", 384, (("sliding_window", 24),)),
    TinyModel("phi", 256, (("head_dim", 80), ("partial_rotary_factor", 0.4))),
    TinyModel("gpt_neox", 320, (("num_key_value_heads", 4), ("head_dim", 80))),
    TinyModel("falcon", 256, (("multi_query", True), ("num_kv_heads", 1)), omitted=NOT_OF_FALCON),
    TinyModel(
        "falcon",
        320,
        (("new_decoder_architecture", True), ("num_kv_heads", 2)),
        omitted=NOT_OF_FALCON,
    ),
    TinyModel(
        "falcon",
        384,
        (
            ("bias", True),
            ("multi_query", False),
            ("num_kv_heads", 4),
            ("parallel_attn", False),
        ),
        omitted=NOT_OF_FALCON,
    ),
    TinyModel("gpt2", 256, (("num_key_value_heads", 4), ("n_inner", 512))),
    TinyModel("opt", 256, (("num_key_value_heads", 4), ("ffn_dim", 512))),
    TinyModel(
        "opt",
        512,
        (
            ("do_layer_norm_before", False),
            ("ffn_dim", 512),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 8),
            ("tie_word_embeddings", True),
            ("word_embed_proj_dim", 256),
        ),
    ),
    TinyModel("stablelm", 384, (("head_dim", 96), ("use_qkv_bias", True))),
    TinyModel("stablelm", 256, (("use_parallel_residual", True), ("qk_layernorm", True))),
    TinyModel("nemotron", 256, (("head_dim", 96),)),
    TinyModel("cohere", 256, (("use_qk_norm", True), ("tie_word_embeddings", True))),
    TinyModel(
        "cohere2",
        256,
        (("sliding_window", 24), ("sliding_window_pattern", 2), ("tie_word_embeddings", True)),
    ),
)
