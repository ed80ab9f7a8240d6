"""The fingerprint of a conversion: a few JSON values that determine the bytes of the package.

Weights are not hashed. Their files are identified by size and modification time, and their values
by the magnitudes that the scan computes anyway. The path of the source is left out, so that the
source may be moved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import rdrr_converter
from rdrr_converter.checkpoint.magnitudes import Magnitudes
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.options import PackageOptions
from rdrr_converter.plan import ConversionPlan
from rdrr_converter.tokenizer.files import COPIED

FILES = ("lora", "imatrix", "plan", "mmproj")
"""Options that name files, of which sizes and modification times count but paths do not."""


def fingerprint(
    source: Source,
    plan: ConversionPlan,
    options: PackageOptions,
    magnitudes: Mapping[str, Magnitudes],
) -> dict[str, Any]:
    """Return the fingerprint of a conversion, by descriptions that messages can use.

    Args:
        source: The opened checkpoint.
        plan: The plan of the package.
        options: Options of the package.
        magnitudes: Largest absolute values of each source tensor.

    Raises:
        SourceError: A file beside the weights cannot be read.
    """
    largest = {name: measured.largest for name, measured in magnitudes.items()}
    return {
        "version of the converter": rdrr_converter.__version__,
        "options": _options(options),
        "configuration": _digest([source.config, source.generation_config]),
        "files beside the weights": _digest([list(map(_content, _copied(source)))]),
        "weights": _digest([list(_tensors(source)), _files(source), largest]),
        "plan": _digest([*plan.describe(), *_encoded(plan)]),
    }


def _options(options: PackageOptions) -> dict[str, Any]:
    # Options that only control the work do not change the bytes of the package.
    values: dict[str, Any] = _plain(
        {field.name: getattr(options, field.name) for field in fields(PackageOptions)}
    )
    for name in FILES:
        if values.get(name):
            path = Path(values[name])
            values[name] = _digest(_file_stats(path.iterdir() if path.is_dir() else [path]))
    return values


def _copied(source: Source) -> Iterator[bytes | None]:
    return (source.content(name) for name in COPIED)


def _encoded(plan: ConversionPlan) -> Iterator[str | None]:
    """Yield the hash of each tensor whose stored bytes are known already."""
    return (_content(t.encoded.read_bytes()) for t in plan.tensors if t.encoded is not None)


def _content(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _tensors(source: Source) -> Iterator[list[object]]:
    for tensor in source.tensors.values():
        yield [tensor.name, tensor.shape, tensor.dtype, Path(tensor.file).name, tensor.offset]


def _files(source: Source) -> dict[str, list[int]]:
    """Return size in bytes and modification time in ns of the local weight files."""
    return _file_stats({Path(tensor.file) for tensor in source.tensors.values()})


def _file_stats(paths: Iterable[Path]) -> dict[str, list[int]]:
    states = {path.name: path.stat() for path in sorted(paths) if path.is_file()}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: object) -> Any:
    """Return the value as it is after a round trip through JSON."""
    return json.loads(json.dumps(value, default=_text))


def _text(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
