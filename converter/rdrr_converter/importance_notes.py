"""Notes on which tensors of a plan an importance matrix was used for."""

from __future__ import annotations

from rdrr_format.codecs import CODECS

from rdrr_converter.importance import ImportanceMatrix
from rdrr_converter.plan import ConversionPlan, PlannedTensor


def importance_notes(plan: ConversionPlan, matrix: ImportanceMatrix) -> tuple[str, ...]:
    """Return notes on how many tensors used the matrix and which had no entry in it."""
    searched = [tensor for tensor in plan.tensors if _is_searched(tensor)]
    guided = [tensor for tensor in searched if tensor.importance]
    missing = [tensor.name for tensor in searched if not tensor.importance]
    notes = [f"{len(guided)} of {len(searched)} tensors were quantized with the importance matrix"]
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        notes.append(f"{matrix.path.name} has no entry for {some}")
    return tuple(notes)


def _is_searched(tensor: PlannedTensor) -> bool:
    codec = CODECS[tensor.dtype.name]
    takes = codec.takes_importance or (codec.refiner is not None and tensor.quality == "best")
    return takes and not tensor.is_copied
