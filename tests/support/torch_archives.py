"""Files of torch.save with any pickle, written without torch."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Named:
    """A function or class of a module that need not exist, for `pickled`."""

    def __init__(self, path: str) -> None:
        self.path = path


class Called:
    """A call of a named function, for `pickled`."""

    def __init__(self, path: str, *args: Any) -> None:
        self.path, self.args = path, args


class Stored:
    """A persistent reference to a storage of the archive, for `pickled`."""

    def __init__(self, key: str, kind: str = "torch.FloatStorage", count: Any = 4) -> None:
        self.value = ("storage", Named(kind), key, "cpu", count)


def tensor(key: str, shape: Any, strides: Any, *, offset: Any = 0, kind: str = "Float") -> Called:
    """Return a tensor of a storage as torch pickles it."""
    stored = Stored(key, f"torch.{kind}Storage")
    return Called("torch._utils._rebuild_tensor_v2", stored, offset, shape, strides, False, {})


def pickled(value: Any) -> bytes:
    """Return the pickle of a value, which may hold `Named`, `Called` and `Stored`."""
    return b"\x80\x02" + _operations(value) + b"."


def _operations(value: Any) -> bytes:
    if isinstance(value, Named):
        module, _, name = value.path.rpartition(".")
        return f"c{module}\n{name}\n".encode("utf-8", "surrogatepass")
    if isinstance(value, Called):
        return _operations(Named(value.path)) + _operations(value.args) + b"R"
    if isinstance(value, Stored):
        return _operations(value.value) + b"Q"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_operations, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_operations, value)) + b"e"
    if isinstance(value, dict):
        pairs = (_operations(key) + _operations(inner) for key, inner in value.items())
        return b"}(" + b"".join(pairs) + b"u"
    return pickle.dumps(value, 2)[2:-1]  # without the mark of the protocol and the stop


def archive(
    value: Any, storages: Mapping[str, bytes], *, raw: bytes | None = None, root: str = "archive"
) -> bytes:
    """Return a file as torch.save writes it.

    Args:
        value: What the pickle describes, see `pickled`.
        storages: Contents of the storages by their keys.
        raw: A pickle to write instead.
        root: Folder of the members.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(f"{root}/data.pkl", pickled(value) if raw is None else raw)
        file.writestr(f"{root}/version", b"3\n")
        file.writestr(f"{root}/byteorder", b"little")
        for key, content in storages.items():
            file.writestr(f"{root}/data/{key}", content)
    return buffer.getvalue()


def write_checkpoint(folder: Path, content: bytes) -> Path:
    """Write a checkpoint whose weights are the bytes of a torch file."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(content)
    return folder
