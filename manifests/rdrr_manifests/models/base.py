"""The settings that all manifest models share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ManifestModel(BaseModel):
    """Base of every block: camelCase in JSON, immutable, tolerant of fields it does not know.

    Unknown fields are kept, so that a package of another writer survives reading and writing;
    `rdrr_manifests.rules` says which of them deserve a warning.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )
