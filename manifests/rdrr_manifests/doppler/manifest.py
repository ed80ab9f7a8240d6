"""A manifest with everything that DOPPLER needs to run the package."""

from __future__ import annotations

from rdrr_manifests.doppler.execution import SCHEMA, execution_graph
from rdrr_manifests.models import Inference, Manifest


def with_execution_graph(manifest: Manifest) -> Manifest:
    """Return the manifest with `inference.schema` and `inference.execution` for DOPPLER."""
    inference = manifest.inference.model_dump(by_alias=True)
    inference |= {"schema": SCHEMA, "execution": execution_graph(manifest)}
    return manifest.model_copy(update={"inference": Inference.model_validate(inference)})
