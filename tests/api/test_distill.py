"""`--quality distill`: blocks trained until the package predicts what its source does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import rdrr
import torch
from rdrr import _distill, _distill_stages, _gptq, _trained_codes
from rdrr._refining import Draft, refine
from rdrr_converter.convert import convert
from rdrr_format.codecs import CODECS
from rdrr_format.errors import ConversionError, UsageError
from rdrr_manifests.graph.ops import uses, values_read
from rdrr_manifests.package import open_package
from rdrr_runtime.reference.stack import TextStack
from support.checkpoints import make_model, save_checkpoint
from support.drafts import draft_of
from support.encoders import make_encoder, save_encoder
from support.tiny_models import ALL_MODELS

TRANSPOSED = pytest.param("transposed", marks=pytest.mark.thorough)
LAYOUTS = {
    "rows": {},
    "transposed": {"transpose_weights": True, "fuse_gate_up": True},
    "flat": {"q4k_layout": "flat"},
}


@pytest.fixture
def short_training(monkeypatch, rng):
    """A training of a second: random tokens, and few steps, each of which moves a code further."""
    ids = torch.from_numpy(rng.integers(3, 96, (64, 12)))
    for module in (_distill, _distill_stages):
        monkeypatch.setattr(module, "calibration_windows", lambda *_: ids)
        monkeypatch.setattr(module, "HELD_OUT", 8)
    for name, value in {"STEPS": 12, "CHECKS": 2, "RATE": 0.01, "WARMUP": 2}.items():
        monkeypatch.setattr(_trained_codes, name, value)


def divergences(note):
    """Return the divergences on held-out windows before and after, as the note states them."""
    words = note.split("windows ")[1].split()
    return float(words[0]), float(words[-2])


def without_codes(tensor, stored):
    """Return the blocks of a tensor with all codes zero."""
    codec = CODECS[tensor.parsed_dtype().name]
    blocks = stored.reshape(-1, codec.dtype.block_bytes)
    return codec.recoder(blocks, np.zeros((len(blocks), codec.dtype.block_elements), np.uint8))


# Codes of the other layouts begin with the values of the draft, as a test below shows.
@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, marks=() if layout == "rows" else pytest.mark.thorough)
        for layout in LAYOUTS
    ],
)
def test_other_codes_on_the_same_grid_predict_more_nearly_what_the_source_does(
    tmp_path, rng, layout
):
    draft = draft_of("llama", rng, tmp_path, **LAYOUTS[layout])
    encoded = refine(draft, ["distill"])
    before, after = divergences(encoded.notes[0])
    assert after < 0.95 * before
    changed = [path.name for path in encoded.folder.iterdir()]
    assert any("embed" in name for name in changed)
    for name in changed:
        tensor, old, new = draft.package.tensor(name), draft.package.read(name), draft.stored(name)
        assert not np.array_equal(old, new), name
        assert np.array_equal(without_codes(tensor, old), without_codes(tensor, new)), name


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("fits", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_worse_beginning_that_a_method_has_left_is_not_kept(tmp_path, rng, monkeypatch, fits):
    """Training begins twice behind another method, and keeps what predicts better in the end."""
    monkeypatch.setattr(_trained_codes, "STEPS", 4)
    draft = draft_of("llama", rng, tmp_path, layers=1)
    if not fits:
        fit_only_stages(draft, monkeypatch)
    names = [use.name for use in draft.package.graph.weights() if "proj" in use.name]

    def spoil(draft):
        for name in names:
            draft.replace(name, without_codes(draft.package.tensor(name), draft.package.read(name)))
        return "spoiled"

    monkeypatch.setattr(_gptq, "gptq", spoil)
    behind = Draft(draft.plain, draft.unrefined, tmp_path / "behind")
    refine(draft, ["distill"])
    refine(behind, ["gptq", "distill"])
    for name in names:
        assert draft.is_replaced(name), name
        assert np.array_equal(draft.stored(name), behind.stored(name)), name


LATENT = pytest.param("deepseek_v3", marks=pytest.mark.thorough)


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", ["qwen3_moe", LATENT])
def test_experts_and_latents_are_trained_too(tmp_path, rng, name, monkeypatch):
    monkeypatch.setattr(_trained_codes, "STEPS", 24)
    monkeypatch.setattr(_trained_codes, "RATE", 0.004)
    draft = draft_of(name, rng, tmp_path)
    encoded = refine(draft, ["distill"])
    before, after = divergences(encoded.notes[0])
    assert after < before
    assert any(".experts." in path.name for path in encoded.folder.iterdir())


@pytest.mark.thorough
@pytest.mark.usefixtures("short_training")
def test_the_same_bytes_come_again(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(_trained_codes, "STEPS", 4)
    draft = draft_of("llama", rng, tmp_path)
    again = Draft(draft.plain, draft.unrefined, tmp_path / "again")
    assert refine(draft, ["distill"]).notes == refine(again, ["distill"]).notes
    for path in draft.folder.iterdir():
        assert path.read_bytes() == (again.folder / path.name).read_bytes(), path.name


@pytest.mark.thorough
@pytest.mark.usefixtures("short_training")
def test_blocks_stay_where_training_gains_nothing(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(_trained_codes, "RATE", 5.0)
    encoded = refine(draft_of("llama", rng, tmp_path), ["distill"])
    before, after = divergences(encoded.notes[0])
    assert before == after
    assert "nothing gained" in encoded.notes[0]
    assert list(encoded.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("quantize", "layout"),
    [("q4_k_m", "flat"), ("q5_k_m", "transposed"), ("q6_k", "rows"), ("q8_0", "rows")],
)
def test_a_training_begins_with_the_values_of_the_draft(tmp_path, rng, quantize, layout):
    draft = draft_of("llama", rng, tmp_path, layers=1, quantize=quantize, **LAYOUTS[layout])
    draft.folder.mkdir()
    name = draft.package.graph.ops[-1].weight.name
    # A method before may have moved codes by several steps.
    stored = draft.stored(name)
    codec = CODECS[draft.package.tensor(name).parsed_dtype().name]
    blocks = stored.reshape(-1, codec.dtype.block_bytes)
    moved = rng.integers(0, codec.levels, (len(blocks), codec.dtype.block_elements), np.uint8)
    draft.replace(name, codec.recoder(blocks, moved))
    codes = _trained_codes.Codes(draft, name, draft.stored(name))
    values = codes.values().numpy()
    assert np.abs(values - draft.values(name)).max() <= 1e-6 * np.abs(values).max()
    if codes._geometry.padding == 0:
        assert np.array_equal(codes.stored().reshape(-1), draft.stored(name))


@pytest.mark.usefixtures("short_training")
def test_a_package_without_blocks_is_left_as_it_is(tmp_path, rng):
    encoded = refine(draft_of("llama", rng, tmp_path, layers=1, quantize="f16"), ["distill"])
    assert list(encoded.folder.iterdir()) == []
    assert "no matrix" in encoded.notes[0]


@pytest.fixture
def without_runs(monkeypatch):
    """Let whatever runs a model fail, since it may take minutes."""

    def run(*_, **__):
        raise AssertionError("the model runs")

    for target in ("rdrr.importance.measure_importance", "rdrr._refining.refine"):
        monkeypatch.setattr(target, run)


@pytest.mark.usefixtures("without_runs")
@pytest.mark.parametrize("quality", ["distill", "best,gptq,distill"])
def test_a_model_that_predicts_no_tokens_is_refused_before_it_runs(tmp_path, rng, quality):
    save_encoder(make_encoder("bert", rng), tmp_path / "source")
    with pytest.raises(UsageError, match=r"distill compares predictions.*; `quality` best, gptq"):
        rdrr.convert(tmp_path / "source", tmp_path / "out", size="9MB", quality=quality)
    with pytest.raises(AssertionError, match="the model runs"):
        rdrr.convert(tmp_path / "source", tmp_path / "out", size="9MB", quality="gptq")


@pytest.mark.usefixtures("without_runs")
def test_what_the_package_cannot_have_is_refused_before_the_model_runs(tmp_path, rng):
    tiny = next(model for model in ALL_MODELS if model.model_type == "gpt2")
    save_checkpoint(make_model(tiny, rng, num_hidden_layers=1), tmp_path / "source")
    options = {"size": "9MB", "fuse_gate_up": True}
    with pytest.raises(ConversionError, match="no gate to be fused"):
        rdrr.convert(tmp_path / "source", tmp_path / "out", **options)


def fit_only_stages(draft, monkeypatch):
    """Let the memory be what the largest stage of a model needs."""
    needed = 32 * _distill_stages.largest_stage(draft.package.graph)
    monkeypatch.setattr(_distill, "_memory", lambda _: needed)


def error_of_logits(draft, ids):
    """Return the mean squared error of the logits, over all windows."""
    stacks = (
        TextStack(
            draft.package.graph,
            {u.name: torch.from_numpy(read(u.name)) for u in draft.package.graph.weights()},
            *ids.shape,
        )
        for read in (draft.values, draft.source_values)
    )
    stored, source = (stack.logits(ids) for stack in stacks)
    return float((stored - source).square().mean())


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("layout", ["rows", TRANSPOSED])
def test_a_model_that_does_not_fit_is_trained_stage_by_stage(tmp_path, rng, monkeypatch, layout):
    draft = draft_of("llama", rng, tmp_path, **LAYOUTS[layout])
    fit_only_stages(draft, monkeypatch)
    ids = torch.from_numpy(rng.integers(3, 96, (16, 32)))  # the training has not seen them
    before = error_of_logits(draft, ids)
    note = refine(draft, ["distill"]).notes[0]
    assert "stage by stage" in note
    assert error_of_logits(draft, ids) < 0.95 * before
    changed = [path.name for path in draft.folder.iterdir()]
    assert len([name for name in changed if "proj" in name]) >= 6
    for name in changed:
        tensor, old, new = draft.package.tensor(name), draft.package.read(name), draft.stored(name)
        assert np.array_equal(without_codes(tensor, old), without_codes(tensor, new)), name


@pytest.mark.thorough
@pytest.mark.usefixtures("short_training")
def test_experts_of_a_stage_are_trained(tmp_path, rng, monkeypatch):
    draft = draft_of("qwen3_moe", rng, tmp_path)
    fit_only_stages(draft, monkeypatch)
    names = {path.name for path in refine(draft, ["distill"]).folder.iterdir()}
    assert any(".experts." in name for name in names)


@pytest.mark.usefixtures("short_training")
def test_stages_that_gain_nothing_stay_as_they_were(tmp_path, rng, monkeypatch):
    draft = draft_of("llama", rng, tmp_path, layers=1)
    fit_only_stages(draft, monkeypatch)
    monkeypatch.setattr(_trained_codes, "STEPS", 2)
    monkeypatch.setattr(_trained_codes, "RATE", 5.0)
    assert "fell in 0 of" in refine(draft, ["distill"]).notes[0]
    assert list(draft.folder.iterdir()) == []


@pytest.mark.usefixtures("short_training")
def test_a_table_that_two_ops_read_is_left_as_it_is(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(_trained_codes, "STEPS", 2)
    draft = draft_of("qwen3", rng, tmp_path, layers=1)
    ops = draft.package.graph.ops
    tied = {use.name for use in uses(ops[0])} & {use.name for use in uses(ops[-1])}
    fit_only_stages(draft, monkeypatch)
    changed = {path.name for path in refine(draft, ["distill"]).folder.iterdir()}
    assert tied
    assert changed
    assert not changed & tied


# The last one shares caches between layers, so its stages are larger.
@pytest.mark.parametrize(
    "name", [pytest.param("llama", marks=pytest.mark.thorough), "qwen3_moe", "gemma3n_text"]
)
def test_stages_cover_a_graph_and_only_one_value_goes_on(rng, name, tmp_path):
    graph = draft_of(name, rng, tmp_path).package.graph
    parts = list(_distill_stages.stages(graph))
    assert [op for part in parts for op in part.ops] == list(graph.ops)
    for before, part in pairwise(parts):
        written = {op.out for op in part.ops}
        assert {name for op in part.ops for name in values_read(op)} - written == {before.out}


def test_a_model_that_does_not_fit_is_refused_with_both_sizes(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(_distill, "_memory", lambda _: 1000)
    with pytest.raises(UsageError, match=r"do not fit.*bytes of memory on cpu, found 1,000"):
        refine(draft_of("llama", rng, tmp_path, layers=1), ["distill"])


def test_a_text_of_one_window_is_refused_and_two_are_enough(tmp_path, rng, monkeypatch):
    draft = draft_of("llama", rng, tmp_path, layers=1)
    monkeypatch.setattr(_trained_codes, "STEPS", 1)
    for windows in (2, 1):
        ids = torch.from_numpy(rng.integers(3, 96, (windows, 16)))
        monkeypatch.setattr(_distill, "calibration_windows", lambda *_, ids=ids: ids)
        training = Draft(draft.plain, draft.unrefined, tmp_path / str(windows))
        if windows == 2:
            assert "16 tokens" in refine(training, ["distill"]).notes[0]
    with pytest.raises(UsageError, match=r"too short.*expected at least 32 tokens, found 16"):
        refine(training, ["distill"])


def test_a_conversion_stores_the_trained_blocks_and_says_so(
    shallow_checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setattr(_distill, "WINDOWS", 6)
    for name, value in {"STEPS": 2, "CHECKS": 1, "RATE": 0.01}.items():
        monkeypatch.setattr(_trained_codes, name, value)
    monkeypatch.setattr("rdrr._calibration.WINDOW", 24)
    plain = convert(shallow_checkpoint, tmp_path / "plain")
    result = rdrr.convert(shallow_checkpoint, tmp_path / "out", quality="distill")
    before, after = open_package(tmp_path / "plain"), open_package(tmp_path / "out")
    assert after.manifest.conversion.options["quality"] == "distill"
    assert result.total_size == plain.total_size
    note = next(note for note in result.notes if "distill" in note)
    assert "72 tokens that the model wrote" in note
    changed = [
        tensor.name
        for tensor in plain.tensors
        if not np.array_equal(before.read(tensor.name), after.read(tensor.name))
    ]
    assert bool(changed) != ("nothing gained" in note)
    assert all("norm" not in name for name in changed)
