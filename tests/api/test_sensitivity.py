"""The sensitivity of weights: gradients compared with transformers, for every kind of op."""

from __future__ import annotations

import numpy as np
import pytest
import rdrr
import torch
from rdrr.importance import measure_importance
from rdrr_converter.importance import load_importance
from rdrr_format.errors import DeviceError
from rdrr_manifests.package import open_package
from rdrr_runtime.reference import sensitivity
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.reference.rows import sampled
from support.checkpoints import make_model, save_checkpoint
from support.tiny_models import ALL_MODELS

WINDOW = list(range(3, 36))


def tiny(name):
    return next(model for model in ALL_MODELS if model.model_type == name)


def opened(model, tmp_path, **options):
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    rdrr.convert(tmp_path / "source", tmp_path / "package", quantize="f32", **options)
    return open_package(tmp_path / "package")


def assert_close(sums, expected):
    """Two sums of squares agree; those far below the largest are mostly rounding."""
    np.testing.assert_allclose(sums, expected, rtol=2e-2, atol=1e-5 * expected.max())


def gradients_of(model, drawn):
    """The gradients in transformers of the log-probability of drawn tokens."""
    model.zero_grad()
    logs = torch.log_softmax(model(torch.tensor([WINDOW[:-1]])).logits[0], dim=-1)
    logs.gather(1, torch.tensor(drawn)[:, None]).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def drawn_tokens(backend, seed):
    logs = torch.log_softmax(torch.from_numpy(backend.logits(WINDOW[:-1], 0, all_rows=True)), -1)
    return sampled(logs, torch.Generator().manual_seed(seed))[:, 0].tolist()


@pytest.mark.parametrize(
    ("name", "least"), [("llama", 10), ("qwen3_moe", 10), ("qwen3_next", 10), ("mamba2", 1)]
)
def test_squares_of_gradients_are_those_of_transformers(tmp_path, rng, name, least):
    model = make_model(tiny(name), rng, num_hidden_layers=2)
    backend = CpuBackend(opened(model, tmp_path), context=64)
    measured = backend.sensitivity(WINDOW, seed=5)
    wanted = gradients_of(model, drawn_tokens(backend, 5))
    compared = 0
    for tensor, matrix in measured.matrices.items():
        gradient = wanted.get(tensor)
        if gradient is None or gradient.dim() != 2:
            continue  # a part of what is one matrix there, or of another name
        squares = gradient.double().square()
        assert_close(matrix.rows, squares.sum(1).numpy())
        assert_close(matrix.columns, squares.sum(0).numpy())
        compared += 1
    assert compared >= least
    assert measured.loss > 0


def test_what_no_token_reaches_counts_as_zero(tmp_path, rng):
    model = make_model(tiny("qwen3_moe"), rng)
    backend = CpuBackend(opened(model, tmp_path), context=64)
    matrices = backend.sensitivity(WINDOW[:3], seed=0).matrices
    experts = [matrix.rows.sum() for name, matrix in matrices.items() if ".experts." in name]
    assert min(experts) == 0 < max(experts)


def test_the_file_has_rows_and_columns_by_canonical_name(tmp_path, rng):
    package = opened(make_model(tiny("llama"), rng, num_hidden_layers=1), tmp_path)
    text, path = "In the beginning was the word. " * 8, tmp_path / "m.gguf"
    measured = measure_importance(tmp_path / "package", text, path, window=32, sensitivity=True)
    plain = measure_importance(tmp_path / "package", text, tmp_path / "plain.gguf", window=32)
    assert measured.perplexity == pytest.approx(plain.perplexity, rel=1e-5)
    matrix = load_importance(path)
    assert matrix.has_rows
    assert not load_importance(tmp_path / "plain.gguf").has_rows
    shape = package.manifest.tensors["model.layers.0.mlp.down_proj.weight"].shape
    part = matrix.of("model.layers.0.mlp.down_proj.weight", shape, tied=False)
    assert (len(part.rows), len(part.columns)) == tuple(shape)
    assert part.rows.sum() == pytest.approx(part.columns.sum(), rel=1e-2)


def test_gradients_use_no_more_threads_than_the_products_of_a_model(tmp_path, rng, monkeypatch):
    backend = CpuBackend(opened(make_model(tiny("llama"), rng), tmp_path), context=64)
    threads, collect = set(), sensitivity._collect

    def watched(gathered, name):
        reduce = collect(gathered, name)

        def hook(leaf):
            threads.add(torch.get_num_threads())
            reduce(leaf)

        return hook

    monkeypatch.setattr(sensitivity, "_collect", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        backend.sensitivity(WINDOW, seed=0)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert threads == {1}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_torch_does_not_find_is_refused_before_anything_is_measured(tmp_path, rng):
    opened(make_model(tiny("llama"), rng, num_hidden_layers=1), tmp_path)
    out = tmp_path / "m.gguf"
    for run in (
        lambda device: measure_importance(
            tmp_path / "package", "word " * 40, out, window=16, sensitivity=True, device=device
        ),
        lambda device: rdrr.convert(
            tmp_path / "source", out, size="1MiB", device=device, dry_run=True
        ),
    ):
        with pytest.raises(DeviceError, match="torch finds no CUDA device"):
            run("cuda")
        assert not out.exists()
    measure_importance(tmp_path / "package", "word " * 40, out, window=16, device="cpu")
    assert out.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_every_architecture_has_gradients(tmp_path, rng, model):
    package = opened(make_model(model, rng), tmp_path)
    measured = CpuBackend(package, context=64).sensitivity(WINDOW, seed=0)
    sums = [matrix.rows.sum() for matrix in measured.matrices.values()]
    assert np.isfinite(sums).all()
    assert max(sums) > 0


@pytest.mark.parametrize("step", ["measuring importance", "a conversion with `device` cpu"])
def test_a_device_without_memory_left_is_an_error_that_says_what_to_do(
    tmp_path, rng, monkeypatch, step
):
    opened(make_model(tiny("llama"), rng, num_hidden_layers=1), tmp_path)

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1")

    out = tmp_path / "out.gguf"
    runs = {
        "measuring importance": (
            "rdrr_runtime.reference.forward.ReferenceModel.forward",
            lambda: measure_importance(tmp_path / "package", "word " * 40, out, window=16),
        ),
        "a conversion with `device` cpu": (
            "rdrr._measurement.compare",
            lambda: rdrr.convert(tmp_path / "source", out, measure="sentences"),
        ),
    }
    target, run = runs[step]
    monkeypatch.setattr(target, fail)
    with pytest.raises(DeviceError, match=f"{step} takes more memory.*CUDA out of memory.*cpu"):
        run()
