"""Reading the metadata of a planned GGUF back, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_manifests.logical import EMBEDDING, HEAD, LogicalTensor
from rdrr_manifests.package import Package

from rdrr_converter.architectures import find_architecture
from rdrr_converter.export._check import check_config
from rdrr_converter.export._gguf_factors import without_factors
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.architectures import (
    ROPE_FREQS,
    ROPE_LONG,
    ROPE_SHORT,
)
from rdrr_converter.gguf.config import read_config
from rdrr_converter.gguf.families.encoders import from_position_zero
from rdrr_converter.gguf.families.gemma4 import rope_divisors
from rdrr_converter.gguf.rope import divisors, from_factors, from_metadata

F32Array = npt.NDArray[np.float32]


def frequency_divisors(config: Mapping[str, Any]) -> dict[str, F32Array]:
    """Return the tensors of rope frequency divisors, which express llama3 scaling and LongRoPE."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope":
        stated = {ROPE_LONG: scaling["long_factor"], ROPE_SHORT: scaling["short_factor"]}
        return {name: np.asarray(values, np.float32) for name, values in stated.items()}
    of_rope = rope_divisors(config)
    if of_rope is not None:
        return {ROPE_FREQS: of_rope}
    if scaling.get("rope_type") != "llama3":
        return {}
    frequencies = int(config["head_dim"] * (config.get("partial_rotary_factor") or 1.0)) // 2
    return {ROPE_FREQS: divisors(scaling, config["rope_theta"], frequencies).astype(np.float32)}


def check_metadata(
    entries: Mapping[str, Any],
    extra: Mapping[str, F32Array],
    package: Package,
    row: GgufArchitecture,
    tensors: Sequence[LogicalTensor],
    unpadded: Mapping[str, Any],
) -> None:
    """Read the metadata back like that of any GGUF, and compare its graph with the package's.

    `unpadded` holds keys of the configuration that padding of tensors changes.

    Raises:
        ConversionError: The metadata does not describe the package's model.
    """
    manifest, tensors = from_position_zero(package.manifest, tensors)
    names = {tensor.name: tensor for tensor in tensors}
    read = read_config(
        entries,
        row,
        vocab_size=names[EMBEDDING].shape[0],
        tensors=len(tensors),
        tied=HEAD not in names,
        where=package.where,
    )
    read |= row.stated_by(names)
    values = {name: array.astype(np.float64) for name, array in extra.items()}
    read |= from_metadata(values.get(ROPE_FREQS), read, package.where)
    short, long = values.get(ROPE_SHORT), values.get(ROPE_LONG)
    read |= from_factors(short, long, read, package.where)
    read |= unpadded
    expected = without_factors(manifest) if row.factors_in_weights else manifest
    rule = find_architecture(read, None, package.where)
    written = [tensor for tensor in tensors if not (row.left_out and row.left_out in tensor.name)]
    check_config(read, expected, rule, written, package.where)
