"""Read PyTorch checkpoints (`.bin`, `.pt`, `.pth`), which are mapped and never run code.

A pickle is a program. `torch.load(weights_only=True)` accepts only operations that build tensors
and refuses everything else; there is no option to disable that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError
from rdrr_format.extras import import_extra
from rdrr_format.regular_files import open_regular

from rdrr_converter.checkpoint.pointers import pointer_hint_of
from rdrr_converter.checkpoint.source import SCALARS, SourceTensor
from rdrr_converter.sources._directories import WeightFiles

if TYPE_CHECKING:
    import torch

SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
SUFFIXES = (".bin", ".pt", ".pth")
NESTED = ("state_dict", "model")
"""Keys under which training programs store the weights."""

_ZIP = b"PK\x03\x04"
_DTYPES = {
    "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16",
    "torch.int64": "I64", "torch.int32": "I32", "torch.int8": "I8", "torch.uint8": "U8",
    "torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2",
    "torch.float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
_BITS = {
    "BF16": ("int16", np.uint16),
    "F8_E4M3": ("uint8", np.uint8),
    "F8_E5M2": ("uint8", np.uint8),
    "F8_E8M0": ("uint8", np.uint8),
}
"""For types that NumPy lacks, the integer types of the same width in torch and NumPy."""


def read_file(path: Path) -> dict[str, SourceTensor]:
    """Read the tensors of one file.

    Raises:
        SourceError: The file holds no weights, or loading it would run code.
        UsageError: torch is not installed.
    """
    state = _state(path)
    if not isinstance(state, Mapping):
        raise SourceError(
            "holds no weights", where=path, expected="{name: tensor}", found=type(state).__name__
        )
    tensors = {
        name: _tensor(path, name, value)
        for name, value in state.items()
        if isinstance(name, str) and hasattr(value, "untyped_storage")
    }
    if not tensors:
        raise SourceError("holds no weights", where=path, expected="{name: tensor}")
    return tensors


def _state(path: Path) -> Any:
    """Return the content of a file, or what it has under the key for weights."""
    state = _load(path)
    for key in NESTED:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    return state


def check_torch(where: object) -> None:
    """Check that torch is installed, before files are fetched that nothing else can read.

    Raises:
        UsageError: It is not.
    """
    import_extra("torch", "torch", "reading a PyTorch checkpoint", where=where)


def _load(path: Path) -> Any:
    _check_kind(path)
    check_torch(path)
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        raise SourceError(
            "the file contains more than weights; code in a checkpoint is never run",
            where=path,
            found=_reason(error),
            hint="use a safetensors version of it",
        ) from error
    # A damaged file can make torch raise anything, and it always means the same.
    except Exception as error:
        raise SourceError(
            "the file is damaged or truncated",
            where=path,
            found=_reason(error),
            hint="download it again",
        ) from error


def _check_kind(path: Path) -> None:
    try:
        with open_regular(path) as file:
            head = file.read(len(_ZIP))
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error
    if head != _ZIP:
        raise SourceError(
            "not a file written by torch.save",
            where=path,
            expected="a zip archive, as torch has saved since 1.6",
            found=f"a file that begins with {head!r}",
            hint=pointer_hint_of(path)
            or "if it is an old file, load and save it with a newer torch",
        )


def _reason(error: Exception) -> str:
    """Return the sentence of torch's long message that gives the cause, without torch's advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
    line = (telling or lines or [type(error).__name__])[0].removeprefix("WeightsUnpickler error: ")
    return line.split(". ")[0]


def _tensor(path: Path, name: str, tensor: torch.Tensor) -> SourceTensor:
    where = f"{path}, tensor {name}"
    dtype = _DTYPES.get(str(tensor.dtype))
    if dtype is None or str(tensor.layout) != "torch.strided":
        kind = str(tensor.dtype if dtype is None else tensor.layout).removeprefix("torch.")
        return SourceTensor(
            name, tuple(tensor.shape), kind, path.name, partial(_refuse, where, kind)
        )
    native = _Stored(path, name, tensor, dtype)
    return SourceTensor(name, tuple(tensor.shape), dtype, path.name, native)


@dataclass(frozen=True, eq=False)
class _Stored:
    """Opens a tensor of a file. When pickled it carries the tensor's location, not its values."""

    path: Path
    name: str
    tensor: torch.Tensor
    dtype: str

    def __call__(self) -> npt.NDArray[Any]:
        return _matrix(self.tensor, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path, self.name, self.dtype, self.path.stat().st_mtime_ns)


def _reopened(path: Path, name: str, dtype: str, changed: int) -> _Stored:
    return _Stored(path, name, _cached_state(path, changed)[name], dtype)


@lru_cache(maxsize=64)
def _cached_state(path: Path, changed: int) -> Any:
    """Return the mapped weights of a file; `changed` is its time, so that a new file is read."""
    del changed
    return _state(path)


def _matrix(tensor: torch.Tensor, dtype: str) -> npt.NDArray[Any]:
    """Return the mapped values as a matrix, as a view if their strides allow it."""
    import torch

    shape = tuple(tensor.shape)
    matrix = tensor.detach().reshape(prod(shape[:-1]), shape[-1] if shape else 1)
    if dtype not in _BITS:
        return matrix.numpy()
    ours, theirs = _BITS[dtype]
    return matrix.view(getattr(torch, ours)).numpy().view(theirs)


def _refuse(where: str, dtype: str) -> npt.NDArray[Any]:
    raise SourceError(
        "weights of this dtype cannot be converted",
        where=where,
        expected=", ".join(SCALARS),
        found=dtype,
    )


FILES = WeightFiles("pytorch", SINGLE, INDEX, SUFFIXES, read_file)
