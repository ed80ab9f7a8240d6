"""The tensors of one layer as the ops read them."""

from __future__ import annotations

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import Linear, WeightKind, WeightUse
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
        found = self.vector(part, *shape)
        return found if found.name in self._names else None

    def linear(self, part: str, x: str, features: int, inputs: int) -> Linear:
        """Return a projection, with its bias if there is one."""
        name = self._names.layer(self._layer, f"{part}.weight")
        bias = self.optional(f"{part}.bias", features)
        out = f"{self.stem}.{part.rpartition('.')[2]}"
        return Linear(x, out, WeightUse(name, (features, inputs)), bias)
