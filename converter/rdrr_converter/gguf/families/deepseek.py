"""DeepSeek V2 and V3 in GGUF files, and GLM 4.7 Flash: experts and latent attention.

Newer files have the matrices of latent attention in two tensors. `attn_k_b` holds the matrices that
make keys, transposed, and `attn_v_b` those that make values, both head by head. Hugging Face has
the rows of both in one matrix, one head after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families.mixtures import read_scores, shared_experts, write_scores
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Config, Entries, Notes, Setting, fixed, size, value

_GLM_LITE_VOCABULARY = 154880
"""Vocabulary by which llama.cpp knows GLM 4.7 Flash, if the file does not state the router."""

_LITE_LAYERS = (26, 27)
"""Layers of models like DeepSeek V2 Lite, by which llama.cpp knows that queries have no latents."""

_V2 = ["DeepseekV2ForCausalLM"]


def _read_scores(read: GgufMetadata, config: Config) -> dict[str, Any]:
    lite = config["vocab_size"] == _GLM_LITE_VOCABULARY
    return {"scoring_func": read_scores(read, "sigmoid" if lite else "softmax")}


def _write_scores(config: Config) -> Entries:
    return write_scores("softmax" if config["architectures"] == _V2 else "sigmoid")


def _read_sizes(read: GgufMetadata, _: Config) -> dict[str, Any]:
    """Return the sizes of latent attention.

    Files with `key_length_mla` describe attention as it is computed, with one head of latents.
    """
    ending = "" if read.get("attention.key_length_mla") is None else "_mla"
    rope = read.size("rope.dimension_count")
    return {
        "num_key_value_heads": read.size("attention.head_count"),
        "qk_nope_head_dim": read.size(f"attention.key_length{ending}") - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": read.size(f"attention.value_length{ending}"),
    }


def _write_sizes(config: Config) -> Entries:
    """State the sizes in the form in which one tensor makes keys and values.

    llama.cpp expands keys and values of such a file for its cache. The blocks of the tensor are
    copied, which the newer form with a transposed part does not allow.
    """
    key, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    return {
        "attention.key_length": key + rope,
        "attention.value_length": config["v_head_dim"],
        "rope.dimension_count": rope,
    }


def _read_router(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return what differs between V2 and V3 by their routers."""
    if _read_scores(read, config)["scoring_func"] == "sigmoid":
        return {"architectures": ["DeepseekV3ForCausalLM"]}
    method = "group_limited_greedy" if (read.get("expert_group_count") or 1) > 1 else "greedy"
    return {"topk_method": method, "num_nextn_predict_layers": None}


def _read_scaling(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the scaling with its corrections: cosines and sines have none in llama.cpp."""
    scaling: Mapping[str, Any] | None = config.get("rope_scaling")
    if not scaling or scaling.get("rope_type") != "yarn":
        return {"rope_scaling": None if scaling is None else dict(scaling)}
    correction = read.number("rope.scaling.yarn_log_multiplier")
    if correction is None:
        return {"rope_scaling": {**scaling, "attention_factor": 1.0}}
    # Six digits undo the rounding to float32.
    scale = float(f"{10 * correction:.6g}")
    return {"rope_scaling": {**scaling, "mscale": scale, "mscale_all_dim": scale}}


def _write_scaling(config: Config) -> Entries:
    correction = (config.get("rope_scaling") or {}).get("mscale_all_dim")
    return {"rope.scaling.yarn_log_multiplier": 0.1 * correction} if correction else {}


def _notes(config: Config) -> Notes:
    notes = ["llama.cpp caches the keys and values of this file expanded, not as latents"]
    if config["q_lora_rank"] is None and config["num_hidden_layers"] not in _LITE_LAYERS:
        notes.append(
            "llama.cpp refuses a model whose queries have no latents, unless it has "
            f"{' or '.join(map(str, _LITE_LAYERS))} layers"
        )
    if config["n_group"] > 1 and config["architectures"] == _V2:
        notes.append("llama.cpp selects groups by their two best experts, not by the best one")
    return tuple(notes)


KEYS, VALUES, JOINED = ".k_b_proj.weight", ".v_b_proj.weight", ".kv_b_proj.weight"


@dataclass(frozen=True)
class _Joined:
    """Reads parts of the joined matrix.

    Attributes:
        keys: [heads, latent, rows of keys].
        values: [heads, rows of values, latent].
    """

    keys: SourceTensor
    values: SourceTensor

    def __call__(self, rows: slice, columns: slice) -> npt.NDArray[np.float32]:
        heads, latent, _ = self.keys.shape
        keys = self.keys.read().reshape(heads, latent, -1).swapaxes(1, 2)
        values = self.values.read().reshape(heads, -1, latent)
        whole = np.concatenate([keys, values], axis=1).reshape(-1, latent)
        return np.ascontiguousarray(whole[rows, columns])


def joined_latents(tensors: Iterable[SourceTensor], _: Config) -> Iterator[SourceTensor]:
    """Yield the tensors with the two parts of each matrix joined.

    Raises:
        SourceError: A part is missing, or the shapes of the parts do not fit.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    for name, tensor in by_name.items():
        if name.endswith(VALUES) and name.replace(VALUES, KEYS) in by_name:
            continue
        if not name.endswith(KEYS):
            yield tensor
            continue
        yield _join(tensor, by_name.get(name.replace(KEYS, VALUES)))


def _join(keys: SourceTensor, values: SourceTensor | None) -> SourceTensor:
    name = keys.name.replace(KEYS, JOINED)
    shape = None if values is None else values.shape
    if values is None or len(keys.shape) != 3 or len(values.shape) != 3:
        raise SourceError(
            "a matrix of latent attention is incomplete",
            where=keys.where,
            expected="attn_k_b [heads, latent, rows] and attn_v_b [heads, rows, latent]",
            found=f"{list(keys.shape)} and {shape}",
        )
    heads, latent, rows = keys.shape
    if (values.shape[0], values.shape[2]) != (heads, latent):
        raise SourceError(
            "the parts of a matrix of latent attention do not fit",
            where=keys.where,
            expected=f"attn_v_b [{heads}, rows, {latent}]",
            found=list(values.shape),
        )
    joined = (heads * (rows + values.shape[1]), latent)
    decode = _Joined(keys, values)
    return SourceTensor(name, joined, values.dtype, values.file, values.native, decode=decode)


DEEPSEEK2 = GgufArchitecture(
    "deepseek2",
    "DeepseekV2ForCausalLM",
    {
        **layer_names.SHARED_EXPERTS,
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
    },
    classes=("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
    dense_layers=True,
    biases=False,
    has_draft_head=True,
    in_hf_form=joined_latents,
    settings=(
        *shared_experts(Setting(_read_scores, _write_scores)),
        fixed(head_dim=None, partial_rotary_factor=None),
        size("attention.kv_lora_rank", "kv_lora_rank"),
        Setting(_read_sizes, _write_sizes),
        value("attention.q_lora_rank", "q_lora_rank"),
        Setting(_read_scaling, _write_scaling),
        Setting(_read_router, notes=_notes),
    ),
)
