"""The pydantic configuration that all manifest models share."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

WRITTEN_IF_SET: Final = "written only with a value other than the default"
"""Annotation of a field of a `Block` that the public format lacks, as in
`Annotated[bool, WRITTEN_IF_SET]`.

Packages that do not need the field stay as they are, byte for byte, when a field is added."""


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


class Block(ManifestModel):
    """A model whose fields marked `WRITTEN_IF_SET` are omitted at their default."""

    @model_serializer(mode="wrap")
    def _omit_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        for name, info in type(self).model_fields.items():
            if WRITTEN_IF_SET in info.metadata and getattr(self, name) == info.default:
                data.pop(info.alias or name, None)
                data.pop(name, None)
        return data

    def set_own_fields(self) -> dict[str, Any]:
        """Return the fields marked `WRITTEN_IF_SET` with another value, by JSON name."""
        return {
            info.alias or name: getattr(self, name)
            for name, info in type(self).model_fields.items()
            if WRITTEN_IF_SET in info.metadata and getattr(self, name) != info.default
        }
