"""A writer of GGUF files that hold a package's weights, so that llama.cpp runs the same blocks.

Blocks are copied bit for bit. Only the rows of the query and key matrices of Llama models are
permuted: RoPE in llama.cpp rotates pairs of neighbouring elements, while a checkpoint pairs element
i of the first half of a head with element i of the second half. The file has no vocabulary, because
benchmarks feed token ids. Only row-major packages without padded rows can be written.

This is not the exporter of `rdrr export`, which writes complete GGUF files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rdrr_format.layouts import Layout

if TYPE_CHECKING:
    from rdrr_manifests.models import Manifest, Tensor
    from rdrr_manifests.package import Package

Bytes = npt.NDArray[np.uint8]

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA3_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def architecture(manifest: Manifest) -> str:
    """Return llama.cpp's name of the architecture, inferred from the norms of the model."""
    if manifest.inference.normalization.pre_feedforward_norm:
        return "gemma3"
    return "qwen3" if manifest.inference.attention.query_key_norm else "llama"


def write_gguf(package: Package, path: Path) -> None:
    """Write a package's weights as a GGUF file.

    Raises:
        ValueError: A tensor has padded rows or a layout other than `row`.
    """
    import gguf

    manifest = package.manifest
    arch = architecture(manifest)
    writer = gguf.GGUFWriter(path, arch)
    for key, value in _metadata(manifest, arch).items():
        _add(writer, f"{arch}.{key}", value)
    writer.add_string("tokenizer.ggml.model", "none")
    for name, tensor in manifest.tensors.items():
        rows = _rows(package, name, tensor)
        kind = gguf.GGMLQuantizationType[tensor.parsed_dtype().name]
        if kind is gguf.GGMLQuantizationType.F32:
            values = rows.view(np.float32).reshape(tensor.shape)
            offset = manifest.inference.normalization.rms_norm_weight_offset
            writer.add_tensor(ggml_name(name, arch), values + np.float32(1 if offset else 0))
            continue
        if arch == "llama":
            rows = _interleave(name, rows, manifest)
        writer.add_tensor(ggml_name(name, arch), rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ggml_name(name: str, arch: str) -> str:
    """Return llama.cpp's name of a tensor.

    Args:
        name: Name of the tensor in the package.
        arch: Architecture as returned by `architecture`.
    """
    if name in _TOP:
        return _TOP[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    parts = {**_PARTS, **_GEMMA3_PARTS} if arch == "gemma3" else _PARTS
    return f"blk.{layer}.{parts[part]}.weight"


def _rows(package: Package, name: str, tensor: Tensor) -> Bytes:
    stored = tensor.geometry()
    if len(tensor.shape) == 2 and (tensor.parsed_layout() is not Layout.ROW or stored.padding):
        raise ValueError(f"{name} has padded rows or a layout other than row")
    return package.read(name).reshape(stored.rows, stored.row_bytes)


def _interleave(name: str, rows: Bytes, manifest: Manifest) -> Bytes:
    """Permute the rows of query and key matrices to llama.cpp's order, where RoPE pairs neighbours.

    Rows i and i + head_dim / 2 of each head become neighbours; other matrices are returned as they
    are.
    """
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return rows
    half = manifest.architecture.head_dim // 2
    heads = rows.reshape(-1, 2, half, rows.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def _metadata(manifest: Manifest, arch: str) -> dict[str, int | float]:
    sizes, inference = manifest.architecture, manifest.inference
    values: dict[str, int | float] = {
        "context_length": sizes.max_seq_len,
        "embedding_length": sizes.hidden_size,
        "feed_forward_length": sizes.intermediate_size,
        "block_count": sizes.num_layers,
        "attention.head_count": sizes.num_attention_heads,
        "attention.head_count_kv": sizes.num_key_value_heads,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "attention.layer_norm_rms_epsilon": float(inference.normalization.rms_norm_eps),
        "rope.dimension_count": sizes.head_dim,
        "rope.freq_base": float(inference.rope.rope_theta),
        "vocab_size": sizes.vocab_size,
    }
    if arch == "gemma3":
        values["attention.sliding_window"] = inference.attention.sliding_window or 0
        values["rope.freq_base_swa"] = float(inference.rope.rope_local_theta or 10000.0)
    return values


def _add(writer: Any, key: str, value: int | float) -> None:
    (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
