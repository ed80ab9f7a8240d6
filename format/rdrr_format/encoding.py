"""Encode tensors to bytes and decode them: a codec applied to the rows of a layout.

The functions work on whole tensors or on some stored rows, so that callers need only a chunk in
memory. They know nothing of files or shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs import CODECS, Bytes, Codec, Floats
from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Geometry, Layout, geometry


def codec_of(dtype: DType) -> Codec:
    """Return the codec of a type.

    Raises:
        FormatError: The type is not for weights (I64).
    """
    codec = CODECS.get(dtype.name)
    if codec is None:
        raise FormatError("no codec for dtype", expected=" ".join(CODECS), found=dtype)
    return codec


def stored_rows(array: npt.ArrayLike, layout: Layout) -> Floats:
    """Return the matrix of stored rows of a logical tensor, as a view where possible."""
    values = np.asarray(array, dtype=np.float32)
    if layout is Layout.COLUMN:
        if values.ndim != 2:
            raise FormatError("the layout column needs a matrix", found=list(values.shape))
        return values.T
    if layout is Layout.FLAT or values.ndim == 0:
        return values.reshape(1, -1)
    if not values.size:
        return values.reshape(int(np.prod(values.shape[:-1])), values.shape[-1])
    return values.reshape(-1, values.shape[-1])


def encode_tensor(
    array: npt.ArrayLike,
    dtype: DType,
    layout: Layout = Layout.ROW,
    importance: npt.ArrayLike | None = None,
    quality: str = "ref",
) -> Bytes:
    """Encode a tensor.

    Args:
        array: Weights in the logical shape, [N, K] for a matmul weight whatever the layout.
        dtype: Storage type.
        layout: Storage order.
        importance: float32 [K], for the layout `row` only.
        quality: `ref` or `best`, as for codecs.

    Returns:
        uint8 [`geometry(dtype, shape, layout).size`].

    Raises:
        FormatError: The type has no codec, the layout does not fit the shape, importance is given
            with a layout other than `row`, or the type cannot hold the weights.
    """
    if importance is not None and layout is not Layout.ROW:
        raise FormatError(
            "importance weights need the layout row", expected="layout row", found=layout
        )
    return codec_of(dtype).encode(stored_rows(array, layout), importance, quality).reshape(-1)


def decode_rows(raw: Bytes, dtype: DType, geo: Geometry, first: int, count: int) -> Floats:
    """Decode some stored rows.

    Args:
        raw: uint8, the tensor's bytes from its first row on.
        dtype: Storage type.
        geo: The tensor's geometry.
        first: First stored row.
        count: Number of rows.

    Returns:
        float32 [count, geo.row_elements].

    Raises:
        FormatError: The rows are outside the tensor, or there are too few bytes.
    """
    if first < 0 or count < 0 or first + count > geo.rows:
        raise FormatError(
            "stored rows are outside the tensor",
            expected=f"within 0 to {geo.rows}",
            found=f"{first} to {first + count}",
        )
    data = _as_bytes(raw)[first * geo.row_bytes : (first + count) * geo.row_bytes]
    if data.size != count * geo.row_bytes:
        raise FormatError(
            f"{dtype} tensor is too short", expected=f"{geo.size} bytes", found=_as_bytes(raw).size
        )
    return codec_of(dtype).dequantize(data.reshape(count, geo.row_bytes), geo.row_elements)


def decode_tensor(
    raw: Bytes, dtype: DType, shape: Sequence[int], layout: Layout = Layout.ROW
) -> Floats:
    """Decode a tensor.

    Args:
        raw: uint8, exactly the tensor's bytes.
        dtype: Storage type.
        shape: Logical shape.
        layout: Storage order.

    Returns:
        float32 in the logical shape; for the layout `column` a transposed view.

    Raises:
        FormatError: The number of bytes is not the one that type, shape and layout require.
    """
    geo = geometry(dtype, shape, layout)
    data = _as_bytes(raw)
    if data.size != geo.size:
        raise FormatError(
            f"wrong number of bytes for a {dtype} tensor {list(shape)} in layout {layout}",
            expected=geo.size,
            found=data.size,
        )
    rows = decode_rows(data, dtype, geo, 0, geo.rows)
    return rows.T if layout is Layout.COLUMN else rows.reshape(tuple(shape))


def _as_bytes(raw: Bytes) -> Bytes:
    data = np.asarray(raw)
    if data.dtype != np.uint8:
        raise FormatError("a stored tensor must be bytes", expected="uint8", found=data.dtype)
    return data.reshape(-1)
