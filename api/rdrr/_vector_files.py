"""Embeddings in files: an array of NumPy, or a table in Parquet with the texts beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import StoreError, UsageError
from rdrr_format.extras import import_extra

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Writer = Callable[[Path, npt.NDArray[np.float32], Sequence[str]], None]


def check_destination(path: Path) -> None:
    """Check, before anything is computed, that embeddings can be written to a file of this name.

    Raises:
        UsageError: It has another suffix than those known here, or pyarrow is not installed.
    """
    if path.suffix not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise UsageError(
            "embeddings are not written to such files", where=path, expected=f"a suffix of {known}"
        )
    if path.suffix == ".parquet":
        _arrow("pyarrow", path)


def write_vectors(path: Path, vectors: npt.NDArray[np.float32], texts: Sequence[str]) -> None:
    """Write embeddings in the format that the suffix of the file says.

    Args:
        path: The file, which `check_destination` accepts.
        vectors: Embeddings, [number of texts, width].
        texts: The texts, in the same order.

    Raises:
        StoreError: The file cannot be written.
    """
    try:
        _WRITERS[path.suffix](path, vectors, texts)
    except OSError as error:
        raise StoreError("cannot be written", where=path, found=error.strerror) from error


def _arrow(module: str, path: Path) -> Any:
    return import_extra(module, "parquet", "a .parquet file", where=path)


def _write_array(path: Path, vectors: npt.NDArray[np.float32], _texts: Sequence[str]) -> None:
    import numpy as np

    np.save(path, vectors, allow_pickle=False)


def _write_table(path: Path, vectors: npt.NDArray[np.float32], texts: Sequence[str]) -> None:
    import numpy as np

    pyarrow, parquet = _arrow("pyarrow", path), _arrow("pyarrow.parquet", path)
    elements = pyarrow.array(np.asarray(vectors).reshape(-1), pyarrow.float32())
    rows = pyarrow.FixedSizeListArray.from_arrays(elements, vectors.shape[1])
    columns = {"text": pyarrow.array(texts, pyarrow.string()), "embedding": rows}
    parquet.write_table(pyarrow.table(columns), path)


_WRITERS: Mapping[str, Writer] = MappingProxyType({".npy": _write_array, ".parquet": _write_table})
