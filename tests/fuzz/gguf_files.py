"""Build GGUF files field by field: sound ones, and ones in which some fields are false.

Counts, lengths and alignment follow from the fields, so that one false field does not make a
reader stop before it reaches the later ones.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from fuzz.byte_edits import NUMBERS, sometimes_damaged
from fuzz.json_edits import CONTROL
from hypothesis import strategies as st

ALIGNMENT = 32
SCALARS: Mapping[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B",
                              10: "Q", 11: "q", 12: "d"}  # fmt: skip
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
INTEGERS = tuple(kind for kind, code in SCALARS.items() if code not in "fd")


@dataclass(frozen=True)
class Entry:
    """A metadata entry; the value of a list is the kind of its elements and the elements."""

    key: bytes
    kind: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    """A row of the tensor table."""

    name: bytes
    dimensions: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class File:
    """All fields of a file; `more` is added to the counts that follow from them."""

    entries: tuple[Entry, ...]
    tensors: tuple[Tensor, ...]
    data: bytes
    version: int = 3
    more: tuple[int, int] = (0, 0)
    magic: bytes = field(default=b"GGUF")


def encode(file: File) -> bytes:
    """Encode a file, whether its fields are true or not."""
    counts = (len(file.tensors) + file.more[0], len(file.entries) + file.more[1])
    out = bytearray(file.magic + struct.pack("<I", file.version % 2**32))
    out += b"".join(struct.pack("<Q", count % 2**64) for count in counts)
    for entry in file.entries:
        out += _string(entry.key) + struct.pack("<I", entry.kind) + _value(entry.kind, entry.value)
    for tensor in file.tensors:
        out += _string(tensor.name) + struct.pack("<I", len(tensor.dimensions))
        out += b"".join(struct.pack("<Q", size % 2**64) for size in tensor.dimensions)
        out += struct.pack("<IQ", tensor.kind % 2**32, tensor.offset % 2**64)
    return bytes(out + bytes(-len(out) % ALIGNMENT) + file.data)


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(_value(inner, v) for v in values)
    if kind not in SCALARS:
        return bytes(value)
    return _scalar(SCALARS[kind], value)


def _scalar(code: str, value: Any) -> bytes:
    if code in "fd":
        return np.array(value, "<f4" if code == "f" else "<f8").tobytes()
    return (int(value) % (1 << 8 * struct.calcsize(code))).to_bytes(struct.calcsize(code), "little")


def entry(key: str, value: Any) -> Entry:
    """Return an entry with the type that llama.cpp's converter uses for such a value."""
    kind = _kind(value)
    if kind == STRING:
        return Entry(key.encode(), kind, value.encode())
    if kind == ARRAY:
        inner = _kind(value[0])
        coded = [text.encode() if inner == STRING else text for text in value]
        return Entry(key.encode(), kind, (inner, coded))
    return Entry(key.encode(), kind, value)


def _kind(value: Any) -> int:
    kinds = {bool: BOOL, int: U32, float: F32, str: STRING, list: ARRAY}
    return kinds[type(value)]


def placed(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], int, bytes]]
) -> File:
    """Return a sound file.

    Args:
        metadata: Values by key.
        tensors: Dimensions (fastest-varying first), kind and bytes of each tensor by name.
    """
    rows, data = [], bytearray()
    for name, (dimensions, kind, raw) in tensors.items():
        data += bytes(-len(data) % ALIGNMENT)
        rows.append(Tensor(name.encode(), dimensions, kind, len(data)))
        data += raw
    entries = tuple(entry(key, value) for key, value in metadata.items())
    return File(entries, tuple(rows), bytes(data))


_SIZES = st.sampled_from(NUMBERS) | st.integers(0, 400)
_STRINGS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", CONTROL.encode(), b"x" * 300, b"\xff\xfe", b"llama", b"gemma3", b"gpt2"]),
)
_NUMBERS = st.sampled_from([*NUMBERS, -1, 0.5, float("nan"), float("inf"), -1e30])


@st.composite
def _values(draw: st.DrawFn) -> tuple[int, Any]:
    """Draw a kind and a value of that kind."""
    kind = draw(st.sampled_from([*SCALARS, STRING, STRING, ARRAY, ARRAY, 13, 255]))
    if kind == STRING:
        return kind, draw(_STRINGS)
    if kind == ARRAY:
        inner = draw(st.sampled_from([*SCALARS, STRING, ARRAY, 99]))
        if inner in SCALARS:
            return kind, (inner, draw(st.lists(_numbers(inner), max_size=6)))
        return kind, (inner, draw(st.lists(_STRINGS, max_size=4)) if inner == STRING else [])
    return kind, draw(_numbers(kind)) if kind in SCALARS else b"\0" * 8


def _numbers(kind: int) -> st.SearchStrategy[Any]:
    if kind not in INTEGERS:
        return _NUMBERS
    return st.sampled_from(NUMBERS) | st.integers(0, 64)


@st.composite
def lying(draw: st.DrawFn, files: Sequence[File], keys: Sequence[str] = ()) -> bytes:
    """Draw one of the files with one to four fields changed.

    Args:
        draw: Hypothesis' draw function.
        files: Sound files.
        keys: Further keys that readers look for.
    """
    file = draw(st.sampled_from(files))
    for _ in range(draw(st.integers(1, 4))):
        change = draw(st.sampled_from([_change_entry, _change_entry, _change_tensor, _change_head]))
        file = change(draw, file, keys)
    return encode(file)


def _change_entry(draw: st.DrawFn, file: File, keys: Sequence[str]) -> File:
    entries = list(file.entries)
    known = [key.encode() for key in keys] or [b"x"]
    if not entries:
        entries = [Entry(draw(st.sampled_from(known)), *draw(_values()))]
    at = draw(st.integers(0, len(entries) - 1))
    old = entries[at]
    what = draw(st.sampled_from(["value", "value", "same kind", "kind", "key", "add", "remove",
                                 "twice", "element"]))  # fmt: skip
    if what == "value":
        entries[at] = Entry(old.key, *draw(_values()))
    elif what == "same kind" and old.kind in SCALARS:
        entries[at] = replace(old, value=draw(_numbers(old.kind)))
    elif what == "same kind" and old.kind == STRING:
        entries[at] = replace(old, value=draw(_STRINGS))
    elif what == "kind" and old.kind in SCALARS:
        entries[at] = replace(old, kind=draw(st.sampled_from(list(SCALARS))))
    elif what == "key":
        entries[at] = replace(old, key=draw(_STRINGS | st.sampled_from(known)))
    elif what == "add":
        entries.insert(at, Entry(draw(st.sampled_from(known)), *draw(_values())))
    elif what == "remove":
        del entries[at]
    elif what == "twice":
        entries.insert(at, old)
    elif what == "element" and old.kind == ARRAY:
        entries[at] = replace(old, value=_other_elements(draw, *old.value))
    return replace(file, entries=tuple(entries))


def _other_elements(draw: st.DrawFn, kind: int, values: Sequence[Any]) -> tuple[int, list[Any]]:
    """Draw a list with one element changed, removed or duplicated."""
    new = list(values)
    if not new:
        return kind, new
    at = draw(st.integers(0, len(new) - 1))
    other = draw(_STRINGS if kind == STRING else _numbers(kind)) if kind != ARRAY else new[at]
    new[at : at + 1] = draw(st.sampled_from([[other], [], [new[at], new[at]]]))
    return kind, new


def _change_tensor(draw: st.DrawFn, file: File, _keys: Sequence[str]) -> File:
    tensors = list(file.tensors)
    if not tensors:
        return file
    at = draw(st.integers(0, len(tensors) - 1))
    old = tensors[at]
    what = draw(
        st.sampled_from(["name", "size", "dimensions", "kind", "offset", "remove", "twice"])
    )
    if what == "name":
        names = st.sampled_from([tensor.name for tensor in file.tensors])
        tensors[at] = replace(old, name=draw(_STRINGS | names))
    elif what == "size" and old.dimensions:
        sizes = list(old.dimensions)
        sizes[draw(st.integers(0, len(sizes) - 1))] = draw(_SIZES)
        tensors[at] = replace(old, dimensions=tuple(sizes))
    elif what == "dimensions":
        tensors[at] = replace(old, dimensions=tuple(draw(st.lists(_SIZES, max_size=6))))
    elif what == "kind":
        tensors[at] = replace(old, kind=draw(st.integers(0, 45) | st.sampled_from(NUMBERS)))
    elif what == "offset":
        tensors[at] = replace(old, offset=draw(_SIZES))
    elif what == "remove":
        del tensors[at]
    elif what == "twice":
        tensors.insert(at, old)
    return replace(file, tensors=tuple(tensors))


def _change_head(draw: st.DrawFn, file: File, _keys: Sequence[str]) -> File:
    what = draw(st.sampled_from(["version", "tensors", "entries", "magic", "data"]))
    if what == "version":
        return replace(file, version=draw(st.sampled_from([1, 2, 3, 4, 3 << 24, 2**32 - 1])))
    if what == "magic":
        return replace(file, magic=draw(st.binary(min_size=4, max_size=4)))
    if what == "data":
        return replace(file, data=file.data[: draw(st.integers(0, len(file.data)))])
    more = draw(st.sampled_from([-1, 1, 2**20, 2**62, 2**64 - 1]))
    return replace(file, more=(more, 0) if what == "tensors" else (0, more))


def files(sound: Sequence[File], keys: Sequence[str] = ()) -> st.SearchStrategy[bytes]:
    """Return a strategy for files with false fields, some of which are damaged as well."""
    return sometimes_damaged(lying(sound, keys))
