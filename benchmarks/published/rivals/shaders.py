"""The WGSL templates of this folder as kernels."""

from __future__ import annotations

from functools import partial

from rdrr_device.shaders import ShaderFolder
from rdrr_runtime.phases.shaders import kernel

FOLDER = ShaderFolder("published.rivals")
"""The templates, and the snippets that they include."""

rival = partial(kernel, folder=FOLDER)
"""As `rdrr_runtime.phases.shaders.kernel`, for a template of this folder."""
