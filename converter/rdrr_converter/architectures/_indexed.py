"""Rules of models whose attention reads the tokens that an indexer selects (DeepSeek V3.2, GLM-5).

Up to `index_topk` tokens the indexer selects all of them, so attention is exact without it. The
context of a package ends there, and the indexer's tensors are left out.
"""

from __future__ import annotations

from rdrr_converter.architectures import _mixtures as mixtures
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._latent import SIZES as LATENT_SIZES
from rdrr_converter.architectures._latent import TENSORS
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL, all_full

INDEXED = "indexed_attention"
INDEXER_KEYS = (
    "index_head_dim",
    "index_n_heads",
    "index_skip_topk_offset",
    "index_topk_freq",
    "index_topk_pattern",
    "indexer_rope_interleave",
    "indexer_types",
)
"""Keys of the indexer, which changes nothing within the context."""


def context(config: Config) -> int:
    """Rule: the most tokens of which the indexer selects all."""
    return min(config.integer("max_position_embeddings"), config.integer("index_topk"))


def remarks(config: Config) -> tuple[str, ...]:
    """Rule: that the context is shorter than the model's."""
    stated, limit = config.integer("max_position_embeddings"), context(config)
    if limit == stated:
        return ()
    return (
        f"the context is limited to {limit} of {stated} tokens, of which the sparse attention "
        "selects all: the selection beyond them is not supported",
    )


def indexer(_: Config) -> tuple[str, ...]:
    """Rule: patterns of the tensors of the indexer."""
    return (r"(.*\.)?layers\.\d+\.self_attn\.indexer\..*",)


def indexed_layers(config: Config) -> tuple[str, ...]:
    """Rule: every layer has attention to all tokens that the indexer selects.

    Raises:
        SourceError: `layer_types` states other layers.
    """
    stated = config.get("layer_types")
    if stated is not None and (not isinstance(stated, list) or set(stated) - {INDEXED, FULL}):
        raise config.fault("layer_types", INDEXED, stated)
    return all_full(config)


def sparse_layers(config: Config) -> tuple[int, ...]:
    """Rule: the layers that `mlp_layer_types` calls sparse, else those after the dense ones.

    Raises:
        SourceError: The two keys contradict each other.
    """
    stated, others = mixtures.stated_sparse_layers(config), mixtures.sparse_layers(config)
    if stated is None:
        return others
    if "first_k_dense_replace" in config.values and others != stated:
        raise config.fault(
            "first_k_dense_replace",
            "the layers of mlp_layer_types",
            config.get("first_k_dense_replace"),
        )
    return stated


SIZES = {**LATENT_SIZES, "max_seq_len": context}
TENSORS_OF_MODEL = tensors.of_model(
    *tensors.TWO_NORMS,
    *TENSORS,
    *mixtures.feed_forwards(mixtures.SELECTION_BIAS, sparse=sparse_layers),
)
