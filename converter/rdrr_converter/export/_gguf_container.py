"""The container of a GGUF, which gguf-py writes, and files that appear when they are complete."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
from rdrr_format.durable import flush_file, make_folder, rename_durably
from rdrr_format.errors import ConversionError
from rdrr_format.stores import store_errors
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.export._values import Encoder
from rdrr_converter.progress import Progress

_MOST = 2**32 - 1
"""Maximum of an integer in the metadata, which is a uint32."""


class _Stream:
    """An array-like object for gguf-py's writer that holds only a few rows in memory."""

    def __init__(self, encoder: Encoder, size: int) -> None:
        self._encoder = encoder
        self.nbytes = size

    def tofile(self, file: BinaryIO) -> None:
        """Encode the tensor and write it to a file."""
        for chunk in self._encoder.chunks():
            file.write(chunk.tobytes())


def write_container(
    path: Path,
    name: str,
    entries: Mapping[str, Any],
    extra: Mapping[str, npt.NDArray[Any]],
    package: Package,
    outgoing: Sequence[OutgoingTensor],
    progress: Progress,
) -> dict[str, float]:
    """Write a GGUF whose tensors are encoded one after the other.

    Args:
        path: The file to create.
        name: `general.architecture`.
        entries: Metadata.
        extra: Further tensors, by their names.
        package: The package.
        outgoing: The planned tensors.
        progress: Counter that is advanced after each planned tensor.

    Returns:
        Relative error of each planned tensor, by its name.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    with closing(GGUFWriter(path, name)) as writer:
        for key, value in entries.items():
            _add(writer, key, value)
        for tensor, values in extra.items():
            writer.add_tensor_info(tensor, values.shape, values.dtype, values.nbytes)
        for written in outgoing:
            kind = GGMLQuantizationType[written.dtype]
            writer.add_tensor_info(
                written.name, written.shape, np.dtype(np.float32), written.size, kind
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for values in extra.values():
            writer.write_tensor_data(values)
        errors: dict[str, float] = {}
        for written in outgoing:
            encoder = Encoder(package, written)
            writer.write_tensor_data(cast(Any, _Stream(encoder, written.size)))
            errors[written.name] = encoder.relative_rmse
            progress.advance(written.name, written.weights)
        return errors


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a metadata entry with the type that llama.cpp expects.

    Raises:
        ConversionError: The value does not fit that type.
    """
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        if not 0 <= value <= _MOST:
            raise ConversionError(
                "GGUF metadata cannot hold this number",
                where=key,
                expected=f"0 to {_MOST}",
                found=value,
            )
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` if the block ends without an error."""
    with store_errors(path):
        make_folder(path.parent)
    partial_path = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    try:
        yield partial_path
        with store_errors(path):
            flush_file(partial_path)
            rename_durably(partial_path, path)
    finally:
        with suppress(OSError):  # the error that led here is the one to report
            partial_path.unlink()
