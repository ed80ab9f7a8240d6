"""Checks of a program that its schema does not express: references, sizes and the records.

They hold for a program at one context. Whoever plays a file relies on them, so that no number of a
hostile file reaches the device unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from math import prod
from typing import TypeVar

from rdrr_device.buffers import OFFSET_ALIGNMENT
from rdrr_device.kernels import MAX_WORKGROUPS
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError

from rdrr_runtime.program.amounts import Growing
from rdrr_runtime.program.dispatches import Phase
from rdrr_runtime.program.schema import Kernel, Program, RecordFields, RowsPass, Sampler
from rdrr_runtime.program.steps import Constant, LoadStep, Repack, Rope, Rows, Vector
from rdrr_runtime.program.vision import Images, Tower, TowerStep
from rdrr_runtime.records import RECORDS
from rdrr_runtime.sampling.logprobs import record_bytes

N = TypeVar("N", int, float)

REPACK_BINDINGS = ("blocks", "planes", "chunk")
"""What a kernel that repacks stored rows binds, by name, in any order."""


def number(amount: N | Growing) -> N:
    """Return an amount of a program at one context, where no number grows."""
    assert not isinstance(amount, Growing), "the program is one at a context"
    return amount


def check(program: Program, context: int) -> None:
    """Check a program at one context.

    Raises:
        FormatError: An index is out of range, a range is not inside its buffer, a buffer is too
            small for what is written to it, or a record is not the one that this version writes.
    """
    for where, expected, found in _faults(program, context):
        raise FormatError(
            "the program contradicts itself",
            where=f"program.{where}",
            expected=expected,
            found=found,
        )


_Fault = tuple[str, object, object]
"""Path, what was expected, what was found."""


def _faults(program: Program, context: int) -> Iterator[_Fault]:
    yield from _record_faults(program)
    yield from _shader_faults(program)
    yield from _range_faults(program)
    yield from _pass_faults(program)
    if program.sampler is not None:
        yield from _sampler_faults(program, program.sampler)
    if program.images is not None:
        yield from _image_faults(program, program.images, context)
    if program.tower is not None:
        yield from _tower_faults(program, program.tower, context)
    for index, step in enumerate(program.load):
        yield from _load_faults(program, f"load.{index}", step, context)


def _record_faults(program: Program) -> Iterator[_Fault]:
    known = {
        name: RecordFields(fields=dict(table.fields), words=table.words)
        for name, table in RECORDS.items()
    }
    if program.records != known:
        wrong = sorted(
            name
            for name in {*known, *program.records}
            if known.get(name) != program.records.get(name)
        )
        yield f"records.{wrong[0]}", "the fields of this version of rdrr", "other fields"


def _shader_faults(program: Program) -> Iterator[_Fault]:
    for name, source in program.shaders.items():
        digest = sha256(source.encode()).hexdigest()
        if digest != name:
            yield f"shaders.{name}", "the SHA-256 of the shader", digest
    for index, kernel in enumerate(program.kernels):
        if kernel.shader not in program.shaders:
            yield f"kernels.{index}.shader", "a shader of the program", kernel.shader


def _range_faults(program: Program) -> Iterator[_Fault]:
    for index, buffer in enumerate(program.buffers):
        size = number(buffer.size)
        if not size or size % 4:
            yield f"buffers.{index}.size", "a positive multiple of 4 bytes", size
    for index, part in enumerate(program.ranges):
        where, offset, size = f"ranges.{index}", number(part.offset), number(part.size)
        if part.buffer >= len(program.buffers):
            yield f"{where}.buffer", f"below {len(program.buffers)}", part.buffer
            continue
        whole = number(program.buffers[part.buffer].size)
        if offset % OFFSET_ALIGNMENT or not size or size % 4 or offset + size > whole:
            yield where, f"an aligned part of the {whole} bytes", f"{size} bytes at {offset}"


def _range_fault(program: Program, where: str, index: int, least: int = 0) -> Iterator[_Fault]:
    """Yield a fault if a range does not exist, or has less than `least` bytes."""
    if index >= len(program.ranges):
        yield where, f"an index below {len(program.ranges)}", index
    elif number(program.ranges[index].size) < least:
        yield where, f"a range of {least} bytes", number(program.ranges[index].size)


def _pass_faults(program: Program) -> Iterator[_Fault]:
    names = [listed.name for listed in program.passes]
    is_decoding = names[:1] == ["decode"] and len(names) > 1 and program.passes[0].rows == 1
    if not is_decoding and (names or (program.hidden is None and program.tower is None)):
        yield "passes", "decode, of one row, and a pass for prompts", names
    if bool(names) == (program.sampler is None):
        yield "sampler", "one beside passes", program.sampler
    rows = [listed.rows for listed in program.passes]
    if rows != sorted(rows):
        yield "passes", "the shortest first", rows
    for name, listed in (("hidden", program.hidden), ("scores", program.scores)):
        if listed is not None:
            rows.append(number(listed.rows))
            yield from _rows_pass_faults(program, name, listed)
    words = RECORDS["step_header"].words + RECORDS["step_row"].words * max(rows, default=1)
    yield from _range_fault(program, "step", program.step, 4 * words)
    yield from _range_fault(program, "ring", program.ring, 4)
    for index, chosen in enumerate(program.passes):
        for part in ("body", "head", "sample"):
            phases: tuple[Phase, ...] = getattr(chosen, part)
            for number_, phase in enumerate(phases):
                where = f"passes.{index}.{part}.{number_}"
                yield from _phase_faults(program, where, phase, chosen.rows)


def _rows_pass_faults(program: Program, where: str, listed: RowsPass) -> Iterator[_Fault]:
    rows, width = number(listed.rows), listed.width * DTYPES[listed.dtype].block_bytes
    if listed.stride < width:
        yield f"{where}.stride", f"at least {width} bytes", listed.stride
    yield from _range_fault(program, f"{where}.result", listed.result, rows * listed.stride)
    if listed.segments is not None:
        least = 4 * RECORDS["segment"].words * rows
        yield from _range_fault(program, f"{where}.segments", listed.segments, least)
    for index, phase in enumerate(listed.phases):
        yield from _phase_faults(program, f"{where}.phases.{index}", phase, rows)


def _phase_faults(program: Program, where: str, phase: Phase, rows: int) -> Iterator[_Fault]:
    if phase.kernel >= len(program.kernels):
        yield f"{where}.kernel", f"below {len(program.kernels)}", phase.kernel
        return
    count = len(program.kernels[phase.kernel].bindings)
    if len(phase.ranges) != count:
        yield f"{where}.ranges", f"{count} ranges", len(phase.ranges)
    for place, index in enumerate(phase.ranges):
        yield from _range_fault(program, f"{where}.ranges.{place}", index)
    items, per = number(phase.work.items), phase.work.per
    groups = 1 if per is None else -(-rows // per)
    if not 0 < items <= MAX_WORKGROUPS**2 or groups > MAX_WORKGROUPS:
        yield f"{where}.work", f"at most {MAX_WORKGROUPS} workgroups in a dimension", items


def _sampler_faults(program: Program, sampler: Sampler) -> Iterator[_Fault]:
    vocabulary = program.vocabulary
    sizes = {
        "params": RECORDS["sampler"].words,
        "counts": vocabulary,
        "bias": vocabulary,
        "mask": -(-vocabulary // 32),
        "entries": RECORDS["entries"].words + RECORDS["entry"].words * sampler.most_entries,
    }
    for name, words in sizes.items():
        yield from _range_fault(program, f"sampler.{name}", getattr(sampler, name), 4 * words)
    yield from _phase_faults(program, "sampler.scatter", sampler.scatter, 1)
    logged = sampler.logprobs
    if logged is not None and program.ring < len(program.ranges):
        size = record_bytes(logged.top) * (number(program.ranges[program.ring].size) // 4)
        yield from _range_fault(program, "sampler.logprobs.records", logged.records, size)
        for place, phase in enumerate(logged.phases):
            yield from _phase_faults(program, f"sampler.logprobs.phases.{place}", phase, 1)
    options = [(sampling.top_k, sampling.top_p) for sampling in sampler.samplings]
    if len(options) != 4 or len(set(options)) != 4:
        yield "sampler.samplings", "one for each of 4 options", len(options)
    for index, sampling in enumerate(sampler.samplings):
        for place, phase in enumerate(sampling.phases):
            yield from _phase_faults(program, f"sampler.samplings.{index}.phases.{place}", phase, 1)


def _image_faults(program: Program, images: Images, context: int) -> Iterator[_Fault]:
    rows = max((listed.rows for listed in program.passes), default=1)
    if images.first < program.vocabulary:
        yield "images.first", f"an id behind the {program.vocabulary} of text", images.first
    for index, part in enumerate(images.features):
        yield from _range_fault(program, f"images.features.{index}", part, 4 * rows * images.width)
    for index, rope in enumerate(images.ropes):
        where, pairs = f"images.ropes.{index}", len(rope.frequencies)
        if len(rope.axes) != pairs:
            yield f"{where}.axes", f"one for each of {pairs} pairs", len(rope.axes)
        if not {*rope.axes} <= {0, 1, 2}:
            yield f"{where}.axes", "time, height and width, 0 to 2", max(rope.axes)
        yield from _range_fault(program, f"{where}.range", rope.range, 8 * pairs * (context + rows))


def _tower_faults(program: Program, tower: Tower, patches: int) -> Iterator[_Fault]:
    tokens = patches // tower.merge**2
    if patches % tower.merge**2:
        yield "contexts", f"multiples of the {tower.merge**2} patches of a token", patches
    sizes = {
        "patches": patches * tower.inputs,
        "nearest": 4 * patches,
        "factors": 4 * patches,
        "rope": 4 * patches * len(tower.frequencies),
        "of_token": 2 * tokens,
    }
    for name, words in sizes.items():
        index = getattr(tower, name)
        if index is not None:
            yield from _range_fault(program, f"tower.{name}", index, 4 * words)
    step, segment = RECORDS["step_row"].words, RECORDS["segment"].words
    for name, rows in (("patch_rows", patches), ("token_rows", tokens)):
        listed: TowerStep = getattr(tower, name)
        words = RECORDS["step_header"].words + step * rows
        yield from _range_fault(program, f"tower.{name}.step", listed.step, 4 * words)
        size = 4 * segment * rows
        yield from _range_fault(program, f"tower.{name}.segments", listed.segments, size)
    for place, part in enumerate(tower.parts):
        where, rows = f"tower.parts.{place}", patches
        if part.result is not None:
            rows = tokens
            size = 4 * tokens * tower.width
            yield from _range_fault(program, f"{where}.result", part.result, size)
        for number_, phase in enumerate(part.phases):
            yield from _phase_faults(program, f"{where}.phases.{number_}", phase, rows)


def _load_faults(program: Program, where: str, step: LoadStep, context: int) -> Iterator[_Fault]:
    match step:
        case Constant():
            yield from _range_fault(program, where, step.range, 4 * len(step.words))
        case Rope():
            size = 8 * context * len(step.frequencies)
            yield from _range_fault(program, where, step.range, size)
        case Vector():
            size = 4 * sum(prod(part.shape) for part in step.parts)
            yield from _range_fault(program, where, step.range, size)
        case Rows():
            yield from _rows_faults(program, where, step)
        case Repack():
            yield from _repack_faults(program, where, step)


def _rows_faults(program: Program, where: str, step: Rows) -> Iterator[_Fault]:
    width = step.row_bytes
    if step.decoded is not None:
        width = step.decoded.columns * DTYPES[step.decoded.dtype].block_bytes
    if step.row_bytes != width or step.stride < width or step.stride % 4:
        yield f"{where}.stride", f"a multiple of 4, at least {width} bytes", step.stride
    end = max((part.first + part.rows for part in step.parts), default=0)
    if step.first + step.rows > end:
        yield f"{where}.rows", f"rows below {end}", step.first + step.rows
    for index, part in enumerate(step.parts):
        size = part.rows * step.stride
        yield from _range_fault(program, f"{where}.parts.{index}", part.range, size)


def _repack_faults(program: Program, where: str, step: Repack) -> Iterator[_Fault]:
    for index, chunk in enumerate(step.chunks):
        path = f"{where}.chunks.{index}"
        if chunk.first + chunk.rows > step.rows:
            yield path, f"rows below {step.rows}", chunk.first + chunk.rows
        for place, write in enumerate(chunk.writes):
            yield from _range_fault(program, f"{path}.writes.{place}.planes", write.planes)
            if write.kernel >= len(program.kernels):
                yield f"{path}.writes.{place}.kernel", f"below {len(program.kernels)}", write.kernel
            elif _names(program.kernels[write.kernel]) != set(REPACK_BINDINGS):
                yield f"{path}.writes.{place}.kernel", "a kernel that repacks", write.kernel


def _names(kernel: Kernel) -> set[str]:
    return {binding.name for binding in kernel.bindings}
