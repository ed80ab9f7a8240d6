"""The error that a storage type usually has, which an error of a conversion is shown beside."""

from __future__ import annotations

from rdrr_format.dtypes import DTYPES


def usual_error(dtype: str) -> str:
    """Return the usual error of a type as a percentage; a dash for a type that is exact."""
    error = DTYPES[dtype].usual_error if dtype in DTYPES else 0.0
    return f"{100 * error:.2g} %" if error else "-"
