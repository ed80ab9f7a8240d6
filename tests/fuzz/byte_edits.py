"""Damage to bytes: flip, overwrite, remove, duplicate, insert, truncate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hypothesis import strategies as st

NUMBERS = (0, 1, 2, 7, 8, 31, 32, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**20,
           2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
"""Boundary values at which sizes, signs and offsets go wrong."""

PLACE = 1 << 16
"""Positions are drawn below this and denote a fraction of the bytes, so they fit every length."""

Edit = Callable[[bytes, int, int, bytes], bytes]


def _flip(raw: bytes, at: int, size: int, _new: bytes) -> bytes:
    return raw[:at] + bytes([raw[at] ^ (1 << size % 8)]) + raw[at + 1 :] if at < len(raw) else raw


def _overwrite(raw: bytes, at: int, _size: int, new: bytes) -> bytes:
    return raw[:at] + new + raw[at + len(new) :]


def _cut_out(raw: bytes, at: int, size: int, _new: bytes) -> bytes:
    return raw[:at] + raw[at + size :]


def _double(raw: bytes, at: int, size: int, _new: bytes) -> bytes:
    return raw[:at] + raw[at : at + size] + raw[at:]


def _insert(raw: bytes, at: int, _size: int, new: bytes) -> bytes:
    return raw[:at] + new + raw[at:]


def _cut_off(raw: bytes, at: int, _size: int, _new: bytes) -> bytes:
    return raw[:at]


EDITS: Mapping[str, Edit] = {
    "flip": _flip,
    "overwrite": _overwrite,
    "cut out": _cut_out,
    "double": _double,
    "insert": _insert,
    "cut off": _cut_off,
}

_WORDS = st.builds(
    lambda number, size: (number % (1 << 8 * size)).to_bytes(size, "little"),
    st.sampled_from(NUMBERS),
    st.sampled_from([1, 2, 4, 8]),
)
_EDIT = st.tuples(
    st.sampled_from(sorted(EDITS)),
    st.integers(0, PLACE),
    st.integers(1, 64),
    _WORDS | st.binary(max_size=8),
)


def damaged(sound: st.SearchStrategy[bytes], most: int = 3) -> st.SearchStrategy[bytes]:
    """Return a strategy for the bytes of another strategy after one to `most` edits."""
    return st.builds(_apply, sound, st.lists(_EDIT, min_size=1, max_size=most))


def sometimes_damaged(sound: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy for the bytes of another strategy, of which only some are damaged."""
    edits = st.one_of(st.just([]), st.just([]), st.just([]), st.lists(_EDIT, max_size=2))
    return st.builds(_apply, sound, edits)


def _apply(raw: bytes, edits: list[tuple[str, int, int, bytes]]) -> bytes:
    for name, place, size, new in edits:
        raw = EDITS[name](raw, place * len(raw) // PLACE, size, new)
    return raw
