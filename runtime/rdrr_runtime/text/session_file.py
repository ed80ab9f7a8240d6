"""Save a sequence with its key-value cache to a file, so that another process can continue it.

The file is in the safetensors format. It holds the token ids (`tokens`), the features of images
(`image.*`) and, for each layer, the bytes of its keys and values, slot by slot, in the storage type
of the backend that wrote them. The metadata identify the package and the cache's storage type: a
file of another model or type is refused before its tensors are read. Sampling continues where it
stopped because its random numbers depend only on the seed and the number of tokens sampled, see
`rdrr_runtime.sampling.randomness`.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.bounded_json import JsonBounds, parse_json, unique_pairs
from rdrr_format.errors import FormatError, StoreError
from rdrr_format.regular_files import map_regular
from rdrr_format.safetensors_file import NUMPY, TensorEntry, read_header
from rdrr_format.stores import replace_file

U8 = npt.NDArray[np.uint8]

FORMAT, VERSION = "rdrr-session", "2"
_TOKENS, _STATE, _IMAGES = "tokens", "sampling", "image."
_COUNT = re.compile("[0-9]{1,10}")
_SAMPLING = JsonBounds(size=16 << 20, values=1 << 20, depth=3, digits=20)
"""Limits of the sampling parameters, enough for a bias on every token."""

_FLOATS = {"f16": "<f2", "f32": "<f4"}
"""NumPy types of the cache's elements that are floating-point numbers."""

_HINT = "load the package, with the key-value cache, that the session was saved with"


@dataclass(frozen=True)
class SavedSession:
    """The content of a session file.

    Attributes:
        ids: Token ids of the sequence.
        slots: Number of leading tokens whose keys and values are in the file.
        cache: Bytes of the key-value cache by the names that the backend gives to its parts.
        sampling: Sampling parameters as JSON values.
        images: Features of the images of the sequence, see `rdrr_runtime.images.saved`.
    """

    ids: Sequence[int]
    slots: int
    cache: Mapping[str, U8]
    sampling: Mapping[str, object]
    images: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


def write_session(path: Path, saved: SavedSession, identity: Mapping[str, str]) -> None:
    """Write a session to a file, replacing an existing one.

    Args:
        path: Path of the file.
        saved: The session.
        identity: Metadata that `read_session` must find again, by name.

    Raises:
        StoreError: The file cannot be written.
    """
    from safetensors.numpy import save

    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "slots": str(saved.slots),
        _STATE: json.dumps(saved.sampling, sort_keys=True),
        **identity,
    }
    tensors: dict[str, npt.NDArray[Any]] = {
        _TOKENS: np.asarray(saved.ids, np.uint32),
        **saved.images,
        **saved.cache,
    }
    replace_file(path, save(tensors, metadata=metadata))


def read_session(path: Path, identity: Mapping[str, str]) -> SavedSession:
    """Read a session that `write_session` wrote.

    Args:
        path: Path of the file.
        identity: Metadata that the file must have, by name.

    Raises:
        StoreError: The file does not exist or cannot be read.
        FormatError: The file is not a session, or belongs to another package or cache type.
    """
    try:
        header = read_header(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR):  # a pipe, a device or a folder
            raise _no_session(path, error.strerror) from error
        raise StoreError("the session cannot be read", where=path, found=error) from error
    except FormatError as error:
        raise _no_session(path, error) from error
    _check(path, header.metadata, identity)
    by_name = {entry.name: entry for entry in header.tensors}
    tokens = by_name.pop(_TOKENS, None)
    if tokens is None or tokens.dtype != "U32" or len(tokens.shape) != 1:
        raise _no_session(path, "no list of ids")
    ids = [int(token) for token in _values(path, tokens)]
    slots, sampling = header.metadata.get("slots", ""), header.metadata.get(_STATE, "")
    if not _COUNT.fullmatch(slots) or int(slots) > len(ids):
        raise _no_session(path, f"{slots} slots", f"at most {len(ids)} slots")
    of_images = {name: entry for name, entry in by_name.items() if name.startswith(_IMAGES)}
    images = {name: _values(path, entry) for name, entry in of_images.items()}
    by_name = {name: entry for name, entry in by_name.items() if name not in images}
    cache = {name: _values(path, entry) for name, entry in by_name.items()}
    for name, entry in by_name.items():
        if entry.dtype != "U8" or not entry.shape:
            raise _no_session(path, f"{entry.dtype} {list(entry.shape)}", f"bytes in {name}")
        _check_finite(path, name, cache[name], identity.get("kvDtype", ""))
    return SavedSession(ids, int(slots), cache, _sampling(path, sampling), images)


def _no_session(path: Path, found: object, expected: object = None) -> FormatError:
    return FormatError("not a saved session", where=path, expected=expected, found=found)


def _values(path: Path, entry: TensorEntry) -> npt.NDArray[Any]:
    """Return the values of a tensor, mapped."""
    dtype = NUMPY[entry.dtype]
    if 0 in entry.shape:
        return np.empty(entry.shape, dtype)
    try:
        return map_regular(path, dtype, entry.offset, entry.shape)
    except (OSError, ValueError) as error:  # it changed after its header was read
        raise StoreError("the session cannot be read", where=path, found=error) from error


def _check_finite(path: Path, name: str, part: npt.NDArray[Any], kv_dtype: str) -> None:
    """Check that keys, values, their scales and states are finite numbers."""
    kind = "f32" if name.startswith("state.") else kv_dtype
    dtype = _FLOATS.get("f16" if name.endswith(".scales") else kind)
    if dtype is None:
        return
    content = np.ascontiguousarray(part).reshape(-1)
    if content.size % np.dtype(dtype).itemsize:
        raise _no_session(path, f"{content.size} bytes", f"numbers of {kind} in {name}")
    if not np.isfinite(content.view(dtype)).all():
        raise _no_session(path, "NaN or infinity", f"finite numbers in {name}")


def _sampling(path: Path, text: str) -> dict[str, Any]:
    try:
        sampling = parse_json(text.encode(), _SAMPLING, pairs=unique_pairs, constants=False)
    except (FormatError, UnicodeEncodeError) as error:
        raise _no_session(path, error) from error
    if not isinstance(sampling, dict):
        raise _no_session(path, type(sampling).__name__, "an object of sampling parameters")
    return sampling


def _check(path: Path, metadata: Mapping[str, str], identity: Mapping[str, str]) -> None:
    """Check that a file's metadata have the expected values."""
    expected = {"format": FORMAT, "version": VERSION, **identity}
    for name, value in expected.items():
        if metadata.get(name) != value:
            raise FormatError(
                f"the session was saved with another {name}",
                where=path,
                expected=value,
                found=metadata.get(name),
                hint=_HINT,
            )
