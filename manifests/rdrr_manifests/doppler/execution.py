"""`inference.execution`: the steps of a model as DOPPLER runs them, generated from the manifest.

A step is [name, kernel] or [name, kernel, weight], where `{L}` in a weight stands for the number of
the layer. The graph lists only the kernels; sizes, norms, windows and rope come from the typed
blocks, which both runtimes read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rdrr_manifests.doppler.kernels import KERNELS
from rdrr_manifests.models import Inference, Manifest

SCHEMA = "doppler.execution/v1"
"""`inference.schema` of a manifest with an execution graph."""

_BLOCK_TYPES = ("Q4_K", "Q4_K_M")

Step = list[str]


def with_execution_graph(manifest: Manifest) -> Manifest:
    """Return the manifest with `inference.schema` and `inference.execution` for DOPPLER."""
    inference = manifest.inference.model_dump(by_alias=True)
    inference |= {"schema": SCHEMA, "execution": execution_graph(manifest)}
    return manifest.model_copy(update={"inference": Inference.model_validate(inference)})


def execution_graph(manifest: Manifest) -> dict[str, Any]:
    """Return `inference.execution` of a manifest that has no obstacle (see `limits`)."""
    is_quantized = any(tensor.dtype in _BLOCK_TYPES for tensor in manifest.tensors.values())
    activation = "silu" if manifest.inference.ffn.activation == "silu" else "gelu"
    one_row, many_rows = ("q4_gemv", "q4_matmul") if is_quantized else ("gemv", "matmul")
    graph: dict[str, Any] = {
        "preLayer": [["embed", "embed", "embed_tokens"]],
        "decode": list(_layer(one_row, "attention_decode", activation)),
        "prefill": list(_layer(many_rows, "attention_prefill", activation)),
        "postLayer": [
            ["final_norm", "rmsnorm"],
            ["lm_head", "head_gemv", "lm_head"],
            ["lm_head_prefill", "matmul", "lm_head"],
            ["sample", "sample"],
        ],
        "policies": {
            "unsupportedPrecision": "error",
            "dtypeTransition": "require_cast_step",
            "unresolvedKernel": "error",
        },
    }
    used = {step[1] for steps in graph.values() if isinstance(steps, list) for step in steps}
    kernels = {name: kernel.as_json() for name, kernel in KERNELS.items() if name in used}
    return {"kernels": kernels, **graph}


def _layer(product: str, attention: str, activation: str) -> Iterator[Step]:
    """Yield the steps of one layer.

    Args:
        product: Kernel of the matrix products.
        attention: Kernel of attention.
        activation: Kernel of the gated activation.
    """
    yield ["input_norm", "rmsnorm"]
    for name in ("q_proj", "k_proj", "v_proj"):
        yield [name, product, f"layer.{{L}}.self_attn.{name}"]
    yield ["rope_q", "rope"]
    yield ["rope_k", "rope"]
    yield ["attention", attention]
    yield ["o_proj", product, "layer.{L}.self_attn.o_proj"]
    yield ["attn_residual", "residual"]
    yield ["post_attn_norm", "rmsnorm"]
    for name in ("gate_proj", "up_proj"):
        yield [name, product, f"layer.{{L}}.mlp.{name}"]
    yield ["activation", activation]
    yield ["down_proj", product, "layer.{L}.mlp.down_proj"]
    yield ["ffn_residual", "residual"]
