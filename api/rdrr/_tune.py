"""Tune the kernels of a package on an adapter, and add the results to the tuned profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr._executor import TunedExecutor, tuning_grids, tuning_name
from rdrr._tuned import TunedProfile, read_profile, write_profile
from rdrr._webgpu import Compared, keep, open_device

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.hints import Policy
    from rdrr_runtime.compile.pass_spec import PassSpec
    from rdrr_runtime.measure.tuned import ExecutorTimes, Outcome, Tuned

    from rdrr._load_options import KvDtype, WebGpuChoice


@dataclass(frozen=True)
class TuneResult:
    """The result of a tuning run.

    Attributes:
        adapter: The adapter that was measured.
        path: The file of the tuned profile.
        note: Why an existing profile was not used; empty if it was used or there was none.
        tuned: The measurements.
        executor: The decode pass as dispatches and in one dispatch; None if it was not compared.
    """

    adapter: AdapterInfo
    path: Path
    note: str
    tuned: Tuned
    executor: ExecutorTimes | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "adapter": self.adapter.name,
            "driver": self.adapter.driver,
            "profile": str(self.path),
            "known": self.tuned.known,
            "trials": self.tuned.trials,
            "tuning_keys": [_outcome(outcome) for outcome in self.tuned.outcomes],
            "passes": [
                {
                    "step": timed.step,
                    "default_ms": timed.default_seconds * 1e3,
                    "tuned_ms": timed.seconds * 1e3,
                    "kept": timed.kept,
                }
                for timed in self.tuned.passes
            ],
            "executor": None if self.executor is None else _executor(self.executor),
        }


def _executor(times: ExecutorTimes) -> dict[str, Any]:
    chosen = times.chosen
    return {
        "dispatches_us": times.dispatches * 1e6,
        "chosen": None if chosen is None else [chosen.threads, chosen.groups],
        "trials": [
            {
                "threads": trial.grid.threads,
                "workgroups": trial.grid.groups,
                "verdict": trial.verdict.value,
                "us": trial.seconds * 1e6 or None,
            }
            for trial in times.trials
        ],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "tuning_key": outcome.tuning_key.name,
        "op": outcome.tuning_key.op,
        "step": outcome.step,
        "default": outcome.tuning_key.default.as_dict(),
        "chosen": outcome.chosen.as_dict(),
        "default_us": outcome.default_seconds * 1e6,
        "chosen_us": outcome.seconds * 1e6,
        "trials": [
            {
                "params": trial.params.as_dict(),
                "verdict": trial.verdict.value,
                "us": trial.seconds * 1e6 or None,
            }
            for trial in outcome.trials
        ],
    }


def tune_package(
    package: Package,
    policy: Policy,
    *,
    adapter: str | None,
    webgpu: WebGpuChoice = "auto",
    kv_dtype: str,
    context: int,
    ops: frozenset[str],
    force: bool = False,
    rounds: int | None = None,
    passes: tuple[PassSpec, ...],
    progress: Callable[[str, int, int], None] | None = None,
) -> TuneResult:
    """Tune the tuning keys that the adapter's profile does not have yet, and store the results.

    If all ops of the decode pass are tuned, that pass is then compared with one dispatch.

    Args:
        package: The package whose shapes are tuned.
        policy: The kernel hints.
        adapter: Part of an adapter's name; the best adapter when None.
        webgpu: The implementation of WebGPU.
        kv_dtype: Data type of the key-value cache.
        context: Number of slots of the key-value cache.
        ops: The ops to tune, from `rdrr_device.tuning.OPS`.
        force: Also tune the keys that the profile has already.
        rounds: Measurements of each candidate; the adapter decides when None.
        passes: The passes whose kernels are tuned, prefill first.
        progress: Called with the name of each tuning key, its number and the number of keys.

    Raises:
        DeviceError: There is no adapter, or it has no timestamps.
        StoreError: The profile cannot be written.
    """
    from rdrr_device.timestamps import Timer
    from rdrr_device.tuning import OPS, Tuning
    from rdrr_runtime.compile.pass_spec import DECODE
    from rdrr_runtime.measure.executor_tuning import tune_executor
    from rdrr_runtime.measure.tuner import Setting, tune

    with closing(open_device(adapter, webgpu)) as device:
        Timer(device)  # fails without timestamps, before the weights are downloaded
        package.fetch()
        stored = read_profile(device.info)
        setting = Setting(package, device, policy, context, kv_dtype, ops, rounds, passes)
        tuned = tune(setting, Tuning() if force else stored.tuning, progress)
        entries = _entries(stored, tuned)
        name, executor = tuning_name(package, kv_dtype), None
        grids = tuning_grids(device) if DECODE in passes and ops == frozenset(OPS) else ()
        if grids and (force or name not in stored.entries):
            if progress:
                progress("decode pass in one dispatch", 0, 1)
            executor = tune_executor(setting, TunedProfile(stored.path, entries).tuning, grids)
            times = (executor.dispatches * 1e6, executor.seconds * 1e6)
            entries[name] = TunedExecutor(executor.chosen, *times).entry(1 + len(executor.trials))
        path = stored.path
        if tuned.outcomes or executor is not None:
            path = write_profile(device.info, entries)
        return TuneResult(device.info, path, stored.note, tuned, executor)


def compare_webgpu(
    package: Package,
    *,
    adapter: str | None,
    hints: Mapping[str, str],
    kv_dtype: KvDtype,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Compared, Path]:
    """Measure a package through each implementation of WebGPU, and keep the result for `auto`.

    Each of them uses the tuned profile that it has, for a prompt of 512 tokens and 128 new ones.

    Args:
        package: The package that is measured.
        adapter: Part of an adapter's name; the best adapter when None.
        hints: Kernel hints for the run.
        kv_dtype: Data type of the key-value cache.
        progress: Called with the name of each implementation, its number and their number.

    Returns:
        What was measured, and the file that keeps it.

    Raises:
        DeviceError: An implementation has no such adapter.
        StoreError: The result cannot be written.
        UsageError: One of them is not installed, or the model's context is too short.
    """
    from rdrr_device.adapters import choose
    from rdrr_device.implementations import NAMES

    from rdrr.bench import runs
    from rdrr.bench.speed import measure

    work = runs.Workload()
    info = choose("wgpu", adapter)
    for name in NAMES:
        choose(name, info.name)  # before anything is measured
    seconds: dict[str, float] = {}
    for index, name in enumerate(NAMES):
        if progress:
            progress(name, index, len(NAMES))
        options = runs.LoadedAs(hints, kv_dtype, executor="auto")
        speed = measure(package, work, adapter=info.name, webgpu=name, options=options)
        seconds[name] = (
            speed.time_to_first_token_ms.median / 1e3
            + (work.tokens - 1) / speed.decode_tokens_per_second.median
        )
    compared = Compared(package.manifest.model_id, seconds)
    return compared, keep(info, compared)


def _entries(stored: TunedProfile, tuned: Tuned) -> dict[str, Mapping[str, Any]]:
    """Return the entries of the profile, with those of the tuning keys that were tuned."""
    entries: dict[str, Mapping[str, Any]] = dict(stored.entries)
    for outcome in tuned.outcomes:
        entries[outcome.tuning_key.name] = {
            "params": outcome.chosen.as_dict(),
            "default_us": round(outcome.default_seconds * 1e6, 3),
            "us": round(outcome.seconds * 1e6, 3),
            "candidates": 1 + len(outcome.trials),
        }
    return entries
