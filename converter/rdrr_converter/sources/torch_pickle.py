"""Read PyTorch checkpoints (`.bin`, `.pt`, `.pth`) without torch, and without running any code.

A file of torch.save is an uncompressed zip archive: the pickle `data.pkl` describes the tensors as
views of storages, and each storage is a member `data/KEY`, which is mapped. A stride of 0 can make
terabytes of a few bytes, so the size of a tensor is bounded by that of the file.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError
from rdrr_format.regular_files import map_regular, open_regular
from rdrr_format.safetensors_file import MAX_NAME, is_shape

from rdrr_converter.checkpoint.pointers import pointer_hint_of
from rdrr_converter.checkpoint.source import SCALARS, SourceTensor
from rdrr_converter.sources._directories import WeightFiles
from rdrr_converter.sources._inert_pickle import (
    MAX_BYTES,
    Call,
    Name,
    NotWeightsError,
    Reference,
    read_pickle,
)

SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
SUFFIXES = (".bin", ".pt", ".pth")
NESTED = ("state_dict", "model")
"""Keys under which training programs store the weights."""

MAX_TIMES = 64
"""Largest size of a tensor, and of all that are read together, as a multiple of the size of the
file: tensors may share storages, as tied weights do, and repeat values by strides of 0."""

MAX_WRAPPERS = 8
"""Most wrappers around a tensor, such as `Parameter`; published files have one."""

_ZIP = b"PK\x03\x04"
_LOCAL_HEADER, _LENGTHS = 30, slice(26, 30)
"""Size of a member's header before its name, and where the lengths of name and extra field are."""

_DTYPES = {
    "float32": ("F32", "<f4"), "float16": ("F16", "<f2"), "bfloat16": ("BF16", "<u2"),
    "int64": ("I64", "<i8"), "int32": ("I32", "<i4"), "int8": ("I8", "i1"),
    "uint8": ("U8", "u1"), "float8_e4m3fn": ("F8_E4M3", "u1"),
    "float8_e5m2": ("F8_E5M2", "u1"), "float8_e8m0fnu": ("F8_E8M0", "u1"),
}  # fmt: skip
"""For torch's types, the storage type and the NumPy type of the mapped values."""

_STORAGES = {
    "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Double": "float64",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
"""torch's types, by the first part of the names of storages such as `FloatStorage`."""

_BUILDERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_WRAPPERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")


def read_file(path: Path) -> dict[str, SourceTensor]:
    """Read the tensors of one file.

    Raises:
        SourceError: The file holds no weights, is damaged, or loading it would run code.
    """
    archive = _Archive.read(path)
    state = archive.value
    for key in NESTED:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise SourceError(
            "holds no weights", where=path, expected="{name: tensor}", found=type(state).__name__
        )
    calls = {name: _unwrapped(value) for name, value in state.items() if isinstance(name, str)}
    tensors = {name: archive.tensor(name, call) for name, call in calls.items() if _is_tensor(call)}
    if not tensors:
        raise SourceError("holds no weights", where=path, expected="{name: tensor}")
    archive.check_total(tensors)
    return tensors


def _unwrapped(value: Any) -> Any:
    """Return the call that makes the tensor of a parameter, or the value itself."""
    for _ in range(MAX_WRAPPERS):
        if not isinstance(value, Call):
            break
        function, args = value.path.rpartition(".")[2], value.args
        if function in _WRAPPERS and args:
            value = args[0]
        elif function == "_rebuild_from_type_v2" and len(args) > 2 and _is_plain(args):
            value = Call(args[0].path, args[2])
        else:
            break
    return value


def _is_plain(args: tuple[Any, ...]) -> bool:
    """Return whether a tensor with attributes is otherwise one of torch's classes."""
    function, kind, inner = args[:3]
    is_named = isinstance(function, Name) and isinstance(kind, Name) and isinstance(inner, tuple)
    return is_named and kind.path in _TENSORS


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Call) and value.path.rpartition(".")[2].startswith("_rebuild_")


@dataclass(frozen=True)
class _Archive:
    """The content of a file.

    Attributes:
        path: The file.
        size: Its size in bytes.
        value: What its pickle describes.
        storages: First byte and size of each storage in the file, by its key.
    """

    path: Path
    size: int
    value: Any
    storages: Mapping[str, tuple[int, int]]

    @classmethod
    def read(cls, path: Path) -> _Archive:
        _check_kind(path)
        try:
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                size = os.fstat(file.fileno()).st_size
                members = _members(archive)
                value = read_pickle(archive.read(members.pop("data.pkl")))
                order = archive.read(members["byteorder"]) if "byteorder" in members else b"little"
                storages = {
                    name.removeprefix("data/"): (_start(file, member, size), member.file_size)
                    for name, member in members.items()
                    if name.startswith("data/")
                }
        except NotWeightsError as error:
            raise SourceError(
                "the file contains more than weights; code in a checkpoint is never run",
                where=path,
                found=error,
                hint="use a safetensors version of it",
            ) from error
        # The module zipfile raises many kinds of errors, and they always mean the same.
        except Exception as error:
            raise _damaged(path, error) from error
        if order != b"little":
            raise SourceError("the file has another byte order", where=path, expected="little")
        return cls(path, size, value, storages)

    def tensor(self, name: str, call: Call) -> SourceTensor:
        where = f"{self.path}, tensor {name}"
        if len(name) > MAX_NAME:
            raise SourceError("a tensor's name is too long", where=where, found=len(name))
        function, args = call.path.rpartition(".")[2], call.args
        if function not in _BUILDERS or len(args) < 4:
            return _refused(self.path, name, _shape_of(args), _kind_of(function, args))
        storage, offset, shape, strides = args[:4]
        key, dtype = _storage(storage, args, where)
        if not is_shape(shape) or not is_shape((offset,)) or not _are_strides(strides, shape):
            raise SourceError("impossible shape", where=where)
        if dtype not in _DTYPES:
            return _refused(self.path, name, shape, dtype)
        start, size = self.storages.get(key, (0, -1))
        ours, native = _DTYPES[dtype]
        width = np.dtype(native).itemsize
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if size < 0 or (prod(shape) and (last + 1) * width > size):
            raise _damaged(where, "it ends after its storage" if size >= 0 else "no storage")
        if prod(shape) * width > MAX_TIMES * self.size:
            return _refused(self.path, name, shape, f"{prod(shape) * width} bytes of {size}")
        view = _View(self.path, native, start + offset * width, tuple(shape), tuple(strides))
        return SourceTensor(name, tuple(shape), ours, str(self.path), view)

    def check_total(self, tensors: Mapping[str, SourceTensor]) -> None:
        total = sum(
            prod(tensor.shape) * np.dtype(tensor.native.dtype).itemsize
            for tensor in tensors.values()
            if isinstance(tensor.native, _View)
        )
        if total > MAX_TIMES * self.size:
            raise SourceError(
                "the tensors share storages too often",
                where=self.path,
                expected=f"at most {MAX_TIMES} bytes of tensors for each byte of the file",
                found=f"{total} bytes",
            )


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


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by their names in its folder.

    Raises:
        ValueError: There is not one pickle, or a member is compressed or occurs twice.
    """
    listed = archive.infolist()
    pickles = [member.filename for member in listed if member.filename.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"{len(pickles)} pickles")
    root = pickles[0].removesuffix("data.pkl")
    members = {
        member.filename.removeprefix(root): member
        for member in listed
        if member.filename.startswith(root)
    }
    if len({member.filename for member in listed}) < len(listed):
        raise ValueError("a member occurs twice")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
        raise ValueError("a member is compressed")
    if members["data.pkl"].file_size > MAX_BYTES:
        raise ValueError(f"a pickle of more than {MAX_BYTES} bytes")
    return members


def _start(file: BufferedReader, member: zipfile.ZipInfo, size: int) -> int:
    """Return the position of a member's first byte of data.

    Raises:
        ValueError: The file ends before the data does.
    """
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or not header.startswith(_ZIP):
        raise ValueError("a member has no header")
    start = member.header_offset + _LOCAL_HEADER
    start += sum(int(length) for length in np.frombuffer(header[_LENGTHS], "<u2"))
    if start + member.file_size > size:
        raise ValueError("a member ends after the file")
    return start


def _damaged(where: object, found: object) -> SourceError:
    return SourceError(
        "the file is damaged or truncated", where=where, found=found, hint="download it again"
    )


def _storage(storage: Any, args: tuple[Any, ...], where: str) -> tuple[str, str]:
    """Return the key of a storage, and torch's type of the tensor's values."""
    stated: Any = storage.value if isinstance(storage, Reference) else None
    is_sound = isinstance(stated, tuple) and len(stated) >= 3 and isinstance(stated[1], Name)
    if not is_sound or stated[0] != "storage" or not isinstance(stated[2], str):
        raise _damaged(where, "its storage is not described")
    kind = stated[1].path.rpartition(".")[2].removesuffix("Storage")
    if kind != "Untyped":
        return stated[2], _STORAGES.get(kind, kind)
    named = args[6] if len(args) > 6 else None
    return stated[2], named.path.removeprefix("torch.") if isinstance(named, Name) else "untyped"


def _are_strides(strides: Any, shape: Any) -> bool:
    is_like_shape = isinstance(strides, tuple) and len(strides) == len(shape)
    return is_like_shape and all(type(step) is int and 0 <= step < 1 << 60 for step in strides)


_FEW = 8
"""Number of arguments in which a shape is looked for."""


def _shape_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape among the arguments of a tensor that cannot be read, or that of a number.

    Those of sparse tensors are nested in a tuple, and `torch.Size` makes a tuple of a tuple.
    """
    few = args[:_FEW]
    nested = [*few, *(inner for arg in few if isinstance(arg, tuple) for inner in arg[:_FEW])]
    sizes = (arg.args[0] if isinstance(arg, Call) and arg.args else arg for arg in nested)
    return next((size for size in sizes if isinstance(size, tuple) and size and is_shape(size)), ())


def _kind_of(function: str, args: tuple[Any, ...]) -> str:
    layout = args[0].args if args and isinstance(args[0], Call) else ()
    if layout and isinstance(layout[0], str):
        return layout[0].removeprefix("torch.")
    return function.removeprefix("_rebuild_").replace("_", " ")


def _refused(path: Path, name: str, shape: tuple[int, ...], kind: str) -> SourceTensor:
    refuse = partial(_refuse, f"{path}, tensor {name}", kind)
    return SourceTensor(name, tuple(shape), kind, str(path), refuse)


def _refuse(where: str, kind: str) -> npt.NDArray[Any]:
    raise SourceError(
        "weights of this dtype cannot be converted",
        where=where,
        expected=", ".join(SCALARS),
        found=kind,
    )


@dataclass(frozen=True)
class _View:
    """Opens a tensor of a file as a matrix, mapped if its strides allow it.

    Attributes:
        path: The file.
        dtype: NumPy type of the values.
        start: Position of the first value in bytes.
        shape: Shape of the tensor.
        strides: Distances of neighbours along each dimension, in values.
    """

    path: Path
    dtype: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self) -> npt.NDArray[Any]:
        matrix = (prod(self.shape[:-1]), self.shape[-1] if self.shape else 1)
        if 0 in self.shape:
            return np.empty(matrix, self.dtype)
        length = 1 + sum((n - 1) * step for n, step in self._steps())
        try:
            mapped = map_regular(self.path, self.dtype, self.start, (length,))
        except (OSError, ValueError) as error:
            raise SourceError("the file cannot be mapped", where=self.path, found=error) from error
        if self._is_contiguous():
            return mapped.reshape(matrix)  # still a memory map, which readers read ahead
        strides = [step * mapped.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(mapped, self.shape, strides).reshape(matrix)

    def _steps(self) -> list[tuple[int, int]]:
        return list(zip(self.shape, self.strides, strict=True))

    def _is_contiguous(self) -> bool:
        expected = 1
        for count, step in reversed(self._steps()):
            if count > 1 and step != expected:
                return False
            expected *= count
        return True


FILES = WeightFiles("pytorch", SINGLE, INDEX, SUFFIXES, read_file)
