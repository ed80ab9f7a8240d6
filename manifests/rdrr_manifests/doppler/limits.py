"""What DOPPLER 0.5.1 cannot run, or computes differently from rdrr.

The table was made by running small models of one property each in DOPPLER and in rdrr, and by
comparing their greedy tokens. What was not tried counts as an obstacle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rdrr_manifests.models import Manifest, Tensor
from rdrr_manifests.models.base import Block
from rdrr_manifests.models.inference import Inference

TYPES = ("Q4_K", "Q4_K_M", "Q6_K", "F16", "F32")
"""Storage types of tensors that DOPPLER reads."""

MAX_HEAD = 256
"""Largest head dimension of its attention kernels."""


@dataclass(frozen=True)
class Obstacle:
    """A reason why DOPPLER does not run a model as rdrr does.

    Attributes:
        field: Path of the manifest's field that states the property.
        message: What DOPPLER does with it.
        expected: Values that it runs.
        found: The value of this manifest.
    """

    field: str
    message: str
    expected: str
    found: Any


@dataclass(frozen=True)
class Limit:
    """One property that DOPPLER must find in a manifest.

    Attributes:
        field: Path of the field.
        value: Return the value of the field.
        accepts: Whether DOPPLER runs a model with this value.
        expected: The accepted values in words.
        message: What DOPPLER does otherwise.
    """

    field: str
    value: Callable[[Manifest], Any]
    accepts: Callable[[Any], bool]
    expected: str
    message: str


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


_UNTRIED = "whether DOPPLER computes it correctly has not been shown"

LIMITS = (
    Limit("moeConfig", lambda m: m.moe_config, _is(None), "null", _UNTRIED),
    Limit(
        "architecture.headDim",
        lambda m: m.architecture.head_dim,
        lambda size: size <= MAX_HEAD and size % 4 == 0,
        f"a multiple of 4, at most {MAX_HEAD}",
        "DOPPLER's attention kernels do not support this head dimension",
    ),
    Limit(
        "inference.attention.causal",
        lambda m: m.inference.attention.causal,
        _is(True),
        "true",
        _UNTRIED,
    ),
    Limit(
        "inference.attention.valueNorm",
        lambda m: m.inference.attention.value_norm,
        _is(False),
        "false",
        _UNTRIED,
    ),
    Limit(
        "inference.ffn.activation",
        lambda m: m.inference.ffn.activation,
        _is("silu", "gelu"),
        "silu or gelu",
        _UNTRIED,
    ),
    Limit(
        "inference.ffn.gatedActivation",
        lambda m: m.inference.ffn.gated_activation,
        _is(True),
        "true",
        _UNTRIED,
    ),
    Limit(
        "inference.ffn.swigluLimit",
        lambda m: m.inference.ffn.swiglu_limit,
        _is(None),
        "null",
        _UNTRIED,
    ),
    Limit(
        "inference.rope.ropeScalingType",
        lambda m: m.inference.rope.rope_scaling_type,
        _is(None, "linear"),
        "null or linear",
        "DOPPLER refuses llama3 scaling, gives other tokens with yarn, and longrope was not tried",
    ),
    Limit(
        "inference.rope.unrotatedLayers",
        lambda m: m.inference.rope.unrotated_layers,
        _is(None, ()),
        "null",
        "DOPPLER does not read this field and rotates the queries and keys of every layer",
    ),
    Limit(
        "inference.output.embeddingScale",
        lambda m: m.inference.output.embedding_scale,
        _is(None),
        "null",
        "DOPPLER refuses a manifest that states it",
    ),
    Limit(
        "inference.output.logitInputScale",
        lambda m: m.inference.output.logit_input_scale,
        _is(1.0),
        "1",
        _UNTRIED,
    ),
    Limit(
        "inference.layerPattern.residualBranchScale",
        lambda m: m.inference.layer_pattern.residual_branch_scale,
        _is(1.0),
        "1",
        _UNTRIED,
    ),
    Limit(
        "weightsTransposed",
        lambda m: bool(m.weights_transposed),
        _is(False),
        "false",
        "DOPPLER reads transposed blocks as if they were row-major and generates nonsense",
    ),
    Limit("hashAlgorithm", lambda m: m.hash_algorithm, _is("sha256"), "sha256", _UNTRIED),
)


TRIED = frozenset(
    {
        "sliding_window",
        "query_key_norm",
        "attention_bias",
        "rms_norm_weight_offset",
        "post_attention_norm",
        "pre_feedforward_norm",
        "post_feedforward_norm",
        "rope_local_theta",
        "rope_scaling_factor",
        "tie_word_embeddings",
        "scale_embeddings",
        "type",
        "global_pattern",
        "period",
        "offset",
        "layer_types",
    }
)
"""Optional fields of the typed blocks that DOPPLER honours, whatever their value.

Every other one must have its default, unless `LIMITS` says which values it may have.
"""


def obstacles(manifest: Manifest) -> Iterator[Obstacle]:
    """Yield every reason why DOPPLER does not run this model as rdrr does."""
    for limit in LIMITS:
        value = limit.value(manifest)
        if not limit.accepts(value):
            yield Obstacle(limit.field, limit.message, limit.expected, value)
    for part, info in Inference.model_fields.items():
        block = getattr(manifest.inference, part)
        for name, value in block.set_own_fields().items() if isinstance(block, Block) else ():
            field = f"inference.{info.alias}.{name}"
            yield Obstacle(field, "DOPPLER does not read this field", "no such field", value)
    yield from _untried_fields(manifest)
    for name, tensor in manifest.tensors.items():
        yield from _tensor_obstacles(name, tensor)
    for shard in manifest.shards:
        if shard.compression is not None:
            field = f"shards.{shard.index}.compression"
            message = "DOPPLER does not read compressed shards"
            yield Obstacle(field, message, "no compression", shard.compression)


def _untried_fields(manifest: Manifest) -> Iterator[Obstacle]:
    """Yield the optional fields that ask for something that was not tried."""
    limited = {limit.field for limit in LIMITS}
    inference = manifest.inference
    blocks = {
        "architecture": manifest.architecture,
        "inference.attention": inference.attention,
        "inference.normalization": inference.normalization,
        "inference.ffn": inference.ffn,
        "inference.rope": inference.rope,
        "inference.output": inference.output,
        "inference.layerPattern": inference.layer_pattern,
    }
    for path, block in blocks.items():
        for name, field in type(block).model_fields.items():
            where, value = f"{path}.{field.alias or name}", getattr(block, name)
            may_differ = name in TRIED or where in limited or field.is_required()
            if not may_differ and value != field.default:
                yield Obstacle(where, _UNTRIED, str(field.default), value)


def _tensor_obstacles(name: str, tensor: Tensor) -> Iterator[Obstacle]:
    if tensor.dtype not in TYPES:
        message = "DOPPLER has no kernel for this storage type"
        yield Obstacle(f"tensors.{name}.dtype", message, ", ".join(TYPES), tensor.dtype)
    if re.search(r"\.mlp\.\w+_proj\.bias$", name):
        message = "DOPPLER loads biases of the feed-forward network and does not add them"
        yield Obstacle(f"tensors.{name}", message, "no such tensor", "a bias")
    elif name.endswith("_proj.bias") and tensor.dtype != "F32":
        message = "DOPPLER reads the bytes of a bias as F32, whatever type they have"
        yield Obstacle(f"tensors.{name}.dtype", message, "F32", tensor.dtype)
    if name.endswith("gate_up_proj.weight"):
        message = "DOPPLER reads gate and up as two matrices"
        yield Obstacle(f"tensors.{name}", message, "gate_proj and up_proj", "one matrix")
    if tensor.layout not in (None, "row"):
        message = "DOPPLER reads every matrix as row-major"
        yield Obstacle(f"tensors.{name}.layout", message, "row", tensor.layout)
