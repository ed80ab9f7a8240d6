"""The semantic graph: a closed, versioned set of ops, derived from a manifest's typed blocks.

The graph is derived and never stored, so it cannot contradict the blocks, and packages of other
writers have one too. The runtime decides on fusion, kernels and the dtypes of intermediate values.
The ops are imported from `rdrr_manifests.graph.ops`, where the union `Op` lists all of them.
"""

from rdrr_manifests.graph.derive import derive_graph
from rdrr_manifests.graph.mtp import derive_mtp
from rdrr_manifests.graph.ops import (
    GRAPH_VERSION,
    CacheShape,
    Clamp,
    Graph,
    RopeSpec,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.graph.vision import VisionGraph, derive_vision

__all__ = [
    "GRAPH_VERSION",
    "CacheShape",
    "Clamp",
    "Graph",
    "RopeSpec",
    "VisionGraph",
    "WeightKind",
    "WeightUse",
    "derive_graph",
    "derive_mtp",
    "derive_vision",
]
