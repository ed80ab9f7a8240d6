"""What decides the bytes of a package, in a few JSON values that can be compared later.

Weights are not hashed: their files count by size and time of change, their values by the
magnitudes that the scan finds anyway. The source's place does not count, so that it may move.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import rdrr_converter
from rdrr_converter.options import PackageOptions
from rdrr_converter.plan import ConversionPlan
from rdrr_converter.sources import Source
from rdrr_converter.tokenizer import COPIED

FILES = ("lora", "imatrix")
"""Options that name files: what is in those counts, not where they are."""


def fingerprint(
    source: Source, plan: ConversionPlan, options: PackageOptions, magnitudes: Mapping[str, float]
) -> dict[str, Any]:
    """The values, by what a person calls them.

    Args:
        source: The opened checkpoint.
        plan: What is to be written.
        options: What was asked for.
        magnitudes: Largest absolute value of each source tensor.

    Raises:
        SourceError: A file beside the weights cannot be read.
    """
    return {
        "version of the converter": rdrr_converter.__version__,
        "options": _options(options),
        "configuration": _digest([source.config, source.generation_config]),
        "files beside the weights": _digest([list(map(_content, _copied(source)))]),
        "weights": _digest([list(_tensors(source)), _files(source), magnitudes]),
        "plan": _digest(list(plan.describe())),
    }


def _options(options: PackageOptions) -> dict[str, Any]:
    # How the work is done does not count, so only the fields that decide the bytes are taken.
    values: dict[str, Any] = _plain(
        {one.name: getattr(options, one.name) for one in fields(PackageOptions)}
    )
    for name in FILES:
        if values.get(name):
            path = Path(values[name])
            values[name] = _digest(_file_stats(path.iterdir() if path.is_dir() else [path]))
    return values


def _copied(source: Source) -> Iterator[bytes | None]:
    return (source.content(name) for name in COPIED)


def _content(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _tensors(source: Source) -> Iterator[list[object]]:
    for tensor in source.tensors.values():
        yield [tensor.name, tensor.shape, tensor.dtype, tensor.file, tensor.offset]


def _files(source: Source) -> dict[str, list[int]]:
    """Size and time of change of the files of weights that are on this machine."""
    folder = source.path if source.path.is_dir() else source.path.parent
    return _file_stats({folder / tensor.file for tensor in source.tensors.values()})


def _file_stats(paths: Iterable[Path]) -> dict[str, list[int]]:
    states = {path.name: path.stat() for path in sorted(paths) if path.is_file()}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: object) -> Any:
    """The value as JSON gives it back."""
    return json.loads(json.dumps(value, default=_text))


def _text(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
