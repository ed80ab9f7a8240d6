"""The check of one architecture: a tiny random model in transformers, converted and run here.

Every number is max|ours - reference| / max|reference| over the logits of a prompt that is longer
than the sliding windows of the models. Where a model has experts, it is a quantile over the rows,
as in the tests, and the prompt has no rows for which two experts are almost equally probable: there
rounding would decide between them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _clear_routes import clear_ids
from rdrr_format.errors import RdrrError

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # `support` makes the models

F32 = npt.NDArray[np.float32]

TOKENS, PREFILL, CONTEXT = 56, 48, 64
LAYERS = 2
LIMITS: Mapping[str, float] = {
    "cpu": 1e-4,
    "cpu_cached": 1e-4,
    "wgpu": 1e-4,
    "wgpu_cached": 1e-4,
    "wgpu_batch": 1e-4,
    "f16": 5e-3,
    "q4_k_m": 1e-3,
    "gguf_in": 1e-4,
    "gguf_out": 1e-4,
}
"""Largest error of each check, those of the project; in f16 the cache is rounded."""

REQUIRED = ("cpu", "cpu_cached", "wgpu", "wgpu_cached", "wgpu_batch", "f16", "q4_k_m")
"""Checks that every architecture must pass; a GGUF exists only where llama.cpp has it."""

_USUAL = {"f32": 0.97, "f16": 0.5}
"""Quantile over the rows that is compared for models with experts, by the type of the weights."""


@dataclass(frozen=True)
class Subject:
    """A model to check.

    Attributes:
        name: Name of the model.
        model_type: transformers' name of its configuration.
        build: Builds the model in transformers from a generator and configuration keys.
    """

    name: str
    model_type: str
    build: Callable[..., Any] = field(repr=False)


@dataclass
class Outcome:
    """What was found for one model.

    Attributes:
        subject: Name of the model.
        model_type: transformers' name of its configuration.
        seed: Seed of the weights and ids.
        architecture: Name of the architecture that it was converted as.
        classes: Its class in transformers.
        errors: Error of each check that ran.
        refusals: Why a check did not run, or failed with an error.
    """

    subject: str
    model_type: str
    seed: int
    architecture: str = ""
    classes: tuple[str, ...] = ()
    errors: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def faults(self) -> tuple[str, ...]:
        """The checks that failed."""
        needed = {*REQUIRED, *({"gguf_in"} & set(self.refusals))}
        return tuple(
            name
            for name, limit in LIMITS.items()
            if not self.errors.get(name, 0.0) <= limit
            or (name in needed and name not in self.errors)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return {**asdict(self), "faults": list(self.faults)}


def subjects() -> tuple[Subject, ...]:
    """Return every tiny model of the tests, those of text and image models at the end."""
    from support.tiny_models import ALL_MODELS

    text = (Subject(tiny.name, tiny.model_type, partial(_text_model, tiny)) for tiny in ALL_MODELS)
    return (
        *_with_numbers(text),
        *(Subject(kind, kind, partial(_multimodal, kind)) for kind in _multimodals()),
    )


def _with_numbers(subjects: Iterable[Subject]) -> Iterator[Subject]:
    """Yield the models; where several have one name, the later ones get a number."""
    seen: Counter[str] = Counter()
    for subject in subjects:
        seen[subject.name] += 1
        count = seen[subject.name]
        yield subject if count == 1 else replace(subject, name=f"{subject.name}-{count}")


def _multimodals() -> tuple[str, ...]:
    from support import checkpoints

    return tuple(checkpoints._VISION)


def _text_model(tiny: Any, rng: np.random.Generator, **options: Any) -> Any:
    from support.checkpoints import make_model

    stated = dict(tiny.options)
    layers = {} if {"num_hidden_layers", "layer_types"} & set(stated) else {"num_hidden_layers": 2}
    return make_model(tiny, rng, **{**layers, **options})


def _multimodal(kind: str, rng: np.random.Generator, **options: Any) -> Any:
    from support.checkpoints import make_multimodal

    # This kind has heads of hidden size over heads, and sections that add up to half of a head.
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    text = {"rope_parameters": rope, "head_dim": 16} if kind == "qwen2_5_vl" else {}
    return make_multimodal(kind, rng, **{**text, **options})


def check(subject: Subject, seed: int) -> Outcome:
    """Convert and run one model in every form; errors of rdrr become refusals of the outcome."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    disable_progress_bar()
    set_verbosity_error()
    outcome = Outcome(subject.name, subject.model_type, seed)
    with tempfile.TemporaryDirectory(prefix="rdrr-check-") as work:
        try:
            _check(subject, outcome, Path(work))
        except Exception as error:
            outcome.refusals["model"] = _reason(error)
    return outcome


def _check(subject: Subject, outcome: Outcome, work: Path) -> None:
    from rdrr_converter.convert import convert

    model = Model.make(subject, outcome.seed, work / "model")
    outcome.classes = model.classes
    outcome.architecture = convert(model.folder, work / "f32", quantize="f32").architecture
    convert(model.folder, work / "f16", quantize="f16")
    convert(model.folder, work / "q4", quantize="q4_k_m")
    parts: tuple[tuple[str, Callable[[], Iterator[tuple[str, float]]]], ...] = (
        ("cpu", partial(_on_cpu, model, work / "f32")),
        ("wgpu", partial(_on_wgpu, model, work / "f32")),
        ("f16", partial(_in_f16, model, work / "f16")),
        ("q4_k_m", partial(_in_blocks, model, work / "q4")),
        ("gguf_in", partial(_from_gguf, subject, outcome.seed, work / "in")),
        ("gguf_out", partial(_to_gguf, subject, outcome.seed, work / "out")),
    )
    for name, run in parts:
        try:
            outcome.errors.update(run())
        except Exception as error:
            outcome.refusals[name] = _reason(error)


def _reason(error: Exception) -> str:
    text = error.line() if isinstance(error, RdrrError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:400]


@dataclass(frozen=True)
class Model:
    """A saved model, ids, and the logits of transformers after each of them."""

    folder: Path
    classes: tuple[str, ...]
    ids: list[int]
    reference: F32
    has_experts: bool

    @classmethod
    def make(
        cls,
        subject: Subject,
        seed: int,
        folder: Path,
        *,
        scales_keys: bool = True,
        clears_routes: bool = True,
        **options: Any,
    ) -> Model:
        """Build a model in transformers, save it, and compute its logits."""
        from rdrr_converter.convert import convert
        from support.checkpoints import save_checkpoint
        from support.comparison import transformers_logits
        from support.tiny_models import VOCAB

        rng = np.random.default_rng(seed)
        model = subject.build(rng, **options)
        if scales_keys:
            _scale_keys(model)
        keys = vars(model.config.get_text_config())
        experts = any(keys.get(key) for key in ("num_experts_per_tok", "top_k_experts"))
        ids = rng.integers(3, VOCAB, TOKENS).tolist()
        if experts and clears_routes:
            first, package = folder.with_name("first"), folder.with_name("first package")
            save_checkpoint(model, first, dtype="float32")
            convert(first, package, quantize="f32")
            ids = clear_ids(package, rng, TOKENS, range(3, VOCAB))
        reference = transformers_logits(model, ids)
        save_checkpoint(model, folder, dtype="float32")
        return cls(folder, (type(model).__name__,), ids, reference, experts)

    def error(self, actual: F32, expected: F32, weights: str = "f32") -> float:
        """Return the error of logits, over all rows or over the usual ones."""
        rows = np.abs(actual - expected).max(axis=1)
        worst = np.quantile(rows, _USUAL[weights]) if self.has_experts else rows.max()
        return float(worst / np.abs(expected).max())

    def passes(self, backend: Any, expected: F32, weights: str = "f32") -> tuple[float, float]:
        """Return the errors of one pass over all ids, and of decoding the last ones singly."""
        from support.comparison import scored, stepped

        single = stepped(backend, self.ids, PREFILL)
        whole = self.error(scored(backend, self.ids), expected, weights)
        return whole, self.error(single, expected[PREFILL - 1 :], weights)


def _scale_keys(model: Any) -> None:
    """Multiply the norms of keys by head_dim^-0.5 where attention does not scale its scores.

    With random norm weights around 1 these scores are head_dim^0.5 times those of other models, and
    rounding keys to f16 alone may change the logits by more than the limit, see
    docs/explanation/numerics.md.
    """
    import torch

    with torch.no_grad():
        for module in model.modules():
            norm = getattr(module, "k_norm", None)
            if getattr(module, "scaling", None) == 1.0 and norm is not None:
                norm.weight.mul_(module.head_dim**-0.5)


def _cpu_logits(folder: Path, ids: Sequence[int]) -> F32:
    from rdrr_manifests.package import open_package
    from rdrr_runtime.reference.backend import CpuBackend

    logits: F32 = CpuBackend(open_package(folder), context=CONTEXT).logits(ids, 0, all_rows=True)
    return logits


def _on_cpu(model: Model, folder: Path) -> Iterator[tuple[str, float]]:
    from rdrr_manifests.package import open_package
    from rdrr_runtime.reference.backend import CpuBackend

    whole, cached = model.passes(CpuBackend(open_package(folder), context=CONTEXT), model.reference)
    yield "cpu", whole
    yield "cpu_cached", cached


def _gpu(folder: Path, kv_dtype: str) -> Any:
    from rdrr_manifests.package import open_package
    from rdrr_runtime.compile.choice.hints import resolve
    from rdrr_runtime.gpu import GpuBackend

    # Arithmetic in int8 has a tolerance of its own, stated as perplexity.
    exact = resolve({"run flag": {"computePrecision": "f32"}})
    return GpuBackend(open_package(folder), context=CONTEXT, kv_dtype=kv_dtype, policy=exact)


def _on_wgpu(model: Model, folder: Path) -> Iterator[tuple[str, float]]:
    with closing(_gpu(folder, "f32")) as backend:
        whole, cached = model.passes(backend, model.reference)
        yield "wgpu", whole
        yield "wgpu_cached", cached
        yield "wgpu_batch", _batch_error(model, backend)


def _batch_error(model: Model, backend: Any) -> float:
    """Decode beginnings of the ids as sequences of one batch, and return the error of its rows."""
    from rdrr_runtime.backend import Row

    batch, lengths = backend.batch(3, CONTEXT), (7, TOKENS, 29)
    batch.fill(
        [
            Row(token, sequence, slot)
            for sequence, length in enumerate(lengths)
            for slot, token in enumerate(model.ids[: length - 1])
        ]
    )
    rows = [Row(model.ids[length - 1], index, length - 1) for index, length in enumerate(lengths)]
    expected = model.reference[[length - 1 for length in lengths]]
    return model.error(batch.logits(rows), expected)


def _in_f16(model: Model, folder: Path) -> Iterator[tuple[str, float]]:
    """Compare wgpu, with a cache in f16, with the CPU on the same weights in f16."""
    with closing(_gpu(folder, "f16")) as backend:
        yield "f16", max(model.passes(backend, _cpu_logits(folder, model.ids), "f16"))


def _in_blocks(model: Model, folder: Path) -> Iterator[tuple[str, float]]:
    """Compare wgpu with the CPU on the same blocks; quantization itself changes random models."""
    with closing(_gpu(folder, "f32")) as backend:
        yield "q4_k_m", max(model.passes(backend, _cpu_logits(folder, model.ids)))


def _as_llama_cpp_has_it(subject: Subject, seed: int, work: Path) -> Model:
    """Return a model without what llama.cpp does not let vary in this architecture."""
    from support.gguf_writers import LIKE_LLAMA_CPP

    return Model.make(subject, seed, work / "model", **LIKE_LLAMA_CPP.get(subject.model_type, {}))


def _from_gguf(subject: Subject, seed: int, work: Path) -> Iterator[tuple[str, float]]:
    """Read a GGUF that gguf-py has written as llama.cpp's converter does."""
    from rdrr_converter.convert import convert
    from support.gguf_writers import writer_of
    from transformers import AutoConfig

    if writer_of(subject.model_type, None) is None:
        return
    model = _as_llama_cpp_has_it(subject, seed, work)
    write = writer_of(subject.model_type, AutoConfig.from_pretrained(model.folder))
    assert write is not None, "the model is written"
    convert(write(model.folder, work / "m.gguf"), work / "package", quantize="f32")
    yield "gguf_in", model.error(_cpu_logits(work / "package", model.ids), model.reference)


def _to_gguf(subject: Subject, seed: int, work: Path) -> Iterator[tuple[str, float]]:
    """Export a package as GGUF and read that back."""
    from rdrr_converter.convert import convert
    from rdrr_converter.export import export

    model = _as_llama_cpp_has_it(subject, seed, work)
    convert(model.folder, work / "package", quantize="f32")
    export(work / "package", work / "m.gguf", to="gguf")
    convert(work / "m.gguf", work / "again", quantize="f32")
    yield "gguf_out", model.error(_cpu_logits(work / "again", model.ids), model.reference)
