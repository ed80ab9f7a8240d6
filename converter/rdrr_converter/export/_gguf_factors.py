"""Moving the factors of Falcon-H1 into the weights, where llama.cpp's files have them.

The factors of a projection multiply its rows; that on queries and keys goes to the keys. Blocks
keep their codes: only their scales are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import frexp, sqrt

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import EMBEDDING, HEAD, LogicalTensor
from rdrr_manifests.models import Manifest
from rdrr_manifests.models.state_space import StateSpace
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.export._scaled_blocks import can_scale
from rdrr_converter.gguf.storage_types import decoded_type

_KEPT_BIASES = ("mamba.conv1d.bias", "mamba.dt_bias")
"""Biases that no factor multiplies."""


def without_factors(manifest: Manifest) -> Manifest:
    """Return the manifest of the same model with all factors in its weights."""
    blocks, state_space = manifest.inference, manifest.inference.state_space or StateSpace()
    neutral = StateSpace(
        gated_norm=state_space.gated_norm,
        norm_before_gate=state_space.norm_before_gate,
        least_step=state_space.least_step,
        most_step=state_space.most_step,
    )
    scalar = {"query_pre_attn_scalar": float(manifest.architecture.head_dim)}
    ones = {"gate_multiplier": 1.0, "output_multiplier": 1.0}
    scales = {"embedding_scale": 1.0, "logit_input_scale": 1.0}
    changed = {
        "attention": blocks.attention.model_copy(update=scalar),
        "ffn": blocks.ffn.model_copy(update=ones),
        "output": blocks.output.model_copy(update=scales),
        "state_space": neutral,
    }
    return manifest.model_copy(update={"inference": blocks.model_copy(update=changed)})


def with_factors(
    package: Package, outgoing: Sequence[OutgoingTensor], *, lossless: bool
) -> list[OutgoingTensor]:
    """Return the planned tensors with their factors.

    Raises:
        ConversionError: A factor would multiply a bias or both uses of a tied embedding, or would
            round values although `lossless` is set.
    """
    _check(package, outgoing)
    scaled = [_with_factors(package, tensor) for tensor in outgoing]
    rounded = next((tensor for tensor in scaled if not _is_exact(tensor)), None)
    if lossless and rounded is not None:
        raise ConversionError(
            "a GGUF of this architecture has the factors of the model in its weights, which rounds",
            where=f"{package.where}, {rounded.parts[0].name}",
            expected="factors that are powers of two",
            hint="export without `lossless`",
        )
    return scaled


def _check(package: Package, outgoing: Sequence[OutgoingTensor]) -> None:
    names = [part.name for tensor in outgoing for part in tensor.parts]
    bias = next(
        (name for name in names if name.endswith("bias") and not name.endswith(_KEPT_BIASES)),
        None,
    )
    if bias is not None:
        raise ConversionError(
            "llama.cpp has no biases of projections in Falcon-H1", where=f"{package.where}, {bias}"
        )
    output = package.manifest.inference.output
    scales = (output.embedding_scale or 1.0, output.logit_input_scale)
    if HEAD not in names and scales[0] != scales[1]:
        raise ConversionError(
            "llama.cpp has the factors on embeddings and logits in their weights, which are tied",
            where=f"{package.where}, {EMBEDDING}",
            expected="equal factors, or a head of its own",
            found=f"{scales[0]:g} and {scales[1]:g}",
        )


def _with_factors(package: Package, tensor: OutgoingTensor) -> OutgoingTensor:
    factors = np.concatenate([_factors(package.manifest, part) for part in tensor.parts])
    if (factors == 1.0).all():
        return tensor
    is_copied = tensor.keeps_type and tensor.parts[0].dtype.is_block
    if not is_copied or can_scale(package, tensor.parts, factors):
        return replace(tensor, factors=factors)
    why = f"the scales of {tensor.dtype} blocks do not fit F16 with the factors of the model"
    return replace(tensor, dtype=decoded_type(package, tensor.parts), why=why, factors=factors)


def _factors(manifest: Manifest, part: LogicalTensor) -> npt.NDArray[np.float64]:
    """Return the factor of each row of a tensor."""
    blocks, sizes = manifest.inference, manifest.architecture
    state_space = blocks.state_space or StateSpace()
    scalar = blocks.attention.query_pre_attn_scalar or sizes.head_dim
    whole = {
        EMBEDDING: blocks.output.embedding_scale or 1.0,
        HEAD: blocks.output.logit_input_scale,
    }
    if part.name in whole:
        return np.full(part.rows, whole[part.name])
    stem = part.name.removesuffix(".weight").split(".", 3)[-1]
    if stem == "mamba.in_proj_xbc":
        shared = (sizes.ssm_num_groups or 1) * (sizes.ssm_state_size or 0)
        counts = (part.rows - 2 * shared, shared, shared)
        return np.repeat(np.asarray(state_space.input_multipliers or (1.0, 1.0, 1.0)), counts)
    factor = {
        "self_attn.k_proj": sqrt(sizes.head_dim / scalar),
        "self_attn.o_proj": state_space.attention_multiplier,
        "mamba.in_proj_z": state_space.gate_multiplier,
        "mamba.in_proj_dt": state_space.step_multiplier,
        "mamba.out_proj": state_space.output_multiplier,
        "mlp.gate_proj": blocks.ffn.gate_multiplier,
        "mlp.down_proj": blocks.ffn.output_multiplier,
    }.get(stem, 1.0)
    return np.full(part.rows, factor)


def _is_exact(tensor: OutgoingTensor) -> bool:
    """Return whether all factors are powers of two, which round nothing."""
    if tensor.factors is None:
        return True
    return all(frexp(factor)[0] == 0.5 for factor in np.unique(tensor.factors).tolist())
