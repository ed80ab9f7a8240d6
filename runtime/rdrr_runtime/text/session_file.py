"""Save a sequence with its key-value cache to a file, so that another process can continue it.

The file is in the safetensors format. It holds the token ids (`tokens`) and, for each layer, the
bytes of its keys and values, slot by slot, in the storage type of the backend that wrote them. The
metadata identify the package and the cache's storage type: a file of another model or type is
refused before its tensors are read. Sampling continues where it stopped because its random numbers
depend only on the seed and the number of tokens sampled, see `rdrr_runtime.sampling.randomness`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import FormatError, StoreError
from rdrr_format.stores import replace_file

U8 = npt.NDArray[np.uint8]

FORMAT, VERSION = "rdrr-session", "2"
_TOKENS, _STATE = "tokens", "sampling"
_HINT = "load the package, with the key-value cache, that the session was saved with"


@dataclass(frozen=True)
class SavedSession:
    """The content of a session file.

    Attributes:
        ids: Token ids of the sequence.
        slots: Number of leading tokens whose keys and values are in the file.
        cache: Bytes of the key-value cache by the names that the backend gives to its parts.
        sampling: Sampling parameters as JSON values.
    """

    ids: Sequence[int]
    slots: int
    cache: Mapping[str, U8]
    sampling: Mapping[str, object]


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
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            _check(path, metadata, identity)
            cache = {name: file.get_tensor(name) for name in file.keys() if name != _TOKENS}  # noqa: SIM118
            ids = [int(token) for token in file.get_tensor(_TOKENS)]
        slots, sampling = int(metadata["slots"]), json.loads(metadata[_STATE])
    except OSError as error:
        raise StoreError("the session cannot be read", where=path, found=error) from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise FormatError("not a saved session", where=path, found=error) from error
    if not 0 <= slots <= len(ids) or not isinstance(sampling, dict):
        raise FormatError("not a saved session", where=path, expected=f"at most {len(ids)} slots")
    return SavedSession(ids, slots, cache, sampling)


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
