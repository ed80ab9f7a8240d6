"""Tiny random checkpoints of every architecture, built by transformers in the Hub's file layout.

Weights are sampled from the given generator; norms and biases are random too, so that a test fails
if one is forgotten.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from support.tiny_models import VOCAB, TinyModel

NORMS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")


def make_model(tiny: TinyModel, rng: np.random.Generator, **overrides: Any) -> Any:
    """Build the model in transformers, in float32, with random weights.

    Args:
        tiny: The architecture and its sizes.
        rng: Source of the weights.
        overrides: Configuration keys that replace those of `tiny`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    settings = {
        "vocab_size": VOCAB,
        "hidden_size": tiny.hidden,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        **dict(tiny.options),
        **overrides,
    }
    settings = {key: value for key, value in settings.items() if key not in tiny.omitted}
    settings["num_hidden_layers"] = max(settings["num_hidden_layers"], tiny.least_layers)
    if "layer_types" in settings:
        settings["layer_types"] = settings["layer_types"][: settings["num_hidden_layers"]]
    config = AutoConfig.for_model(tiny.model_type, **copy.deepcopy(settings))
    with no_init_weights():  # each weight gets a value below
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _values(name, tuple(parameter.shape), rng, norm=tiny.neutral_norm)
            parameter.copy_(torch.from_numpy(values))
        for name, buffer in model.named_buffers():
            if name in model.state_dict():  # not computed, like the biases of sigmoid routers
                buffer.copy_(torch.from_numpy(_values(name, tuple(buffer.shape), rng, norm=0.0)))
    return model.eval()


def make_multimodal(
    kind: str, rng: np.random.Generator, more_vision: Mapping[str, Any] | None = None, **text: Any
) -> Any:
    """Build a tiny text and image model in transformers, in float32, with random weights.

    Args:
        kind: Its `model_type`.
        rng: Source of the weights.
        more_vision: Keys of the vision tower's configuration that replace the usual ones.
        text: Keys of the text model's configuration.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **text,
    }
    vision = {**_VISION, **_MORE_VISION}.get(kind, _VISION["gemma3"]) | dict(more_vision or {})
    whole = {"text_config": settings, "vision_config": copy.deepcopy(vision)}
    if kind == "gemma3":  # four patches make a token
        whole["mm_tokens_per_image"] = (vision["image_size"] // vision["patch_size"] // 2) ** 2
    config = AutoConfig.for_model(kind, **whole)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    norm = 0.0 if kind.startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "vision_tower" in name else norm
            values = _values(name, tuple(parameter.shape), rng, norm=centre)
            parameter.copy_(torch.from_numpy(values))
    return model.eval()


_SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_BLOCKS = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
}
_STACKED = {**_BLOCKS, "deepstack_visual_indexes": [0]}
_PLAIN = {key: _SIGLIP[key] for key in list(_SIGLIP)[:4]}
_VISION: dict[str, Any] = {
    "gemma3": {"model_type": "siglip_vision_model", **_SIGLIP},
    "mistral3": {"model_type": "pixtral", **_SIGLIP},
    "qwen2_5_vl": _BLOCKS,
    "qwen3_5": _BLOCKS,
    "qwen3_vl": _STACKED,
}
_MORE_VISION: dict[str, Any] = {
    "gemma4": {**_PLAIN, "head_dim": 16},
    "glm4v": {**_BLOCKS, "image_size": 28, "patch_size": 14},
    "glm4v_moe": {**_BLOCKS, "image_size": 28, "patch_size": 14},
    "idefics3": _SIGLIP,
    "internvl": {**_SIGLIP, "image_size": [28, 28], "patch_size": [14, 14]},
    "kimi_k25": _PLAIN,
    "lfm2_vl": {"model_type": "siglip2_vision_model", **_SIGLIP},
    "qwen3_vl_moe": _STACKED,
    "smolvlm": _SIGLIP,
}
"""Towers of models whose text model needs more keys than the usual ones, or has its own checks."""


def _values(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, *, norm: float
) -> np.ndarray:
    if not shape:  # beta and eps of xIELU
        value = -1e-4 if name.endswith("eps") else 0.5  # the activation jumps by about eps at 0
        return np.array(value * (1.0 + 0.1 * rng.standard_normal()), np.float32)
    is_norm = ".norms." in name or name.endswith(NORMS)
    if name.endswith("sinks"):
        return rng.standard_normal(shape).astype(np.float32)
    is_norm |= name.endswith((*("_1.weight", "_2.weight"), "router.scale", "per_expert_scale"))
    if name.endswith("layer_scalar"):
        return (1.0 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    if len(shape) == 1 or is_norm:
        centre = norm if is_norm else 0.0
        return (centre + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    # A standard deviation of about 1/sqrt(K) keeps activations near 1 through the layers.
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def save_checkpoint(
    model: Any, folder: Path, *, dtype: str = "bfloat16", shard_bytes: int | None = None
) -> Path:
    """Save a model as a Hugging Face directory with a tokenizer.

    Args:
        model: A model that `make_model` returned.
        folder: Directory to create.
        dtype: Type of the weights: bfloat16, float16 or float32.
        shard_bytes: Largest size of a shard in bytes; None writes one file.
    """
    import torch

    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=shard_bytes or 2**40)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of 259 entries, which fits every tiny vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def make_checkpoint(
    tiny: TinyModel,
    folder: Path,
    rng: np.random.Generator,
    *,
    dtype: str = "bfloat16",
    shard_bytes: int | None = None,
    **overrides: Any,
) -> Path:
    """Build a model with `make_model` and save it with `save_checkpoint`."""
    model = make_model(tiny, rng, **overrides)
    return save_checkpoint(model, folder, dtype=dtype, shard_bytes=shard_bytes)


def edit_vision(folder: Path, **values: Any) -> None:
    """Change keys of the configuration of a checkpoint's vision tower."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["vision_config"] |= values
    path.write_text(json.dumps(config), encoding="utf-8")
