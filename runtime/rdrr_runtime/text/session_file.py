"""A text and the keys and values of its tokens in a file, so that another process goes on with it.

The file is safetensors: `tokens`, and for each layer the bytes of its caches, slot by slot, as the
backend that wrote them stores them. Its metadata name the package and the cache's type: bytes of
another model or type are refused, and never read. Sampling goes on because random numbers depend on
the seed and the number of draws alone, see `rdrr_runtime.sampling.randomness`.
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

FORMAT, VERSION = "rdrr-session", "1"
_TOKENS, _STATE = "tokens", "sampling"
_HINT = "load the package, with the key-value cache, that the session was saved with"


@dataclass(frozen=True)
class SavedSession:
    """What a file holds.

    Attributes:
        ids: Token ids of the text.
        slots: How many of them, from the first on, have keys and values in the file.
        cache: Bytes of the caches, by the backend's names.
        sampling: How tokens are chosen, as JSON values.
    """

    ids: Sequence[int]
    slots: int
    cache: Mapping[str, U8]
    sampling: Mapping[str, object]


def write_session(path: Path, saved: SavedSession, identity: Mapping[str, str]) -> None:
    """Write a session, in the place of a file of that name if there is one.

    Args:
        path: Where.
        saved: The session.
        identity: Names and values that `read_session` must find again.

    Raises:
        StoreError: It cannot be written.
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
    """A session that `write_session` wrote.

    Raises:
        StoreError: There is no such file.
        FormatError: Not a session, or one of another package or cache type.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            _check(path, metadata, identity)
            cache = {name: file.get_tensor(name) for name in file.keys() if name != _TOKENS}  # noqa: SIM118
            ids = [int(one) for one in file.get_tensor(_TOKENS)]
        slots, sampling = int(metadata["slots"]), json.loads(metadata[_STATE])
    except OSError as error:
        raise StoreError("the session cannot be read", where=path, found=error) from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise FormatError("not a saved session", where=path, found=error) from error
    if not 0 <= slots <= len(ids) or not isinstance(sampling, dict):
        raise FormatError("not a saved session", where=path, expected=f"{len(ids)} slots at most")
    return SavedSession(ids, slots, cache, sampling)


def _check(path: Path, found: Mapping[str, str], identity: Mapping[str, str]) -> None:
    expected = {"format": FORMAT, "version": VERSION, **identity}
    for name, value in expected.items():
        if found.get(name) != value:
            raise FormatError(
                f"the session does not suit: another {name}",
                where=path,
                expected=value,
                found=found.get(name),
                hint=_HINT,
            )
