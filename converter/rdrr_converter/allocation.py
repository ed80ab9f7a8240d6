"""The storage type of each tensor that loses least within a size, by measured errors.

The loss that a type causes is estimated as the divergence of the predictions from those of the
source, in nats a token: half the sum of the squared errors of a tensor, each weighed by its
sensitivity (`rdrr imatrix --sensitivity`). All tensors begin with their smallest type. Then the
step that saves the most divergence for each byte is taken, again and again, as long as it fits.

Blocks of 256 weights are padded where a row of 128 is stored, which takes more bytes than blocks of
32 with more bits, so there both kinds of types are tried.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES, parse_dtype
from rdrr_format.errors import UsageError
from rdrr_format.layouts import Layout
from rdrr_format.regular_files import open_regular
from rdrr_format.stores import store_errors
from rdrr_manifests.models.conversion_report import REPORT, parse_report

from rdrr_converter.encode.chunks import Chunk, read_chunk
from rdrr_converter.encode.quantize import encode_rows
from rdrr_converter.engines import Engine
from rdrr_converter.plan import ChosenType, ConversionPlan, PlannedTensor

LADDER = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16")
"""The types to choose from, the smallest first."""

SHORT_LADDER = ("Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""Further types for rows that are not a multiple of the block size of `LADDER`'s first.

Other rows do without them: Q4_K has the size of Q4_0 and Q5_K that of Q5_0, with finer scales.
"""

PIECES, PIECE_WEIGHTS = 8, 1 << 13
"""Pieces of a tensor whose error stands for that of the whole, and about how many weights each."""

_EXPERT = re.compile(r"\.experts\.\d+\.")

Planner = Callable[[Mapping[str, ChosenType]], ConversionPlan]
"""Makes the plan of the package in which the named tensors have the given types."""


@dataclass(frozen=True)
class Allocation:
    """The chosen types.

    Attributes:
        plan: The plan with these types; its tensors state the divergence that each causes.
        divergence: Estimate of its divergence from the source, in nats a token.
        usual: The same for the mix that the option `quantize` names.
    """

    plan: ConversionPlan
    divergence: float
    usual: float

    def note(self) -> str:
        """Return a note for the user."""
        return (
            f"types chosen by measured error: estimated divergence {self.divergence:.3g} nats a "
            f"token, beside {self.usual:.3g} of the usual mix"
        )


@dataclass(frozen=True)
class _Choice:
    """A type of the tensors of a unit, which are chosen together.

    Attributes:
        dtype: The type that is asked for, one of `LADDER` or `SHORT_LADDER`.
        size: Bytes of the tensors.
        loss: The divergence that their errors cause, in nats a token.
    """

    dtype: str
    size: int
    loss: float


@dataclass(frozen=True)
class _Trial:
    """A plan in which some tensors have one type of the ladders.

    Attributes:
        dtype: The type.
        names: Names of these tensors.
        plan: The plan.
    """

    dtype: str
    names: Sequence[str]
    plan: ConversionPlan


def allocate(plan: Planner, limit: int, engine: Engine) -> Allocation:
    """Choose the types of a package whose shards take `limit` bytes at most.

    Args:
        plan: Makes plans; their tensors have the importance of rows and columns.
        limit: Size of all shards in bytes.
        engine: Reads and encodes the samples.

    Raises:
        UsageError: Even the smallest types take more.
    """
    usual = plan({})
    free = [tensor.name for tensor in usual.tensors if _is_free(tensor)]
    trials = _trials(plan, free)
    least = plan(_smallest_types(trials)).total_size
    _check_limit(least, limit)
    losses = _losses([usual, *(trial.plan for trial in trials)], free, engine)
    units = _units(trials, losses)
    left = limit - least
    while True:
        chosen = _climb(units, left)
        final = plan({name: _type(chosen[_unit(name)].dtype) for name in free})
        if final.total_size <= limit:
            break
        left -= final.total_size - limit  # what aligning the tensors adds
    stated = tuple(
        replace(tensor, divergence=losses.get((tensor.name, tensor.dtype.name)))
        for tensor in final.tensors
    )
    return Allocation(
        replace(final, tensors=stated),
        sum(choice.loss for choice in chosen.values()),
        sum(losses[tensor.name, tensor.dtype.name] for tensor in usual.tensors if _is_free(tensor)),
    )


def take_types(plan: Planner, path: Path) -> ConversionPlan:
    """Return the plan with the types that the conversion report of another package states.

    Raises:
        StoreError: The file cannot be read.
        FormatError: It is not a conversion report.
        UsageError: It is that of another model.
    """
    with store_errors(path), open_regular(path) as file:
        report = parse_report(file.read(REPORT.size + 1), path)
    types = {
        tensor.name: ChosenType(parse_dtype(tensor.dtype), "as in the plan")
        for tensor in report.tensors
    }
    missing = [tensor.name for tensor in plan({}).tensors if tensor.name not in types]
    if missing:
        raise UsageError(
            "`plan` is of another model, or of another fusion",
            where=path,
            expected=f"the type of {missing[0]}",
            found=f"{len(types)} other tensors",
        )
    return plan(types)


def _is_free(tensor: PlannedTensor) -> bool:
    """Return whether the type of a tensor may be chosen: its sensitivity is known."""
    known = bool(tensor.importance) and all(part.rows is not None for part in tensor.importance)
    return known and not tensor.why.startswith("--tensor-type")


def _type(name: str) -> ChosenType:
    return ChosenType(DTYPES[name], "chosen by measured error")


def _trials(plan: Planner, free: Sequence[str]) -> list[_Trial]:
    """Return plans with all types that each tensor may get."""

    def trial(dtype: str, names: Sequence[str]) -> _Trial:
        return _Trial(dtype, names, plan(dict.fromkeys(names, _type(dtype))))

    trials = [trial(dtype, free) for dtype in LADDER]
    smallest = _tensors(trials[0].plan)
    padded = [name for name in free if smallest[name].geometry.padding]
    if padded:
        trials += [trial(dtype, padded) for dtype in SHORT_LADDER]
    return trials


def _smallest_types(trials: Iterable[_Trial]) -> dict[str, ChosenType]:
    """Return the type of each tensor that takes the fewest bytes."""
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    for trial in trials:
        tensors = _tensors(trial.plan)
        for name in trial.names:
            sizes[name][trial.dtype] = tensors[name].size
    return {name: _type(min(by_type, key=by_type.__getitem__)) for name, by_type in sizes.items()}


def _tensors(plan: ConversionPlan) -> dict[str, PlannedTensor]:
    return {tensor.name: tensor for tensor in plan.tensors}


def _unit(name: str) -> str:
    """Return what tensors that get one type have in common: the experts of a projection."""
    return _EXPERT.sub(".experts.*.", name)


def _check_limit(least: int, limit: int) -> None:
    if least > limit:
        raise UsageError(
            "the model does not fit into that size",
            expected=f"{least:,} bytes or more, with every matrix in its smallest type",
            found=f"{limit:,} bytes",
            hint="a larger `size` or `bits_per_weight`",
        )


def _losses(
    plans: Sequence[ConversionPlan], names: Sequence[str], engine: Engine
) -> dict[tuple[str, str], float]:
    """Return the loss of each tensor in each type that it has in some plan."""
    tensors = {
        (name, tensor.dtype.name): tensor
        for plan in plans
        for name, tensor in _tensors(plan).items()
        if name in set(names)
    }
    pairs = zip(tensors, engine.map(estimate_loss, tensors.values()), strict=True)
    return {key: loss for key, (_, loss) in pairs}


def _units(
    trials: Iterable[_Trial], losses: Mapping[tuple[str, str], float]
) -> dict[str, list[_Choice]]:
    """Return the choices of each unit."""
    units: dict[str, list[_Choice]] = defaultdict(list)
    for trial in trials:
        tensors, members = _tensors(trial.plan), defaultdict(list)
        for name in trial.names:
            members[_unit(name)].append(tensors[name])
        for unit, stored in members.items():
            size = sum(tensor.size for tensor in stored)
            loss = sum(losses[tensor.name, tensor.dtype.name] for tensor in stored)
            units[unit].append(_Choice(trial.dtype, size, loss))
    return units


def _by_size(choice: _Choice) -> tuple[int, float]:
    return choice.size, choice.loss


def _climb(units: Mapping[str, Sequence[_Choice]], left: int) -> dict[str, _Choice]:
    """Take the best steps to larger types that `left` more bytes allow."""
    chosen = {unit: min(choices, key=_by_size) for unit, choices in units.items()}
    while True:
        steps = [
            ((now.loss - choice.loss) / (choice.size - now.size), unit, choice)
            for unit, now in chosen.items()
            for choice in units[unit]
            if 0 < choice.size - now.size <= left and choice.loss < now.loss
        ]
        if not steps:
            return chosen
        _, unit, choice = max(steps, key=lambda step: step[:2])
        left -= choice.size - chosen[unit].size
        chosen[unit] = choice


def estimate_loss(tensor: PlannedTensor) -> float:
    """Return the divergence in nats a token that a tensor's type causes, from some of its rows."""
    stored = tensor.geometry
    count = min(stored.rows, max(1, PIECE_WEIGHTS // stored.row_elements))
    starts = sorted(set(np.linspace(0, stored.rows - count, PIECES, dtype=int).tolist()))
    sampled = total = 0.0
    for first in starts:
        chunk = Chunk(first, count)
        rows, weight = read_chunk(tensor, chunk), _weight(tensor, chunk)
        blocks = encode_rows(tensor, chunk, rows)
        errors = CODECS[tensor.dtype.name].dequantize(blocks, rows.shape[1]) - rows
        total += 0.5 * float((errors.astype(np.float64) ** 2 * weight).sum())
        sampled += float(weight.sum())
    whole = sum(float(part.columns.sum(dtype=np.float64)) for part in tensor.importance)
    return total * whole / sampled


def _weight(tensor: PlannedTensor, chunk: Chunk) -> npt.NDArray[np.float64]:
    """Return how much the squared error of each weight of a chunk counts, [rows, elements]."""
    end = chunk.first + chunk.count
    parts, first = [], 0
    for part in tensor.importance:
        assert part.rows is not None, "only tensors with known rows are free to choose"
        outputs = part.rows.astype(np.float64) / part.rows.sum(dtype=np.float64)
        if tensor.layout is Layout.COLUMN:
            parts.append(np.outer(part.columns[chunk.first : end], outputs))
            continue
        here = slice(max(chunk.first - first, 0), max(end - first, 0))
        parts.append(np.outer(outputs[here], part.columns))
        first += len(outputs)
    return np.concatenate(parts, axis=1 if tensor.layout is Layout.COLUMN else 0)
