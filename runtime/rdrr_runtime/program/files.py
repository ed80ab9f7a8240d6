"""Reading and writing program files, and the program at one context."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from rdrr_format.bounded_json import JsonBounds, check_bounds
from rdrr_format.errors import FormatError, UsageError
from rdrr_manifests.schema import described_schema

from rdrr_runtime.program.amounts import Growing, ProgramModel
from rdrr_runtime.program.checks import check
from rdrr_runtime.program.schema import FORMAT, VERSION, Program

BOUNDS = JsonBounds(size=64 << 20, values=4_000_000)
"""Limits of a program file; that of a model of 1B parameters has 0.6 MB."""


class _Head(BaseModel):
    """What says whether the rest can be read."""

    format: str = ""
    version: int = 0


def program_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a program, from which types of other languages follow."""
    return described_schema(f"RDRR program, version {VERSION}", Program, ProgramModel)


def program_bytes(program: Program, *, apart: bool = False) -> bytes:
    """Return a program as JSON: parts that have their default are left out.

    Args:
        program: The program.
        apart: Whether its shaders are left out, since a pool has them.
    """
    data = program.model_dump(mode="json", exclude_defaults=True)
    if apart:
        data["shaders"] = {}
    head = {"format": program.format, "version": program.version}
    return json.dumps(head | data, separators=(",", ":")).encode()


def read_program(
    content: bytes, where: str = "program", shader: Callable[[str], str] | None = None
) -> Program:
    """Return the program that a file holds, with all its shaders.

    Args:
        content: The JSON text.
        where: Name of the file, for messages.
        shader: Reads a shader that the file leaves out from a pool, by its hash.

    Raises:
        FormatError: It is not a program, needs another version of rdrr, lacks a shader, or
            contradicts itself.
        StoreError: A shader of the pool cannot be read.
    """
    check_bounds(content, BOUNDS)
    try:
        head = _Head.model_validate_json(content)
        if head.format == FORMAT and head.version != VERSION:
            raise FormatError(
                "a program of another version",
                where=where,
                expected=f"version {VERSION}",
                found=head.version,
                hint="export the program again with this version of rdrr",
            )
        program = Program.model_validate_json(content)
    except ValidationError as error:
        raise _not_a_program(error, where) from None
    program = _completed(program, where, shader)
    least, most = program.contexts.least, program.contexts.most
    if most < least or least % program.contexts.multiple or most % program.contexts.multiple:
        raise FormatError(
            "a range of contexts without a context", where=f"{where}.contexts", found=[least, most]
        )
    for context in dict.fromkeys((least, most)):  # what is affine lies between
        at_context(program, context)
    return program


def _completed(program: Program, where: str, shader: Callable[[str], str] | None) -> Program:
    """Return a program with the shaders that its file leaves out."""
    shaders = dict(program.shaders)
    for kernel in program.kernels:
        if kernel.shader not in shaders:
            if shader is None:
                raise FormatError(
                    "the program lacks a shader",
                    where=where,
                    expected=kernel.shader,
                    hint="name the folder of the pool with which it was written",
                )
            shaders[kernel.shader] = shader(kernel.shader)
    return program.model_copy(update={"shaders": shaders})


def at_context(program: Program, context: int) -> Program:
    """Return a program in which every number has its value at a context, checked.

    Raises:
        UsageError: The program does not serve the context.
        FormatError: The program contradicts itself.
    """
    contexts = program.contexts
    serves = contexts.least <= context <= contexts.most and not context % contexts.multiple
    if not serves:
        expected = f"{contexts.least} to {contexts.most}"
        if contexts.multiple > 1:
            expected += f", a multiple of {contexts.multiple}"
        raise UsageError("the program does not serve the context", expected=expected, found=context)
    data = _resolved(program, context // contexts.multiple)
    data["contexts"] = {"least": context, "most": context}
    try:
        at_one = Program.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise _not_a_program(error, f"program at context {context}") from None
    check(at_one, context)
    return at_one


def _resolved(part: Any, multiples: int) -> Any:
    """Return a part of a program as JSON values, in which each number has its value.

    A part is known by its type: mappings with the keys of `Growing` may be something else.
    """
    if isinstance(part, Growing):
        return part.at(multiples)
    if isinstance(part, BaseModel):
        return {name: _resolved(getattr(part, name), multiples) for name in type(part).model_fields}
    if isinstance(part, dict):
        return {key: _resolved(value, multiples) for key, value in part.items()}
    return [_resolved(value, multiples) for value in part] if isinstance(part, tuple) else part


def _not_a_program(error: ValidationError, where: str) -> FormatError:
    first = error.errors(include_url=False)[0]
    path = ".".join((where, *map(str, first["loc"])))
    return FormatError(f"not a program: {first['msg']}", where=path)
