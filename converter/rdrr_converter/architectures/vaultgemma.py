"""VaultGemma: Gemma 2 with only the two norms before attention and feed-forward."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.gemma2 import GEMMA2
from rdrr_converter.architectures.layers import alternating

VAULTGEMMA = ArchitectureRule(
    name="vaultgemma",
    classes=("VaultGemmaForCausalLM", "VaultGemmaModel"),
    defaults=GEMMA2.defaults,
    attention={
        "query_pre_attn_scalar": read.number("query_pre_attn_scalar"),
        "attn_logit_softcapping": read.optional_number("attn_logit_softcapping"),
        "sliding_window": read.window("sliding_window"),
    },
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "rms_norm_weight_offset": True,
        "pre_feedforward_norm": True,
    },
    ffn={"activation": read.activation("hidden_activation")},
    output={
        "final_logit_softcapping": read.optional_number("final_logit_softcapping"),
        "scale_embeddings": True,
    },
    layer_types=alternating,
    tensors=tensors.of_model(
        tensors.norm("input_layernorm"),
        tensors.norm("pre_feedforward_layernorm"),
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
    ),
)
