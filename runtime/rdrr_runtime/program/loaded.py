"""A program at a context on a device: its kernels, ranges and weights, and phases ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from rdrr_device.arena import DeviceArena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.shaders import Access, Binding, WgslCompiler, for_compiler
from rdrr_format.closing import Closing
from rdrr_format.errors import DeviceError
from rdrr_manifests.package import Package

from rdrr_runtime.program.checks import number
from rdrr_runtime.program.dispatches import Phase
from rdrr_runtime.program.files import at_context
from rdrr_runtime.program.loading import Loader
from rdrr_runtime.program.schema import Kernel as KernelStatement
from rdrr_runtime.program.schema import Needs, Program
from rdrr_runtime.program.steps import Repack

Prepared = tuple[BoundDispatch, ...]


class LoadedProgram(Closing):
    """A program with its weights on a device.

    Args:
        program: The program.
        package: The package that it was made for.
        device: The device.
        context: Slots of the key-value cache.
        trusts: Whether kernels that the program calls trusted run without the checks of their
            indices.

    Raises:
        UsageError: The program does not serve the context.
        FormatError: The program contradicts itself, or a tensor is not the one it was made for.
        DeviceError: The device lacks what the program needs, or memory.
        ShardError: Bytes of a tensor are missing.
    """

    def __init__(
        self, program: Program, package: Package, device: Device, context: int, *, trusts: bool
    ) -> None:
        self.program, self.device = at_context(program, context), device
        _check_device(self.program.needs, device)
        self._kernels = [
            _kernel(self.program, statement, trusts=trusts) for statement in self.program.kernels
        ]
        self._prepared: dict[tuple[str, ...], Prepared] = {}
        self._arena = DeviceArena(device, program.model)
        with ExitStack() as undo:
            undo.callback(self._arena.dispose)
            device.build_ahead(self._kernels[index] for index in _surely_run(self.program))
            buffers = [
                self._arena.empty(f"{buffer.role}.{index}", number(buffer.size))
                for index, buffer in enumerate(self.program.buffers)
            ]
            self.ranges: Sequence[BufferSlice] = [
                buffers[part.buffer].range(number(part.offset), number(part.size))
                for part in self.program.ranges
            ]
            loader = Loader(package, self._arena, self.ranges, self._kernels, context)
            loader.run(self.program.load)
            undo.pop_all()

    def bound(self, name: tuple[str, ...], phases: Sequence[Phase]) -> Prepared:
        """Return phases ready to run, the same object for the same name."""
        if name not in self._prepared:
            self._prepared[name] = tuple(
                self.device.bind(self._dispatch(phase)) for phase in phases
            )
        return self._prepared[name]

    def close(self) -> None:
        """Free the memory on the device."""
        self._prepared.clear()
        self._arena.dispose()

    def _dispatch(self, phase: Phase) -> Dispatch:
        work, kernel = phase.work, self._kernels[phase.kernel]
        return Dispatch(
            kernel,
            tuple(self.ranges[index] for index in phase.ranges),
            Work(number(work.items), work.per, work.most_rows, work.above, work.up_to),
            kernel.label,
        )


def _surely_run(program: Program) -> Iterator[int]:
    """Yield the kernels of load steps and passes; which of those that sample run is not known."""
    for step in program.load:
        if isinstance(step, Repack):
            yield from (write.kernel for chunk in step.chunks for write in chunk.writes)
    for listed in program.passes:
        phases = (*listed.body, *listed.head, *listed.sample)
        yield from (phase.kernel for phase in phases)


def _kernel(program: Program, statement: KernelStatement, *, trusts: bool) -> Kernel:
    constants = statement.constants.items()
    return Kernel(
        statement.label,
        for_compiler(program.shaders[statement.shader], WgslCompiler.NAGA),
        statement.entry,
        tuple(sorted((name, float(number(value))) for name, value in constants)),
        tuple(Binding(bound.name, Access(bound.access)) for bound in statement.bindings),
        trusts and statement.trusted,
        statement.general,
    )


def _check_device(needs: Needs, device: Device) -> None:
    """Check that a device has what a program needs.

    Raises:
        DeviceError: A feature is missing, or a limit is too low.
    """
    names = {name.removesuffix("s") if name == "subgroups" else name for name in needs.features}
    lacking = sorted(names - device.features)
    if lacking:
        raise DeviceError(
            "the device lacks a feature that the program needs",
            where=device.info.name,
            expected=lacking[0],
            hint="export a program for this device",
        )
    for name, least in needs.limits.items():
        if device.limits.get(name, 0) < least:
            raise DeviceError(
                "a limit of the device is too low for the program",
                where=device.info.name,
                expected=f"{name} of at least {least}",
                found=device.limits.get(name, 0),
                hint="export a program for this device",
            )
