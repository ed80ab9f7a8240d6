"""Tuning a package on an adapter: what is known, what is to be tried, and where it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr._tuned import Stored, read_profile, write_profile

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.hints import Policy
    from rdrr_runtime.compile.pass_spec import PassSpec
    from rdrr_runtime.measure.tuned import Outcome, Tuned


@dataclass(frozen=True)
class TuneResult:
    """What a run found and where it is kept.

    Attributes:
        adapter: Where it was measured.
        path: The profile.
        note: Why the profile that was there was not used; empty if it was.
        tuned: What was measured.
    """

    adapter: AdapterInfo
    path: Path
    note: str
    tuned: Tuned

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "adapter": self.adapter.name,
            "driver": self.adapter.driver,
            "profile": str(self.path),
            "known": self.tuned.known,
            "trials": self.tuned.trials,
            "tuning_keys": [_outcome(one) for one in self.tuned.outcomes],
            "passes": [
                {
                    "step": one.step,
                    "default_ms": one.default_seconds * 1e3,
                    "tuned_ms": one.seconds * 1e3,
                    "kept": one.kept,
                }
                for one in self.tuned.passes
            ],
        }


def _outcome(one: Outcome) -> dict[str, Any]:
    return {
        "tuning_key": one.tuning_key.name,
        "op": one.tuning_key.op,
        "step": one.step,
        "default": one.tuning_key.default.as_dict(),
        "chosen": one.chosen.as_dict(),
        "default_us": one.default_seconds * 1e6,
        "chosen_us": one.seconds * 1e6,
        "trials": [
            {
                "params": trial.params.as_dict(),
                "verdict": trial.verdict.value,
                "us": trial.seconds * 1e6 or None,
            }
            for trial in one.trials
        ],
    }


def tune_package(
    package: Package,
    policy: Policy,
    *,
    adapter: str | None,
    kv_dtype: str,
    context: int,
    ops: frozenset[str],
    force: bool = False,
    rounds: int | None = None,
    passes: tuple[PassSpec, ...],
    progress: Callable[[str, int, int], None] | None = None,
) -> TuneResult:
    """Tune what is not in the adapter's profile yet, and store it there.

    Args:
        package: Whose shapes count.
        policy: Hints.
        adapter: Part of an adapter's name; the best one when None.
        kv_dtype: Storage of the key-value cache.
        context: KV slots.
        ops: What is tuned, of `rdrr_device.tuning.OPS`.
        force: Try again what is known.
        rounds: Measurements of each candidate; None for as many as suit the adapter.
        passes: Whose kernels are tuned, the prompt first.
        progress: Called with the name of each tuning key, its number and how many there are.

    Raises:
        DeviceError: No adapter, or one that cannot tell the time.
        StoreError: The profile cannot be written.
    """
    from rdrr_device.device import open_device
    from rdrr_device.timestamps import Timer
    from rdrr_device.tuning import Tuning
    from rdrr_runtime.measure.tuner import Setting, tune

    device = open_device(adapter)
    try:
        Timer(device)  # refuses before the weights are fetched
        package.fetch()
        stored = read_profile(device.info)
        setting = Setting(package, device, policy, context, kv_dtype, ops, rounds, passes)
        tuned = tune(setting, Tuning() if force else stored.tuning, progress)
        path = _store(device.info, stored, tuned)
        return TuneResult(device.info, path, stored.note, tuned)
    finally:
        device.close()


def _store(info: AdapterInfo, stored: Stored, tuned: Tuned) -> Path:
    if not tuned.outcomes:
        return stored.path
    entries: dict[str, Mapping[str, Any]] = dict(stored.entries)
    for one in tuned.outcomes:
        entries[one.tuning_key.name] = {
            "params": one.chosen.as_dict(),
            "default_us": round(one.default_seconds * 1e6, 3),
            "us": round(one.seconds * 1e6, 3),
            "candidates": 1 + len(one.trials),
        }
    return write_profile(info, entries)
