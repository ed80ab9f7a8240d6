"""The pydantic configuration that all manifest models share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ManifestModel(BaseModel):
    """Base of every block: camelCase in JSON, immutable, and tolerant of unknown fields.

    Unknown fields are kept, so that a package of another writer survives reading and writing. The
    rules (`rdrr_manifests.rules`) decide which of them deserve a warning.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )
