"""What a plan needs to know of a device, which need not be at hand: a file can describe it.

`rdrr devices --json` prints the capabilities of each adapter, and `rdrr explain --capabilities`
plans for a device that such a file describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from rdrr_format.errors import FormatError

COHERENT_FEATURE = "memory-decoration-coherent"
"""Feature of wgpu: shaders may declare buffers `@coherent`, whose reads come from no cache of a
multiprocessor."""

MATRIX_FEATURE = "subgroup-matrix"
"""Feature of Dawn, by a name of ours: subgroups multiply matrices of the shapes that are stated."""

WANTED_FEATURES = frozenset(
    {
        COHERENT_FEATURE,
        "shader-f16",
        "subgroup",
        MATRIX_FEATURE,
        "timestamp-query",
    }
)
"""Features that are enabled where an adapter has them, by their names in wgpu where it has them."""

DEFAULT_LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "max-buffer-size": 256 << 20,
        "max-storage-buffer-binding-size": 128 << 20,
        "max-storage-buffers-per-shader-stage": 8,
        "max-compute-workgroup-storage-size": 16_384,
        "max-compute-invocations-per-workgroup": 256,
        "max-compute-workgroup-size-x": 256,
        "max-compute-workgroup-size-y": 256,
        "max-compute-workgroup-size-z": 64,
    }
)
"""The limits that plans depend on, with the values that every WebGPU device supports."""

INT8_DOT = "packed_4x8_integer_dot_product"
"""The WGSL language feature of products of 4 signed bytes with 4 others in one instruction."""

DEFAULT_LANGUAGE = frozenset({INT8_DOT})
"""The language features that a device is taken to have if nothing is said: those that plans use and
that wgpu, Dawn and the browsers have."""

STRICT = {"extra": "forbid", "strict": True}
"""How pydantic reads the classes below, which do without pydantic otherwise."""

Scalar = Literal["f32", "f16", "i32", "u32", "i8", "u8"]


@dataclass(frozen=True)
class MatrixShape:
    """A product that a subgroup multiplies at once: [m, k] x [k, n].

    Attributes:
        m: Rows of the result.
        n: Columns of the result.
        k: Length of the sums.
        inputs: Type of the factors.
        sums: Type of the result.
    """

    __pydantic_config__: ClassVar = STRICT

    m: int
    n: int
    k: int
    inputs: Scalar
    sums: Scalar


@dataclass(frozen=True)
class Capabilities:
    """What a device can do, as far as a plan depends on it.

    Attributes:
        features: Enabled WebGPU features, by their names in wgpu.
        limits: Limits by name with dashes; those left out have WebGPU's default.
        language: Names of WGSL language features; where nothing is stated, `DEFAULT_LANGUAGE`.
        subgroup_sizes: Fewest and most invocations of a subgroup; None if it is not known.
        matrices: Shapes of the products of a subgroup; none without that feature.
        vendor: Vendor of the adapter; empty if it is not known.
        software: Whether the adapter is a software one, which runs on the CPU.
    """

    __pydantic_config__: ClassVar = STRICT

    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=lambda: DEFAULT_LIMITS)
    language: frozenset[str] = DEFAULT_LANGUAGE
    subgroup_sizes: tuple[int, int] | None = None
    matrices: tuple[MatrixShape, ...] = ()
    vendor: str = ""
    software: bool = False

    def limit(self, name: str) -> int:
        """Return a limit by its name with dashes."""
        return self.limits.get(name, DEFAULT_LIMITS[name])

    @property
    def max_binding(self) -> int:
        """Size in bytes of the largest storage buffer that can be bound to a kernel."""
        sizes = map(self.limit, ("max-storage-buffer-binding-size", "max-buffer-size"))
        return min(sizes) // 256 * 256

    def without(self, *features: str) -> Capabilities:
        """Return these capabilities without some features."""
        return replace(self, features=self.features.difference(features))

    def as_dict(self) -> dict[str, Any]:
        """Return the capabilities as JSON values, which `read_capabilities` reads."""
        return {
            **asdict(replace(self, limits={})),
            "features": sorted(self.features),
            "limits": {name: self.limit(name) for name in DEFAULT_LIMITS},
            "language": sorted(self.language),
        }


def read_capabilities(text: str | bytes, where: str) -> Capabilities:
    """Return the capabilities that a JSON text describes.

    Args:
        text: An object with any of the attributes of `Capabilities`, an adapter that has one, or
            all that `rdrr devices --json` prints, of which the first adapter counts.
        where: Name of the file, for messages.

    Raises:
        FormatError: The text is not such an object.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        described = TypeAdapter(Capabilities).validate_json(_inner(text))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join((where, *map(str, problem["loc"])))
        raise FormatError(
            f"not the capabilities of a device: {problem['msg']}",
            where=place,
            hint="write what `rdrr devices --json` prints",
        ) from error
    known = {"features": WANTED_FEATURES, "limits": frozenset(DEFAULT_LIMITS)}
    for key, names in known.items():
        if unknown := sorted(frozenset(getattr(described, key)) - names):
            raise FormatError(
                "not a name that plans know",
                where=f"{where}.{key}",
                expected=", ".join(sorted(names)),
                found=unknown[0],
            )
    if too_low := [name for name, limit in described.limits.items() if limit < 1]:
        raise FormatError(
            "a limit is a positive number",
            where=f"{where}.limits.{too_low[0]}",
            found=described.limits[too_low[0]],
        )
    return described


def _inner(text: str | bytes) -> str | bytes:
    """Return the text of the capabilities in the output of `rdrr devices --json`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict) and isinstance(value.get("adapters"), list) and value["adapters"]:
        value = value["adapters"][0]
    if isinstance(value, dict) and "capabilities" in value:
        value = value["capabilities"]
    return json.dumps(value)
