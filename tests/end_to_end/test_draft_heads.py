"""Draft heads of multi-token prediction: their logits, and speculative decoding with them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rdrr
from rdrr_converter.convert import convert
from rdrr_manifests.package import open_package
from rdrr_runtime.decode.mtp_draft import MtpDraft
from rdrr_runtime.decode.speculative import SpeculativeDecoding
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from safetensors.numpy import load_file, save_file
from support.checkpoints import make_checkpoint
from support.choices import assert_same_ids
from support.comparison import relative_error
from support.draft_heads import add_head, head_logits, make_predictable
from support.seeds import generator_of
from support.tiny_models import ALL_MODELS, TinyModel

CONTEXT = 96
OPTIONS = {"qwen3_next": {"decoder_sparse_step": 1}}
"""Published models have experts in every layer, and so does the layer of their head."""


def tiny_model(name: str) -> TinyModel:
    return next(model for model in ALL_MODELS if model.model_type == name)


def saved(name: str, folder: Path, rng: np.random.Generator) -> Path:
    options = {"num_hidden_layers": 2, **OPTIONS.get(name, {})}
    return make_checkpoint(tiny_model(name), folder, rng, dtype="float32", **options)


@pytest.fixture(scope="module")
def checkpoint(request, tmp_path_factory):
    rng = generator_of(request)
    folder = saved("qwen3_5_text", tmp_path_factory.mktemp("mtp") / "model", rng)
    return folder, add_head(folder, rng)


@pytest.fixture(scope="module")
def package(checkpoint):
    folder, _ = checkpoint
    convert(folder, folder.parent / "package", quantize="f32")
    return open_package(folder.parent / "package")


def assert_head_computes(backend, package, folder, head, ids, tolerance) -> None:
    """Compare the logits of a head after a prompt, and those of rows that read its own states."""
    kept = len(ids) - 5
    expected = head_logits(folder, head, ids, kept=kept)
    state = backend.draft_head(package)
    backend.keep_hidden(keeps=True)
    backend.fill(ids[:-1], 0)
    logits = [state.logits(ids[1 : kept + 1], 0)[0]]
    logits += [state.logits(ids[at + 1 : at + 2], at)[0] for at in range(kept, len(ids) - 1)]
    assert relative_error(np.stack(logits), expected[kept - 1 :]) < tolerance


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_5_moe_text",
        pytest.param("qwen3_next", marks=pytest.mark.thorough),  # whose names are those of Qwen 3.5
        "deepseek_v3",
        *(  # whose names and layers are those of DeepSeek
            pytest.param(name, marks=pytest.mark.thorough) for name in ("glm4_moe", "glm4_moe_lite")
        ),
    ],
)
def test_the_head_of_every_family_computes_the_formula(name, tmp_path, rng):
    folder = saved(name, tmp_path / "model", rng)
    head = add_head(folder, rng)
    convert(folder, tmp_path / "package", quantize="f32")
    with open_package(tmp_path / "package") as package:
        assert not package.warnings
        backend, ids = CpuBackend(package, context=CONTEXT), rng.integers(0, 384, 50).tolist()
        assert_head_computes(backend, package, folder, head, ids, 1e-4)


@pytest.mark.parametrize(
    "kind",
    ["cpu", "f32", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("f16", "q8_0"))],
)
def test_the_head_computes_the_formula_on_both_backends(kind, checkpoint, package, device, rng):
    if kind == "cpu":
        backend = CpuBackend(package, context=CONTEXT)
    else:
        backend = GpuBackend(package, context=CONTEXT, kv_dtype=kind, device=device)
    ids = rng.integers(0, 384, 50).tolist()
    tolerance = {"cpu": 1e-4, "f32": 1e-3, "f16": 5e-3, "q8_0": 5e-2}[kind]
    assert_head_computes(backend, package, *checkpoint, ids, tolerance)
    backend.close()


@pytest.mark.cover
@pytest.mark.parametrize("by", ["embedding", "hidden"])
@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_a_head_that_knows_the_next_token_is_accepted(by, backend, tmp_path, rng):
    folder = saved("qwen3_5_text", tmp_path / "model", rng)
    after = make_predictable(folder, add_head(folder, rng), rng, by=by)
    convert(folder, tmp_path / "package", quantize="f16")
    decode = rdrr.Speculative(draft="mtp", tokens=3)
    with rdrr.load(tmp_path / "package", backend=backend, context=CONTEXT) as model:
        end = json.loads((folder / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
        ids = [*rng.integers(0, 384, 19).tolist(), after[end]]  # the cycle comes to `end` last
        expected = [after[ids[-1]]]
        while len(expected) < 40:
            expected.append(after[expected[-1]])
        generation = model.generate(ids, max_tokens=40, decode=decode)
        generation.read()
        assert generation.token_ids == expected
        counts = generation.stats.counts
        assert counts.accepted > 0.9 * counts.drafted > 0
        assert counts.forwards <= 12


class Recorded(MtpDraft):
    """A draft that records what it proposes after each sequence."""

    def __init__(self, target, head) -> None:
        super().__init__(target, head)
        self.proposed: dict[tuple[int, ...], list[int]] = {}

    def propose(self, ids, count, sampler):
        proposal = super().propose(ids, count, sampler)
        self.proposed[tuple(ids)] = proposal.ids
        return proposal


def generated(engine: Engine, ids, count: int, draft=None, **options) -> list[int]:
    strategy = None if draft is None else SpeculativeDecoding(draft, 3)
    runs = engine.generate(ids, max_tokens=count, strategy=strategy, **options)
    return [id_ for run in runs for id_ in run]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["cpu", "wgpu"])
def test_a_conversation_is_drafted_as_if_it_were_new(kind, package, device, rng):
    """The turns alternate between strategies, and the prompts are longer than what is kept."""

    def new():
        if kind == "cpu":
            return CpuBackend(package, context=400)
        return GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)

    sizes = (280, 20) if kind == "cpu" else (30, 9)
    backend, other = new(), new()
    engine, plain = Engine(backend, [], 384), Engine(other, [], 384)
    ids = rng.integers(0, 384, sizes[0]).tolist()
    for is_drafted in (True, False, True):
        draft = Recorded(backend, backend.draft_head(package)) if is_drafted else None
        reply = generated(engine, ids, 9, draft)
        fresh = new()
        assert_same_ids(reply, generated(Engine(fresh, [], 384), ids, 9), ids, package)
        if draft is not None:
            again = Recorded(fresh, fresh.draft_head(package))
            generated(Engine(fresh, [], 384), ids, 9, again)
            assert draft.proposed == again.proposed != {}
        fresh.close()
        ids = [*ids, *reply, *rng.integers(0, 384, sizes[1]).tolist()]
    assert_same_ids(generated(engine, ids, 4), generated(plain, ids, 4), ids, package)
    backend.close()
    other.close()


def test_an_abandoned_generation_leaves_the_head_usable(package, rng):
    backend = CpuBackend(package, context=CONTEXT)
    engine, ids = Engine(backend, [], 384), rng.integers(0, 384, 20).tolist()
    head = backend.draft_head(package)
    runs = engine.generate(
        ids, max_tokens=30, strategy=SpeculativeDecoding(MtpDraft(backend, head))
    )
    begun = [id_ for run, _ in zip(runs, range(3), strict=False) for id_ in run]
    runs.close()
    ids += begun[:-1]
    draft, fresh = Recorded(backend, head), CpuBackend(package, context=CONTEXT)
    again = Recorded(fresh, fresh.draft_head(package))
    assert generated(engine, ids, 9, draft) == generated(Engine(fresh, [], 384), ids, 9, again)
    assert draft.proposed == again.proposed


@pytest.mark.thorough
def test_sampled_tokens_have_the_distribution_of_the_model(package, rng):
    """Only the first draft token of a short generation is verified, many times."""
    backend = CpuBackend(package, context=CONTEXT)
    head, ids = backend.draft_head(package), rng.integers(0, 384, 10).tolist()
    options = SamplingParams(temperature=0.5, top_k=3, seed=0)
    counts: dict[bool, Counter[int]] = {}
    for is_drafted in (False, True):
        counts[is_drafted] = Counter()
        for seed in range(300):
            engine = Engine(backend, [], 384)
            draft = MtpDraft(backend, head) if is_drafted else None
            sampling = replace(options, seed=seed)
            counts[is_drafted][generated(engine, ids, 2, draft, sampling=sampling)[-1]] += 1
    most = [token for token, _ in counts[False].most_common(3)]
    for token in most:
        assert abs(counts[False][token] - counts[True][token]) < 75


def test_a_model_without_a_head_says_so(tmp_path, rng):
    folder = saved("qwen3_5_text", tmp_path / "model", rng)
    add_head(folder, rng)
    convert(folder, tmp_path / "package", quantize="f16", without_draft_head=True)
    with (
        rdrr.load(tmp_path / "package", backend="cpu", context=CONTEXT) as model,
        pytest.raises(rdrr.UsageError, match="no head for multi-token prediction"),
    ):
        model.generate([1, 2], decode=rdrr.Speculative(draft="mtp"))


def test_an_incomplete_head_is_left_out_with_a_note(tmp_path, rng):
    folder = saved("qwen3_5_text", tmp_path / "model", rng)
    add_head(folder, rng)
    tensors = load_file(folder / "model.safetensors")
    del tensors["mtp.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    result = convert(folder, tmp_path / "package", quantize="f32")
    assert "mtp.layers.0.mlp.up_proj.weight is missing" in result.notes[0]
    with open_package(tmp_path / "package") as package:
        assert package.mtp_graph is None
        assert not [name for name in package.manifest.tensors if name.startswith("mtp.")]


@pytest.mark.thorough
def test_a_quantized_head_drafts_on_the_gpu(checkpoint, device, rng):
    folder, _ = checkpoint
    convert(folder, folder.parent / "quantized")
    with open_package(folder.parent / "quantized") as package:
        backend = GpuBackend(package, context=CONTEXT, device=device)
        ids = rng.integers(0, 384, 30).tolist()
        draft = Recorded(backend, backend.draft_head(package))
        reply = generated(Engine(backend, [], 384), ids, 8, draft)
        reference = CpuBackend(package, context=CONTEXT)
        other = Recorded(reference, reference.draft_head(package))
        other.begin(ids, 0)
        reference.fill(ids, 0)
        first = min(draft.proposed, key=len)
        logits = reference.draft_head(package).logits(list(first[1:]), 0)[0]
        assert logits[draft.proposed[first][0]] > logits.max() - 0.05 * abs(logits).max()
        assert len(reply) == 8
        backend.close()
