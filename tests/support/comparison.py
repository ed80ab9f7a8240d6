"""Compute logits of one model from two sources, and the error metric that tolerances refer to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_manifests.logical import halves_of
from rdrr_manifests.package import Package
from rdrr_runtime.backend import Backend
from rdrr_runtime.reference.backend import CpuBackend
from support.gpu import in_int8
from support.older_names import published_value

F32 = npt.NDArray[np.float32]

GATE_UP = ".gate_up_proj.weight"


def relative_error(ours: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return max|ours - reference| / max|reference|, or NaN if ours contains one.

    It also bounds changes of the argmax: where the reference's margin between its first and second
    logit exceeds twice the largest difference, the argmax is the same.
    """
    a, b = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / np.abs(b).max())


def rounding_backend(
    package: Package, context: int, rounded: Callable[[F32], npt.NDArray[Any]] = in_int8
) -> CpuBackend:
    """Return the reference with the inputs of products rounded.

    Some models enlarge the rounding until no bound on the error of exact logits tells it from a
    fault; kernels round as this reference does, whatever the model makes of it.

    Args:
        package: The package whose logits are compared.
        context: Positions of the cache.
        rounded: What becomes of the inputs of a product, int8 with a scale for 32 by default.
    """

    def round_in_place(_: object, rows: Any) -> None:
        values = rows.numpy()  # shares the memory of the tensor
        values[...] = rounded(values)

    return CpuBackend(package, context=context, observe=round_in_place)


def scored(backend: Backend, ids: Sequence[int]) -> F32:
    """Return the logits after each id, computed in passes of many rows."""
    return backend.logits(ids, 0, all_rows=True)


def stepped(backend: Backend, ids: Sequence[int], prefill: int) -> F32:
    """Return the logits after id `prefill` - 1 and each later id; the later ones run singly."""
    rows = [backend.logits(ids[:prefill], 0)]
    rows += [backend.logits([ids[index]], index) for index in range(prefill, len(ids))]
    return np.concatenate(rows)


def transformers_logits(model: Any, ids: Sequence[int]) -> F32:
    """Return the reference logits: float32, the whole sequence in one pass, without a KV cache."""
    import torch

    with torch.no_grad():
        output = model(torch.tensor([list(ids)]), use_cache=False)
    logits: F32 = output.logits[0].float().numpy()
    return logits


def load_stored_weights(model: Any, package: Package) -> None:
    """Load the dequantized weights of a package into a model of transformers."""
    import torch

    state = {}
    for name in package.manifest.tensors:
        values = torch.from_numpy(np.array(package.dequantize(name)))
        if name.endswith(GATE_UP):
            stem = name.removesuffix(GATE_UP)
            halves = zip(halves_of(name, package.manifest.tensors), values.chunk(2), strict=True)
            state |= {f"{stem}.{part}.weight": half for part, half in halves}
        else:
            state[name] = values
    for name in model.state_dict():
        _stack(name, state, transposed=model.config.model_type == "gpt_oss")
        if name not in state:
            values = published_value(name, state, getattr(model.config, "num_attention_heads", 0))
            state |= {} if values is None else {name: values}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert set(missing) <= tied, missing
    assert not unexpected, unexpected
    model.tie_weights()


def _stack(name: str, state: dict[str, Any], *, transposed: bool = False) -> None:
    """Build a stacked tensor of transformers from the separate tensors of a package.

    With `transposed`, the matrices of an expert are transposed, and gate and up alternate.
    """
    import torch

    if "feed_forward.experts" in name:
        _stack_transposed(name, state)
        return
    if "mixer.experts" in name:  # Nemotron-H, whose experts have no gates
        stem, _, kind = name.replace("mixer", "mlp").rpartition(".")
        state[name] = torch.stack([matrix for (matrix,) in _of_experts(stem, (kind,), state)])
        return
    if "block_sparse_moe" in name or (".shared_mlp" in name and ".mlp.shared_mlp" not in name):
        _stack_granite(name, state)
        return
    stem, _, part = name.rpartition("mlp.")
    mixtral = f"{stem}block_sparse_moe."
    if name.endswith("self_attn.qkv_proj.weight"):
        parts = [name.replace("qkv_proj", f"{kind}_proj") for kind in "qkv"]
        state[name] = torch.cat([state.pop(one) for one in parts])
    elif part == "gate_up_proj.weight":
        parts = [name.replace("gate_up_proj", f"{kind}_proj") for kind in ("gate", "up")]
        state[name] = torch.cat([state.pop(one) for one in parts])
    elif part in ("gate.weight", "e_score_correction_bias") and f"{mixtral}{part}" in state:
        state[name] = state.pop(f"{mixtral}{part}")
    elif part.startswith("gate.moe_statics."):
        state[name] = state.pop(name.replace("gate.moe_statics", "moe_statics"))
    elif name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        stem, _, kind = name.rpartition("experts.")
        part = f"experts.{kind}"
        mixtral = stem.replace("mlp.", "block_sparse_moe.")
        is_mixtral = any(f"{mixtral}experts.0.{kind}.weight" in state for kind in ("w1", "w2"))
        of = f"{mixtral}experts" if is_mixtral else f"{stem}experts"
        kinds = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
        chosen = kinds[:2] if part == "experts.gate_up_proj" else kinds[2:]
        state[name] = torch.stack(
            [
                torch.stack(matrices, 1).flatten(0, 1).T if transposed else torch.cat(matrices)
                for matrices in _of_experts(of, chosen, state)
            ]
        )
    elif part == "experts.gate_up_proj_bias":
        biases = [state.pop(f"{stem}mlp.experts.{kind}_proj.bias") for kind in ("gate", "up")]
        state[name] = torch.stack(biases, -1).flatten(1)
    elif part == "experts.down_proj_bias":
        state[name] = state.pop(f"{stem}mlp.experts.down_proj.bias")


def _stack_granite(name: str, state: dict[str, Any]) -> None:
    """Build a stacked tensor of one of Granite's mixtures from the tensors of a package."""
    import torch

    stem, _, part = name.removesuffix(".weight").rpartition(".")
    if part == "router":
        state[name] = state.pop(f"{stem}.router.layer.weight")
        return
    kinds = ("gate", "up") if part in ("input_linear", "gate_up_proj") else ("down",)
    if stem.endswith("shared_mlp"):
        changed = stem.replace("shared_mlp", "mlp.shared_expert")
        if f"{changed}.{kinds[0]}_proj.weight" not in state:  # a model without experts
            changed = stem.replace("shared_mlp", "mlp")
        state[name] = torch.cat([state.pop(f"{changed}.{kind}_proj.weight") for kind in kinds])
        return
    parts = tuple(f"{kind}_proj" for kind in kinds)
    state[name] = torch.stack([torch.cat(matrices) for matrices in _of_experts(stem, parts, state)])


def _stack_transposed(name: str, state: dict[str, Any]) -> None:
    """Build a stacked tensor of Llama 4, in which the matrices of experts are transposed."""
    import torch

    stem = name.rpartition(".")[0].replace("feed_forward", "mlp")
    parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
    state[name] = torch.stack(
        [torch.cat(matrices).T for matrices in _of_experts(stem, parts, state)]
    )


def _of_experts(stem: str, parts: tuple[str, ...], state: dict[str, Any]) -> list[list[Any]]:
    """Remove the matrices of all experts from `state`, and return those of each."""
    experts: list[list[Any]] = []
    while f"{stem}.{len(experts)}.{parts[0]}.weight" in state:
        names = [f"{stem}.{len(experts)}.{part}.weight" for part in parts]
        experts.append([state.pop(name) for name in names])
    return experts
