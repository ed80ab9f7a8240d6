"""The WGSL templates of this folder as kernels.

Every phase makes its kernel here; which template variables and constants it has is the phase's own
business.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from rdrr_device.kernels import Kernel
from rdrr_device.shaders import ShaderFolder, bindings, overrides

FOLDER = ShaderFolder("rdrr_runtime.phases")
"""The templates, and the snippets that they include."""


def kernel(
    name: str,
    *,
    variables: Mapping[str, Hashable] | None = None,
    constants: Mapping[str, float | int | bool] | None = None,
    variant: str = "",
    trusted: bool = False,
    folder: ShaderFolder = FOLDER,
) -> Kernel:
    """Return the kernel of `<name>.wgsl`.

    Args:
        name: File name without the suffix.
        variables: Template variables (types and snippets).
        constants: Values of override constants.
        variant: Suffix of the label, e.g. the weight's dtype.
        trusted: See `Kernel`.
        folder: Where the template lies.

    Raises:
        ValueError: A constant that the shader does not declare.
    """
    source = folder.render(f"{name}.wgsl", **(variables or {}))
    values = {key: float(value) for key, value in (constants or {}).items()}
    unknown = set(values) - overrides(source)[0]
    if unknown:
        raise ValueError(f"{name}.wgsl has no override {', '.join(sorted(unknown))}")
    label = f"{name}.{variant}" if variant else name
    return Kernel(label, source, "main", tuple(sorted(values.items())), bindings(source), trusted)
