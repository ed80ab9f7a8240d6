"""Gemma 4, alone or in a multimodal model: dense, with experts, or with inputs for each layer.

Global layers have larger heads and rotate a part of their pairs. The last layers may read the keys
and values of an earlier layer, and the values may be the projected keys.
"""

from __future__ import annotations

from rdrr_converter.architectures import _gemma4 as rules
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._gemma4_vision import GEMMA4_VISION
from rdrr_converter.architectures._rope import read_proportional_rope
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule, TensorRule

TYPES = rules.types_ending_in_full(6)
Q, K, V, OUT = tensors.ATTENTION
Q_NORM, K_NORM = tensors.QUERY_KEY_NORMS
BIASES = tensors.attention_biases()

GEMMA4 = ArchitectureRule(
    name="gemma4",
    classes=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4TextModel"),
    model_types=("gemma4_text",),
    text_type="gemma4_text",
    defaults={
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 9216,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 30,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
            },
        },
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144,
    },
    sizes={
        "global_head_dim": rules.global_head_dim,
        "num_global_key_value_heads": rules.global_kv_heads,
        "hidden_size_per_layer_input": rules.layer_input,
        "vocab_size_per_layer_input": rules.layer_vocab,
        "num_kv_shared_layers": rules.shared_layers,
    },
    attention={
        "query_pre_attn_scalar": 1.0,
        "causal": rules.is_causal,
        "sliding_window": read.optional_integer("sliding_window"),
        "value_norm": True,
    },
    normalization={**RMS_NORMS, "pre_feedforward_norm": True, "post_feedforward_norm": True},
    ffn={
        "activation": read.activation("hidden_activation"),
        "branch_mode": rules.branch_mode,
        "use_double_wide_mlp": read.flag("use_double_wide_mlp"),
    },
    output={
        "final_logit_softcapping": read.optional_number("final_logit_softcapping"),
        "scale_embeddings": True,
    },
    experts={
        "num_experts": read.integer("num_experts"),
        "num_experts_per_token": read.integer("top_k_experts"),
        "expert_format": "mixtral",
        "expert_intermediate_size": read.integer("moe_intermediate_size"),
        "normalize_weights": True,
    },
    has_experts=rules.has_experts,
    rope=read_proportional_rope(rules.global_head_dim),
    layer_types=TYPES,
    dimensions=rules.DIMENSIONS,
    layer_dimensions=rules.dimensions_of_layers(TYPES),
    unused=rules.unread_keys,
    exported=rules.exported,
    stacks=(*rules.EXPERT_STACKS, *rules.GGUF_EXPERT_STACKS),
    tensors=tensors.of_model(
        *rules.required_with_inputs(
            rules.LAYER_TABLE,
            rules.LAYER_PROJECTION,
            rules.LAYER_PROJECTION_NORM,
        ),
        *tensors.FOUR_NORMS,
        Q,
        *tensors.in_layers(rules.layers_with_keys, K),
        *tensors.in_layers(rules.layers_with_values(TYPES), V),
        OUT,
        BIASES[0],
        *tensors.in_layers(rules.layers_with_keys, BIASES[1]),
        *tensors.in_layers(rules.layers_with_values(TYPES), BIASES[2]),
        BIASES[3],
        Q_NORM,
        *tensors.in_layers(rules.layers_with_keys, K_NORM),
        *tensors.FEED_FORWARD,
        *tensors.in_layers(
            rules.layers_with_experts,
            tensors.router("router.proj"),
            TensorRule("model.layers.{layer}.router.scale", "router", ("hidden",)),
            TensorRule("model.layers.{layer}.router.per_expert_scale", "router", ("experts",)),
            tensors.norm("pre_feedforward_layernorm_2"),
            tensors.norm("post_feedforward_layernorm_1"),
            tensors.norm("post_feedforward_layernorm_2"),
            *rules.EXPERTS,
        ),
        *tensors.in_layers(rules.layers_with_inputs, *rules.LAYER_INPUTS),
        TensorRule(
            "model.layers.{layer}.layer_scalar",
            "other",
            ("one",),
            aliases=("model.layers.{layer}.layer_scalar.weight",),
        ),
    ),
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    other_parts=(
        r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio|vision_embedder)\..*",
    ),
    tower=GEMMA4_VISION,
)
