"""The tensors and sizes of one layer as the ops read them."""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_format.errors import ManifestError

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import Linear, WeightKind, WeightUse
from rdrr_manifests.models.architecture import Architecture
from rdrr_manifests.models.manifest import Manifest


class LayerParts:
    """The tensors of one layer, and the ops that read them.

    Args:
        manifest: The manifest.
        names: Names of the tensors.
        layer: Index of the layer.
    """

    def __init__(self, manifest: Manifest, names: TensorNames, layer: int) -> None:
        self.manifest = manifest
        self.stem = f"l{layer}"
        self._names = names
        self._layer = layer

    def vector(self, part: str, *shape: int) -> WeightUse:
        """Return a tensor that is read element by element."""
        return WeightUse(self._names.layer(self._layer, part), shape, WeightKind.VECTOR)

    def optional(self, part: str, *shape: int) -> WeightUse | None:
        """Return such a tensor if it exists."""
        use = self.vector(part, *shape)
        return use if use.name in self._names else None

    def linear(self, part: str, x: str, features: int, inputs: int) -> Linear:
        """Return a projection, with its bias if there is one."""
        name = self._names.layer(self._layer, f"{part}.weight")
        bias = self.optional(f"{part}.bias", features)
        out = f"{self.stem}.{part.rpartition('.')[2]}"
        return Linear(x, out, WeightUse(name, (features, inputs)), bias)


def needed_sizes(sizes: Architecture, names: Sequence[str], part: str) -> tuple[int, ...]:
    """Return sizes that a part of a layer cannot be without.

    Args:
        sizes: The sizes that the manifest states.
        names: The fields to return.
        part: The part of the layer, for the error.

    Raises:
        ManifestError: A field is missing.
    """
    values = tuple(getattr(sizes, name) for name in names)
    for name, value in zip(names, values, strict=True):
        if value is None:
            where = f"architecture.{Architecture.model_fields[name].alias}"
            raise ManifestError(f"layers with {part} need this size", where=where)
    return values
