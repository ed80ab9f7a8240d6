"""How the model computes: one typed block for each part of a layer.

Field names and meanings are those of the public format's current generation, in which `None`
says "does not apply". Fields that only this project writes are marked.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rdrr_manifests.models.base import ManifestModel


class Attention(ManifestModel):
    """Attention of every layer.

    Attributes:
        query_pre_attn_scalar: Scores are multiplied by 1/sqrt of it; equals the head size unless
            the architecture says otherwise.
        attn_logit_softcapping: Scores become cap*tanh(score/cap).
        sliding_window: Keys a local layer sees: the token itself and the window-1 before it.
        query_key_norm: RMSNorm over each head of the queries and keys, before rope.
        attention_bias: Some of the projections carry a bias (the tensors say which).
    """

    query_pre_attn_scalar: float = Field(gt=0)
    attn_logit_softcapping: float | None = Field(default=None, gt=0)
    sliding_window: int | None = Field(default=None, gt=0)
    query_key_norm: bool = False
    value_norm: bool = False
    causal: bool = True
    attention_bias: bool = False


class Normalization(ManifestModel):
    """Norms of a layer.

    `post_attention_norm` states that a tensor of that name exists. When `pre_feedforward_norm`
    is false that tensor is the norm before the feed-forward (Llama's naming); when it is true,
    it is applied to the attention's output (Gemma's).

    Attributes:
        rms_norm_eps: Epsilon added to the mean square.
        rms_norm_weight_offset: The weight multiplies as (1 + w).
        post_feedforward_norm: A norm on the feed-forward's output.
    """

    rms_norm_eps: float = Field(gt=0)
    rms_norm_weight_offset: bool = False
    post_attention_norm: bool = False
    pre_feedforward_norm: bool = False
    post_feedforward_norm: bool = False


class FeedForward(ManifestModel):
    """Feed-forward of a layer: down(activation(gate(x)) * up(x))."""

    activation: str
    gated_activation: bool = True
    branch_mode: str = "auto"
    use_double_wide_mlp: bool = False
    swiglu_limit: float | None = None


class Rope(ManifestModel):
    """Rotary position embedding of global layers and, where it differs, of local ones.

    Attributes:
        rope_theta: Base of the frequencies.
        rope_local_theta: Base in sliding-window layers; None for the same.
        partial_rotary_factor: Share of the head that is rotated; None for all of it.
        rope_scaling_type: None, `linear`, `llama3`, `yarn` or `longrope`.
        mrope_section: Pairs of each head that turn by the time, height and width of a part of an
            image. The three are the position of a token of text, so it changes nothing for text.
        llama3_low_freq_factor: Of llama3 scaling (ours; absent elsewhere). So are the two after.
        unrotated_layers: Layers whose queries and keys are not rotated (ours); None for no such.
    """

    rope_theta: float = Field(gt=0)
    rope_local_theta: float | None = Field(default=None, gt=0)
    mrope_interleaved: bool = False
    mrope_section: tuple[int, ...] | None = None
    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)
    rope_local_partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)
    rope_frequency_base_dim: int | None = None
    rope_local_frequency_base_dim: int | None = None
    rope_scaling_type: str | None = None
    rope_scaling_factor: float = Field(default=1.0, gt=0)
    rope_local_scaling_type: str | None = None
    rope_local_scaling_factor: float = Field(default=1.0, gt=0)
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None
    yarn_original_max_pos: int | None = None
    longrope_short_factor: tuple[float, ...] | None = None
    longrope_long_factor: tuple[float, ...] | None = None
    longrope_original_max_pos: int | None = None
    rope_local_yarn_beta_fast: float | None = None
    rope_local_yarn_beta_slow: float | None = None
    rope_local_yarn_original_max_pos: int | None = None
    llama3_low_freq_factor: float | None = None
    llama3_high_freq_factor: float | None = None
    llama3_original_max_pos: int | None = None
    unrotated_layers: tuple[int, ...] | None = None


class Output(ManifestModel):
    """Embedding and head.

    Attributes:
        final_logit_softcapping: Logits become cap*tanh(logit/cap).
        tie_word_embeddings: The head's weight is the embedding.
        scale_embeddings: Embeddings are multiplied by sqrt(hidden size), or by
            `embedding_scale` where that is given.
        logit_input_scale: Factor on the hidden state before the head.
    """

    final_logit_softcapping: float | None = Field(default=None, gt=0)
    tie_word_embeddings: bool = False
    scale_embeddings: bool = False
    embedding_scale: float | None = None
    logit_input_scale: float = 1.0
    embedding_transpose: bool = False
    embedding_vocab_size: int | None = Field(default=None, gt=0)
    embedding_postprocessor: Any = None


class LayerPattern(ManifestModel):
    """Which layers attend globally and which through the sliding window.

    Attributes:
        type: `uniform` (all alike), `alternating`, `every_n`, or `custom`.
        global_pattern: `odd` or `even`, for `alternating`.
        period: For `every_n`: layer i is global where i % period == offset.
        layer_types: For `custom`: one of `full_attention`, `sliding_attention` for each layer.
        residual_branch_scale: Factor on what a branch adds to the residual stream.
    """

    type: str = "uniform"
    global_pattern: str | None = None
    period: int | None = None
    offset: int | None = None
    layer_types: tuple[str, ...] | None = None
    residual_branch_scale: float = 1.0


class ChatTemplate(ManifestModel):
    """Name of a built-in chat template in the public runtime; ours reads the tokenizer's own."""

    type: str | None = None
    enabled: bool = False


class Inference(ManifestModel):
    """All blocks together.

    Attributes:
        schema_name: `doppler.execution/v1` when an execution graph is given, else None.
        session: Defaults of the public runtime's session; carried, not interpreted.
    """

    schema_name: str | None = Field(default=None, alias="schema")
    attention: Attention
    normalization: Normalization
    ffn: FeedForward
    rope: Rope
    output: Output
    layer_pattern: LayerPattern = LayerPattern()
    chat_template: ChatTemplate = ChatTemplate()
    session: dict[str, Any] | None = None
