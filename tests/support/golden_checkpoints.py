"""Small checkpoints whose bytes are the same on every machine and with every library version.

Weights come from raw Philox words, which NumPy promises never to change (its distributions may),
and the files are written by hand, so that they do not depend on versions of torch or transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rdrr_converter.export.imatrix import Activations, Origin, write_imatrix
from support.adapters import write_adapter
from support.gguf_files import q4_k_m, write_gguf
from support.images import save_processor
from support.imatrix_files import write_legacy_imatrix
from support.safetensor_files import LLAMA_CONFIG, llama_shapes, to_stored, write_llama

Shapes = dict[str, tuple[int, ...]]


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return bell-shaped random float32 values that depend only on the name and the shape."""
    key = int.from_bytes(hashlib.sha256(f"{name}{shape}".encode()).digest()[:8], "little")
    words = np.random.Philox(key=key).random_raw(int(np.prod(shape)))
    # The sum of four 16-bit fields: exact in integers, close to normal.
    fields = sum((words >> np.uint64(16 * field)) & np.uint64(0xFFFF) for field in range(4))
    centred = fields.astype(np.int64) - 2 * 0xFFFF
    scaled = centred.astype(np.float32) * np.float32(2.0**-17)
    return (scaled + np.float32(1 if "norm" in name else 0)).reshape(shape)


def _write(folder: Path, shapes: Shapes, dtype: str = "BF16", **config: Any) -> Path:
    tensors = {name: to_stored(values(name, shape), dtype) for name, shape in shapes.items()}
    return write_llama(folder, tensors, **config)


def _layers(config: Mapping[str, Any], parts: Mapping[str, tuple[int, ...]]) -> Shapes:
    return {
        f"model.layers.{layer}.{part}": shape
        for layer in range(config["num_hidden_layers"])
        for part, shape in parts.items()
    }


def _llama(folder: Path) -> Path:
    return _write(folder, llama_shapes(LLAMA_CONFIG))


def _llama_192(folder: Path) -> Path:
    """Write a Llama in float16 with K = 192, so that no row length is a multiple of 256."""
    config = {"hidden_size": 192, "intermediate_size": 320}
    return _write(folder, llama_shapes({**LLAMA_CONFIG, **config}), "F16", **config)


def _llama_with_large_values(folder: Path) -> Path:
    """Write a Llama with one weight beyond float16, whose projection must be kept in F32."""
    shapes = llama_shapes(LLAMA_CONFIG)
    tensors = {name: to_stored(values(name, shape), "F32") for name, shape in shapes.items()}
    tensors["model.layers.1.self_attn.q_proj.weight"][3, 5] = 1e6
    return write_llama(folder, tensors)


def _qwen2(folder: Path) -> Path:
    """Write a Qwen2: biases of queries, keys and values."""
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    rows = {"q_proj": (256,), "k_proj": (128,), "v_proj": (128,)}
    biases = {f"self_attn.{part}.bias": shape for part, shape in rows.items()}
    return _write(folder, llama_shapes(LLAMA_CONFIG) | _layers(LLAMA_CONFIG, biases), **config)


def _gemma3(folder: Path) -> Path:
    """Write a Gemma 3: a tied head, four norms per layer, query and key norms, sliding windows."""
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 384,
        "head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 48,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "tie_word_embeddings": True,
    }
    merged = {**LLAMA_CONFIG, **config}
    norms = {
        "pre_feedforward_layernorm.weight": (384,),
        "post_feedforward_layernorm.weight": (384,),
        "self_attn.q_norm.weight": (64,),
        "self_attn.k_norm.weight": (64,),
    }
    shapes = llama_shapes(merged) | _layers(merged, norms)
    del shapes["lm_head.weight"]
    return _write(folder, shapes, **config)


def _phi3(folder: Path) -> Path:
    """Write a Phi-3: queries, keys and values in one matrix, gate and up in another."""
    config = {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "original_max_position_embeddings": 128,
        "rope_scaling": None,
    }
    shapes = {
        name: shape
        for name, shape in llama_shapes(LLAMA_CONFIG).items()
        if not any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_", "up_"))
    }
    stacks = {"self_attn.qkv_proj.weight": (512, 256), "mlp.gate_up_proj.weight": (1024, 256)}
    return _write(folder, shapes | _layers(LLAMA_CONFIG, stacks), **config)


def _qwen3_moe(folder: Path) -> Path:
    """Write a Qwen3-MoE: four experts in each layer, query and key norms."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 64,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    merged = {**LLAMA_CONFIG, **config}
    parts = {"self_attn.q_norm.weight": (64,), "self_attn.k_norm.weight": (64,)}
    parts["mlp.gate.weight"] = (4, 256)
    for expert in range(4):
        head = f"mlp.experts.{expert}."
        parts |= {f"{head}{part}_proj.weight": (96, 256) for part in ("gate", "up")}
        parts[f"{head}down_proj.weight"] = (256, 96)
    dense = {n: s for n, s in llama_shapes(merged).items() if ".mlp." not in n}
    return _write(folder, dense | _layers(merged, parts), **config)


def _glm4_moe(folder: Path) -> Path:
    """Write a GLM 4.5: experts with a selection bias, a shared expert, and a draft head."""
    config = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": False,
        "first_k_dense_replace": 0,
        "head_dim": 64,
        "moe_intermediate_size": 96,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": False,
    }
    merged = {**LLAMA_CONFIG, **config, "num_hidden_layers": 3}
    parts: Shapes = {"mlp.gate.weight": (4, 256), "mlp.gate.e_score_correction_bias": (4,)}
    for part in (*(f"experts.{expert}" for expert in range(4)), "shared_experts"):
        parts |= {f"mlp.{part}.{kind}_proj.weight": (96, 256) for kind in ("gate", "up")}
        parts[f"mlp.{part}.down_proj.weight"] = (256, 96)
    dense = {name: one for name, one in llama_shapes(merged).items() if ".mlp." not in name}
    shapes = {"eh_proj": (256, 512), "enorm": (256,), "hnorm": (256,), "shared_head.norm": (256,)}
    head = {f"model.layers.2.{part}.weight": shape for part, shape in shapes.items()}
    return _write(folder, dense | _layers(merged, parts) | head, **config)


def _qwen3_vl(folder: Path) -> Path:
    """Write a Qwen 3 VL: a vision tower of one layer, which is tapped, and the recipe of images."""
    vision = {
        "model_type": "qwen3_vl_vision",
        "deepstack_visual_indexes": [0],
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": 256,
        "patch_size": 4,
    }
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {"model_type": "qwen3_vl_text", "head_dim": 64},
        "vision_config": vision,
    }
    merged = {**LLAMA_CONFIG, "head_dim": 64}
    norms = {f"self_attn.{part}_norm.weight": (64,) for part in "qk"}
    tower: Shapes = {"patch_embed.proj": (64, 3, 2, 4, 4), "blocks.0.attn.qkv": (192, 64)}
    tower |= {"blocks.0.attn.proj": (64, 64), "blocks.0.norm1": (64,), "blocks.0.norm2": (64,)}
    tower |= {"blocks.0.mlp.linear_fc1": (96, 64), "blocks.0.mlp.linear_fc2": (64, 96)}
    for merger, width in (("merger", 64), ("deepstack_merger_list.0", 256)):
        parts = {"norm": (width,), "linear_fc1": (256, 256), "linear_fc2": (256, 256)}
        tower |= {f"{merger}.{part}": shape for part, shape in parts.items()}
    shapes = llama_shapes(merged) | _layers(merged, norms)
    shapes |= {f"visual.{name}.weight": shape for name, shape in tower.items()}
    shapes |= {f"visual.{name}.bias": shape[:1] for name, shape in tower.items()}
    shapes["visual.pos_embed.weight"] = (16, 64)
    path = _write(folder, shapes, **config)
    save_processor(path, patch_size=4)
    return path


def _gguf(folder: Path) -> Path:
    """Write a Q4_K_M GGUF, whose blocks a conversion copies unless it is given a type."""
    folder.mkdir(parents=True)
    return write_gguf(_llama(folder / "checkpoint"), folder / "model.gguf", q4_k_m)


def _small_llama(folder: Path) -> Path:
    """Return the trained checkpoint of the repository; nothing is written."""
    del folder
    return Path(__file__).parents[2] / "examples" / "small-llama"


CHECKPOINTS: Mapping[str, Callable[[Path], Path]] = {
    "small-llama": _small_llama,
    "llama": _llama,
    "llama-192": _llama_192,
    "llama-large-values": _llama_with_large_values,
    "qwen2": _qwen2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "qwen3-moe": _qwen3_moe,
    "glm4-moe": _glm4_moe,
    "qwen3-vl": _qwen3_vl,
    "gguf": _gguf,
}
"""Functions by name that write a checkpoint into a new folder and return its path."""


def write_importance(path: Path, kind: object = True) -> Path:
    """Write an importance matrix for the checkpoint `llama`, without an entry for its head.

    That of the kind "sensitivity" has rows and columns of the feed-forward networks only.
    """
    if kind == "sensitivity":
        parts = (("gate_proj", 512, 256), ("up_proj", 512, 256), ("down_proj", 256, 512))
        seen = {
            name: Activations(np.square(values(name, (k,))), 1, np.square(values(f"{name}n", (n,))))
            for layer in range(2)
            for part, n, k in parts
            for name in [f"model.layers.{layer}.mlp.{part}.weight"]
        }
        write_imatrix(path, seen, Origin("golden", 1, 1))
        return path
    counts = np.array([4])
    entries = {
        f"blk.{layer}.{part}.weight": (np.abs(values(f"{layer}{part}", (1, k))) + 0.01, counts)
        for layer in range(2)
        for part, k in (
            ("attn_q", 256),
            ("attn_k", 256),
            ("attn_v", 256),
            ("attn_output", 256),
            ("ffn_gate", 256),
            ("ffn_up", 256),
            ("ffn_down", 512),
        )
    }
    return write_legacy_imatrix(path, entries)


def write_lora(folder: Path, kind: object = True) -> Path:
    """Write a LoRA adapter of rank 4 for one projection of the checkpoint `llama`."""
    del kind
    head = "base_model.model.model.layers.0.mlp.down_proj"
    shapes = {f"{head}.lora_A.weight": (4, 512), f"{head}.lora_B.weight": (256, 4)}
    return write_adapter(folder, {name: values(name, shape) for name, shape in shapes.items()})


def options_of(recorded: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of a conversion after writing the files that they name into `folder`."""
    writers = {"imatrix": write_importance, "lora": write_lora}
    return {
        name: writers[name](folder / name, value) if name in writers else value
        for name, value in recorded.items()
    }


def digest_of(package: Path) -> str:
    """Return the SHA-256 of the names, sizes and bytes of all files, sorted by name."""
    digest = hashlib.sha256()
    for path in sorted(package.iterdir()):
        content = path.read_bytes()
        digest.update(json.dumps([path.name, len(content)]).encode())
        digest.update(content)
    return digest.hexdigest()
