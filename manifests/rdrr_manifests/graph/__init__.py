"""The semantic graph: a closed, versioned set of ops, derived from a manifest's typed blocks.

It is derived and never stored, so there is one truth, and packages of other writers have a graph
too. Fusion, kernels and the dtypes of intermediates are the runtime's business. The ops themselves
are imported from `rdrr_manifests.graph.ops`, where the union `Op` is the one list of them.
"""

from rdrr_manifests.graph.derive import derive_graph
from rdrr_manifests.graph.ops import GRAPH_VERSION, Graph, RopeSpec, WeightKind, WeightUse

__all__ = ["GRAPH_VERSION", "Graph", "RopeSpec", "WeightKind", "WeightUse", "derive_graph"]
