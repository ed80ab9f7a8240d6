"""GPT-NeoX and Pythia: LayerNorm, parallel branches, and queries, keys and values in one matrix."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule, StackRule

STACK = "gpt_neox.layers.{layer}.attention.query_key_value"

GPT_NEOX = ArchitectureRule(
    name="gpt_neox",
    classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    defaults={
        "attention_bias": True,
        "hidden_act": "gelu",
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "max_position_embeddings": 2048,
        "num_attention_heads": 64,
        "num_hidden_layers": 44,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "vocab_size": 50432,
    },
    normalization={**RMS_NORMS, "layer_norm": True},
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    rope=read_partial_rope,
    parallel=read.flag("use_parallel_residual"),
    body="gpt_neox.",
    prefixes=("gpt_neox.", ""),
    keys={
        "num_key_value_heads": "num_attention_heads",
        "partial_rotary_factor": "rotary_pct",
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
    },
    names={
        "lm_head": "embed_out",
        "model.embed_tokens": "gpt_neox.embed_in",
        "model.norm": "gpt_neox.final_layer_norm",
        **tensors.layer_names(
            "gpt_neox.layers.{layer}",
            {
                "input_layernorm": "input_layernorm",
                "post_attention_layernorm": "post_attention_layernorm",
                "self_attn.o_proj": "attention.dense",
                "mlp.up_proj": "mlp.dense_h_to_4h",
                "mlp.down_proj": "mlp.dense_4h_to_h",
            },
        ),
    },
    stacks=(
        StackRule(f"{STACK}.weight", tensors.STACKED_ATTENTION.parts, by_head=True),
        StackRule(f"{STACK}.bias", tensors.STACKED_BIASES.parts, by_head=True),
        *tensors.GGUF_STACKS,
    ),
    ignored=(r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    tensors=(
        tensors.EMBEDDING,
        *tensors.TWO_BIASED_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(True),
        *tensors.BIASED_END,
    ),
)
