"""A program file, played with its package, gives the ids of the runtime that compiles by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.errors import DeviceError, FormatError, GenerationError, UsageError
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.packing import EncodedText
from rdrr_runtime.program.export import make_program
from rdrr_runtime.program.files import program_bytes, read_program
from rdrr_runtime.program.player import Player
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams
from support.dawn_device import open_dawn_device, why_no_dawn
from support.hints import policy
from support.packages import SMALL, VOCAB, llama_manifest, write_random_package
from support.program_models import MODELS, MOST, embedding_manifest
from support.seeds import generator_of

CONTEXT, TOKENS = 2048, 6
PENALIZED = SamplingParams(
    temperature=1.1, min_p=0.01, repeat_penalty=1.2, frequency_penalty=0.3, seed=11
)
OPTIONS = (
    None,
    PENALIZED,
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=7),
    SamplingParams(logit_bias={5: 30.0}, presence_penalty=50.0),
)


def program_of(package, device, hints=None, most=MOST, **options):
    """Return the program of a package, written and read again, in which no id ends a text."""
    hints = hints or Policy()
    made = make_program(package, device.capabilities, hints, most_context=most, **options)
    return read_program(program_bytes(made)).model_copy(update={"ends": ()})


def ids_of(backend, prompt, sampling=PENALIZED):
    """Return the ids that the runtime chooses, which has compiled the same model by itself."""
    runs = Engine(backend, [], VOCAB).generate(prompt, max_tokens=TOKENS, sampling=sampling)
    return [token_id for run in runs for token_id in run]


def played(player, prompt, sampling=PENALIZED, tokens=TOKENS):
    return list(player.generate(prompt, max_tokens=tokens, sampling=sampling))


USUAL = {"transposed and fused", "window and softcaps", "hybrid", "mixture"}
"""Models that `make test` plays. Tests below load other forms of matrices."""


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.thorough) for name in MODELS],
)
def test_a_played_program_gives_the_ids_of_the_runtime(device, tmp_path, rng, model):
    package = MODELS[model](tmp_path, rng)
    prompt = rng.integers(0, VOCAB, 41).tolist()
    backend = GpuBackend(package, context=CONTEXT, device=device)
    # A window is stated for several contexts. Trusted, so that most kernels are compiled already.
    most = MOST if model == "window and softcaps" else CONTEXT
    with Player(program_of(package, device, most=most), package, device, trusts=True) as player:
        assert played(player, prompt) == ids_of(backend, prompt)
    backend.close()


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    return write_random_package(folder, llama_manifest("Q8_0", **SMALL), generator_of(request))


@pytest.fixture(scope="module")
def program(package, device):
    return program_of(package, device)


@pytest.fixture(scope="module")
def player(program, package, device):
    with Player(program, package, device) as opened:
        yield opened


@pytest.fixture(scope="module")
def backend(package, device):
    opened = GpuBackend(package, context=CONTEXT, device=device)
    yield opened
    opened.close()


@pytest.fixture
def prompt(rng):
    return rng.integers(0, VOCAB, 9).tolist()


@pytest.mark.parametrize(
    "sampling",
    [*(pytest.param(options, marks=pytest.mark.thorough) for options in OPTIONS[:2]), *OPTIONS[2:]],
    ids=["greedy", "penalties", "truncated", "biased"],  # the first two occur below, too
)
def test_every_way_to_sample_gives_the_ids_of_the_runtime(player, backend, prompt, sampling):
    assert played(player, prompt, sampling) == ids_of(backend, prompt, sampling)


def test_one_file_serves_several_contexts(device, package, program, prompt):
    backend = GpuBackend(package, context=MOST, device=device)
    with Player(program, package, device, context=MOST) as player:
        assert played(player, prompt) == ids_of(backend, prompt)
    backend.close()


def test_one_file_gives_the_same_ids_on_both_implementations(package, program, player, prompt):
    """The program was made for wgpu; Dawn is a stranger who reads a file."""
    why = why_no_dawn()
    if why is not None:
        pytest.skip(why)
    dawn = open_dawn_device()
    with Player(program, package, dawn, owns_device=True) as other:
        assert dawn.info.implementation != player.device.info.implementation
        for sampling in (None, PENALIZED):
            assert played(other, prompt, sampling) == played(player, prompt, sampling)


@pytest.mark.parametrize("context", [1024, 2300, 8192])
def test_a_context_that_the_program_does_not_serve_is_refused(device, package, program, context):
    with pytest.raises(UsageError, match="2048 to 4096, a multiple of 256"):
        Player(program, package, device, context=context)


@pytest.mark.thorough
def test_a_prompt_may_need_several_passes(player, backend, rng):
    prompt = rng.integers(0, VOCAB, 530).tolist()
    assert played(player, prompt) == ids_of(backend, prompt)


def test_an_embedding_that_is_also_the_head_may_be_larger_than_a_binding(device, package, prompt):
    size = package.tensor("model.embed_tokens.weight").size
    limits = dict(device.capabilities.limits) | {"max-storage-buffer-binding-size": size // 2 + 256}
    capabilities = replace(device.capabilities, limits=limits)
    made = make_program(package, capabilities, Policy(), most_context=256)
    program = made.model_copy(update={"ends": ()})
    (embedding,) = (step for step in program.load if step.kind == "rows")
    assert len(embedding.parts) > 1
    backend = GpuBackend(package, context=256, device=device)
    with Player(program, package, device, trusts=True) as player:
        for sampling in (None, PENALIZED):
            assert played(player, prompt, sampling) == ids_of(backend, prompt, sampling)
    backend.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sampling",
    [
        None,
        SamplingParams(temperature=0.8, seed=7),
        PENALIZED,
    ],
    ids=["greedy", "sampled", "penalized"],
)
def test_the_log_probabilities_are_those_of_the_runtime(player, backend, prompt, sampling):
    """More tokens than the ring has records."""
    recorded, expected, tokens = Logprobs(3), Logprobs(3), 70
    ids = list(player.generate(prompt, max_tokens=tokens, sampling=sampling, logprobs=recorded))
    runs = Engine(backend, [], VOCAB).generate(
        prompt, max_tokens=tokens, sampling=sampling, logprobs=expected
    )
    assert ids == [token_id for run in runs for token_id in run]
    assert len(recorded.tokens) == tokens
    assert recorded.tokens == expected.tokens


def test_a_program_without_log_probabilities_does_not_record_them(device, package, program, prompt):
    sampler = program.sampler.model_copy(update={"logprobs": None})
    older = program.model_copy(update={"sampler": sampler})
    with Player(older, package, device, trusts=True) as player:
        with pytest.raises(UsageError, match="does not record"):
            next(player.generate(prompt, logprobs=Logprobs(0)))
        assert played(player, prompt)


def test_the_logits_of_a_text_are_those_of_the_runtime(device, package, backend, player, rng):
    """A text of more ids than the rows of a pass."""
    ids = rng.integers(0, VOCAB, 70).tolist()
    with Player(program_of(package, device, scores=True), package, device, trusts=True) as scoring:
        np.testing.assert_array_equal(scoring.logits(ids), backend.logits(ids, 0, all_rows=True))
        assert played(scoring, ids) == played(player, ids)
    with pytest.raises(UsageError, match="`scores`"):
        player.logits(ids)


@pytest.mark.parametrize("causal", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_the_hidden_states_of_an_embedding_model_are_those_of_the_runtime(
    device, tmp_path, rng, causal
):
    package = write_random_package(tmp_path, embedding_manifest(causal=causal), rng)
    # Causal texts may need several passes, others fit one.
    program = program_of(package, device, most=MOST if causal else 256)
    ids = rng.integers(0, VOCAB, 530 if causal else 70).tolist()
    backend = GpuBackend(package, context=program.contexts.least, device=device)
    with Player(program, package, device, trusts=True) as player:
        for some in (ids, ids[:7]):
            (expected,) = backend.hidden([EncodedText(some)])
            np.testing.assert_array_equal(player.hidden(some), expected)
        with pytest.raises(GenerationError, match="the prompt"):
            player.hidden([])
        if causal:
            assert played(player, ids[:7]) == ids_of(backend, ids[:7])
        else:
            with pytest.raises(UsageError, match="generates no text"):
                played(player, ids)
    backend.close()


def test_a_program_of_a_model_that_embeds_nothing_has_no_hidden_states(player, prompt):
    with pytest.raises(UsageError, match="makes no hidden states"):
        player.hidden(prompt)


def test_more_ids_than_the_ring_holds_are_read(player, prompt):
    ids = played(player, prompt, tokens=70)
    assert len(ids) == 70
    assert ids[:10] == played(player, prompt, tokens=10)


def test_a_generation_ends_with_an_end_of_text(package, device, program, player, prompt):
    ids = played(player, prompt)
    ending = program.model_copy(update={"ends": (ids[3],)})
    with Player(ending, package, device) as ending_player:
        assert played(ending_player, prompt) == ids[: ids.index(ids[3]) + 1]


def test_a_generation_may_be_left_before_its_end(player, prompt):
    whole = played(player, prompt)
    ids = player.generate(prompt, max_tokens=TOKENS, sampling=PENALIZED)
    assert next(ids) == whole[0]
    ids.close()
    assert played(player, prompt) == whole


@pytest.mark.parametrize("prompt", [[], [VOCAB], [-1], [1] * CONTEXT])
def test_a_prompt_that_the_model_cannot_read_is_refused(player, prompt):
    with pytest.raises(GenerationError, match="the prompt"):
        next(player.generate(prompt))


def test_a_program_has_the_cache_and_the_hints_that_it_was_made_with(device, package, prompt):
    hints = policy(q4kMatmul="dequant_f16")
    program = program_of(package, device, hints, kv_dtype="q8_0")
    decoded = {step.decoded for step in program.load if step.kind == "rows"}
    assert {how.dtype for how in decoded if how is not None} == {"F16"}
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="q8_0", device=device, policy=hints)
    with Player(program, package, device, trusts=True) as player:
        assert played(player, prompt) == ids_of(backend, prompt)
    backend.close()


def test_small_chunks_load_the_same_weights(device, package, player, prompt):
    """A browser has less memory beside a shard, so chunks may be smaller than a matrix."""
    small = program_of(package, device, chunk=4_000)
    assert max(len(step.chunks) for step in small.load if step.kind == "repack") > 1
    with Player(small, package, device) as other:
        assert played(other, prompt) == played(player, prompt)


def test_a_package_of_other_types_is_refused(device, tmp_path, rng, program):
    other = write_random_package(tmp_path, llama_manifest("Q4_K", **SMALL), rng)
    with pytest.raises(FormatError, match="not the one that the program was made for"):
        Player(program, other, device)


def test_a_device_without_a_feature_is_refused(device, plain_device, package):
    capabilities = replace(device.capabilities, features=frozenset({"subgroup"}), software=False)
    program = make_program(package, capabilities, Policy(), most_context=CONTEXT)
    assert "subgroups" in program.needs.features
    with pytest.raises(DeviceError, match="lacks a feature"):
        Player(program, package, plain_device)
