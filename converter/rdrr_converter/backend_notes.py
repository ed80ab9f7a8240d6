"""Notes on which of the runtime's backends cannot run a package that is about to be written."""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import WeightKind
from rdrr_manifests.graph.padding import LANES, pad_widths
from rdrr_manifests.models import Manifest


def backend_notes(graph: Graph, manifest: Manifest) -> tuple[str, ...]:
    """Return a note if the model has sizes that the backend `wgpu` cannot run.

    Args:
        graph: The model's graph.
        manifest: The planned manifest.
    """
    found = next(_odd_sizes(pad_widths(graph).graph, manifest), None)
    if found is None:
        return ()
    return (
        f"only the backend `cpu` can run this package: wgpu needs rows and heads whose length is a "
        f"multiple of {LANES}, and {found}",
    )


def _odd_sizes(graph: Graph, manifest: Manifest) -> Iterator[str]:
    head_dim = manifest.architecture.head_dim
    if head_dim % LANES:
        yield f"the head dimension is {head_dim}"
    for use in graph.weights():
        is_matrix = use.kind is not WeightKind.VECTOR and len(use.shape) > 1
        if is_matrix and use.shape[-1] % LANES:
            yield f"a row of {use.name} has {use.shape[-1]} values"
