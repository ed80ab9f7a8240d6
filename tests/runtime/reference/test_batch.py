"""A batch on the CPU: texts that share steps get the ids that they get alone."""

from __future__ import annotations

import pytest
from rdrr_runtime.decode.scheduler import Pace, ScheduledText, Scheduler
from rdrr_runtime.engine import Engine
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.hybrids import VOCAB, hybrid_manifest, write_hybrid
from support.packages import llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT = 128
WAYS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3, top_k=5),
    SamplingParams(temperature=0.8, seed=4, frequency_penalty=0.5),
]


@pytest.fixture(scope="module", params=["attention", "states"])
def package(request, tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("batch"), generator_of(request)
    if request.param == "states":
        return write_hybrid(folder, rng, hybrid_manifest())
    return write_random_package(folder, llama_manifest(), rng)


@pytest.fixture
def backend(package):
    return CpuBackend(package, context=CONTEXT)


def texts_of(rng, *sizes: int) -> list[ScheduledText]:
    return [
        ScheduledText(rng.integers(0, VOCAB, size).tolist(), 7, way, frozenset())
        for size, way in zip(sizes, WAYS * len(sizes), strict=False)
    ]


def alone(backend, text: ScheduledText) -> list[int]:
    runs = Engine(backend, [], VOCAB).generate(text.prompt, max_tokens=7, sampling=text.sampling)
    return [token_id for ids in runs for token_id in ids]


def test_texts_that_share_steps_get_the_ids_that_they_get_alone(backend, rng):
    texts = texts_of(rng, 5, 30, 1, 12, 60)
    batch = backend.batch(3, CONTEXT)
    Scheduler(batch, Pace(prompt_rows=16, interval=4)).run(texts)
    assert [text.ids for text in texts] == [alone(backend, text) for text in texts]
    assert backend.batch(2, CONTEXT) is batch
    assert batch.kv_bytes == 3 * backend.info.kv_bytes


def test_a_prompt_that_goes_on_where_a_text_ended_runs_only_the_rest(backend, rng, monkeypatch):
    (first,) = texts_of(rng, 40)
    batch = backend.batch(1, CONTEXT)
    queue = Scheduler(batch)
    queue.run([first])
    filled = []
    fill = batch.fill
    monkeypatch.setattr(batch, "fill", lambda rows: (filled.append(len(rows)), fill(rows)))
    follows = ScheduledText([*first.prompt, *first.ids, 5, 6], 7, WAYS[0], frozenset())
    queue.run([follows])
    assert filled == [2]
    assert follows.ids == alone(backend, follows)
    # States cannot go back to a beginning that is shorter than what they have absorbed.
    begin = batch.resumable(0, 20)
    branches = ScheduledText([*first.prompt[:20], 5, 6], 7, WAYS[0], frozenset())
    queue.run([branches])
    assert filled[1:] == [21 - begin]
    assert branches.ids == alone(backend, branches)


def test_a_beginning_is_copied_from_a_text_that_runs(backend, rng):
    (first,) = texts_of(rng, 40)
    others = [
        ScheduledText([*first.prompt[:keep], 5, 6], 7, way, frozenset())
        for keep, way in zip((39, 20), WAYS[1:], strict=True)
    ]
    batch = backend.batch(3, CONTEXT)
    copied = []
    copy = batch.copy
    batch.copy = lambda *slots: (copied.append(slots[2]), copy(*slots))
    texts = [first, *others]
    Scheduler(batch, Pace(prompt_rows=16, shared_rows=8)).run(texts)
    assert [text.ids for text in texts] == [alone(backend, text) for text in texts]
    assert max(copied) >= 32
