"""Structs, defaults and functions of one release of llama.cpp, as its headers declare them.

The structs are those of `llama.h` in v0.5.0. The defaults that the library fills in are compared
with those of the release, so that a library with another struct layout is refused and not misread.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


class UnavailableError(Exception):
    """llama.cpp cannot be measured here; the message says why."""


class ModelParams(c.Structure):
    """`llama_model_params`."""

    _fields_ = (
        ("devices", c.POINTER(c.c_void_p)),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int),
        ("load_mode", c.c_int),
        ("lazy_mode", c.c_int),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
    )


class ContextParams(c.Structure):
    """`llama_context_params`."""

    _fields_ = (
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32),
        ("n_outputs_max", c.c_uint32),
        ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("ctx_type", c.c_int),
        ("rope_scaling_type", c.c_int),
        ("pooling_type", c.c_int),
        ("attention_type", c.c_int),
        ("flash_attn_type", c.c_int),
        ("rope_freq_base", c.c_float),
        ("rope_freq_scale", c.c_float),
        ("yarn_ext_factor", c.c_float),
        ("yarn_attn_factor", c.c_float),
        ("yarn_beta_fast", c.c_float),
        ("yarn_beta_slow", c.c_float),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int),
        ("type_v", c.c_int),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("embeddings", c.c_bool),
        ("offload_kqv", c.c_bool),
        ("no_perf", c.c_bool),
        ("op_offload", c.c_bool),
        ("swa_full", c.c_bool),
        ("kv_unified", c.c_bool),
        ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t),
        ("ctx_other", c.c_void_p),
    )


class Batch(c.Structure):
    """`llama_batch`."""

    _fields_ = (
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.c_void_p),
        ("n_seq_id", c.c_void_p),
        ("seq_id", c.c_void_p),
        ("logits", c.c_void_p),
    )


def batch_of(
    tokens: Ints, positions: Ints, sequences: Ints, outputs: npt.NDArray[np.int8]
) -> Batch:
    """Return a batch of tokens of several sequences; it keeps the arrays alive.

    Args:
        tokens: The token ids, int32 [n], as the other arrays.
        positions: Their positions in their sequences.
        sequences: The numbers of their sequences.
        outputs: 1 for tokens whose logits are wanted, 0 for others, int8 [n].
    """
    counts = np.ones(len(tokens), np.int32)
    pointers = (sequences.ctypes.data + 4 * np.arange(len(tokens))).astype(np.uintp)
    batch = Batch(
        len(tokens),
        tokens.ctypes.data_as(c.POINTER(c.c_int32)),
        None,
        positions.ctypes.data,
        counts.ctypes.data,
        pointers.ctypes.data,
        outputs.ctypes.data,
    )
    batch.arrays = (tokens, positions, sequences, outputs, counts, pointers)
    return batch


MODEL_DEFAULTS: Mapping[str, Any] = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "use_extra_bufts": True,
}
CONTEXT_DEFAULTS: Mapping[str, Any] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
}
"""Default parameters of the release; fields that are not listed are zero."""

LOG = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
# The functions that are used: result type, then argument types.
LLAMA = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (LOG, c.c_void_p)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_load_from_file": (c.c_void_p, (c.c_char_p, ModelParams)),
    "llama_model_free": (None, (c.c_void_p,)),
    "llama_model_get_vocab": (c.c_void_p, (c.c_void_p,)),
    "llama_vocab_n_tokens": (c.c_int32, (c.c_void_p,)),
    "llama_init_from_model": (c.c_void_p, (c.c_void_p, ContextParams)),
    "llama_free": (None, (c.c_void_p,)),
    "llama_get_memory": (c.c_void_p, (c.c_void_p,)),
    "llama_memory_seq_rm": (c.c_bool, (c.c_void_p, c.c_int32, c.c_int32, c.c_int32)),
    "llama_batch_get_one": (Batch, (c.POINTER(c.c_int32), c.c_int32)),
    "llama_decode": (c.c_int32, (c.c_void_p, Batch)),
    "llama_synchronize": (None, (c.c_void_p,)),
    "llama_encode": (c.c_int32, (c.c_void_p, Batch)),
    "llama_get_embeddings_seq": (c.POINTER(c.c_float), (c.c_void_p, c.c_int32)),
    "llama_model_n_embd": (c.c_int32, (c.c_void_p,)),
    "llama_get_logits_ith": (c.POINTER(c.c_float), (c.c_void_p, c.c_int32)),
    "llama_version": (c.c_char_p, ()),
}
GGML = {
    "ggml_backend_load_all_from_path": (None, (c.c_char_p,)),
    "ggml_backend_dev_count": (c.c_size_t, ()),
    "ggml_backend_dev_get": (c.c_void_p, (c.c_size_t,)),
}
BASE = {
    "ggml_backend_dev_name": (c.c_char_p, (c.c_void_p,)),
    "ggml_backend_dev_description": (c.c_char_p, (c.c_void_p,)),
    "ggml_backend_dev_type": (c.c_int, (c.c_void_p,)),
}


def check_defaults(params: c.Structure, expected: Mapping[str, Any]) -> None:
    """Check that default parameters are those of the release that the structs describe.

    Args:
        params: Parameters as the library fills them in.
        expected: Defaults of the release; fields that are not listed are zero.

    Raises:
        UnavailableError: A field differs; the structs of another release would be misread.
    """
    for name, *_ in params._fields_:
        value = getattr(params, name)
        actual = value if isinstance(value, (bool, int, float)) else bool(value)
        if actual != expected.get(name, 0):
            raise UnavailableError(
                f"this is another release of llama.cpp: the default of "
                f"{type(params).__name__}.{name} is {actual}, expected {expected.get(name, 0)}"
            )
