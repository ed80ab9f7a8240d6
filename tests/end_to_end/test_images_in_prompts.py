"""Prompts with images compute what transformers computes, on both backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdrr_converter.convert import convert
from rdrr_format.errors import GenerationError
from rdrr_manifests.package import Package, open_package
from rdrr_runtime.backend import Row, resumable
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.images.patches import ImagePatches
from rdrr_runtime.images.rows import SeenImages, SequencePositions
from rdrr_runtime.images.tower import ImageFeatures
from rdrr_runtime.reference import backend as reference
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.reference.tower import CpuTower
from support.checkpoints import make_multimodal
from support.comparison import relative_error
from support.gemma_images import inputs_of_gemma4, make_gemma4, patches_of_gemma4
from support.images import pixels_of
from support.seeds import generator_of
from support.tiny_models import VOCAB

TOWER = {"depth": 2, "num_position_embeddings": 49}
SECTIONS = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3_vl": (
        {**TOWER, "deepstack_visual_indexes": [0, 1]},
        {"rope_scaling": SECTIONS, "num_hidden_layers": 3},
    ),
    "qwen3_vl_moe": (
        {**TOWER, "deepstack_visual_indexes": [0, 1]},
        {
            "rope_scaling": SECTIONS,
            "num_hidden_layers": 3,
            "moe_intermediate_size": 64,
            "num_experts": 6,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3_5": (
        TOWER,
        {
            "rope_parameters": {
                **SECTIONS,
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 0.25,
            },
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "gemma3": (
        {"image_size": 8 * 14, "num_hidden_layers": 2},
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 12,
        },
    ),
    "gemma4": (
        {"num_hidden_layers": 2},
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 64,
            "sliding_window": 12,
            "use_bidirectional_attention": "vision",
        },
    ),
    "gemma4_e2b": (
        {"num_hidden_layers": 2, "use_clipped_linears": True},
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 64,
            "hidden_size_per_layer_input": 8,
            "sliding_window": 12,
            "vocab_size_per_layer_input": VOCAB,
        },
    ),
    "smolvlm": ({"num_hidden_layers": 2, "image_size": 56}, {"model_type": "llama"}),
}
"""Configurations of tower and text model: with taps, experts, recurrent states, with images that
are seen whole, of 15 or 16 tokens, which are more than the window, with inputs of each layer, and
with tiles."""

WIDTH = 3 * 2 * 16 * 16
TILE, PATCH = 4, 14
CONTEXT = 320
CPU, GPU = 1e-4, 1e-3
Part = list[int] | ImagePatches


class Seeing:
    """A random model of transformers, its package, and prompts for both."""

    square = 4
    """Patches of a token."""

    def __init__(self, folder: Path, rng: np.random.Generator, kind: str) -> None:
        tower, text = KINDS[kind]
        self.model = self.make(kind, rng, tower, **text)
        self.model.save_pretrained(folder / "model")
        convert(folder / "model", folder / "out", quantize="f32", vision_quantize="f32")
        self.package: Package = open_package(folder / "out")
        self.tower, self.rng = CpuTower(self.package), rng

    def make(self, *sizes: Any, **text: Any) -> Any:
        return make_multimodal(*sizes, **text)

    def text(self, count: int) -> list[int]:
        return self.rng.integers(0, VOCAB, count).tolist()

    def image(self, *grid: int) -> ImagePatches:
        count = int(np.prod(grid))
        values = self.rng.standard_normal((count, WIDTH)).astype(np.float32)
        return ImagePatches(values, (1, *grid))

    def ids(self, images: SeenImages, parts: Sequence[Part]) -> list[int]:
        """Return the ids of a prompt of rdrr."""
        return [
            token
            for part in parts
            for token in (part if isinstance(part, list) else images.add(self.tower.encode(part)))
        ]

    def expected(self, parts: Sequence[Part]) -> np.ndarray:
        """Return the logits of transformers after each token."""
        images = [part for part in parts if isinstance(part, ImagePatches)]
        said = {token for part in parts if isinstance(part, list) for token in part}
        # The token of images in transformers is one that the text does not have.
        shown = self.model.config.image_token_id = min({*range(VOCAB)} - said)
        ids = [
            token
            for part in parts
            for token in (
                part if isinstance(part, list) else [shown] * (len(part.patches) // self.square)
            )
        ]
        inputs = torch.tensor([ids])
        seen = self.seen(images, inputs == shown)
        with torch.no_grad():
            return self.model(inputs, use_cache=False, **seen).logits[0].numpy()

    def seen(self, images: Sequence[ImagePatches], is_image: torch.Tensor) -> dict[str, Any]:
        """Return the inputs of transformers for images."""
        return {
            "pixel_values": torch.from_numpy(np.concatenate([x.patches for x in images])),
            "image_grid_thw": torch.tensor([image.grid for image in images]),
            "mm_token_type_ids": is_image.int(),
        }


class SeeingGemma(Seeing):
    """The same for Gemma 3, whose images have 8 x 8 patches, whatever is asked for."""

    def image(self, *_: int) -> ImagePatches:
        values = self.rng.standard_normal((64, 3 * PATCH**2)).astype(np.float32)
        return ImagePatches(values, (1, 8, 8))

    def seen(self, images: Sequence[ImagePatches], is_image: torch.Tensor) -> dict[str, Any]:
        pixels = np.concatenate([pixels_of(image, PATCH) for image in images])
        return {"pixel_values": torch.from_numpy(pixels), "token_type_ids": is_image.int()}


class SeeingGemma4(SeeingGemma):
    """The same for Gemma 4, whose layers with a window see images whole."""

    square = 9

    def make(self, _: str, *sizes: Any, **text: Any) -> Any:
        return make_gemma4(*sizes, **text)

    def image(self, *_: int) -> ImagePatches:
        return patches_of_gemma4(self.rng, 9, 15)

    def seen(self, images: Sequence[ImagePatches], is_image: torch.Tensor) -> dict[str, Any]:
        inputs = [inputs_of_gemma4(image) for image in images]
        joined = {name: torch.cat([each[name] for each in inputs]) for name in inputs[0]}
        return {**joined, "mm_token_type_ids": is_image.int()}


class SeeingTiles(Seeing):
    """The same of a model whose images are tiles of one size, and whose positions are slots."""

    def image(self, *grid: int) -> ImagePatches:
        tiles = 1 + int(np.prod(grid)) // (TILE * TILE)
        shape = (tiles * TILE * TILE, 3 * PATCH**2)
        values = self.rng.standard_normal(shape).astype(np.float32)
        return ImagePatches(values, (tiles, TILE, TILE))

    def seen(self, images: Sequence[ImagePatches], _is_image: torch.Tensor) -> dict[str, Any]:
        tiles = np.concatenate([pixels_of(image, PATCH) for image in images])
        return {"pixel_values": torch.from_numpy(tiles)[None]}


CLASSES = {
    "smolvlm": SeeingTiles,
    "gemma3": SeeingGemma,
    "gemma4": SeeingGemma4,
    "gemma4_e2b": SeeingGemma4,
}
DAILY = ("qwen3_vl", "gemma3")
NIGHTLY = [pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS if kind not in DAILY]


@pytest.fixture(scope="module", params=[*DAILY, *NIGHTLY])
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    kind = CLASSES.get(request.param, Seeing)
    return kind(tmp_path_factory.mktemp("seeing"), generator_of(request), request.param)


@pytest.fixture(scope="module", params=["cpu", "wgpu"])
def backend(request: pytest.FixtureRequest, seeing: Seeing) -> Iterator[CpuBackend | GpuBackend]:
    if request.param == "cpu":
        yield CpuBackend(seeing.package, context=CONTEXT)
        return
    policy = resolve({"run flag": {"computePrecision": "f32"}})
    opened = GpuBackend(seeing.package, context=CONTEXT, kv_dtype="f32", policy=policy)
    yield opened
    opened.close()


def tolerance(backend: CpuBackend | GpuBackend) -> float:
    return CPU if isinstance(backend, CpuBackend) else GPU


def test_two_images_in_a_prompt_give_the_logits_and_ids_of_transformers(seeing, backend):
    parts = [
        seeing.text(3),
        seeing.image(6, 10),
        seeing.text(5),
        seeing.image(4, 4),
        seeing.text(4),
    ]
    ids = seeing.ids(backend.images, parts)
    logits = backend.logits(ids, 0)
    assert relative_error(logits[0], seeing.expected(parts)[-1]) <= tolerance(backend)
    answer = backend.greedy(ids, 0, 24)
    expected = seeing.expected([*parts, answer])[len(ids) - 1 : -1]
    ours = np.take_along_axis(expected, np.array(answer)[:, None], 1)[:, 0]
    margin = expected.max(axis=1) - ours  # 0 but where two tokens are as probable
    assert margin.max() <= 2 * tolerance(backend) * np.abs(expected).max()


# Passes of many rows on both backends are compared above, for each kind of model.
@pytest.mark.cover
def test_an_image_behind_much_text_and_a_second_turn_go_on_where_they_should(seeing, backend):
    first = [seeing.text(200), seeing.image(2, 8), seeing.text(3)]
    ids = seeing.ids(backend.images, first)
    expected = seeing.expected(first)[-1]
    assert relative_error(backend.logits(ids, 0)[0], expected) <= tolerance(backend)
    turn = [*first, seeing.text(6), seeing.image(6, 4), seeing.text(2)]
    more = seeing.ids(backend.images, turn)[len(ids) :]
    logits = backend.logits(more, len(ids))
    assert relative_error(logits[0], seeing.expected(turn)[-1]) <= tolerance(backend)


def test_a_prompt_that_is_cut_within_an_image_gives_the_same_logits(seeing, backend):
    parts = [seeing.text(3), seeing.image(6, 10), seeing.text(4)]
    ids = seeing.ids(backend.images, parts)
    if seeing.package.manifest.vision.seen_whole:  # its tokens attend to later ones
        with pytest.raises(GenerationError, match="must run in one pass"):
            backend.fill(ids[:10], 0)
        return
    for cut in (5, 10):
        backend.fill(ids[:cut], 0)
        logits = backend.logits(ids[cut:], cut)
        assert relative_error(logits[0], seeing.expected(parts)[-1]) <= tolerance(backend)


def test_text_after_an_image_was_taken_back_is_text_alone(seeing, backend):
    before, text = seeing.text(3), seeing.text(5)
    alone = backend.logits([*before, *text], 0)
    backend.logits(seeing.ids(backend.images, [before, seeing.image(4, 4), text]), 0)
    start = resumable(backend, len(before))  # 0 where recurrent states are not kept
    after = backend.logits([*before, *text][start:], start)
    assert relative_error(after[-len(alone) :], alone) <= tolerance(backend)


@pytest.mark.cover
def test_sequences_of_a_batch_have_images_of_their_own(seeing, backend):
    long = [seeing.text(40), seeing.image(6, 10), seeing.text(3)]
    short = [[seeing.text(2), seeing.image(4, 4), seeing.text(count)] for count in (3, 6)]
    batch, count = backend.batch(4, CONTEXT), 4
    prompts = [seeing.ids(backend.images, parts) for parts in (long, *short)]
    batch.fill(
        [
            Row(token, sequence, slot)
            for sequence, ids in enumerate(prompts)
            for slot, token in enumerate(ids[:-1])
        ]
    )
    last = [Row(ids[-1], sequence, len(ids) - 1) for sequence, ids in enumerate(prompts)]
    batch.copy(0, 3, len(prompts[0]) - 1)
    last.append(Row(last[0].token, 3, last[0].slot))
    alone = [backend.greedy(ids, 0, count) for ids in prompts]
    assert batch.greedy(last, count) == [*alone, alone[0]]


def test_an_image_of_other_rows_and_columns_gives_other_logits(seeing, backend):
    image, text = seeing.image(6, 10), seeing.text(4)
    if isinstance(seeing, SeeingTiles | SeeingGemma):
        swapped = ImagePatches(image.patches[::-1].copy(), image.grid)
    else:
        swapped = ImagePatches(image.patches, (1, 10, 6))
    ids = seeing.ids(backend.images, [text, swapped, text])
    expected = seeing.expected([text, image, text])[-1]
    assert relative_error(backend.logits(ids, 0)[0], expected) > 10 * tolerance(backend)


def test_prompts_of_several_passes_give_the_same_logits(seeing, backend, monkeypatch):
    """An image that is seen whole would be cut."""
    parts = [seeing.text(6), seeing.image(4, 8), seeing.text(4)]
    ids = seeing.ids(backend.images, parts)
    if isinstance(backend, CpuBackend):
        monkeypatch.setattr(reference, "PREFILL_ROWS", 18)
    else:
        step = backend._sequence.step
        monkeypatch.setattr(step, "_images", replace(step._images, rows=18))
    logits = backend.logits(ids, 0)
    assert relative_error(logits[0], seeing.expected(parts)[-1]) <= tolerance(backend)


@pytest.mark.thorough
def test_draft_tokens_behind_an_image_are_verified(seeing, backend):
    """They run in short passes, which not all images fit."""
    parts = [seeing.text(3), seeing.image(6, 12), seeing.text(4)]
    ids = seeing.ids(backend.images, parts)
    rows = backend.window_logits(ids, 0, last_n=3)
    assert relative_error(rows, seeing.expected(parts)[-3:]) <= tolerance(backend)


def test_tokens_of_gemmas_images_attend_to_later_ones(request, tmp_path, monkeypatch):
    """The control of the tests above."""
    seeing = SeeingGemma(tmp_path, generator_of(request), "gemma3")
    backend = CpuBackend(seeing.package, context=CONTEXT)
    parts = [seeing.text(3), seeing.image(), seeing.text(4)]
    ids, expected = seeing.ids(backend.images, parts), seeing.expected(parts)[-1]
    assert relative_error(backend.logits(ids, 0)[0], expected) <= CPU
    monkeypatch.setattr(SeenImages, "are_seen_whole", lambda *_: False)
    assert relative_error(backend.logits(ids, 0)[0], expected) > 10 * CPU


def features(value: float, grid: tuple[int, int, int] = (1, 2, 2)) -> ImageFeatures:
    rows = np.full((int(np.prod(grid)), 8), value, np.float32)
    return ImageFeatures(rows, (), grid)


def test_the_same_features_have_the_same_ids_and_others_have_others():
    images = SeenImages(100, 0, 8)
    first = images.add(features(1.0))
    assert images.add(features(1.0)) == first == range(100, 104)
    assert images.add(features(2.0)) == range(104, 108)
    assert images.add(features(1.0, (1, 1, 4))) == range(108, 112)
    assert [images.knows(token) for token in (99, 100, 111, 112)] == [False, True, True, False]
    images.forget(features(1.0).embeddings.nbytes)
    assert [images.knows(token) for token in (100, 104, 108, 111)] == [False, False, True, True]
    with pytest.raises(GenerationError, match="is forgotten"):
        images.features([5, 104])
    assert images.add(features(1.0)) == range(112, 116)


@pytest.mark.parametrize(("has_axes", "last"), [(True, 7), (False, 10)])
def test_text_behind_an_image_goes_on_at_its_slot_where_positions_have_no_axes(has_axes, last):
    images = SeenImages(100, 0, 8, has_axes=has_axes)
    image = images.add(features(1.0, (1, 2, 3)))
    positions = SequencePositions(images)
    assert positions.of([1, 2, *image, 3, 4, 5], 0)[-1].tolist() == [last] * 3
    assert positions.of([6], 11)[0].tolist() == [last + 1] * 3
