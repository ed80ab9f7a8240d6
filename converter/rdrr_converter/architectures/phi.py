"""Phi-1, Phi-1.5 and Phi-2: one LayerNorm for both parallel branches, and partial rotation."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import ArchitectureRule

QK_NORM = read.flag("qk_layernorm")

PHI = ArchitectureRule(
    name="phi",
    classes=("PhiForCausalLM", "PhiModel"),
    defaults={
        "hidden_act": "gelu_new",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 24,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 51200,
    },
    normalization={"rms_norm_eps": read.number("rms_norm_eps"), "layer_norm": True},
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    rope=read_partial_rope,
    parallel=True,
    stacks=tensors.GGUF_STACKS,
    keys={"rms_norm_eps": "layer_norm_eps"},
    names={
        "model.norm": "model.final_layernorm",
        **tensors.layer_names(
            "model.layers.{layer}",
            {
                "self_attn.o_proj": "self_attn.dense",
                "self_attn.q_norm": "self_attn.q_layernorm",
                "self_attn.k_norm": "self_attn.k_layernorm",
                "mlp.up_proj": "mlp.fc1",
                "mlp.down_proj": "mlp.fc2",
            },
        ),
    },
    tensors=(
        tensors.EMBEDDING,
        tensors.norm("input_layernorm"),
        *tensors.norm_biases("input_layernorm"),
        *tensors.required_if(QK_NORM, *tensors.QUERY_KEY_NORMS),
        *tensors.norm_biases("self_attn.q_norm", "self_attn.k_norm", required=QK_NORM, size="head"),
        *tensors.ATTENTION,
        *tensors.attention_biases(True),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(True),
        *tensors.BIASED_END,
        tensors.HEAD_BIAS,
    ),
)
