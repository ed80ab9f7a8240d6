"""Keys of a configuration that no rule reads and that change no result, in one table.

`rdrr_converter.reading.unread_keys` refuses every other key that no rule reads, because a key that
is ignored by mistake gives a package that computes something else. Add a key only if it cannot
change what the model computes, with the value that makes this true where it is not true of all
values. Null means that nothing is stated, so it may be ignored for every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rdrr_converter.architectures._wrappers import is_of_another_part

IGNORED: frozenset[str] = frozenset(
    (
        # names, versions, and how a library loads the model
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "_name_or_path",
        "architectures",  # `unread_keys.py` compares these two with the architecture that is used
        "model_type",
        "attn_implementation",
        "auto_map",
        "compression_config",  # read with the weights, as quantization_config
        "dtype",
        "finetuning_task",
        "for_llm_compressor",
        "is_llama_config",
        "language",
        "model_name",
        "output_attentions",
        "output_hidden_states",
        "quantization_config",  # read with the weights
        "return_dict",
        "tf_legacy_loss",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        "cache_implementation",
        "use_flash_attn",
        # how the same product is split; the result does not change
        "chunk_size_feed_forward",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "use_parallel_embedding",
        "mamba_ssm_dtype",  # states are float32
        "mamba_ssm_cache_dtype",
        "mlp_expansion_factor",  # Falcon-H1; the width is intermediate_size
        "chunk_size",  # of state spaces, as the next two
        "mamba_chunk_size",
        "use_mamba_kernels",
        "residual_in_fp32",
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_use_xavier_init",
        "conv_use_xavier_init",
        "ep_size",
        "dense_seq_output",  # NomicBERT, as the next four
        "fused_bias_fc",
        "fused_dropout_add_ln",
        "moe_impl",
        "use_xentropy",
        # training
        "moe_resid_pdrop",
        "rescale_prenorm_residual",
        "time_step_floor",  # of state spaces, as the next five
        "time_step_init_scheme",
        "time_step_max",
        "time_step_min",
        "time_step_rank",
        "time_step_scale",
        "aux_loss_alpha",
        "seq_aux",
        "attention_dropout",
        "attn_pdrop",
        "dropout",
        "activation_dropout",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "mlp_dropout",
        "classifier_bias",  # ModernBERT, whose tensors say it, as the next
        "decoder_bias",
        "deterministic_flash_attn",
        "initializer_cutoff_factor",
        "sparse_pred_ignore_index",
        "sparse_prediction",  # which masks are computed, in training
        "qa_dropout",  # DistilBERT, as the next three
        "seq_classif_dropout",
        "sinusoidal_pos_embds",  # the positions are stored like learned ones
        "tie_weights_",
        "embd_pdrop",
        "embedding_dropout",
        "init_method",
        "init_std",
        "layerdrop",
        "gradient_checkpointing",
        "use_reentrant_checkpointing",
        "hidden_dropout",
        "hidden_dropout_prob",
        "initializer_factor",
        "initializer_range",
        "neftune_noise_alpha",
        "output_router_logits",
        "resid_pdrop",
        "residual_dropout",
        "router_aux_loss_coef",
        "input_jitter_noise",
        "router_jitter_noise",
        # limits of a tokenizer or of training; the context is max_position_embeddings
        "max_sequence_length",
        "n_ctx",
        "max_trained_positions",  # NomicBERT, as the next
        "pad_vocab_to_multiple_of",
        "pad_vocab_size_multiple",
        "model_max_length",
        # classifiers
        "add_pooling_layer",
        "class_num",  # Hunyuan, as the next two
        "dense_list",
        "pool_type",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        # tokens; the tokenizer's part of the manifest is made from them
        "bos_token_id",
        "cls_token_id",
        "decoder_start_token_id",
        "eod_token_id",
        "eos_token_id",
        "im_end_id",  # Hunyuan
        "im_newline_id",
        "im_start_id",
        "mask_init_id",
        "mask_token_id",
        "org_vocab_size",
        "pad_id",
        "pad_token_id",
        "sep_token_id",
        "text_end_id",
        "text_start_id",
        "unk_token_id",
        # generation
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "num_logits_to_keep",
        "output_scores",
        "prefix",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        # parts of a multimodal model that are not its text model
        "boi_token_index",
        "eoi_token_index",
        "image_token_id",
        "image_token_index",
        "mm_tokens_per_image",
        "multimodal_projector_bias",
        "num_image_tokens",  # PaliGemma, in `text_config`, as the next two
        "perceiver_config",  # Idefics 3
        "pixel_shuffle_factor",
        "projector_hidden_act",
        "spatial_merge_size",
        "text_config",  # its keys are read in place of those around it
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_feature_layer",
        "vision_feature_select_strategy",
        "vision_start_token_id",
        "vision_token_id",
        # heads that predict further tokens, whose tensors say which there are
        "keep_mtp_spec_in_bf16",
        "mlp_intermediate_size",  # MiniMax, whose layers all have experts, as the next three
        "mtp_transformer_layers",
        "num_mtp_modules",
        "use_mtp",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        # read, or compared with a harmless value, if what they belong to is in use
        "cla_share_factor",  # use_cla
        "max_window_layers",  # use_sliding_window
        "initial_context_length",  # rope_scaling, of gpt-oss
        "original_max_position_embeddings",  # rope_scaling
    )
)
"""Keys that are harmless with any value."""

IGNORED_AT: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "activation": ("swiglu",),  # beside hidden_act in Falcon 3
        "add_classification_head": (False,),
        "group_limited_greedy": (False,),
        "moe_drop_tokens": (False,),
        "moe_layer_num_skipped": (0,),
        "moe_random_routing_dropped_token": (False,),
        "position_embedding_xdrope": (False,),
        "use_mla": (False,),
        "add_cross_attention": (False,),
        "attention_bias": (False,),
        "bias": (False,),  # InternLM 3
        "attention_out_bias": (False,),
        "expert_choice_router": (False,),  # NomicBERT
        "ffn_div": (1,),  # NomicBERT
        "emb_pooler": ("mean",),  # Jina BERT; the usual pooling
        "full_attn_mod": (1,),  # Phi-4 mini, as interpolate_factor
        "hidden_act": ("gelu", "gelu_pytorch_tanh"),  # unread where it is always the tanh form
        "hidden_activation": ("gelu_pytorch_tanh",),
        "interpolate_factor": (1,),
        "is_decoder": (False, True),
        "block_use_swiglu": (True,),
        "is_encoder_decoder": (False,),
        "layer_norm_bias": (False,),  # Cohere
        "layer_norm_elementwise_affine": (True,),  # OPT
        "lm_head_bias": (False,),
        "mamba_proj_bias": (False,),  # Nemotron-H
        "mamba_use_mlp": (True,),  # Falcon-H1
        "mlp_bias": (False,),
        "mlp_type": ("default",),  # StarCoder 2
        "order_of_interleaved_layers": ("local_attn_first",),  # Cohere 2
        "position_embedding_type": ("rope_gptj", "absolute"),  # Cohere, BERT
        "mlp_only_layers": ([],),
        "moe_layer_freq": (1,),  # DeepSeek
        "normalization_function": ("rmsnorm",),  # Granite 4
        "norm_type": ("rms", "layer_norm"),  # Hunyuan, StarCoder 2
        "num_experts": (0,),  # a dense model
        "num_experts_per_tok": (0,),
        "num_local_experts": (0,),
        "num_shared_experts": (0,),
        "parallel_block": (False,),  # NomicBERT, as the next two
        "parallel_block_tied_norm": (False,),
        "prenorm": (False,),
        "partial_rotary_factor": (1.0,),
        "post_norm": (False,),  # Apertus
        "pruned_heads": ({},),
        "qk_norm_type": ("per_layer",),  # MiniMax; a norm of all heads, whose shape says so
        "qk_layernorm": (False,),
        "qk_layer_norms": (False,),  # Idefics 3, of the resampler
        "use_resampler": (False,),
        "qkv_bias": (False,),
        "rms_norm": (True,),  # Mamba 2
        "rope_interleaved": (False,),  # SmolLM2
        "rotary_emb_fraction": (1.0,),  # NomicBERT, as the next
        "rotary_emb_interleaved": (False,),
        "rotary_pct": (1.0,),
        "scale_attn_by_inverse_layer_idx": (False,),  # GPT-2
        "scale_attn_weights": (True,),  # NomicBERT
        "shared_expert_intermediate_size": (0,),
        "shared_intermediate_size": (0,),
        "tie_encoder_decoder": (False,),
        "use_bidirectional_attention": (False,),
        "use_cla": (False,),  # Hunyuan; no layer shares the cache of another
        "use_embedding_sharing": (True,),  # Cohere 2, as the next two
        "use_gated_activation": (True,),
        "use_parallel_block": (True,),
        "use_pos_enc": (True,),  # LFM2
        "use_mrope": (False,),  # Qwen 2.5
        "use_rms_norm": (False,),  # NomicBERT
        "use_rotary_pos_emb": (True,),
        "use_sliding_window": (False,),
    }
)
"""Keys that are harmless with one of these values."""

IGNORED_COPIES: Mapping[str, str] = MappingProxyType(
    {
        "attention_head_dim": "head_dim",  # Hunyuan
        "block_dim": "hidden_size",  # LFM2, as the next five
        "block_norm_eps": "norm_eps",
        "conv_dim": "hidden_size",
        "conv_dim_out": "hidden_size",
        "num_heads": "num_attention_heads",
        "norm_eps": "layer_norm_epsilon",  # Nemotron-H, as the next
        "num_query_groups": "num_key_value_heads",
        "theta": "rope_theta",
        "first_last_k_dense_replace": "first_k_dense_replace",  # EXAONE MoE
        "layer_switch": "sliding_window_pattern",  # Cohere 2
        "sliding_window_size": "sliding_window",  # Gemma 2
    }
)
"""Keys that are harmless if they have the same value as another key, which is read."""

ROPE_IGNORED: frozenset[str] = frozenset(
    (
        "finetuned",
        "max_position_embeddings",
        "original_max_position_embeddings",  # read by the types of scaling that use it
    )
)
"""Keys inside `rope_parameters` and `rope_scaling` that are harmless with any value."""

ROPE_IGNORED_AT: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "attention_factor": (1.0,),
        "factor": (1.0,),
        "mrope_interleaved": (False,),
        "mscale": (1.0,),
        "partial_rotary_factor": (1.0,),
        "truncate": (True,),
    }
)
"""Keys inside `rope_parameters` and `rope_scaling` that are harmless with one of these values."""


def is_ignored(key: str, value: object, config: Mapping[str, object]) -> bool:
    """Return whether a key that no rule reads cannot change what the model computes.

    Args:
        key: Name of the key.
        value: Its value.
        config: The configuration.
    """
    if value is None or key in IGNORED or is_of_another_part(key, config):
        return True
    if key in IGNORED_COPIES:
        return value == config.get(IGNORED_COPIES[key])
    if key == "layer_types":  # unread where no layer can have a window
        return isinstance(value, list) and set(map(str, value)) == {"full_attention"}
    return _is_one_of(value, IGNORED_AT.get(key, ()))


def is_ignored_in_rope(key: str, value: object) -> bool:
    """Return whether an unread key of `rope_parameters` or `rope_scaling` changes nothing."""
    at = ROPE_IGNORED_AT.get(key, ())
    return value is None or key in ROPE_IGNORED or _is_one_of(value, at)


def _is_one_of(value: object, harmless: tuple[object, ...]) -> bool:
    # 1 == True in Python, but not in a configuration.
    return any(
        value == other and isinstance(other, bool) == isinstance(value, bool) for other in harmless
    )
