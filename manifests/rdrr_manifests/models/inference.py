"""`inference`: how the model computes, with one typed block for each part of a layer.

Field names and meanings are those of the public format's current generation, in which `None`
means "does not apply". Fields that only rdrr writes are marked as such; a new one is annotated with
`WRITTEN_IF_SET`, so that it leaves the manifests of other models unchanged.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rdrr_manifests.models.base import WRITTEN_IF_SET, Block, ManifestModel
from rdrr_manifests.models.classifier import Classifier
from rdrr_manifests.models.embedding import EmbeddingPostprocessor
from rdrr_manifests.models.state_space import StateSpace


class Attention(Block):
    """Attention of every layer.

    Attributes:
        query_pre_attn_scalar: Scores are multiplied by 1/sqrt of this value, which is the head
            dimension in most architectures.
        attn_logit_softcapping: Scores become cap*tanh(score/cap); None for no cap.
        sliding_window: Tokens that a token attends to in a local layer, including itself.
        query_key_norm: Whether each head of the queries and keys has an RMSNorm before rope.
        query_key_norm_after_rope: Whether that norm comes after rope. Written by rdrr only.
        temperature_scale: The queries at position p are multiplied by 1 + temperature_scale *
            ln(1 + floor(p / temperature_length)); None for no such factor. Written by rdrr only.
        temperature_length: See `temperature_scale`. Written by rdrr only.
        temperature_without_rope: Whether only layers without rope have that factor, with p + 1 in
            place of p (Llama 4). Written by rdrr only.
        attention_chunk_size: Length of the chunks within which a token attends in a local layer,
            instead of a sliding window (Llama 4). Written by rdrr only.
        query_key_unit_norm: Whether the queries and keys of layers with rope have an RMSNorm
            without a weight (Llama 4). Written by rdrr only.
        query_key_norm_spans_heads: Whether one norm spans all heads of the queries, and one all
            heads of the keys (OLMo 2). Written by rdrr only.
        value_norm: Whether each head of the values has an RMSNorm without a weight.
        causal: Whether a token attends only to itself and earlier tokens.
        latent_norm_eps: Epsilon of the norms of latents; None for the one of other norms. Written
            by rdrr only.
        attention_bias: Whether some of the projections have a bias; the tensors decide which.
        query_key_norm_per_head: Whether each head has a weight of its own for that norm, so that
            the weight is [heads, head dimension]. Written by rdrr only.
        clip_qkv: Largest absolute value of queries, keys and values, to which they are limited
            before rope; None for no limit. Written by rdrr only.
        attention_output_gate: Whether `q_proj` holds, for each head, a query and then a gate, whose
            sigmoid multiplies the head's output.
        relative_bias_buckets: Rows of `relative_attention_bias`, a bias on the scores of each head
            that depends on the distance of the two tokens, whose buckets are those of T5; None for
            no such bias. Written by rdrr only.
        relative_bias_distance: Distance from which all tokens are in the last bucket. Written by
            rdrr only.
        max_alibi_bias: ALiBi in place of positions: scores fall with the distance of the two
            tokens, by slopes that follow from this number, usually 8, and the number of heads;
            None for none. Written by rdrr only.
    """

    query_pre_attn_scalar: float = Field(gt=0)
    attn_logit_softcapping: float | None = Field(default=None, gt=0)
    sliding_window: int | None = Field(default=None, gt=0)
    query_key_norm: bool = False
    value_norm: bool = False
    causal: bool = True
    attention_bias: bool = False
    latent_norm_eps: Annotated[float | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    query_key_norm_per_head: Annotated[bool, WRITTEN_IF_SET] = False
    query_key_norm_after_rope: Annotated[bool, WRITTEN_IF_SET] = False
    query_key_norm_spans_heads: Annotated[bool, WRITTEN_IF_SET] = False
    temperature_scale: Annotated[float | None, WRITTEN_IF_SET] = None
    temperature_length: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    temperature_without_rope: Annotated[bool, WRITTEN_IF_SET] = False
    attention_chunk_size: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    query_key_unit_norm: Annotated[bool, WRITTEN_IF_SET] = False
    clip_qkv: Annotated[float | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    attention_output_gate: Annotated[bool, WRITTEN_IF_SET] = False
    relative_bias_buckets: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, ge=4, le=256)
    relative_bias_distance: Annotated[int | None, WRITTEN_IF_SET] = Field(
        default=None, ge=4, le=65536
    )
    max_alibi_bias: Annotated[float | None, WRITTEN_IF_SET] = Field(default=None, gt=0, le=64)


class Normalization(Block):
    """Norms of a layer.

    `post_attention_norm` states that a tensor of that name exists. If `pre_feedforward_norm` is
    false, that tensor is the norm before the feed-forward (as Llama names it). If it is true, the
    tensor is the norm on the attention's output (as Gemma names it).

    Attributes:
        rms_norm_eps: Epsilon added to the mean square, for LayerNorm to the variance.
        rms_norm_weight_offset: Whether the factor of a norm is 1 + w instead of w.
        post_attention_norm: Whether `post_attention_layernorm` exists.
        pre_feedforward_norm: Whether `pre_feedforward_layernorm` exists.
        post_feedforward_norm: Whether `post_feedforward_layernorm` exists, which is a norm on the
            feed-forward's output.
        layer_norm: Whether all norms are LayerNorm, which subtracts the mean, instead of RMSNorm;
            the tensors decide which have a bias. Written by rdrr only.
        norm_after_residual: Whether `input_layernorm` and `post_attention_layernorm` are norms of
            the sum of the stream and a branch, whose output becomes the stream (OPT-350M). Written
            by rdrr only.
        final_norm: Whether there is a norm after the last layer. Written by rdrr only.
        norm_weights: Whether norms have weights; without, every factor is 1 (OLMo 1). Written by
            rdrr only.
    """

    rms_norm_eps: float = Field(gt=0)
    rms_norm_weight_offset: bool = False
    post_attention_norm: bool = False
    pre_feedforward_norm: bool = False
    post_feedforward_norm: bool = False
    layer_norm: Annotated[bool, WRITTEN_IF_SET] = False
    norm_after_residual: Annotated[bool, WRITTEN_IF_SET] = False
    final_norm: Annotated[bool, WRITTEN_IF_SET] = True
    norm_weights: Annotated[bool, WRITTEN_IF_SET] = True


class FeedForward(Block):
    """Feed-forward of a layer: down(activation(gate(x)) * up(x)), or down(activation(up(x))).

    Attributes:
        activation: Name of the activation, such as `silu`, `gelu` or `relu2`.
        gated_activation: Whether there is a gate, whose activation multiplies the up projection.
        branch_mode: `dense_plus_moe` if layers have a dense feed-forward beside their experts.
        use_double_wide_mlp: Whether layers that read the keys of an earlier layer have twice the
            `intermediateSize` of `architecture`.
        swiglu_limit: Limit of the clamped SwiGLU, which is g / (1 + exp(-alpha g)) (u + offset) of
            the gate g, limited from above, and the up u, limited on both sides; None for SwiGLU.
        swiglu_alpha: alpha of the clamped SwiGLU. Written by rdrr only.
        swiglu_up_offset: offset of the clamped SwiGLU. Written by rdrr only.
        gate_multiplier: Factor on the gate before its activation. Written by rdrr only.
        output_multiplier: Factor on what the feed-forward adds to the residual stream. Written by
            rdrr only.
        activation_sparsity: For each layer the share of the gate's elements that a cutoff sets to
            zero before the activation, if they follow a normal law; None or 0 for no cutoff.
            Written by rdrr only.
    """

    activation: str
    gated_activation: bool = True
    branch_mode: str = "auto"
    use_double_wide_mlp: bool = False
    swiglu_limit: float | None = None
    activation_sparsity: Annotated[tuple[float, ...] | None, WRITTEN_IF_SET] = None
    swiglu_alpha: Annotated[float | None, WRITTEN_IF_SET] = None
    swiglu_up_offset: Annotated[float, WRITTEN_IF_SET] = 0.0
    gate_multiplier: Annotated[float, WRITTEN_IF_SET] = 1.0
    output_multiplier: Annotated[float, WRITTEN_IF_SET] = 1.0


class Rope(Block):
    """Rotary position embedding of global layers and, where it differs, of local ones.

    Attributes:
        rope_theta: Base of the frequencies.
        rope_local_theta: Base in sliding-window layers; None for the same base.
        partial_rotary_factor: Fraction of the head that is rotated; None for the whole head.
        rope_frequency_base_dim: Head dimension of proportional rope, in which a part of the pairs
            of the whole head is rotated, with the frequencies of the whole head; None if
            `partial_rotary_factor` shortens what is rotated. If it is given, local layers
            have a factor of their own, or rotate the whole head.
        rope_local_frequency_base_dim: The same for sliding-window layers.
        rope_scaling_type: None, `linear`, `llama3`, `yarn` or `longrope`.
        rope_local_partial_rotary_factor: `partial_rotary_factor` of sliding-window layers; None for
            the whole head.
        rope_scaling_factor: Factor by which the scaling extends the context.
        rope_local_scaling_type: `rope_scaling_type` of sliding-window layers.
        rope_local_scaling_factor: `rope_scaling_factor` of sliding-window layers.
        yarn_beta_fast: Rotations within the original context from which yarn leaves a frequency as
            it is.
        yarn_beta_slow: Rotations within the original context up to which yarn divides a frequency
            by the factor.
        yarn_original_max_pos: Context length before yarn.
        rope_local_yarn_beta_fast: `yarn_beta_fast` of sliding-window layers.
        rope_local_yarn_beta_slow: `yarn_beta_slow` of sliding-window layers.
        rope_local_yarn_original_max_pos: `yarn_original_max_pos` of sliding-window layers.
        longrope_short_factor: Divisor of each frequency for contexts up to the original length.
        longrope_long_factor: Divisor of each frequency for longer contexts.
        longrope_original_max_pos: Context length before longrope.
        mrope_interleaved: Whether the pairs of `mrope_section` alternate instead of following one
            after the other; without effect on text.
        mrope_section: Pairs of each head that are rotated by the time, height and width of a part
            of an image. For text all three are the position of the token, so the field has no
            effect on text.
        llama3_low_freq_factor: Parameter of llama3 scaling. Written by rdrr only.
        llama3_high_freq_factor: Parameter of llama3 scaling. Written by rdrr only.
        llama3_original_max_pos: Context length before llama3 scaling. Written by rdrr only.
        yarn_truncate: Whether yarn rounds the ends of its ramp to whole pairs. Written by rdrr
            only.
        unrotated_layers: Layers whose queries and keys are not rotated; None if all are rotated.
            Written by rdrr only.
        longrope_short_attention_factor: Factor of longrope on cosines and sines for short contexts;
            None for the one of the paper, sqrt(1 + ln(factor) / ln(original context)). Written by
            rdrr only.
        longrope_long_attention_factor: The same for long contexts. Written by rdrr only.
        yarn_attention_factor: Factor of yarn on cosines and sines; None for the one of the paper,
            0.1 ln(factor) + 1. Written by rdrr only.
        rope_interleaved: Whether elements 2i and 2i + 1 of a head form a pair, instead of i and
            i + half of the rotated elements. Written by rdrr only.
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
    yarn_truncate: Annotated[bool, WRITTEN_IF_SET] = True
    longrope_short_attention_factor: Annotated[float | None, WRITTEN_IF_SET] = None
    longrope_long_attention_factor: Annotated[float | None, WRITTEN_IF_SET] = None
    yarn_attention_factor: Annotated[float | None, WRITTEN_IF_SET] = None
    rope_interleaved: Annotated[bool, WRITTEN_IF_SET] = False


class Output(Block):
    """Embedding and head.

    Attributes:
        final_logit_softcapping: Logits become cap*tanh(logit/cap); None for no cap.
        tie_word_embeddings: Whether the head's weight is the embedding.
        scale_embeddings: Whether embeddings are multiplied by sqrt(hidden size), or by
            `embedding_scale` if that is given.
        embedding_scale: Factor on the embeddings; None for the one of `scale_embeddings`.
        logit_input_scale: Factor on the hidden state before the head.
        embedding_transpose: Whether the embedding is stored as [hidden size, vocabulary].
        embedding_vocab_size: Rows of the embedding if they differ from the `vocabSize` of
            `architecture`.
        embedding_postprocessor: How the embedding of a text is made; None for other models.
        classifier: What the elements of that embedding mean in a model that classifies texts; None
            for other models. Written by rdrr only.
        embedding_size: Width of the embedding of tokens, if it is projected to the hidden size by
            `project_in`, and the final hidden state is projected back to it by `project_out` before
            the head (OPT-350M); None for the hidden size without projections. Written by rdrr only.
        position_embedding_offset: Row of position 0 in `embed_positions`, a learned embedding that
            is added to that of the token; None if there is none. Written by rdrr only.
        token_types: Rows of `embed_types`, a learned embedding of the token's type that is added to
            that of the token; the tokens of the second text of a pair have type 1, all others 0.
            None if there is none. Written by rdrr only.
    """

    final_logit_softcapping: float | None = Field(default=None, gt=0)
    tie_word_embeddings: bool = False
    scale_embeddings: bool = False
    embedding_scale: float | None = None
    logit_input_scale: float = 1.0
    embedding_transpose: bool = False
    embedding_vocab_size: int | None = Field(default=None, gt=0)
    embedding_postprocessor: EmbeddingPostprocessor | None = None
    classifier: Annotated[Classifier | None, WRITTEN_IF_SET] = None
    embedding_size: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    position_embedding_offset: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, ge=0)
    token_types: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, gt=0)


class LayerPattern(Block):
    """Which layers attend to all earlier tokens (global) and which to a sliding window (local).

    Attributes:
        type: `uniform` (all layers alike), `alternating`, `every_n` or `custom`.
        global_pattern: For `alternating`: whether the `odd` or the `even` layers are global.
        period: For `every_n`: layer i is global if i % period == offset.
        offset: For `every_n`: see `period`.
        layer_types: For `custom`: `full_attention`, `sliding_attention`, `linear_attention` (the
            gated delta rule), `conv` (a short convolution between two gates), `state_space` (Mamba
            2), `attention_and_state_space` (both read the same norm) or `feed_forward` (no
            attention, with `single_branch`) for each layer.
        residual_branch_scale: Factor on a branch before it is added to the residual stream.
        parallel_residual: Whether the feed-forward reads the input of the layer, as the attention
            does, instead of the stream after attention. Without `post_attention_norm` both share
            the input norm. Written by rdrr only.
        altup_correct_scale: Whether the gate of a layer's own input reads the corrected stream
            multiplied by a weight (AltUp). Written by rdrr only.
        single_branch: Whether each layer has one branch behind one norm: what mixes the tokens, or
            a feed-forward. Written by rdrr only.
    """

    type: str = "uniform"
    global_pattern: str | None = None
    period: int | None = None
    offset: int | None = None
    layer_types: tuple[str, ...] | None = None
    residual_branch_scale: float = 1.0
    altup_correct_scale: Annotated[bool, WRITTEN_IF_SET] = False
    parallel_residual: Annotated[bool, WRITTEN_IF_SET] = False
    single_branch: Annotated[bool, WRITTEN_IF_SET] = False


class ChatTemplate(ManifestModel):
    """A chat template that is built into the public runtime; rdrr uses the tokenizer's template.

    Attributes:
        type: Name of the built-in template.
        enabled: Whether the public runtime applies it.
    """

    type: str | None = None
    enabled: bool = False


class Inference(Block):
    """All blocks of `inference`.

    Attributes:
        attention: Attention of every layer.
        normalization: Norms of every layer.
        ffn: Feed-forward of every layer.
        rope: Rotary position embedding.
        output: Embedding and head.
        layer_pattern: Which layers are of which kind.
        chat_template: Chat template that is built into the public runtime.
        schema_name: `doppler.execution/v1` if an execution graph is given, else None.
        session: Session defaults of the public runtime; rdrr keeps them without using them.
        state_space: Layers with a state space; None if there are none.
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
    state_space: Annotated[StateSpace | None, WRITTEN_IF_SET] = None
