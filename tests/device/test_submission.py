"""Submission of programs: exact counts, long prompts in parts, and other submitters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from rdrr_device import submission
from rdrr_device.pass_timer import timed
from rdrr_device.pipelines import Recorder
from rdrr_device.submission import Parts, PassSubmitter
from rdrr_format.errors import DeviceError
from rdrr_runtime.compile.pass_spec import PREFILL
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.rows.copy import copy
from rdrr_runtime.phases.rows.elementwise import scale
from support.comparison import relative_error
from support.decoding import (
    Ending,
    decode_dispatches,
    endless_prompt,
    generated,
    prompt,
    varied_prompt,
)
from support.packages import CONTEXT, SMALL, llama_manifest, write_random_package
from support.seeds import generator_of


@pytest.fixture(scope="module")
def backend(request, device, tmp_path_factory) -> Iterator[GpuBackend]:
    folder = tmp_path_factory.mktemp("submission")
    manifest = llama_manifest(**{**SMALL, "layers": 2})
    package = write_random_package(folder, manifest, generator_of(request))
    gpu_backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    gpu_backend.greedy(
        gpu_backend.greedy([1, 2], 0, 1), 2, 1
    )  # builds all passes, so that tests count no builds
    yield gpu_backend
    gpu_backend.close()


@pytest.mark.parametrize("interval", [1, 4])
def test_a_token_is_one_submission_and_creates_no_gpu_object(backend, rng, interval):
    last = backend.greedy(backend.greedy(prompt(rng, 5), 0, 1), 5, 1)
    before = backend.device.counters.copy()
    backend.greedy(last, 6, interval)
    work = backend.device.counters.since(before)
    assert work.dispatches == len(decode_dispatches(backend)) * interval
    assert (work.submits, work.maps, work.bytes_read) == (interval + 1, 1, 4 * interval)
    assert work.buffer_creates == work.bind_group_creates == work.pipeline_creates == 0
    assert work.bytes_written == 0


def test_the_beginning_of_a_long_prompt_is_submitted_first(backend, rng, monkeypatch):
    monkeypatch.setattr(submission, "MANY_ROWS", 4)
    monkeypatch.setattr(submission, "PARTS_OF_MANY_ROWS", Parts(3, 12, 2))
    ids = prompt(rng, 5)
    device = backend.device
    with device.submitting(submitter(device, divides=False)):
        whole = backend.logits(ids, 0)
    with device.submitting(submitter(device)):
        before = device.counters.copy()
        in_parts = backend.logits(ids, 0)
        prefill = device.counters.since(before)
        backend.logits(ids[:3], 5)
        shorter = device.counters.since(before).since(prefill)
    assert (in_parts == whole).all()
    count = len(backend._prepared.get(PREFILL).to_logits)
    assert prefill.dispatches == count >= 3 + 12 + 6 + 2
    assert (prefill.submits, shorter.submits) == (4 + 1, 1 + 1)  # the last reads the logits


def test_fewer_rows_are_submitted_in_parts_while_the_gpu_waits_for_them(backend, rng, monkeypatch):
    monkeypatch.setattr(submission, "PARTS_OF_FEWER_ROWS", Parts(5, 5))
    ids, device = prompt(rng, 4), backend.device
    whole = backend.logits(ids, 0)
    count = -(-(len(backend._prepared.get(PREFILL).to_logits) - 2) // 5)
    with device.submitting(submitter(device)):
        counts = []
        for waits in (True, False):
            if not waits:
                device.clear(backend._plan.state.ring)  # is not waited for
            before = device.counters.copy()
            assert (backend.logits(ids, 0) == whole).all()
            counts.append(device.counters.since(before).submits)
    assert counts == [count + 1, 1 + 1]  # the last reads the logits


@pytest.mark.parametrize(
    ("count", "growing", "even"),
    [
        (11, [11], [11]),
        (25, [9, 16], [25]),
        (71, [8, 47, 16], [71]),
        (72, [8, 32, 16, 16], [48, 24]),
        (228, [8, 32, 96, 76, 16], [48, 48, 48, 48, 36]),
        (300, [8, 32, 96, 96, 52, 16], [48, 48, 48, 48, 48, 60]),
    ],
)
def test_a_long_program_is_submitted_in_parts_up_to_a_length(count, growing, even):
    for parts, lengths in ((Parts(8, 96, 16), growing), (Parts(48, 48), even)):
        part_list = list(parts.of(range(count)))
        assert [len(part) for part in part_list] == lengths
        assert [at for part in part_list for at in part] == list(range(count))


@pytest.mark.parametrize("software", [False, True])
def test_the_host_stays_awake_for_the_end_of_the_last_submission(bench, monkeypatch, software):
    device, native = bench.device, bench.device.handle.native
    if native is None:
        pytest.skip("without raw calls the host sleeps")
    monkeypatch.setattr(device.handle, "info", replace(device.info, software=software))
    awake: list[bool] = []
    read = native.read

    def reading(*operands):
        awake.append(operands[-1] > 0)
        return read(*operands)

    monkeypatch.setattr(native, "read", reading)
    x = bench.upload(np.ones(64, np.float32))
    twice = scale(bench.context(1), x, width=64, factor=2.0, label="twice")
    bench.run(twice, 1)
    for number in (2, 3):
        bench.run(twice, 1)
        fetch = device.fetch(x)
        if number == 3:
            device.clear(x)  # the GPU has work, so nothing waits for the host
        assert np.array_equal(fetch.collect()[0].view(np.float32), np.full(64, 2.0**number))
    assert awake == [not software, False]


def test_an_invalid_dispatch_is_an_error_and_does_not_affect_later_ones(bench):
    x = bench.poisoned(64)
    wrong = copy(x, x, label="wrong")
    right = scale(bench.context(1), x, width=64, factor=2.0, label="right")
    with pytest.raises(DeviceError, match="running a program failed"):
        bench.run(wrong, 1)
    bench.device.write(x, np.ones(64, np.float32))
    bench.run(right, 1)
    assert np.array_equal(bench.download(x, 64), np.full(64, 2.0, np.float32))


class RecordingSubmitter:
    """A submitter that records the lengths of programs and passes them to another submitter."""

    fresh_staging = True

    def __init__(self, inner: PassSubmitter) -> None:
        self.inner, self.lengths = inner, []

    def run(self, bound, rows, times=1):
        self.lengths.append(len(bound))
        self.inner.run(bound, rows, times)


def submitter(device, *, divides: bool = True) -> PassSubmitter:
    return PassSubmitter(device.handle, Recorder(device.handle.native), divides=divides)


def test_another_submitter_is_used_until_its_block_ends_also_after_an_error(backend, rng):
    device, ids = backend.device, prompt(rng, 5)
    plain = backend.greedy(ids, 0, 3)
    recording = RecordingSubmitter(submitter(device, divides=False))

    def fail() -> None:
        with device.submitting(recording):
            before = device.counters.copy()
            assert backend.greedy(ids, 0, 3) == plain
            assert device.counters.since(before).buffer_creates == 1  # a fresh staging buffer
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert recording.lengths.count(len(decode_dispatches(backend))) == 2
    programs = len(recording.lengths)
    before = device.counters.copy()
    assert backend.greedy(ids, 0, 3) == plain
    assert len(recording.lengths) == programs
    assert device.counters.since(before).buffer_creates == 0


def greedy_on_the_host(backend: GpuBackend, ids: list[int], count: int) -> list[int]:
    """Generate ids greedily, reading back the logits of each pass."""
    sequence = list(ids)
    for _ in range(count):
        base = len(sequence) - 1 if len(sequence) > len(ids) else 0
        sequence.append(int(backend.logits(sequence[base:], base)[0].argmax()))
    return sequence[len(ids) :]


@pytest.mark.thorough
def test_ids_are_the_same_with_an_end_at_every_position_of_an_interval(backend, rng):
    ids, stops = varied_prompt(backend, rng), frozenset({Ending.EOS})
    plain = greedy_on_the_host(backend, ids, 10)
    for x, end in [(each, at) for each in (1, 2, 4, 8) for at in range(1, each + 1)]:
        new, counts = generated(Ending(backend, len(ids) + end), Autoregressive(x), ids, 9, stops)
        assert new == [*plain[:end], Ending.EOS]
        assert counts.wasted == -end % x
        assert counts.forwards == end + counts.wasted


@pytest.mark.parametrize(
    "max_tokens",
    [*(pytest.param(count, marks=pytest.mark.thorough) for count in (5, 6, 7)), 8],
)
def test_no_pass_is_wasted_when_the_token_limit_ends_the_sequence(backend, rng, max_tokens):
    ids = prompt(rng, 6)
    runs = [generated(backend, Autoregressive(x), ids, max_tokens, frozenset()) for x in (1, 4)]
    assert runs[0][0] == runs[1][0]
    assert [counts.wasted for _, counts in runs] == [0, 0]
    assert [counts.forwards for _, counts in runs] == [max_tokens - 1] * 2


def test_after_an_early_end_the_next_turn_equals_a_fresh_run(backend, rng):
    ids, turn = endless_prompt(backend, rng, 7), prompt(rng, 4)
    ending = Ending(backend, len(ids) + 3)
    delivered, counts = generated(ending, Autoregressive(8), ids, 17, frozenset({Ending.EOS}))
    assert (len(delivered), counts.wasted) == (4, 5)
    sequence = [*ids, *delivered]
    # The last id has not been run yet: it begins the next turn.
    second = backend.logits([delivered[-1], *turn], len(sequence) - 1)
    fresh = backend.logits([*sequence, *turn], 0)
    other = backend.logits([*sequence[:-1], *turn], 0)
    assert relative_error(second, fresh) < 1e-5
    assert relative_error(other, fresh) > 1e-3  # the control


def test_a_timer_measures_every_pass_while_it_is_attached(backend, rng):
    first = backend.greedy(prompt(rng, 5), 0, 1)
    with timed(backend.device) as timer:
        assert timer.collect() == 0.0
        backend.greedy(first, 5, 2)
        assert timer.collect() > 0
    assert backend.device.timer is None


def test_memory_counts_live_buffers_and_keeps_the_peak(device):
    live = device.memory.live
    buffer = device.create_buffer("test", 4096)
    assert device.memory.live == live + 4096
    device.free_buffer(buffer)
    device.free_buffer(buffer)
    assert device.memory.live == live
    assert device.memory.peak >= live + 4096
