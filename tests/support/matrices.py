"""Devices whose subgroups multiply matrices, and what stands for them where there is none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rdrr_device.implementations import implementation, is_installed
from rdrr_runtime.phases.context import OpContext
from support.gpu import Bench
from support.lowered import MATRIX_SHAPES


def stating_matrices(
    bench: Bench,
    rows: int,
    max_rows: int | None = None,
    base: int = 0,
    tokens: Sequence[int] | None = None,
) -> OpContext:
    """Return a context of a device that states a shape, and multiplies it if it can."""
    ctx = bench.context(rows, base=base, max_rows=max_rows, tokens=tokens)
    stated = bench.device.capabilities
    matrices = stated.matrices or MATRIX_SHAPES
    sizes = stated.subgroup_sizes
    return replace(
        ctx, capabilities=replace(ctx.capabilities, matrices=matrices, subgroup_sizes=sizes)
    )


def matrix_compiler() -> Any:
    """Return a device of Dawn's backend that does nothing, but whose compiler knows matrices."""
    if not is_installed("dawn"):
        pytest.skip("the package wgpudawn is not installed")
    features = ("chromium-experimental-subgroup-matrix", "shader-f16", "subgroups")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("WGPU_BACKEND_TYPE", "Null")
        warnings.simplefilter("ignore")
        adapter = implementation("dawn").api.gpu.request_adapter_sync()
        return adapter.request_device_sync(required_features=features)
