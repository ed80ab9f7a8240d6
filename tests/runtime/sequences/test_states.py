"""Sequences of models with recurrent states: resuming, rewinding, sessions and batches."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.decode.drafts import ModelDraft, Proposal
from rdrr_runtime.decode.scheduler import Pace, ScheduledText, Scheduler
from rdrr_runtime.decode.speculative import SpeculativeDecoding
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.decode.wedlm import Wedlm
from rdrr_runtime.engine import Engine
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.cache.state_positions import StatePosition
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.choices import assert_same_ids
from support.comparison import relative_error
from support.hybrids import VOCAB, hybrid_manifest, state_space_manifest, write_hybrid
from support.seeds import generator_of

CONTEXT = 160


class Log:
    """Copies that only record what happens."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def save(self, index: int) -> None:
        self.calls.append(("save", index))

    def restore(self, index: int) -> None:
        self.calls.append(("restore", index))


def test_a_sequence_resumes_at_its_start_at_its_position_or_at_a_copy():
    log = Log()
    position = StatePosition(log, count=2)
    for length in (10, 5, 4):
        position.advance(length)
        position.keep()
    position.advance(3)
    assert [position.resumable(at) for at in (9, 14, 15, 18, 19, 21, 22, 99)] == [
        *(0, 0, 15, 15, 19, 19, 22, 22)
    ]
    assert log.calls == [("save", 0), ("save", 1), ("save", 0)]
    with pytest.raises(GenerationError, match="cannot resume"):
        position.begin(16)
    position.begin(15)
    assert log.calls[-1] == ("restore", 1)
    assert position.resumable(99) == 15, "the copy behind the position is discarded"
    position.begin(0)
    assert log.calls[-1] == ("restore", 1), "a state counts as zero at the first slot"
    assert position.resumable(99) == 0


def test_the_copies_of_a_sequence_that_is_replaced_are_discarded():
    position = StatePosition(Log())
    position.advance(10)
    position.keep()
    position.replace(30)
    assert [position.resumable(at) for at in (10, 29, 30)] == [0, 0, 30]


def test_a_model_without_states_resumes_everywhere():
    position = StatePosition()
    position.begin(7)
    position.keep()
    assert position.resumable(5) == 5
    assert position.index(3) is None


MANIFESTS = {"delta rule": hybrid_manifest, "state space": state_space_manifest}


@pytest.fixture(scope="module", params=MANIFESTS)
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    return write_hybrid(folder, generator_of(request), MANIFESTS[request.param]())


def opened(package, device, kind: str):
    if kind == "cpu":
        return CpuBackend(package, context=CONTEXT)
    return GpuBackend(package, context=CONTEXT, kv_dtype=kind, device=device)


@pytest.fixture(scope="module", params=["cpu", "f32"])
def backend(request, package, device):
    gpu_backend = opened(package, device, request.param)
    yield gpu_backend
    gpu_backend.close()


def prompt(rng, length: int) -> list[int]:
    return rng.integers(0, VOCAB, length).tolist()


def fresh(backend, ids, count: int, strategy=None) -> list[int]:
    """Return new ids of an engine that has cached nothing."""
    return continued(Engine(backend, [], VOCAB), ids, count, strategy=strategy)


def continued(engine, ids, count: int, strategy=None, stats=None) -> list[int]:
    runs = engine.generate(ids, max_tokens=count, strategy=strategy, stats=stats)
    return [id_ for run in runs for id_ in run]


def test_every_kind_of_pass_gives_the_logits_of_one_pass(backend, rng):
    ids = prompt(rng, 75)
    whole = backend.logits(ids, 0, all_rows=True)
    backend.fill(ids[:40], 0)
    parts = [backend.window_logits(ids[40:45], 40, last_n=1)]
    parts += [backend.logits([id_], at) for at, id_ in enumerate(ids[45:50], start=45)]
    parts += [backend.logits(ids[50:], 50)]
    rows = [44, *range(45, 50), 74]
    assert relative_error(np.concatenate(parts), whole[rows]) < 1e-4


def test_a_window_over_draft_tokens_leaves_the_states_at_the_certain_rows(backend, rng):
    ids = prompt(rng, 60)
    whole = backend.logits(ids, 0, all_rows=True)
    backend.fill(ids[:20], 0)
    wrong = prompt(rng, 4)
    logits = backend.window_logits([*ids[20:23], *wrong], 20, last_n=5)
    assert relative_error(logits[:1], whole[22:23]) < 1e-4
    assert backend.resumable(27) == 23
    # More rows than a window has: only the certain ones are split.
    logits = backend.window_logits(ids[23:60], 23, last_n=6)
    assert relative_error(logits, whole[54:60]) < 1e-4
    assert backend.resumable(99) == 55
    with pytest.raises(GenerationError, match="cannot resume"):
        backend.logits(ids[57:], 57)


def test_a_window_of_as_many_rows_as_a_chunk_absorbs_no_draft_tokens(backend, rng):
    ids = prompt(rng, 30)
    whole = backend.logits(ids, 0, all_rows=True)
    backend.fill(ids[:20], 0)
    backend.window_logits([*ids[20:23], *prompt(rng, 12)], 20, last_n=13)
    assert relative_error(backend.logits(ids[23:], 23), whole[29:]) < 1e-4


def test_a_window_of_more_drafts_than_a_pass_has_rows_is_refused(package, device, rng):
    backend = opened(package, device, "f32")
    with pytest.raises(UsageError, match="too many draft tokens"):
        backend.window_logits(prompt(rng, 50), 0, last_n=40)
    backend.close()


def test_a_longer_prompt_reuses_the_states_of_the_shorter_one(backend, package, rng):
    first, more = prompt(rng, 12), prompt(rng, 9)
    engine, stats = Engine(backend, [], VOCAB), GenerationStats()
    ids = first + continued(engine, first, 10, strategy=Autoregressive(4))
    longer = [*ids, *more]
    new = continued(engine, longer, 6, stats=stats)
    assert stats.cached_tokens in (12, len(ids) - 1)  # the GPU has run ahead of the reply
    assert_same_ids(new, fresh(backend, longer, 6), longer, package)


@pytest.mark.cover
def test_an_edited_prompt_resumes_at_the_end_of_an_earlier_one(backend, package, rng):
    system, turn, other = prompt(rng, 20), prompt(rng, 7), prompt(rng, 8)
    engine, stats = Engine(backend, [], VOCAB), GenerationStats()
    continued(engine, system, 1)
    continued(engine, [*system, *turn], 5)
    edited, unrelated = [*system, *other], prompt(rng, 11)
    ids = continued(engine, edited, 6, stats=stats)
    assert stats.cached_tokens == 20
    assert_same_ids(ids, fresh(backend, edited, 6), edited, package)
    ids = continued(engine, unrelated, 6)
    assert_same_ids(ids, fresh(backend, unrelated, 6), unrelated, package)


class FixedDrafts:
    """A draft that knows the tokens to come, and makes every third of them wrong."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def begin(self, ids, base) -> int:
        del ids
        return base

    def end(self, ids) -> None: ...

    def propose(self, ids, count, sampler) -> Proposal:
        del sampler
        at = len(ids)
        return Proposal(
            [(id_ + (place % 3 == 0)) % VOCAB for place, id_ in enumerate(self.ids[at:], start=at)][
                :count
            ]
        )


@pytest.mark.cover
@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_speculative_decoding_gives_the_ids_of_plain_decoding(backend, package, rng, tokens):
    ids = prompt(rng, 15)
    plain = fresh(backend, ids, 24)
    assert len(set(plain)) > 5, "the model repeats itself too much to show a mistake"
    strategy = SpeculativeDecoding(FixedDrafts(ids + plain), tokens)
    stats = GenerationStats()
    engine = Engine(backend, [], VOCAB)
    assert_same_ids(continued(engine, ids, 24, strategy, stats), plain, ids, package)
    assert 0 < stats.counts.accepted < stats.counts.drafted
    more = [*ids, *plain, *prompt(rng, 5)]
    assert_same_ids(continued(engine, more, 8), fresh(backend, more, 8), more, package)


@pytest.mark.thorough
def test_a_hybrid_can_be_the_draft_of_another(package, tmp_path, device, rng):
    draft = opened(write_hybrid(tmp_path, rng), device, "f32")
    target, same = opened(package, device, "f32"), opened(package, device, "f32")
    ids = prompt(rng, 10)
    plain = fresh(target, ids, 24)
    for drafting in (draft, same):
        new = fresh(target, ids, 24, SpeculativeDecoding(ModelDraft(drafting), 3))
        assert_same_ids(new, plain, ids, package)
    for drafting in (draft, target, same):
        drafting.close()


@pytest.mark.cover
@pytest.mark.parametrize("kind", ["cpu", "f32", "q8_0"])
def test_a_saved_sequence_continues_in_another_backend(package, device, rng, kind):
    first, other = opened(package, device, kind), opened(package, device, kind)
    ids = prompt(rng, 14)
    engine = Engine(first, [], VOCAB)
    sequence = ids + continued(engine, ids, 9)
    slots, cache = engine.save_cache(sequence)
    assert slots in (14, len(sequence) - 1)
    loaded, stats = Engine(other, [], VOCAB), GenerationStats()
    loaded.load_cache(sequence, slots, cache)
    new = continued(loaded, sequence, 7, stats=stats)
    assert stats.cached_tokens == slots
    assert new == continued(engine, sequence, 7)
    first.close()
    other.close()


def test_a_loaded_sequence_resumes_nowhere_in_the_one_before(package, rng):
    backend = opened(package, None, "cpu")
    saved = prompt(rng, 30)
    engine = Engine(backend, [], VOCAB)
    continued(engine, saved, 1)
    slots, cache = engine.save_cache(saved)
    continued(engine, prompt(rng, 10), 3)
    engine.load_cache(saved, slots, cache)
    branch = [*saved[:20], 5, 6]
    assert continued(engine, branch, 5) == fresh(opened(package, None, "cpu"), branch, 5)


@pytest.mark.thorough
def test_a_batch_gives_the_ids_of_each_prompt_alone(package, device, rng):
    backend = opened(package, device, "f32")
    prompts = [prompt(rng, length) for length in (3, 40, 1, 17, 2, 70, 5)]
    alone = [fresh(backend, ids, 9) for ids in prompts]
    # Three sequences serve seven prompts, so each is used again, with the states of the one before.
    batch = Engine(backend, [], VOCAB).generate_batch(prompts, max_tokens=9, sequences=3)
    for sequence, expected, ids in zip(batch, alone, prompts, strict=True):
        assert_same_ids(sequence.ids, expected, ids, package)
    backend.close()


@pytest.mark.cover
@pytest.mark.parametrize("together", [True, False])
def test_texts_of_a_batch_run_a_beginning_that_they_share_once(backend, rng, together, package):
    """Of the texts that come one after the other the second shows where the others begin alike."""
    beginning = prompt(rng, 70)
    # Each goes on with another id: what only two of them share would end a part behind the rest.
    lengths = enumerate((40, 9, 20))
    prompts = [[*beginning, at, *prompt(rng, length - 1)] for at, length in lengths]
    alone = [fresh(backend, ids, 6) for ids in prompts]
    batch, filled = backend.batch(3, CONTEXT), []
    fill = batch.fill
    batch.fill = lambda rows: (filled.append(len(rows)), fill(rows))
    queue = Scheduler(batch, Pace(shared_rows=16))
    texts = [ScheduledText(ids, 6, SamplingParams(), frozenset()) for ids in prompts]
    for part in [texts] if together else [[text] for text in texts]:
        queue.run(part)
    for text, expected in zip(texts, alone, strict=True):
        assert_same_ids(text.ids, expected, text.prompt, package)
    rest = 40 + 9 + 20 - 3
    assert sum(filled) == rest + 70 * (1 if together else 2)


@pytest.mark.cover
def test_a_short_prompt_leaves_no_states_of_the_text_before_it(backend, rng, package):
    """Its only row runs in decoding, and the copies behind it are those of another text."""
    batch = backend.batch(1, CONTEXT)
    queue = Scheduler(batch, Pace(shared_rows=3))
    texts = [ScheduledText(prompt(rng, 6), 9, SamplingParams(), frozenset())]
    queue.run(texts)
    for begin in ([7], [7]):
        ids = [*begin, *texts[-1].ids[:7], 5, 6] if len(texts) > 1 else begin
        texts.append(ScheduledText(ids, 9, SamplingParams(), frozenset()))
        queue.run(texts[-1:])
    for text in texts:
        assert_same_ids(text.ids, fresh(backend, text.prompt, 9), text.prompt, package)


@pytest.mark.cover
def test_a_context_shift_runs_the_rest_again(backend, rng):
    ids, tokens = prompt(rng, CONTEXT - 30), 60
    engine = Engine(backend, [], VOCAB)
    runs = engine.generate(ids, max_tokens=tokens, context_shift=4)
    assert len([id_ for run in runs for id_ in run]) == tokens


def test_wedlm_is_refused(package):
    class Models:
        def __init__(self, package):
            self.package = package

    package.manifest.__dict__["mask_token_id"] = 5
    with pytest.raises(UsageError, match="recurrent states"):
        Wedlm().strategy(Models(package))
    package.manifest.__dict__["mask_token_id"] = None


def test_a_decode_pass_that_could_not_be_repeated_is_not_run_in_one_dispatch(package, device):
    wanted = Persistence((Grid(128, 1),), "a test asks for it")
    backend = GpuBackend(package, context=CONTEXT, device=device, persistence=wanted)
    (decision,) = (choice for choice in backend.info.decisions if choice.op == "decode pass")
    assert "recurrent states" in decision.reason
    assert decision.kernel == "dispatches"
    backend.close()


def test_the_memory_of_states_is_reported(package, device):
    backend = opened(package, device, "f32")
    graph = package.graph
    caches = graph.kv_bytes(CONTEXT, 4)
    # The states and two copies, each state with at most 255 bytes of padding.
    padding = backend.info.kv_bytes - caches - 3 * graph.state_bytes()
    assert 0 <= padding < 3 * len(graph.states) * 256
    backend.close()
