"""StableLM: Llama with LayerNorm and partial rotation, and parallel branches in its 12B size."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import ArchitectureRule

LAYER = "model.layers.{layer}.self_attn"
QK_NORM = read.flag("qk_layernorm")

QKV_BIAS = read.flag("use_qkv_bias")
SEQUENTIAL = read.negated("use_parallel_residual")
FFN_NORM = "post_attention_layernorm"

STABLELM = ArchitectureRule(
    name="stablelm",
    classes=("StableLmForCausalLM", "StableLmModel", "StableLMEpochForCausalLM"),
    model_types=("stablelm_epoch",),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25,
        "qk_layernorm": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_parallel_residual": False,
        "use_qkv_bias": False,
        "vocab_size": 50304,
    },
    attention={"query_pre_attn_scalar": read.head_dim, "query_key_norm_per_head": QK_NORM},
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": SEQUENTIAL,
        "layer_norm": True,
    },
    rope=read_partial_rope,
    parallel=read.flag("use_parallel_residual"),
    keys={"rms_norm_eps": "layer_norm_eps"},
    rows={
        f"{LAYER}.{kind}_norm.weight": f"{LAYER}.{kind}_layernorm.norms.{{row}}.weight"
        for kind in "qk"
    },
    tensors=(
        tensors.EMBEDDING,
        tensors.norm("input_layernorm"),
        *tensors.norm_biases("input_layernorm"),
        tensors.norm(FFN_NORM, required=SEQUENTIAL),
        *tensors.norm_biases(FFN_NORM, required=SEQUENTIAL),
        *tensors.required_if(QK_NORM, *tensors.QUERY_KEY_NORMS_PER_HEAD),
        *tensors.ATTENTION,
        *tensors.attention_biases(QKV_BIAS, output=False),
        *tensors.FEED_FORWARD,
        *tensors.BIASED_END,
    ),
)
