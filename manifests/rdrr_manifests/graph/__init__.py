"""The semantic graph: a closed, versioned set of ops, derived from a manifest's typed blocks.

It is derived and never stored, so there is one truth, and packages of other writers have a graph
too. Fusion, kernels and the dtypes of intermediates are the runtime's business.
"""

from rdrr_manifests.graph.derive import derive_graph
from rdrr_manifests.graph.ops import (
    GRAPH_VERSION,
    Attention,
    Embed,
    Experts,
    GatedActivation,
    Graph,
    Head,
    Linear,
    Norm,
    Op,
    Residual,
    Rope,
    RopeSpec,
    Router,
    SigmoidGate,
    WeightKind,
    WeightUse,
    uses,
)

__all__ = [
    "GRAPH_VERSION",
    "Attention",
    "Embed",
    "Experts",
    "GatedActivation",
    "Graph",
    "Head",
    "Linear",
    "Norm",
    "Op",
    "Residual",
    "Rope",
    "RopeSpec",
    "Router",
    "SigmoidGate",
    "WeightKind",
    "WeightUse",
    "derive_graph",
    "uses",
]
