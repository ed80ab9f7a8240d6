"""The option `executor`, and what is known of an adapter's workgroups."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest
from rdrr import _executor
from rdrr._executor import (
    TUNED,
    TunedExecutor,
    describe,
    executor_decision,
    persistence,
    tuned_executor,
    tuning_grids,
    tuning_name,
)
from rdrr._load_options import LoadOptions
from rdrr._tuned import TunedProfile, adapter_file
from rdrr_device.adapters import AdapterInfo
from rdrr_device.capabilities import COHERENT_FEATURE
from rdrr_format.errors import DeviceError, UsageError
from rdrr_runtime.phases.context import Grid
from support.packages import llama_manifest, write_random_package


class FakeDevice:
    limits = MappingProxyType({"max-compute-invocations-per-workgroup": 1024})

    def __init__(self, info):
        self.info = info


def _info(*, features=(COHERENT_FEATURE,), software=False, driver="1.2"):
    return AdapterInfo(
        "Test GPU", "Vulkan", "DiscreteGPU", driver, frozenset(features), {}, software
    )


@pytest.fixture(autouse=True)
def tests_of_adapters(monkeypatch, tmp_path):
    """Count the tests of adapters, and keep their results in a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = []

    def find_grid(device):
        done.append(device.info.driver)
        return Grid(512, 132)

    monkeypatch.setattr("rdrr_runtime.exec.persistent.occupancy.find_grid", find_grid)
    return done


def test_phases_are_launched_if_dispatches_are_asked_for(tests_of_adapters):
    assert persistence(FakeDevice(_info()), "dispatches") is None
    assert not tests_of_adapters


def test_auto_compares_one_dispatch_on_an_adapter_that_can_run_it(monkeypatch):
    persistent = persistence(FakeDevice(_info()), "auto")
    assert persistent.compares
    assert persistent.grids == (Grid(512, 132),)
    assert not persistence(FakeDevice(_info()), "persistent").compares
    assert persistence(FakeDevice(_info(software=True)), "auto") is None
    monkeypatch.setattr("rdrr_runtime.exec.persistent.occupancy.find_grid", lambda _: None)
    assert persistence(FakeDevice(_info(driver="1.3")), "auto") is None


def test_an_adapter_is_tested_once_for_each_driver(tests_of_adapters):
    for driver in ("1.2", "1.2", "1.3", "1.2"):
        persistent = persistence(FakeDevice(_info(driver=driver)), "persistent")
        assert persistent.grids == (Grid(512, 132),)
    assert tests_of_adapters == ["1.2", "1.3"]


def test_a_damaged_result_is_tested_again(tests_of_adapters):
    persistence(FakeDevice(_info()), "persistent")
    path = adapter_file("grids", _info())
    sound = json.loads(path.read_text(encoding="utf-8"))
    grids = ([0, "x"], [-1, 4], [True, 4], [10**9, 4], [64, 10**9], [64], [64.0, 4], {"a": 1})
    damaged = ["{", "[]", "[" * 10**5, *(json.dumps({**sound, "grid": grid}) for grid in grids)]
    for text in damaged:
        path.write_text(text, encoding="utf-8")
        assert persistence(FakeDevice(_info()), "persistent").grids == (Grid(512, 132),)
    assert len(tests_of_adapters) == 1 + len(damaged)
    path.write_text(json.dumps({**sound, "grid": [64, 4]}), encoding="utf-8")
    assert persistence(FakeDevice(_info()), "persistent").grids == (Grid(64, 4),)


def test_an_adapter_that_fails_the_test_is_refused(monkeypatch):
    monkeypatch.setattr("rdrr_runtime.exec.persistent.occupancy.find_grid", lambda _: None)
    with pytest.raises(DeviceError, match="cannot run a decode pass in one dispatch"):
        persistence(FakeDevice(_info()), "persistent")
    assert describe(_info()) == "no: the test of the adapter failed"


def test_a_software_adapter_gets_one_workgroup(tests_of_adapters):
    persistent = persistence(FakeDevice(_info(software=True)), "persistent")
    assert [grid.groups for grid in persistent.grids] == [1]
    assert not tests_of_adapters


FASTER = TunedExecutor(Grid(256, 264), 700.4, 612.6)
SLOWER = TunedExecutor(None, 700.4, 700.4)


def test_auto_takes_what_tuning_has_found_to_be_faster(tests_of_adapters):
    persistent = persistence(FakeDevice(_info()), "auto", FASTER)
    assert persistent.grids == (Grid(256, 264),)
    assert persistent.reason == "613 us instead of 700 us (tuned, auto)"
    assert persistence(FakeDevice(_info()), "auto", SLOWER) is None
    assert persistence(FakeDevice(_info()), "dispatches", FASTER) is None
    assert not tests_of_adapters
    both = persistence(FakeDevice(_info()), "persistent", FASTER)
    assert both.grids == (Grid(256, 264), Grid(512, 132))
    assert persistence(FakeDevice(_info()), "persistent", SLOWER).grids == (Grid(512, 132),)


def test_the_decision_of_auto_is_explained():
    assert executor_decision(FASTER).kernel == "one dispatch, 264 workgroups of 256 threads"
    assert executor_decision(SLOWER).kernel == "dispatches"
    assert "did not beat" in executor_decision(SLOWER).reason
    assert "rdrr tune" in executor_decision(None).reason


def test_grids_for_tuning_fit_the_adapter(monkeypatch):
    device = FakeDevice(_info())
    grids = tuning_grids(device)
    assert grids[0] == Grid(512, 132)
    assert len(set(grids)) == len(grids) == 5
    assert Grid(1024, 132) in grids
    monkeypatch.setattr(device, "limits", {"max-compute-invocations-per-workgroup": 512})
    assert {grid.threads for grid in tuning_grids(device)} == {512, 256}
    assert len(tuning_grids(FakeDevice(_info(software=True)))) == 1
    monkeypatch.setattr("rdrr._executor._tested", lambda _: _executor.TestedGrid(None))
    assert tuning_grids(device) == ()


def test_a_tuned_executor_is_kept_for_models_with_the_same_tensors(tmp_path, rng):
    package = write_random_package(tmp_path / "a", llama_manifest(), rng)
    other = write_random_package(tmp_path / "b", llama_manifest("F16"), rng)
    for kept in (FASTER, SLOWER):
        entry = json.loads(json.dumps(kept.entry(6)))
        stored = TunedProfile(tmp_path, {tuning_name(package, "f16"): entry})
        assert tuned_executor(stored, package, "f16") == kept
        assert tuned_executor(stored, package, "f32") is None
        assert tuned_executor(stored, other, "f16") is None


@pytest.mark.parametrize("params", [
    {}, {"threads": 64}, {"threads": 0, "groups": 4}, {"threads": -64, "groups": 4},
    {"threads": 10**9, "groups": 4}, {"threads": 64, "groups": 10**9},
])  # fmt: skip
def test_a_grid_that_no_adapter_has_stands_for_dispatches(tmp_path, rng, params):
    package = write_random_package(tmp_path / "a", llama_manifest(), rng)
    entry = {"params": params, "default_us": "x", "us": 10**17}
    stored = TunedProfile(tmp_path, {tuning_name(package, "f16"): entry})
    assert tuned_executor(stored, package, "f16") == TunedExecutor(None, 0.0, 1e17)


def test_a_tuned_grid_beyond_the_limits_of_the_adapter_is_not_used():
    assert persistence(FakeDevice(_info()), "auto", TunedExecutor(Grid(1025, 4), 2, 1)) is None


def test_a_tuned_executor_is_dropped_when_its_code_changes(tmp_path, monkeypatch, rng):
    package = write_random_package(tmp_path / "a", llama_manifest(), rng)
    stored = TunedProfile(tmp_path, {tuning_name(package, "f16"): FASTER.entry(6)})
    assert tuned_executor(stored, package, "f16") == FASTER
    monkeypatch.setattr("rdrr_device.shaders._digest", lambda package: f"other {package}")
    assert tuned_executor(stored, package, "f16") is None


def test_tensors_are_not_hashed_for_a_profile_without_decode_passes(tmp_path, monkeypatch, rng):
    package = write_random_package(tmp_path / "a", llama_manifest(), rng)
    named = []
    monkeypatch.setattr("rdrr._executor.tuning_name", lambda *_: named.append(1))
    of_kernels = {"matvec Q4_K": {"params": {"workgroup": 8}}}
    assert tuned_executor(TunedProfile(tmp_path, of_kernels), package, "f16") is None
    assert not named
    of_passes = {f"{TUNED}0123 f16": FASTER.entry(6)}
    assert tuned_executor(TunedProfile(tmp_path, of_passes), package, "f16") is None
    assert named


def test_what_is_known_of_an_adapter_is_described():
    assert "not tested yet" in describe(_info())
    assert "lacks the feature" in describe(_info(features=()))
    assert "software" in describe(_info(software=True))
    persistence(FakeDevice(_info()), "persistent")
    assert describe(_info()) == "yes: 132 workgroups of 512 threads"


def test_the_cpu_backend_has_no_executor():
    from rdrr._backends import open_backend

    options = LoadOptions(backend="cpu", executor="persistent")
    with pytest.raises(UsageError, match="only for GPUs"):
        open_backend(None, None, options, context=8)
    assert _executor.FORMAT.startswith("rdrr-grid")
