"""The model's sizes."""

from __future__ import annotations

from pydantic import Field

from rdrr_manifests.models.base import ManifestModel


class Architecture(ManifestModel):
    """Sizes of a decoder-only transformer, in elements.

    Attributes:
        num_layers: Decoder layers.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the inner layer of the feed-forward.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads; fewer than query heads means grouped-query
            attention.
        head_dim: Width of one head.
        vocab_size: Rows of the token embedding.
        max_seq_len: Longest context that the model was trained for, in tokens.
    """

    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    max_seq_len: int = Field(gt=0)
