"""The base class of the baseline kernels' parameters."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.shaders import ShaderFolder
from rdrr_runtime.phases.phase import Record


@dataclass(frozen=True, kw_only=True)
class BaselineKernel(Record):
    """Parameters of a kernel of a published system."""

    folder = ShaderFolder("published.baselines")
