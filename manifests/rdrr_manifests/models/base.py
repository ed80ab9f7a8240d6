"""The pydantic configuration that all manifest models share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError
from rdrr_format.errors import UsageError
from rdrr_format.options import suggestion

WRITTEN_IF_SET: Final = "written only with a value other than the default"
"""Annotation of a field of a `Block` that the public format lacks, as in
`Annotated[bool, WRITTEN_IF_SET]`.

Packages that do not need the field stay as they are, byte for byte, when a field is added."""


SECOND_SPELLING: Final = "second_spelling"
"""Type of the error of a field that JSON gives by its name in Python."""


class ManifestModel(BaseModel):
    """Base of every block: camelCase in JSON, immutable, and tolerant of unknown fields.

    In Python fields have names in snake_case; JSON has the names of the schema and no other ones.
    Unknown fields are kept, so that a package of another writer survives reading and writing. The
    rules (`rdrr_manifests.rules`) decide which of them deserve a warning.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="allow",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Validate JSON text, whose fields have the names of the schema."""
        return super().model_validate_json(json_data, **{"by_name": False} | options)

    @model_validator(mode="after")
    def _refuse_second_spellings(self) -> Self:
        fields = type(self).model_fields
        for name in self.model_extra or ():
            if name in fields:
                raise PydanticCustomError(
                    SECOND_SPELLING,
                    "the field is spelled {expected}",
                    {"expected": fields[name].alias, "found": name},
                )
        return self

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields, which are checked against the schema.

            manifest.with_(model_id="mine", optimizations={"kernel_hints": {"f16_matmul": "gemv"}})

        Args:
            changes: Values by names of fields in Python; for a block also a mapping of the fields
                of the block that change.

        Raises:
            UsageError: There is no such field, or a value has the wrong type or is out of range.
        """
        data = self.model_dump(mode="json")
        for name, value in changes.items():
            field = type(self).model_fields.get(name)
            if field is None:
                names = tuple(type(self).model_fields)
                raise UsageError(
                    f"{type(self).__name__} has no field of this name",
                    found=name,
                    hint=suggestion(name, names) or f"it has {', '.join(names)}",
                )
            before = getattr(self, name)
            if isinstance(before, ManifestModel) and isinstance(value, Mapping):
                value = before.with_(**value)
            data[field.alias or name] = _as_json(value)
        try:
            return self.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UsageError(
                f"{type(self).__name__} refuses a value",
                where=".".join(map(str, first["loc"])),
                expected=first["msg"].removeprefix("Input should be "),
                found=first["input"],
            ) from None


def _as_json(value: Any) -> Any:
    """Return a value of Python as JSON values, with models under the names of the schema."""
    if isinstance(value, ManifestModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: _as_json(entry) for key, entry in value.items()}
    return [_as_json(entry) for entry in value] if isinstance(value, (list, tuple)) else value


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
