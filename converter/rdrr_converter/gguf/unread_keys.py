"""Metadata keys of a GGUF that nothing reads and that change no result, in one table.

As in a configuration, a key that is ignored by mistake gives a package that computes something
else. So every other key that was not read becomes a key of the configuration, under its own name,
and `rdrr_converter.reading.unread_keys` refuses it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.metadata import GgufMetadata

_HARMLESS: frozenset[str] = frozenset(
    (
        "attention.layer_norm_epsilon",  # beside that of RMSNorm, which is read
        "attention.value_length",  # the shapes of the tensors say so, as the next
        "attention.value_length_swa",
        "classifier.output_labels",  # read with the head, as the next five
        "dense_2_feat_in",
        "dense_2_feat_out",
        "dense_3_feat_in",
        "dense_3_feat_out",
        "pooling_type",
        "n_deepstack_layers",  # of the images
        "rope.dimension_sections",  # the three positions of a token of text are equal
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",  # read by the types of scaling that use it
        "tensor_data_layout",
        "use_parallel_residual",  # the norms say so where it is not read
        "vocab_size",  # the rows of the embedding
    )
)
"""Keys that are harmless with any value."""

_HARMLESS_AT: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "attention.clamp_kqv": (0,),
        "attention.max_alibi_bias": (0,),
        "attention.shared_kv_layers": (0,),
        "attention.sliding_window": (0,),
        "embedding_scale": (1,),
        "expert_group_count": (0, 1),
        "expert_group_used_count": (0, 1),
        "expert_shared_count": (0, 1),  # the width is that of all shared experts
        "expert_weights_scale": (0, 1),
        "interleave_moe_layer_step": (1,),
        "leading_dense_block_count": (0,),
        "logit_scale": (1,),
        "nextn_predict_layers": (0,),
        "residual_scale": (1,),
        "rope.scaling.attn_factor": (1,),
        "rope.scaling.yarn_attn_factor": (1,),
        "rope.scaling.yarn_beta_fast": (32,),
        "rope.scaling.yarn_beta_slow": (1,),
        "rope.scaling.yarn_ext_factor": (1,),
        "rope.scaling.yarn_log_multiplier": (0,),
        "router_logit_softcapping": (0,),
        "swin_norm": (0,),
    }
)
"""Keys that are harmless with one of these values, or with it in every layer."""

_COPIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention.key_length_swa": ("attention.key_length",),
        "rope.dimension_count_swa": ("attention.key_length_swa", "rope.dimension_count"),
        "rope.freq_base_swa": ("rope.freq_base",),
    }
)
"""Keys of layers with a window that are harmless with the value of one of these other keys."""


def unread_keys(read: GgufMetadata, architecture: GgufArchitecture) -> dict[str, Any]:
    """Return the values of the keys that were not read and are not harmless, by their full names.

    Args:
        read: The metadata, from which everything has been read.
        architecture: How llama.cpp writes the architecture.
    """
    return {
        f"{architecture.name}.{key}": value
        for key, value in read.unread()
        if not _is_harmless(key, value, read, architecture)
    }


def _is_harmless(
    key: str, value: object, read: GgufMetadata, architecture: GgufArchitecture
) -> bool:
    if key == "attention.causal":
        return value is architecture.is_causal
    if not architecture.has_attention and key.startswith(("attention.", "rope.")):
        return True
    if any(value == read.get(other) for other in _COPIES.get(key, ())):
        return True
    values = value if isinstance(value, list) else [value]
    return key in _HARMLESS or all(item in _HARMLESS_AT.get(key, ()) for item in values)
