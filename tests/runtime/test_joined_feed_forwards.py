"""Models whose gate, up and down projections of one row are one phase, as on hardware adapters."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import rdrr
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_manifests.package import Package, open_package
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.products.matvec_record import Matvec
from support.checkpoints import make_checkpoint
from support.comparison import relative_error, stepped
from support.tiny_models import ALL_MODELS

CONTEXT, PREFILL, IDS = 64, 5, 12

FAMILIES = {
    "llama": 2,
    "qwen2": 2,  # the biases of the projections leave no binding, so the sum is a phase
    "gemma3_text": 2,  # the norm of the branch comes before the sum
    "glm4": 2,
    "exaone4": 2,
    "hunyuan_v1_dense": 2,
    "starcoder2": 0,  # no gate
    "phi": 0,
}
"""Joined feed-forwards of two layers."""


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(Preferences, "joins_feed_forwards", property(lambda _: True))
    return monkeypatch


def package_of(family: str, folder: Path, quantize: str, **options: bool) -> Package:
    tiny = next(model for model in ALL_MODELS if model.model_type == family)
    rng = np.random.default_rng(7)
    checkpoint = make_checkpoint(tiny, folder / "checkpoint", rng, num_hidden_layers=2)
    rdrr.convert(checkpoint, folder / "package", quantize=quantize, **options)
    return open_package(folder / "package")


def results(
    package: Package, device: Device, ids: list[int], *, int8: bool = False
) -> tuple[np.ndarray, list[int], int]:
    """Return the logits of single steps, greedy ids after them, and the joined feed-forwards."""
    policy = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}} if int8 else {})
    with closing(
        GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=policy)
    ) as backend:
        logits = stepped(backend, ids, PREFILL)
        chosen = backend.greedy([ids[-1]], len(ids) - 1, 8)
        kernels = Counter(
            decision.kernel for decision in backend.info.decisions if decision.step == "decode"
        )
        joined = sum(count for name, count in kernels.items() if ".down" in name)
        return logits, chosen, joined


def check(
    package: Package,
    device: Device,
    rng: np.random.Generator,
    joined: pytest.MonkeyPatch,
    expected: int,
) -> None:
    """Compare a model with `expected` joined feed-forwards with itself without any."""
    ids = rng.integers(0, 50, IDS).tolist()
    ours, chosen, count = results(package, device, ids)
    assert count == expected
    joined.undo()
    apart, same, none = results(package, device, ids)
    assert none == 0
    assert relative_error(ours, apart) < 1e-4
    assert chosen == same


@pytest.mark.thorough
@pytest.mark.cover
@pytest.mark.parametrize("quantize", ["q4_k_m", "f16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_joined_feed_forward_changes_the_phases_and_not_the_logits(
    device: Device,
    tmp_path: Path,
    joined: pytest.MonkeyPatch,
    rng: np.random.Generator,
    family: str,
    quantize: str,
) -> None:
    package = package_of(family, tmp_path, quantize)
    check(package, device, rng, joined, FAMILIES[family])


@pytest.mark.thorough
@pytest.mark.parametrize("fused", [False, True], ids=["separate", "fused"])
@pytest.mark.parametrize(("family", "pairs"), [("gemma3_text", 32), ("llama", 16), ("llama", 64)])
def test_a_column_major_feed_forward_changes_the_phases_and_not_the_logits(
    device: Device,
    tmp_path: Path,
    joined: pytest.MonkeyPatch,
    rng: np.random.Generator,
    family: str,
    pairs: int,
    fused: bool,
) -> None:
    joined.setattr("rdrr_runtime.phases.products.down.COLUMN_PAIRS", (pairs,))
    package = package_of(family, tmp_path, "q4_k_m", transpose_weights=True, fuse_gate_up=fused)
    check(package, device, rng, joined, FAMILIES[family])


@pytest.mark.thorough
@pytest.mark.cover
@pytest.mark.parametrize(("family", "pairs"), [("llama", 64), ("gemma3_text", 16)])
def test_a_column_major_feed_forward_in_int8_is_as_near_to_the_exact_logits_as_two_phases(
    device: Device,
    tmp_path: Path,
    joined: pytest.MonkeyPatch,
    rng: np.random.Generator,
    family: str,
    pairs: int,
) -> None:
    joined.setattr("rdrr_runtime.phases.products.down.COLUMN_PAIRS", (pairs,))
    package = package_of(family, tmp_path, "q4_k_m", transpose_weights=True)
    ids = rng.integers(0, 50, IDS).tolist()
    ours, _, count = results(package, device, ids, int8=True)
    assert count == FAMILIES[family]
    joined.undo()
    exact, _, _ = results(package, device, ids)
    apart, _, none = results(package, device, ids, int8=True)
    assert none == 0
    error = relative_error(apart, exact)
    assert error > 1e-4  # so int8 was really used
    assert relative_error(ours, exact) < 1.2 * error


@pytest.mark.usefixtures("joined")
@pytest.mark.thorough
def test_results_of_several_tokens_do_not_depend_on_what_ran_before(
    device: Device, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Sums are added to memory that an earlier phase has cleared, in each pass anew."""
    package = package_of("llama", tmp_path, "q4_k_m")
    backend = GpuBackend(package, context=CONTEXT, device=device)
    ids = rng.integers(0, 50, IDS).tolist()
    first = stepped(backend, ids, PREFILL)
    backend.greedy([1], 0, 5)
    np.testing.assert_array_equal(stepped(backend, ids, PREFILL), first)
    backend.close()


def test_down_projections_of_hardware_have_their_units_first(
    device: Device, tmp_path: Path, joined: pytest.MonkeyPatch
) -> None:
    package = package_of("llama", tmp_path, "q4_k_m")

    def orders() -> set[tuple[bool, bool]]:
        arena, policy = DryRunArena(device.capabilities), resolve({})
        plan = Plan(package, arena, policy, context=CONTEXT, kv_dtype="f16")
        records = [phase.record for phase in plan.lowered(DECODE).phases]
        return {
            (record.output == "down", form.units_first)
            for record in records
            if isinstance(record, Matvec)
            for form in record.formats
        }

    assert orders() == {(False, False), (True, False), (True, True)}
    joined.undo()
    assert orders() == {(False, False)}


@pytest.mark.thorough
@pytest.mark.parametrize(("transposed", "count"), [(True, 2), (False, 0)], ids=["column", "row"])
def test_one_dispatch_joins_column_major_feed_forwards_as_dispatches_do(
    device: Device,
    tmp_path: Path,
    joined: pytest.MonkeyPatch,
    rng: np.random.Generator,
    transposed: bool,
    count: int,
) -> None:
    """Row-major ones are two phases there, which take less time."""
    del joined
    package = package_of("llama", tmp_path, "q4_k_m", transpose_weights=transposed)
    persistence = Persistence((Grid(128, 1),), "a test asks for it", polls=1000)
    ids = rng.integers(0, 50, IDS).tolist()
    logits = []
    for wanted in (None, persistence):
        with closing(
            GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, persistence=wanted)
        ) as backend:
            plan = backend._plan
            executor = backend._executor
            whole = isinstance(executor, PersistentExecutor)
            assert whole == (wanted is not None)
            used = executor.on_grid(plan.decode) if whole else plan.decode.lowered
            steps = []
            for slot, token in enumerate(ids):
                backend.greedy([token], slot, 1)
                steps.append(device.read(used.logits).view(np.float32))
            logits.append(np.stack(steps))
            joins = sum(".down" in phase.name for phase in used.phases)
            assert joins == (2 if wanted is None else count)
    assert relative_error(logits[1], logits[0]) < 1e-4
