"""The record of a conversion's options in the manifest.

An option is recorded under its name in camel case, in the order of the fields, if its value is not
the default; the tables below list the exceptions. Nothing about the machine is recorded, so the
same input and the same options give the same manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from types import MappingProxyType

from rdrr_format.compression import parse_compression

from rdrr_converter.options import PackageOptions
from rdrr_converter.overrides import parse_overrides

_ALWAYS = frozenset(
    (
        "quantize",
        "q4k_layout",
        "transpose_weights",
        "fuse_gate_up",
        "k_tail",
        "shard_size",
        "align",
    )
)
_STATED_ELSEWHERE = frozenset(("model_id", "hash_algorithm"))
"""Options that the manifest states in fields of their own."""

_SPELLINGS: Mapping[str, Callable[[PackageOptions], object]] = MappingProxyType(
    {
        # None is left only where the types of the source are kept.
        "quantize": lambda options: options.quantize or "source",
        "q4k_layout": lambda options: options.block_layout.value,
        "compress": lambda options: str(parse_compression(options.compress or "")),
        # The paths are left out, because the same files elsewhere give the same package.
        "lora": lambda options: options.lora is not None,
        "mmproj": lambda options: options.mmproj is not None,
        "imatrix": lambda options: options.imatrix is not None,
        "text": lambda options: options.text is not None,
        "plan": lambda options: options.plan is not None,
        "tensor_types": lambda options: [
            str(override) for override in parse_overrides(options.tensor_types)
        ],
        "allow_unread": lambda options: list(options.allow_unread),
        "kernel_hints": lambda options: dict(sorted(options.kernel_hints.items())),
    }
)
"""Functions that give the recorded form of the options that are not recorded as they are."""


def recorded_options(options: PackageOptions) -> dict[str, object]:
    """Return the options as the manifest records them."""
    return {
        _camel_case(field.name): _spelled(field.name, options)
        for field in fields(PackageOptions)
        if field.name not in _STATED_ELSEWHERE
        and (field.name in _ALWAYS or getattr(options, field.name) != _default(field))
    }


def _spelled(name: str, options: PackageOptions) -> object:
    spell = _SPELLINGS.get(name)
    return getattr(options, name) if spell is None else spell(options)


def _default(field: Field[object]) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
