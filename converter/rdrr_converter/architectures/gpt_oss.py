"""gpt-oss: experts with biases and a clamped SwiGLU, attention sinks, and YaRN.

Published checkpoints store the experts in MXFP4, as blocks and scales; `sources/quantized` joins
them. Others have all experts in one tensor, transposed. In both, rows of gate and up alternate.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_rope_with_default
from rdrr_converter.architectures.base import (
    WINDOWED_ATTENTION,
    ArchitectureRule,
    Arrangement,
    StackRule,
    TensorRule,
)
from rdrr_converter.architectures.layers import alternating

EXPERTS = "model.layers.{layer}.mlp.experts"
GATE, UP, DOWN = tensors.QWEN_EXPERTS
GATE_BIAS = TensorRule(f"{EXPERTS}.gate_proj.bias", "bias", ("experts", "width"))
UP_BIAS = TensorRule(f"{EXPERTS}.up_proj.bias", "bias", ("experts", "width"))
DOWN_BIAS = TensorRule(f"{EXPERTS}.down_proj.bias", "bias", ("experts", "hidden"))
SINKS = TensorRule(
    "model.layers.{layer}.self_attn.sinks",
    "bias",
    ("heads",),
    aliases=("model.layers.{layer}.self_attn.sinks.weight",),
)

GATE_UP = (GATE.name, UP.name)
ALTERNATING = Arrangement(alternating=True)
TRANSPOSED = Arrangement(alternating=True, transposed=True, written=True)
ALTERNATING_COLUMNS = Arrangement(alternating=True, columns=True, written=True)

GPT_OSS = ArchitectureRule(
    name="gpt_oss",
    classes=("GptOssForCausalLM", "GptOssModel"),
    defaults={
        "attention_bias": True,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
    attention=WINDOWED_ATTENTION,
    ffn={
        "activation": read.activation("hidden_act"),
        "swiglu_limit": read.number("swiglu_limit"),
        "swiglu_alpha": read.number("swiglu_alpha"),
        "swiglu_up_offset": 1.0,
    },
    experts={
        "num_experts": read.integer("num_local_experts", "num_experts"),
        "num_experts_per_token": read.integer("num_experts_per_tok", "experts_per_token"),
        "expert_format": "mixtral",
        "expert_intermediate_size": read.integer("intermediate_size", "moe_intermediate_size"),
        "normalize_weights": True,
    },
    rope=read_rope_with_default(
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        }
    ),
    layer_types=alternating,
    stacks=(
        StackRule(f"{EXPERTS}.gate_up_proj_blocks", GATE_UP, arrangement=ALTERNATING),
        StackRule(f"{EXPERTS}.gate_up_proj", GATE_UP, arrangement=TRANSPOSED),
        StackRule(f"{EXPERTS}.down_proj_blocks", (DOWN.name,)),
        StackRule(f"{EXPERTS}.down_proj", (DOWN.name,), arrangement=TRANSPOSED),
        StackRule(
            f"{EXPERTS}.gate_up_proj_bias",
            (GATE_BIAS.name, UP_BIAS.name),
            arrangement=ALTERNATING_COLUMNS,
        ),
        StackRule(f"{EXPERTS}.down_proj_bias", (DOWN_BIAS.name,), arrangement=ALTERNATING_COLUMNS),
        *tensors.gguf_experts(tensors.QWEN_EXPERTS, is_published=True),
    ),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        SINKS,
        tensors.router("mlp.router"),
        tensors.bias("mlp.router", "experts", True),
        *tensors.QWEN_EXPERTS,
        GATE_BIAS,
        UP_BIAS,
        DOWN_BIAS,
    ),
)
