"""Measure ablations: one model with and without an optimization, alternating on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdrr.bench.runs import GpuTimes, Run, Workload, generate, gpu_times, load, open_device
from rdrr_format.errors import RdrrError, UsageError

from published.ablations.rows import Row, Table
from published.ablations.table import ABLATIONS, Ablation, Side
from published.modes.submission import Submitters

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.strategy import Strategy

FIRST_RUNS = 3
"""Maximum number of devices that the phase `first` opens; each compiles all kernels."""

CPU_TOKENS = 8
"""Maximum number of tokens where the slow side has no cache or runs on the CPU."""


def chosen(names: Iterable[str]) -> list[Ablation]:
    """Return the ablations with the given names; `all` stands for all of them.

    Raises:
        UsageError: There is no ablation with a name.
    """
    ablations: dict[str, Ablation] = {}
    for name in names:
        if name != "all" and name not in ABLATIONS:
            known = ", ".join([*ABLATIONS, "all"])
            raise UsageError("unknown ablation", expected=f"one of {known}", found=name)
        ablations |= ABLATIONS if name == "all" else {name: ABLATIONS[name]}
    return list(ablations.values())


@dataclass
class Bench:
    """The models that the ablations compare, each loaded once on one device.

    Attributes:
        packages: Packages by name; the measured package has the empty name.
        submitters: The device with the submitters of the decode modes.
        work: Size of each run.
    """

    packages: Mapping[str, Package]
    submitters: Submitters
    work: Workload
    _loaded: dict[tuple[Any, ...], Backend] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """Return the device of all models."""
        return self.submitters.device

    def measure(self, ablation: Ablation) -> Row:
        """Measure both sides alternately.

        If a side cannot run, the row states the reason as its obstacle; no error is raised.
        """
        try:
            _check_weights(ablation, self._package(ablation.slow))
            if ablation.phase == "first":
                return self._first(ablation)
            sides = [self._backend(side) for side in (ablation.slow, ablation.fast)]
            return self._alternate(ablation, sides)
        except RdrrError as error:
            return Row(ablation, obstacle=str(error))

    def close(self) -> None:
        """Free all models."""
        for backend in self._loaded.values():
            backend.close()
        self._loaded.clear()

    def _alternate(self, ablation: Ablation, backends: Sequence[Backend]) -> Row:
        """Run both sides once a round, so that a change of the GPU's clock meets both alike."""
        few_tokens = ablation.slow.backend == "cpu" or not ablation.slow.cached
        tokens = min(self.work.tokens, CPU_TOKENS) if few_tokens else self.work.tokens
        repeat = 1 if ablation.slow.backend == "cpu" else self.work.repeat
        runs: list[list[Run]] = [[], []]
        for index in range(repeat + 1):
            sides = zip((ablation.slow, ablation.fast), backends, runs, strict=True)
            for side, backend, done in sides:
                run = self._run(side, backend, tokens)
                done[:] = [*done, run] if index > 1 else [run]  # drops the first round, a warm-up
        infos = [backend.info for backend in backends]
        return Row(
            ablation,
            tuple(runs[0]),
            tuple(runs[1]),
            memory=tuple((info.weights_bytes, info.kv_bytes) for info in infos),
            gpu=tuple(
                self._gpu_times(side, backend)
                for side, backend in zip((ablation.slow, ablation.fast), backends, strict=True)
            ),
            warnings=tuple(line for info in infos for line in _unhonoured(info.decisions)),
        )

    def _run(self, side: Side, backend: Backend, tokens: int) -> Run:
        package = self._package(side)
        on_gpu = side.backend == "wgpu"
        return generate(
            backend,
            _strategy(side),
            self.work.ids(package.manifest.architecture.vocab_size),
            tokens,
            device=self.device if on_gpu else None,
            decoding=self.submitters.submitting(side.mode.submission) if on_gpu else None,
        )

    def _gpu_times(self, side: Side, backend: Backend) -> GpuTimes:
        from rdrr_runtime.gpu import GpuBackend

        if not isinstance(backend, GpuBackend):
            return GpuTimes()
        ids = self.work.ids(self._package(side).manifest.architecture.vocab_size)
        return gpu_times(backend, self.device, ids, self.work.tokens)

    def _first(self, ablation: Ablation) -> Row:
        """Compare the first run of newly opened devices with their second run."""
        package = self._package(ablation.slow)
        ids = self.work.ids(package.manifest.architecture.vocab_size)
        runs: list[list[Run]] = [[], []]
        for _ in range(min(FIRST_RUNS, self.work.repeat)):
            with open_device(self.device.info.name) as device, ExitStack() as stack:
                backend = load(package, device, self.work, ablation.slow.options)
                stack.callback(backend.close)
                for done in runs:
                    done.append(generate(backend, _strategy(ablation.slow), ids, 2, device=device))
                memory = (backend.info.weights_bytes, backend.info.kv_bytes)
        return Row(ablation, tuple(runs[0]), tuple(runs[1]), memory=(memory, memory))

    def _package(self, side: Side) -> Package:
        if side.package not in self.packages:
            raise UsageError(
                f"no package {side.package} is given",
                hint=f"give one with --package {side.package}=PATH",
            )
        return self.packages[side.package]

    def _backend(self, side: Side) -> Backend:
        options = side.options
        hints = tuple(sorted(options.hints.items()))
        key = (side.backend, side.package, hints, options.kv_dtype, options.fused)
        if key not in self._loaded:
            self._loaded[key] = self._load(side)
        return self._loaded[key]

    def _load(self, side: Side) -> Backend:
        package = self._package(side)
        if side.backend == "wgpu":
            return load(package, self.device, self.work, side.options)
        from rdrr_runtime.reference.backend import CpuBackend

        package.fetch()
        longest = package.manifest.architecture.max_seq_len
        return CpuBackend(package, context=min(longest, self.work.context))


def _check_weights(ablation: Ablation, package: Package) -> None:
    """Check that an ablation affects a matrix of a package.

    Raises:
        UsageError: It affects none.
    """
    kinds = {
        "blocks" if tensor.parsed_dtype().is_block else "scalars"
        for tensor in package.manifest.tensors.values()
        if tensor.role == "matmul"
    }
    if ablation.weights != "any" and ablation.weights not in kinds:
        raise UsageError(f"the package has no matrices stored in {ablation.weights}")


def _strategy(side: Side) -> Strategy:
    if side.cached:
        return side.mode.strategy()
    from published.strategies.uncached import Uncached

    return Uncached()


def _unhonoured(choices: Sequence[Any]) -> tuple[str, ...]:
    from rdrr_runtime.compile.choice.decision import unhonoured

    return unhonoured(choices)


def measure(
    packages: Mapping[str, Package],
    ablations: Sequence[Ablation],
    work: Workload,
    *,
    adapter: str | None = None,
) -> Table:
    """Measure ablations one after the other, the two sides of each alternately.

    Args:
        packages: Packages by name; the measured package has the empty name.
        ablations: The ablations to measure.
        work: Size of each run.
        adapter: Part of the name of the adapter to use.

    Raises:
        DeviceError: There is no adapter.
    """
    with open_device(adapter) as device, ExitStack() as stack:
        submitters = stack.enter_context(closing(Submitters(device)))
        bench = Bench(packages, submitters, work)
        stack.callback(bench.close)
        rows = tuple(bench.measure(ablation) for ablation in ablations)
        return Table(device.info.name, device.info.software, work, rows)
