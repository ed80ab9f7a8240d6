"""GPT-2: LayerNorm, learned positions, and matrices that are stored transposed."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import no_rope
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule, StackRule
from rdrr_converter.architectures.config import Config

LAYER = "transformer.h.{layer}"


def _scalar(config: Config) -> float:
    return float(config.head_dim) if config.flag("scale_attn_weights") else 1.0


GPT2 = ArchitectureRule(
    name="gpt2",
    classes=("GPT2LMHeadModel", "GPT2Model"),
    defaults={
        "hidden_act": "gelu_new",
        "hidden_size": 768,
        "intermediate_size": lambda config: 4 * config.integer("hidden_size"),
        "max_position_embeddings": 1024,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "rms_norm_eps": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "vocab_size": 50257,
    },
    attention={"query_pre_attn_scalar": _scalar},
    normalization={**RMS_NORMS, "layer_norm": True},
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    output={"position_embedding_offset": 0},
    rope=no_rope,
    body="transformer.",
    prefixes=("transformer.", ""),
    keys={
        "hidden_act": "activation_function",
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "num_key_value_heads": "n_head",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    dimensions={"positions": lambda config: config.integer("max_position_embeddings")},
    names={
        "model.embed_tokens": "transformer.wte",
        "model.embed_positions": "transformer.wpe",
        "model.norm": "transformer.ln_f",
        **tensors.layer_names(
            LAYER,
            {
                "input_layernorm": "ln_1",
                "post_attention_layernorm": "ln_2",
                "self_attn.o_proj": "attn.c_proj",
                "mlp.up_proj": "mlp.c_fc",
                "mlp.down_proj": "mlp.c_proj",
            },
        ),
    },
    transposed=(
        "model.layers.{layer}.self_attn.o_proj",
        "model.layers.{layer}.mlp.up_proj",
        "model.layers.{layer}.mlp.down_proj",
    ),
    stacks=(
        StackRule(f"{LAYER}.attn.c_attn.weight", tensors.STACKED_ATTENTION.parts, transposed=True),
        StackRule(f"{LAYER}.attn.c_attn.bias", tensors.STACKED_BIASES.parts),
        *tensors.GGUF_STACKS,
    ),
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
    tensors=(
        tensors.EMBEDDING,
        tensors.POSITIONS,
        *tensors.TWO_BIASED_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(True),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(True),
        *tensors.BIASED_END,
    ),
)
