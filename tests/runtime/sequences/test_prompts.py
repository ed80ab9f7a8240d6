"""The passes of a prompt: which of them run for a number of ids, and that all compute the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import Policy, resolve
from rdrr_runtime.compile.pass_spec import DECODE, LONG_PREFILL, PREFILL, PREFILLS
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.gpu import GpuBackend
from support.comparison import relative_error, rounding_backend
from support.lowered import WITH_MATRICES
from support.packages import VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT = 600
ROUNDED_ALIKE, IN_INT8, APART = 2e-2, 5e-2, 1e-1
SHORT, MEDIUM, *_ = PREFILLS


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    manifest = llama_manifest("Q4_K", embedding="Q8_0")
    return write_random_package(folder, manifest, generator_of(request))


@pytest.fixture(scope="module")
def hardware(device: Device) -> Iterator[Device]:
    """The device of the tests, whose kernels are chosen as on a hardware adapter."""
    before, device.info = device.info, replace(device.info, software=False)
    yield device
    device.info = before


@pytest.fixture(scope="module")
def backend(hardware, package) -> Iterator[GpuBackend]:
    policy = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})
    gpu_backend = GpuBackend(
        package, context=CONTEXT, kv_dtype="f32", device=hardware, policy=policy
    )
    yield gpu_backend
    gpu_backend.close()


def plan_of(package, device, context: int = 2000) -> Plan:
    return Plan(
        package, DryRunArena(device.capabilities), Policy(), context=context, kv_dtype="f16"
    )


@pytest.mark.parametrize(
    ("ids", "passes"),
    [
        (1, [DECODE]),
        (2, [SHORT]),
        (32, [SHORT]),
        (33, [MEDIUM]),
        (128, [MEDIUM]),
        (129, [PREFILL]),
        (512, [PREFILL]),
        (513, [PREFILL, DECODE]),
        (540, [PREFILL, SHORT]),
        (1124, [PREFILL, PREFILL, MEDIUM]),
    ],
)
def test_each_pass_is_the_shortest_that_has_room_for_the_ids_that_are_left(
    package, hardware, ids, passes
):
    plan = plan_of(package, hardware)
    assert plan.consecutive(ids, decodes=True) == passes
    several = [SHORT if spec == DECODE else spec for spec in passes]
    assert plan.consecutive(ids, decodes=False) == several


def test_long_prompts_run_in_longer_passes_where_subgroups_multiply_matrices(package):
    arena = DryRunArena(WITH_MATRICES)
    plan = Plan(package, arena, Policy(), context=4000, kv_dtype="f16")
    for ids, passes in (
        (512, [PREFILL]),
        (513, [LONG_PREFILL]),
        (1025, [LONG_PREFILL, DECODE]),
        (1600, [LONG_PREFILL, LONG_PREFILL]),
        (2148, [LONG_PREFILL, LONG_PREFILL, MEDIUM]),
    ):
        assert plan.consecutive(ids, decodes=True) == passes
    assert plan.prompt_rows == 1024
    assert LONG_PREFILL not in plan.loaded


def test_passes_have_no_more_rows_than_the_context(package, hardware):
    plan = plan_of(package, hardware, context=40)
    assert plan.consecutive(40, decodes=True) == [MEDIUM]
    assert plan.rows(MEDIUM) == plan.rows(PREFILL) == 40
    assert plan.rows(SHORT) == 32  # the control


def test_a_software_adapter_compiles_one_pass_for_prompts(package, device, monkeypatch):
    for software, shortest in ((True, PREFILL), (False, SHORT)):
        monkeypatch.setattr(device, "info", replace(device.info, software=software))
        plan = plan_of(package, device)
        assert plan.consecutive(20, decodes=True) == [shortest]
        assert plan.consecutive(513, decodes=True) == [PREFILL, DECODE]
        assert (SHORT in plan.explained, PREFILL in plan.explained) == (not software, True)
        assert plan.loaded == ((DECODE, PREFILL) if software else (DECODE, SHORT, PREFILL))
        assert {decision.step for decision in plan.decisions()} == {
            "load",
            *(spec.name for spec in plan.loaded),
        }


@pytest.mark.thorough
def test_logits_of_short_prompts_are_close_to_torch(backend, package, rng):
    reference = rounding_backend(package, CONTEXT)
    ids = rng.permutation(VOCAB)[:70].tolist()  # neighbours differ, and with them their logits
    expected = reference.logits(ids, 0, all_rows=True)
    for count in (2, 3, 8, 17, 31, 32, 33, 64, 70):
        logits = backend.logits(ids[:count], 0)
        assert relative_error(logits, expected[count - 1 : count]) < ROUNDED_ALIKE
        assert relative_error(logits, expected[count - 2 : count - 1]) > APART  # the control


@pytest.mark.thorough
@pytest.mark.parametrize("count", [20, 70, 513, 540])
def test_the_last_ids_of_a_prompt_run_in_a_shorter_pass_with_the_same_result(
    backend, rng, count, monkeypatch
):
    ids = rng.integers(0, VOCAB, count).tolist()
    short = backend.logits(ids, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "consecutive", lambda *_, **__: [PREFILL] * -(-count // PREFILL.rows))
        long = backend.logits(ids, 0)
    assert relative_error(short, long) < IN_INT8
    for split in (1, count // 2, count - 1):
        backend.fill(ids[:split], 0)
        assert relative_error(backend.logits(ids[split:], split), long) < IN_INT8
    other = backend.logits([*ids[:-1], (ids[-1] + 1) % VOCAB], 0)
    assert relative_error(other, long) > APART  # the control


@pytest.mark.thorough
def test_a_prompt_of_a_batch_runs_in_short_passes_behind_the_long_one(backend, rng):
    batch = backend.batch(2, CONTEXT)
    ids = rng.integers(0, VOCAB, 541).tolist()
    batch.fill([Row(id_, 1, slot) for slot, id_ in enumerate(ids[:-1])])
    alone = backend.logits(ids, 0)
    assert relative_error(batch.logits([Row(ids[-1], 1, 540)]), alone) < IN_INT8
    assert relative_error(batch.logits([Row(ids[-1], 0, 540)]), alone) > APART  # the control
    rows = [len(batch._batch_passes.consecutive(count)) for count in (32, 33, 540)]
    assert rows == [0, 1, 2]  # short prompts share a pass with those of other sequences
