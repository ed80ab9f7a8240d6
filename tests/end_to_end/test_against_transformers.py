"""Whole models against transformers: teacher-forced logits on the same weights, and greedy ids.

Prompts are several times longer than the sliding windows of the tiny models (24 tokens).
Each comparison covers passes of many rows and of single rows, because these use different kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_device.device import Device, open_device
from rdrr_device.shared_shaders import shared
from rdrr_manifests.package import Package, open_package
from rdrr_runtime.backend import Backend
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.text.tokenizer import TextCodec
from support.checkpoints import make_model, save_checkpoint
from support.commands import EXAMPLE
from support.comparison import (
    load_stored_weights,
    relative_error,
    scored,
    stepped,
    transformers_logits,
)
from support.routes import decided_ids
from support.selected_tests import is_covering
from support.tiny_models import (
    ALL_MODELS,
    MORE_MODELS,
    OLDER_MODELS,
    TINY_MODELS,
    VOCAB,
    TinyModel,
    covering,
)

LAYERS = 2  # one with a sliding window and one without, if an architecture has both
# Of a prompt, and how many of them run singly. Scaling of positions begins at 128 in some models.
TOKENS, SINGLE = (144, 4) if is_covering() else (216, 8)
ON_GPU = 74 if is_covering() else TOKENS
CONTEXT = 256
CPU, EXACT, DEFAULT = 1e-4, 1e-3, 5e-3
PATHS = {"f32": EXACT, "f16": DEFAULT}
MIXTRAL = next(tiny for tiny in MORE_MODELS if tiny.model_type == "mixtral")
FUSED_MIXTURES = [
    # experts beside a shared one with a score, and experts with biases and a clamp
    tiny
    for kind in ("qwen2_moe", "gpt_oss")
    for tiny in MORE_MODELS
    if tiny.model_type == kind
]
PROMPTS = ("And it came to pass", "def main(", "The following options are recognized:")


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = open_device()
    with pytest.MonkeyPatch.context() as patch:
        if opened.info.software:
            # Each model has sizes of its own: compiling costs more than what constants save here.
            patch.setattr(opened._pipelines, "_shared", shared)
        yield opened
    opened.close()


def _packaged(model, folder, **options) -> Package:
    save_checkpoint(model, folder / "source", dtype="float32")
    convert(folder / "source", folder / "package", **options)
    return open_package(folder / "package")


def _gpu(package: Package, device: Device, kv_dtype: str) -> GpuBackend:
    # Arithmetic in int8 has its own tolerance, which is stated as perplexity.
    exact = resolve({"run flag": {"computePrecision": "f32"}})
    return GpuBackend(package, context=CONTEXT, kv_dtype=kv_dtype, device=device, policy=exact)


def _error(backend: Backend, ids: list[int], reference: np.ndarray) -> float:
    """Return the larger of the errors of passes of many rows and of single rows."""
    many = relative_error(scored(backend, ids), reference)
    single = relative_error(stepped(backend, ids, len(ids) - SINGLE), reference[-SINGLE - 1 :])
    print(f"{backend.info.name}: many rows {many:.1e}, single rows {single:.1e}")
    return max(many, single)


def _check(
    package: Package,
    device: Device,
    ids: list[int],
    reference: np.ndarray,
    paths: Mapping[str, float] = PATHS,
) -> None:
    """Fail unless every backend and KV cache type stays within its tolerance."""
    cpu = CpuBackend(package, context=CONTEXT)
    assert _error(cpu, ids, reference) <= CPU
    _check_gpu(package, device, ids, reference, paths)


def _check_gpu(
    package: Package,
    device: Device,
    ids: list[int],
    reference: np.ndarray,
    paths: Mapping[str, float],
) -> None:
    for kv_dtype, tolerance in paths.items():
        backend = _gpu(package, device, kv_dtype)
        if package.manifest.moe_config is not None:
            assert _usual_error(backend, ids, reference) <= tolerance
        else:
            assert _error(backend, ids, reference) <= tolerance
        backend.close()


def _usual_error(backend: Backend, ids: list[int], reference: np.ndarray) -> float:
    """Return the error of 97 % of the rows, the larger of many-row and single-row passes.

    Where two experts are almost equally probable, rounding decides between them, and no tolerance
    holds for such a row. In float32 these rows are rare.
    """
    single = stepped(backend, ids, len(ids) - SINGLE)
    rows = [
        np.quantile(np.abs(ours - theirs).max(axis=1), 0.97)
        for ours, theirs in ((scored(backend, ids), reference), (single, reference[-SINGLE - 1 :]))
    ]
    print(f"{backend.info.name}: many rows and single rows {rows}")
    return float(max(rows) / np.abs(reference).max())


def _path(tiny: TinyModel, rng: np.random.Generator) -> Mapping[str, float]:
    """Choose one random KV cache type per run and model; all models together cover both.

    The other models use f32 only, because their special features do not depend on the cache type;
    so do mixtures, since one row that takes another expert in float16 is read by all later ones.
    """
    is_drawn = tiny in TINY_MODELS and not tiny.has_experts
    kv_dtype = str(rng.choice(list(PATHS))) if is_drawn else "f32"
    return {kv_dtype: PATHS[kv_dtype]}


# Sizes and options of a family that `make test` has in another model of the same rule.
VARIANTS = (
    *("llama-256", "gemma4_text-256", "nemotron_h-256", "nemotron_h-384", "opt-256", "olmo-256"),
    # DeepSeek's latents with GLM's router, GLM's layers with YaRN, Granite's hybrid without states.
    *("glm4_moe_lite-256", "solar_open-256", "granitemoeshared-256"),
)
DAILY = [tiny.name for tiny in ALL_MODELS if tiny.name not in VARIANTS]


@pytest.mark.parametrize("tiny", covering(ALL_MODELS, DAILY))
def test_logits_of_the_torch_backend_are_those_of_transformers(tiny, tmp_path, rng):
    model = make_model(tiny, rng, num_hidden_layers=LAYERS)
    # Of dense models, those whose gate has an op of its own.
    has_gate_op = "activation_sparsity_pattern" in dict(tiny.options)
    joined = tiny.can_fuse and (tiny.has_experts or has_gate_op)
    package = _packaged(
        model, tmp_path, quantize="f32", transpose_weights=joined, fuse_gate_up=joined
    )
    ids = decided_ids(package, rng, TOKENS)
    backend = CpuBackend(package, context=CONTEXT)
    assert _error(backend, ids, transformers_logits(model, ids)) <= CPU


# Ops and variants of layers are compared on the GPU in tests/runtime, and so are models with
# experts, recurrent states and a window. This one has what is left: inputs and several streams of
# each layer, and layers that share keys and values.
@pytest.mark.parametrize("tiny", covering(ALL_MODELS, ["gemma3n_text-256"]))
def test_logits_of_unquantized_models_are_those_of_transformers(tiny, device, tmp_path, rng):
    model = make_model(tiny, rng, num_hidden_layers=LAYERS)
    package = _packaged(model, tmp_path, quantize="f32")
    ids = decided_ids(package, rng, ON_GPU)
    _check_gpu(package, device, ids, transformers_logits(model, ids), _path(tiny, rng))


# Kernels of all types are compared by themselves; test_default_limits.py has a quantized model.
@pytest.mark.thorough
@pytest.mark.parametrize("tiny", [*TINY_MODELS, MIXTRAL], ids=lambda tiny: tiny.name)
def test_logits_of_quantized_models_are_those_of_their_dequantized_weights(
    tiny, device, tmp_path, rng
):
    model = make_model(tiny, rng, num_hidden_layers=LAYERS)
    package = _packaged(model, tmp_path, transpose_weights=True, fuse_gate_up=True)
    ids = decided_ids(package, rng, TOKENS)
    unquantized = transformers_logits(model, ids)
    load_stored_weights(model, package)
    reference = transformers_logits(model, ids)
    # Were nothing quantized, the comparison would say nothing about block types.
    assert relative_error(unquantized, reference) > EXACT
    _check(package, device, ids, reference, _path(tiny, rng))


@pytest.mark.thorough
@pytest.mark.parametrize("tiny", OLDER_MODELS, ids=lambda tiny: tiny.name)
def test_quantized_models_with_layer_norm_compute_what_transformers_does(
    tiny, device, tmp_path, rng
):
    model = make_model(tiny, rng, num_hidden_layers=2)
    ids = rng.integers(3, VOCAB, 40).tolist()
    unquantized = transformers_logits(model, ids)
    package = _packaged(model, tmp_path)
    load_stored_weights(model, package)
    reference = transformers_logits(model, ids)
    assert relative_error(unquantized, reference) > EXACT
    backend = _gpu(package, device, "f32")
    assert relative_error(scored(backend, ids), reference) <= EXACT
    assert relative_error(stepped(backend, ids, 36), reference[35:]) <= EXACT
    backend.close()


@pytest.mark.thorough
@pytest.mark.parametrize("arithmetic", ["fused_q4k", "fused_q4k_int8"])
@pytest.mark.parametrize("tiny", FUSED_MIXTURES, ids=lambda tiny: tiny.name)
def test_a_mixture_with_gate_and_up_in_one_matrix_computes_the_same_on_the_gpu(
    tiny, arithmetic, device, tmp_path, rng
):
    model = make_model(tiny, rng, num_hidden_layers=2)
    ids = rng.integers(3, VOCAB, 40).tolist()
    policy = resolve({"run flag": {"q4kMatmul": arithmetic}})
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    logits = []
    for fuse in (False, True):
        folder = tmp_path / str(fuse)
        convert(tmp_path / "source", folder, quantize="q8_0", fuse_gate_up=fuse)
        backend = GpuBackend(
            open_package(folder), context=CONTEXT, kv_dtype="f32", device=device, policy=policy
        )
        logits.append(np.concatenate([scored(backend, ids), stepped(backend, ids, 36)]))
        backend.close()
    apart, fused = logits
    assert relative_error(fused, apart) <= CPU


def test_another_model_is_beyond_every_tolerance(tmp_path, rng):
    """The control: the metric distinguishes models."""
    ids = rng.integers(3, VOCAB, 40).tolist()
    reference = transformers_logits(make_model(TINY_MODELS[0], rng), ids)
    package = _packaged(make_model(TINY_MODELS[0], rng), tmp_path, quantize="f32")
    ours = scored(CpuBackend(package, context=CONTEXT), ids)
    assert relative_error(ours, reference) > 10 * DEFAULT


@pytest.fixture(scope="module", params=[pytest.param("f32", marks=pytest.mark.thorough), "q4_k_m"])
def bundled(request, tmp_path_factory):
    """Return the bundled model as a package, and in transformers with the package's weights."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("bundled") / "package"
    convert(EXAMPLE, folder, quantize=request.param, transpose_weights=request.param != "f32")
    package = open_package(folder)
    model = AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype=torch.float32).eval()
    load_stored_weights(model, package)
    return package, model


def _is_greedy(model, ids: list[int], out: list[int]) -> bool:
    """Return whether each id is the argmax after the ids before it, as in greedy decoding.

    One pass over the whole sequence decides this, because no row attends to later ones.
    """
    rows = transformers_logits(model, [*ids, *out[:-1]])[len(ids) - 1 :]
    return rows.argmax(axis=1).tolist() == out


# The commands give the same text on both backends, and the tests above compare logits.
@pytest.mark.thorough
def test_greedy_text_of_the_bundled_model_is_that_of_transformers(bundled, device, rng):
    package, model = bundled
    codec = TextCodec(package.tokenizer_bytes())
    ids = codec.encode(str(rng.choice(PROMPTS)))
    for backend in (CpuBackend(package, context=CONTEXT), _gpu(package, device, "f32")):
        engine = Engine(backend, (), package.manifest.architecture.vocab_size)
        out = [id_ for run in engine.generate(ids, max_tokens=16) for id_ in run]
        assert len(out) == 16
        assert _is_greedy(model, ids, out)
        assert not _is_greedy(model, ids, [*out[:-1], out[-1] ^ 1])
        backend.close()
