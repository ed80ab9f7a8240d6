"""EXAONE MoE (K-EXAONE): EXAONE 4's attention behind norms, and mixtures with sigmoid scores."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import _mixtures, tensors
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.exaone4 import EXAONE4

PUBLISHED_BIAS = "model.layers.{layer}.mlp.e_score_correction_bias"


def leading_dense_layers(config: Config) -> object:
    """Return the number of dense layers, for which the first configurations have another key."""
    older = config.get("first_last_k_dense_replace")
    return 1 if older is None else older


def sparse_layers(config: Config) -> tuple[int, ...]:
    """Rule: layers that `mlp_layer_types` calls sparse, else all but the first ones, have experts.

    Raises:
        SourceError: A key has an invalid value, or `is_moe_layer` marks other layers.
    """
    usual, stated = _mixtures.sparse_layers(config), _mixtures.stated_sparse_layers(config)
    sparse = usual if stated is None else stated
    marks, expected = config.get("is_moe_layer"), [at in sparse for at in range(config.layers)]
    if marks not in (None, expected):
        raise config.fault("is_moe_layer", f"{expected}", marks)
    return sparse


EXAONE_MOE: ArchitectureRule = replace(
    EXAONE4,
    name="exaone_moe",
    classes=("ExaoneMoeForCausalLM", "ExaoneMoeModel", "ExaoneMoEForCausalLM"),
    defaults={
        **EXAONE4.defaults,
        "first_k_dense_replace": leading_dense_layers,
        "mlp_layer_types": None,
        "moe_intermediate_size": 1024,
        "n_group": 1,
        "norm_topk_prob": True,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "topk_group": 1,
    },
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
    },
    experts={
        **_mixtures.SIGMOID_EXPERTS,
        "num_experts": read.integer("num_experts", "num_local_experts"),
        "shared_expert_intermediate_size": _mixtures.shared_width("num_shared_experts"),
    },
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    names={_mixtures.SELECTION_BIAS.name: PUBLISHED_BIAS},
    extra_layers="num_nextn_predict_layers",
    other_parts=(r"mtp\..*",),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.QUERY_KEY_NORMS,
        *_mixtures.feed_forwards(_mixtures.SELECTION_BIAS, sparse=sparse_layers),
    ),
)
