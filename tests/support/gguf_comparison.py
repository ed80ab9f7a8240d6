"""Compare packages, and GGUF files with those that llama.cpp's converter writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.gguf.file import read_gguf
from rdrr_manifests.package import open_package
from support.gguf_files import decoded_tensors

ROUNDED = 2.0**-22
"""Largest difference of values to which 1 was added and taken away again, or of which exponentials
were taken and logarithms of those."""
EXPONENTIALS = 2.0**-21
"""Largest difference of exponentials of such values."""


def assert_same_packages(first: Path, second: Path, atol: float = 0.0) -> None:
    """Assert that two packages have the same graph, and the same values within `atol`."""
    with open_package(first) as package, open_package(second) as other:
        assert package.graph == other.graph
        assert package.mtp_graph == other.mtp_graph
        assert set(package.manifest.tensors) == set(other.manifest.tensors)
        for name in other.manifest.tensors:
            pair = package.dequantize(name), other.dequantize(name)
            np.testing.assert_allclose(*pair, rtol=0, atol=atol, err_msg=name)


def assert_same_tensors(
    file: Path, other: Path, atol: float = 0.0, *, rounded: tuple[str, ...] = ()
) -> None:
    """Assert that two files have the same tensors within `atol`, decoded by gguf-py.

    Args:
        file: A file that rdrr wrote.
        other: A file as llama.cpp writes it.
        atol: Largest difference of two values.
        rounded: Names of tensors that may differ by their rounding too.
    """
    mine, theirs = decoded_tensors(file), decoded_tensors(other)
    assert mine.keys() == theirs.keys()
    for name, values in theirs.items():
        rtol = 1e-5 if name in rounded else 0
        np.testing.assert_allclose(mine[name], values, rtol=rtol, atol=atol, err_msg=name)


def assert_same_metadata(file: Path, other: Path, *, omitted: tuple[str, ...] = ()) -> None:
    """Assert that a file has the entries of another one, numbers in f32 within their rounding.

    Args:
        file: A file that rdrr wrote, which may have further entries.
        other: A file as llama.cpp writes it.
        omitted: Endings of the keys that are not compared.
    """
    mine, theirs = (read_gguf(path).metadata for path in (file, other))
    for key, value in theirs.items():
        if not key.endswith(omitted):
            expected = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert mine.get(key) == expected, key
