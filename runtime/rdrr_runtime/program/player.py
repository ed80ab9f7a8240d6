"""A player of programs: it runs a program file with the package's shards on a device.

It knows the schema of programs and nothing of the compiler: no model, no kernel, no phase. Prompts
run in the passes for prompts; decode passes are submitted ahead of the readback of their ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import DeviceArena
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.readback import Fetch
from rdrr_device.shaders import Access, Binding, WgslCompiler, for_compiler
from rdrr_format.closing import Closing
from rdrr_format.errors import DeviceError, GenerationError, UsageError
from rdrr_manifests.package import Package

from rdrr_runtime.program.checks import number
from rdrr_runtime.program.files import at_context
from rdrr_runtime.program.loading import Loader
from rdrr_runtime.program.schema import Kernel as KernelStatement
from rdrr_runtime.program.schema import Needs, Pass, Phase, Program, Sampler
from rdrr_runtime.records import entries_of, pack_entries, pack_params, pack_step, searches_of
from rdrr_runtime.sampling.finite import check_hidden, check_ids
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed

AHEAD = 4
"""Decode passes in a submission, one of which is ahead of the readback of the one before."""

F32 = npt.NDArray[np.float32]
_Prepared = tuple[BoundDispatch, ...]


class Player(Closing):
    """A program with its weights on a device; a `with` block frees its memory.

    Args:
        program: The program.
        package: The package that it was made for.
        device: The device.
        context: Slots of the key-value cache; the smallest context of the program when None.
        trusts: Whether kernels that the program calls trusted run without the checks of their
            indices; only for programs that this machine made.
        owns_device: Whether the device is closed with the player.

    Raises:
        UsageError: The program does not serve the context.
        FormatError: The program contradicts itself, or a tensor is not the one it was made for.
        DeviceError: The device lacks what the program needs, or memory.
        ShardError: Bytes of a tensor are missing.
    """

    def __init__(
        self,
        program: Program,
        package: Package,
        device: Device,
        *,
        context: int | None = None,
        trusts: bool = False,
        owns_device: bool = False,
    ) -> None:
        self.context = program.contexts.least if context is None else context
        self.program = at_context(program, self.context)
        self._sampler = self.program.sampler
        self.device, self._owns_device = device, owns_device
        _check_device(self.program.needs, device)
        self._kernels = [
            _kernel(self.program, statement, trusts=trusts) for statement in self.program.kernels
        ]
        self._prepared: dict[tuple[str, ...], _Prepared] = {}
        self._arena = DeviceArena(device, program.model)
        with ExitStack() as undo:
            undo.callback(self._arena.dispose)
            device.build_ahead(self._kernels)
            buffers = [
                self._arena.empty(f"{buffer.role}.{index}", number(buffer.size))
                for index, buffer in enumerate(self.program.buffers)
            ]
            self._ranges = [
                buffers[part.buffer].range(number(part.offset), number(part.size))
                for part in self.program.ranges
            ]
            loader = Loader(package, self._arena, self._ranges, self._kernels, self.context)
            loader.run(self.program.load)
            undo.pop_all()

    def generate(
        self, ids: Sequence[int], *, max_tokens: int = 128, sampling: SamplingParams | None = None
    ) -> Iterator[int]:
        """Yield the ids that continue a prompt, as soon as they are read; the last may be an end.

        Args:
            ids: Token ids of the prompt.
            max_tokens: Most new ids; there are fewer if the context fills up.
            sampling: How ids are chosen; the most probable ones when None.

        Raises:
            GenerationError: The prompt is empty or too long, has an id that is not in the
                vocabulary, or the logits are not finite.
            DeviceError: The device is lost.
        """
        if self._sampler is None:
            raise UsageError("the program generates no text", where=self.program.model)
        options = sampling or SamplingParams()
        self._check_ids(ids, self.context - 1)
        options.check_ids(self.program.vocabulary)
        end = "greedy" if options.is_greedy else self._begin(self._sampler, options, ids)
        self._prefill(ids, end)
        for token_id in self._decode(min(max_tokens, self.context - len(ids)), end):
            yield token_id
            if token_id in self.program.ends:
                return

    def hidden(self, ids: Sequence[int]) -> F32:
        """Return the hidden states of a text after the final norm, float32 [ids, width].

        Raises:
            UsageError: The program has no pass for them.
            GenerationError: The text is empty or too long, has an id that is not in the
                vocabulary, or a hidden state is not finite.
            DeviceError: The device is lost.
        """
        listed = self.program.hidden
        if listed is None:
            raise UsageError("the program makes no hidden states", where=self.program.model)
        self._check_ids(ids, self.context)
        phases = self._bound(("hidden",), listed.phases)
        dtype = np.dtype({"F16": np.float16, "F32": np.float32}[listed.dtype])
        parts = []
        for start in range(0, len(ids), number(listed.rows)):
            some = ids[start : start + number(listed.rows)]
            self._write_step(some, start)
            self.device.submit(phases, len(some))
            data = self.device.read(self._ranges[listed.result], 0, listed.stride * len(some))
            rows = data.reshape(len(some), listed.stride)[:, : listed.width * dtype.itemsize]
            parts.append(rows.copy().view(dtype).astype(np.float32))
        return check_hidden(np.concatenate(parts))

    def close(self) -> None:
        """Free the memory on the device."""
        self._prepared.clear()
        self._arena.dispose()
        if self._owns_device:
            self.device.close()

    def _check_ids(self, ids: Sequence[int], most: int) -> None:
        if not 0 < len(ids) <= most:
            raise GenerationError(
                "the prompt is empty or does not fit the context",
                expected=f"1 to {most} tokens",
                found=len(ids),
            )
        if not 0 <= min(ids) <= max(ids) < self.program.vocabulary:
            raise GenerationError(
                "the prompt has an id that is not in the vocabulary",
                expected=f"below {self.program.vocabulary}",
                found=max(ids),
            )

    def _begin(self, sampler: Sampler, options: SamplingParams, seen: Sequence[int]) -> str:
        """Write what sampling needs, and return the name of the phases that sample."""
        ranges = self._ranges
        seed = fresh_seed() if options.seed is None else options.seed
        self.device.write(ranges[sampler.params], pack_params(options, seed, masked=False))
        self.device.clear(ranges[sampler.counts])
        self.device.clear(ranges[sampler.bias])
        for words in pack_entries(entries_of(options, seen), sampler.most_entries):
            self.device.write(ranges[sampler.entries], words)
            self.device.submit(self._bound(("scatter",), [sampler.scatter]), 1)
        for index, sampling in enumerate(sampler.samplings):
            if (sampling.top_k, sampling.top_p) == searches_of(options):
                return str(index)
        raise AssertionError("a checked program has phases for all options")

    def _prefill(self, ids: Sequence[int], end: str) -> None:
        """Run a prompt in the fewest passes, and choose the first new id."""
        start = 0
        while start < len(ids):
            left = len(ids) - start
            passes = self.program.passes
            chosen = next((one for one in passes if left <= one.rows), passes[-1])
            some = ids[start : start + chosen.rows]
            self._write_step(some, start)
            start += len(some)
            self.device.submit(self._pass(chosen, end if start == len(ids) else None), len(some))

    def _write_step(self, ids: Sequence[int], start: int) -> None:
        slots = list(range(start, start + len(ids)))
        self.device.write(self._ranges[self.program.step], pack_step(ids, slots))

    def _decode(self, count: int, end: str) -> Iterator[int]:
        """Yield ids; passes for the next ones are submitted before the ids of the last are read."""
        decode = self._pass(self.program.passes[0], end)
        waiting: deque[Fetch] = deque()
        submitted = min(count, 1)
        if submitted:
            waiting.append(self._fetch(0, 1))
        try:
            while waiting:
                some = min(AHEAD, count - submitted)
                if some:
                    self.device.submit(decode, 1, some)
                    waiting.append(self._fetch(submitted, some))
                    submitted += some
                ids = np.concatenate(waiting.popleft().collect()).view(np.uint32)
                check_ids(ids)
                yield from ids.tolist()
        finally:
            for fetch in waiting:
                fetch.collect()

    def _fetch(self, first: int, count: int) -> Fetch:
        """Start to read the ids of some steps from the ring."""
        ring = self._ranges[self.program.ring]
        steps = ring.size // 4
        parts = []
        while count:
            at = first % steps
            some = min(count, steps - at)
            parts.append(ring.range(4 * at, 4 * some))
            first, count = first + some, count - some
        return self.device.fetch(*parts)

    def _pass(self, chosen: Pass, end: str | None) -> _Prepared:
        """Return a pass ready to run: only its body, or up to the id that `end` chooses."""
        if end is None:
            return self._bound((chosen.name,), chosen.body)
        phases = chosen.sample
        if end != "greedy":
            assert self._sampler is not None, "a program with passes has a sampler"
            phases = self._sampler.samplings[int(end)].phases
        return self._bound((chosen.name, end), (*chosen.body, *chosen.head, *phases))

    def _bound(self, name: tuple[str, ...], phases: Sequence[Phase]) -> _Prepared:
        """Return phases ready to run, the same object for the same name."""
        if name not in self._prepared:
            self._prepared[name] = tuple(
                self.device.bind(self._dispatch(phase)) for phase in phases
            )
        return self._prepared[name]

    def _dispatch(self, phase: Phase) -> Dispatch:
        work, kernel = phase.work, self._kernels[phase.kernel]
        return Dispatch(
            kernel,
            tuple(self._ranges[index] for index in phase.ranges),
            Work(number(work.items), work.per, work.most_rows, work.above, work.up_to),
            kernel.label,
        )


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
