"""Compare two packages: the values of every tensor, and the fields of the manifests.

Tensors are compared as the model uses them, so layout, fusion and order in storage make no
difference; neither does the 1 that some writers add to the norm weights of Gemma. Tensors are read
a few rows at a time. How the differences change predictions is measured by `rdrr.evaluate`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf, isfinite, isnan, sqrt
from typing import Any

import numpy as np
from rdrr_format.html_tables import rows_table
from rdrr_manifests.logical import (
    EMBEDDING,
    HEAD,
    LogicalTensor,
    RowReader,
    logical_tensors,
)
from rdrr_manifests.package import Package

ProgressCallback = Callable[[int, int], None]
"""Called with the number of tensors compared so far and the number of all tensors."""

MAX_WORKERS = 8

_LISTED = 50
"""Tensors that the table for notebooks lists at most."""

SAME_BYTES, SAME_VALUES, DIFFERENT, SHAPE = "same bytes", "same values", "different", "shape"
"""Verdicts on a pair of tensors, from equal to incomparable."""

_STORAGE_FIELDS = (
    "inference.session",
    "inference.normalization.rmsNormWeightOffset",
    "inference.output.tieWordEmbeddings",
    "tokenizer.file",
)
"""Fields that say how a model is stored rather than what it computes."""

_MODEL_BLOCKS = ("architecture", "inference", "tokenizer", "eos_token_id")
_STORAGE_BLOCKS = ("modelId", "quantization", "weightsTransposed", "optimizations", "hashAlgorithm")


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that both packages have.

    Attributes:
        name: Canonical name.
        verdict: `same bytes`, `same values`, `different`, or `shape` where shapes differ.
        shapes: Shapes in the first and the second package.
        dtypes: Storage types in the first and the second package.
        layouts: Layouts in the first and the second package.
        relative_rmse: sqrt(sum (second - first)^2 / sum first^2); None if shapes differ or the
            result is not finite.
        largest: Largest absolute difference of two values; None as for `relative_rmse`.
        where: Row and column of the largest difference.
    """

    name: str
    verdict: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    layouts: tuple[str, str]
    relative_rmse: float | None = None
    largest: float | None = None
    where: tuple[int, int] | None = None


@dataclass(frozen=True)
class FieldDifference:
    """A field with different values in the two manifests.

    Attributes:
        field: Path of the field.
        first: Value in the first package; None if absent.
        second: Value in the second package; None if absent.
        is_storage: Whether the field says how the model is stored rather than what it computes.
    """

    field: str
    first: Any
    second: Any
    is_storage: bool


@dataclass(frozen=True, repr=False)
class Difference:
    """The result of comparing two packages.

    Attributes:
        tensors: Comparison of each tensor that both packages have, in the order of the first.
        only_first: Names of tensors that only the first package has.
        only_second: Names of tensors that only the second package has.
        fields: Fields with different values in the two manifests.
    """

    tensors: tuple[TensorDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    fields: tuple[FieldDifference, ...]

    @property
    def is_same_model(self) -> bool:
        """Whether both packages hold the same model: equal tensors and an equal description."""
        return (
            not self.only_first
            and not self.only_second
            and all(tensor.verdict in (SAME_BYTES, SAME_VALUES) for tensor in self.tensors)
            and all(field.is_storage for field in self.fields)
        )

    def __repr__(self) -> str:
        return (
            f"Difference({'same model' if self.is_same_model else 'different models'}, "
            f"tensors={len(self.tensors)}, only_first={len(self.only_first)}, "
            f"only_second={len(self.only_second)}, fields={len(self.fields)})"
        )

    def _repr_html_(self) -> str:
        """Return a table of the tensors for notebooks, the largest errors first."""
        title = "Same model" if self.is_same_model else "Different models"
        tensors = sorted(self.tensors, key=lambda tensor: -(tensor.relative_rmse or 0.0))
        rows: list[tuple[object, ...]] = [
            (
                tensor.name,
                tensor.verdict,
                " → ".join(tensor.dtypes),
                None if tensor.relative_rmse is None else f"{tensor.relative_rmse:.3g}",
                None if tensor.largest is None else f"{tensor.largest:.3g}",
            )
            for tensor in tensors[:_LISTED]
        ]
        if len(tensors) > _LISTED:
            rows.append((f"and {len(tensors) - _LISTED} more", None, None, None, None))
        rows += [(name, "only in the first", None, None, None) for name in self.only_first]
        rows += [(name, "only in the second", None, None, None) for name in self.only_second]
        columns = ("tensor", "verdict", "type", "relative error", "largest difference")
        return rows_table(title, columns, rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        return {"same": self.is_same_model, **asdict(self)}


def compare_packages(
    first: Package,
    second: Package,
    *,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> Difference:
    """Compare two packages.

    Args:
        first: The package that errors are relative to.
        second: The other package.
        workers: Number of threads; by default the number of processors, but at most 8.
        progress: Called after each tensor.

    Raises:
        FormatError: A tensor cannot be decoded.
        ShardError: A shard is missing or too short.
    """
    left, right = _with_heads(_by_name(first), _by_name(second))
    common = [name for name in left if name in right]
    compare = partial(_compare, first, second, _shift(first, second))
    differences: list[TensorDifference] = []
    threads = workers or min(os.cpu_count() or 1, MAX_WORKERS)
    with ThreadPoolExecutor(threads) as pool:
        for difference in pool.map(lambda name: compare(left[name], right[name]), common):
            differences.append(difference)
            if progress is not None:
                progress(len(differences), len(common))
    return Difference(
        tensors=tuple(differences),
        only_first=tuple(name for name in left if name not in right),
        only_second=tuple(name for name in right if name not in left),
        fields=_fields(first, second),
    )


def _by_name(package: Package) -> dict[str, LogicalTensor]:
    return {tensor.name: tensor for tensor in logical_tensors(package)}


def _with_heads(
    left: dict[str, LogicalTensor], right: dict[str, LogicalTensor]
) -> tuple[dict[str, LogicalTensor], dict[str, LogicalTensor]]:
    """Compare a tied head with a separate one: add the embedding as head where only one has it."""
    for mine, other in ((left, right), (right, left)):
        if HEAD in other and HEAD not in mine and EMBEDDING in mine:
            mine[HEAD] = replace(mine[EMBEDDING], name=HEAD)
    return left, right


def _shift(first: Package, second: Package) -> float:
    """Return what to add to the second package's norms: ±1 if only one of them stores w - 1."""
    offsets = [
        package.manifest.inference.normalization.rms_norm_weight_offset
        for package in (first, second)
    ]
    return float(offsets[1]) - float(offsets[0])


def _compare(
    first: Package, second: Package, shift: float, left: LogicalTensor, right: LogicalTensor
) -> TensorDifference:
    result = TensorDifference(
        name=left.name,
        verdict=SHAPE,
        shapes=(left.shape, right.shape),
        dtypes=(left.dtype.name, right.dtype.name),
        layouts=(left.layout.value, right.layout.value),
    )
    if left.shape != right.shape:
        return result
    readers = RowReader(first, left), RowReader(second, right)
    shift = shift if left.role == "norm" else 0.0
    if not shift and (_same_bytes(readers, left, right) or _same_blocks(readers, left, right)):
        return replace(result, verdict=SAME_BYTES, relative_rmse=0.0, largest=0.0)
    return _compare_values(readers, shift, result)


def _same_bytes(
    readers: tuple[RowReader, RowReader], left: LogicalTensor, right: LogicalTensor
) -> bool:
    """Return whether the stored rows are equal; False if they are stored in different ways."""
    if left.dtype != right.dtype or not (left.has_stored_rows and right.has_stored_rows):
        return False
    return all(
        np.array_equal(readers[0].stored(*chunk), readers[1].stored(*chunk))
        for chunk in readers[0].chunks()
    )


def _same_blocks(
    readers: tuple[RowReader, RowReader], left: LogicalTensor, right: LogicalTensor
) -> bool:
    """Return whether two tensors whose blocks span several rows have the same stored blocks.

    Column-major and some flat tensors have no stored rows to compare. Their blocks are compared if
    both tensors have the same place in matrices of the same shape, type and layout.
    """
    places = [
        (each.dtype, each.layout, each.entry.shape, each.first, each.has_stored_rows)
        for each in (left, right)
    ]
    if left.has_stored_rows or places[0] != places[1]:
        return False
    return all(
        np.array_equal(readers[0].stored_blocks(*chunk), readers[1].stored_blocks(*chunk))
        for chunk in readers[0].chunks()
    )


def _compare_values(
    readers: tuple[RowReader, RowReader], shift: float, result: TensorDifference
) -> TensorDifference:
    power = difference = largest = 0.0
    where: tuple[int, int] | None = None
    for first, count in readers[0].chunks():
        ours = readers[0].values(first, count).astype(np.float64)
        apart = readers[1].values(first, count) - ours
        apart += shift
        power += float(np.vdot(ours, ours))
        difference += float(np.vdot(apart, apart))
        np.abs(apart, out=apart)
        at = int(np.argmax(apart)) if apart.size else 0
        if apart.size and not isnan(largest) and not apart.flat[at] <= largest:
            largest = float(apart.flat[at])
            where = first + at // apart.shape[1], at % apart.shape[1]
    error = sqrt(difference / power) if power else (inf if difference else 0.0)
    return replace(
        result,
        verdict=SAME_VALUES if largest == 0.0 else DIFFERENT,
        relative_rmse=error if isfinite(error) else None,
        largest=largest if isfinite(largest) else None,
        where=where,
    )


def _fields(first: Package, second: Package) -> tuple[FieldDifference, ...]:
    data = [package.manifest.model_dump(mode="json", by_alias=True) for package in (first, second)]
    differences = []
    for blocks, is_storage in ((_MODEL_BLOCKS, False), (_STORAGE_BLOCKS, True)):
        left, right = (_flat({block: values.get(block) for block in blocks}) for values in data)
        for field in dict.fromkeys((*left, *right)):
            if left.get(field) != right.get(field):
                is_stored = is_storage or field.startswith(_STORAGE_FIELDS)
                differences.append(
                    FieldDifference(field, left.get(field), right.get(field), is_stored)
                )
    return tuple(differences)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested objects as one flat object, whose keys are paths with dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = value
    return flat
