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
        global_head_dim: Width of a head in layers that attend to all earlier tokens; None for
            `head_dim`.
        num_global_key_value_heads: Key and value heads of these layers; None for
            `num_key_value_heads`.
        hidden_size_per_layer_input: Width of the embedding that each layer has of its own for
            every token; None or 0 for none.
        vocab_size_per_layer_input: Rows of the table of these embeddings.
        altup_num_inputs: Parallel residual streams (AltUp); None for one. Written by rdrr only.
        altup_active_index: The stream that the layers read. Written by rdrr only.
        laurel_rank: Rank of the low-rank branch beside the attention; None for none. Written by
            rdrr only.
        num_kv_shared_layers: Last layers that read the keys and values of an earlier layer, the
            last one of the same type that has its own; None or 0 for none.
        linear_num_key_heads: Query and key heads of linear attention.
        linear_num_value_heads: Value heads of linear attention, a multiple of the key heads.
        linear_key_head_dim: Width of a query or key head of linear attention.
        linear_value_head_dim: Width of a value head of linear attention.
        linear_conv_kernel_dim: Taps of the convolution before linear attention.
        linear_norm_mode: `shared` if all heads of linear attention share the weight of their norm.
        ssm_num_heads: Heads of a state space (Mamba 2); None if no layer has one. This and the
            following four are written by rdrr only.
        ssm_head_dim: Inputs and outputs of a head of the state space.
        ssm_num_groups: Groups of consecutive heads that share B and C.
        ssm_state_size: Elements of B and C.
        ssm_conv_kernel_dim: Taps of the convolution before the state space.
        kv_lora_rank: Width of the latent from which keys and values are made (multi-head latent
            attention); None for other attention. This and the following are written by rdrr only.
        q_lora_rank: Width of the latent from which queries are made; None if they are projected
            from the hidden state.
        qk_nope_head_dim: Elements of a head's key that are made of the latent.
        qk_rope_head_dim: Elements of a head's key that are rotated and shared by all heads.
        v_head_dim: Elements of a head's value.
    """

    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    max_seq_len: int = Field(gt=0)
    global_head_dim: int | None = Field(default=None, gt=0)
    num_global_key_value_heads: int | None = Field(default=None, gt=0)
    hidden_size_per_layer_input: int | None = Field(default=None, ge=0)
    vocab_size_per_layer_input: int | None = Field(default=None, ge=0)
    altup_num_inputs: int | None = Field(default=None, gt=1, le=8)
    altup_active_index: int | None = Field(default=None, ge=0)
    laurel_rank: int | None = Field(default=None, gt=0)
    num_kv_shared_layers: int | None = Field(default=None, ge=0)
    linear_num_key_heads: int | None = Field(default=None, gt=0)
    linear_num_value_heads: int | None = Field(default=None, gt=0)
    linear_key_head_dim: int | None = Field(default=None, gt=0)
    linear_value_head_dim: int | None = Field(default=None, gt=0)
    linear_conv_kernel_dim: int | None = Field(default=None, gt=0)
    linear_norm_mode: str | None = None
    ssm_num_heads: int | None = Field(default=None, gt=0)
    ssm_head_dim: int | None = Field(default=None, gt=0)
    ssm_num_groups: int | None = Field(default=None, gt=0)
    ssm_state_size: int | None = Field(default=None, gt=0)
    ssm_conv_kernel_dim: int | None = Field(default=None, gt=0)
    kv_lora_rank: int | None = Field(default=None, gt=0)
    q_lora_rank: int | None = Field(default=None, gt=0)
    qk_nope_head_dim: int | None = Field(default=None, gt=0)
    qk_rope_head_dim: int | None = Field(default=None, gt=0)
    v_head_dim: int | None = Field(default=None, gt=0)
