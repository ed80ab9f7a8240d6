"""Write EmbeddingGemma as GGUF with gguf-py, the way llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from support.gguf_entries import add_entry, add_tensor, tokenizer_entries

NAME = "gemma-embedding"


def write_embedding_gemma_gguf(
    model: Any, checkpoint: Path, path: Path, layers: Sequence[np.ndarray]
) -> Path:
    """Write a model in float32, with its pooling and linear layers.

    Args:
        model: The model of transformers, without a head.
        checkpoint: Directory with its tokenizer.
        path: File to write.
        layers: Weights of the linear layers after the pooling, at most two.
    """
    config = model.config
    arch = gguf.MODEL_ARCH.GEMMA_EMBEDDING
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, NAME)
    rope = config.rope_parameters
    entries = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": 24,
        "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        "pooling_type": int(gguf.PoolingType.MEAN),
    }
    for index, layer in enumerate(layers, 2):
        entries[f"dense_{index}_feat_in"] = layer.shape[1]
        entries[f"dense_{index}_feat_out"] = layer.shape[0]
    named = {f"{NAME}.{key}": value for key, value in entries.items()}
    for key, value in {**named, **tokenizer_entries(checkpoint)}.items():
        add_entry(writer, key, value)
    for name, values in model.state_dict().items():
        theirs = names.get_name(f"model.{name}", try_suffixes=(".weight",))
        assert theirs is not None, name
        array = values.numpy() + np.float32(name.endswith("norm.weight"))
        add_tensor(writer, theirs, array, "F32")
    for index, layer in enumerate(layers, 2):
        add_tensor(writer, f"dense_{index}.weight", layer.astype(np.float32), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
