"""StarCoder 2: LayerNorm, biases and a feed-forward without a gate."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import RMS_NORMS, WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import window_everywhere

USE_BIAS = read.flag("use_bias")

STARCODER2 = ArchitectureRule(
    name="starcoder2",
    classes=("Starcoder2ForCausalLM", "Starcoder2Model"),
    defaults={
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "max_position_embeddings": 4096,
        "num_attention_heads": 24,
        "num_hidden_layers": 30,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_bias": True,
        "vocab_size": 49152,
    },
    attention=WINDOWED_ATTENTION,
    normalization={**RMS_NORMS, "layer_norm": True},
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    layer_types=window_everywhere,
    keys={"rms_norm_eps": "norm_epsilon"},
    names=tensors.layer_names(
        "model.layers.{layer}", {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}
    ),
    tensors=(
        tensors.EMBEDDING,
        *tensors.TWO_BIASED_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(USE_BIAS),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(USE_BIAS),
        *tensors.BIASED_END,
    ),
)
