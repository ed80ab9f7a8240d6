"""Gemma 3n, alone or in a multimodal model.

It has parallel residual streams (AltUp), a low-rank branch beside the attention (LAuReL), inputs
for each layer, and sparse activations in its first layers. Its last layers read the keys and values
of an earlier layer.
"""

from __future__ import annotations

from rdrr_converter.architectures import _gemma3n as own
from rdrr_converter.architectures import _gemma4 as rules
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_dual_rope
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule
from rdrr_converter.architectures.layers import one_full_of

Q, K, V, OUT = tensors.ATTENTION
Q_NORM, K_NORM = tensors.QUERY_KEY_NORMS
BIASES = tensors.attention_biases()

GEMMA3N = ArchitectureRule(
    name="gemma3n",
    classes=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration", "Gemma3nTextModel"),
    model_types=("gemma3n_text",),
    text_type="gemma3n_text",
    defaults={
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "altup_num_inputs": 4,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2048,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 16384,
        "laurel_rank": 64,
        "max_position_embeddings": 32768,
        "num_attention_heads": 8,
        "num_hidden_layers": 35,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 15,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
    },
    sizes={
        "hidden_size_per_layer_input": rules.layer_input,
        "vocab_size_per_layer_input": rules.layer_vocab,
        "num_kv_shared_layers": rules.shared_layers,
        "altup_num_inputs": own.streams,
        "altup_active_index": own.active_stream,
        "laurel_rank": read.integer("laurel_rank"),
    },
    attention={
        "query_pre_attn_scalar": 1.0,
        "sliding_window": read.optional_integer("sliding_window"),
        "value_norm": True,
    },
    normalization={**RMS_NORMS, "pre_feedforward_norm": True, "post_feedforward_norm": True},
    ffn={
        "activation": read.activation("hidden_activation"),
        "activation_sparsity": own.sparsity,
    },
    output={
        "final_logit_softcapping": read.optional_number("final_logit_softcapping"),
        "scale_embeddings": True,
    },
    pattern={"altup_correct_scale": read.flag("altup_correct_scale")},
    rope=read_dual_rope,
    layer_types=one_full_of(5),
    inner=own.inner,
    dimensions={**rules.DIMENSIONS, **own.DIMENSIONS},
    unused=rules.unread_keys,
    exported=own.exported,
    stacks=own.STREAM_STACKS,
    tensors=tensors.of_model(
        rules.LAYER_TABLE,
        rules.LAYER_PROJECTION,
        rules.LAYER_PROJECTION_NORM,
        *own.STREAM_PROJECTIONS,
        *tensors.FOUR_NORMS,
        Q,
        *tensors.in_layers(rules.layers_with_keys, K, V),
        OUT,
        BIASES[0],
        *tensors.in_layers(rules.layers_with_keys, *BIASES[1:3]),
        BIASES[3],
        Q_NORM,
        *tensors.in_layers(rules.layers_with_keys, K_NORM),
        *tensors.FEED_FORWARD,
        *own.ALTUP,
        *own.LAUREL,
        *rules.LAYER_INPUTS,
    ),
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    other_parts=(r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*",),
)
