"""Vision towers of packages compute what those of transformers do, from checkpoint to features."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdrr_converter.convert import convert
from rdrr_format.errors import DeviceError, GenerationError
from rdrr_manifests.package import open_package
from rdrr_runtime.gpu_tower import GpuTower
from rdrr_runtime.images.patches import ImagePatches
from rdrr_runtime.images.tower import Tower
from rdrr_runtime.reference import tower as reference
from rdrr_runtime.reference.tower import CpuTower
from support.checkpoints import make_multimodal
from support.comparison import relative_error
from support.seeds import generator_of

SECTIONS = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]}
TOWER = {"depth": 2, "num_position_embeddings": 49, "deepstack_visual_indexes": [0]}
"""Two layers, one of them tapped, and positions that lie between those of the table."""

WIDTH = 3 * 2 * 16 * 16
IMAGE = (1, 6, 10)
CPU, HALF = 1e-4, 1e-2


class Towers:
    """A model of transformers, and its packages with towers in float32 and in F16."""

    def __init__(self, model: Any, folder: Path, rng: np.random.Generator) -> None:
        model.save_pretrained(folder / "model")
        self.model, self.rng = model, rng
        for name, options in (("f32", {"vision_quantize": "f32"}), ("f16", {})):
            convert(folder / "model", folder / name, quantize="f16", **options)
        self.packages = {name: open_package(folder / name) for name in ("f32", "f16")}

    def on_cpu(self, kind: str) -> CpuTower:
        return CpuTower(self.packages[kind])

    def patches(self, grid: tuple[int, int, int]) -> ImagePatches:
        count = int(np.prod(grid))
        return ImagePatches(self.rng.standard_normal((count, WIDTH)).astype(np.float32), grid)

    def expected(self, image: ImagePatches) -> tuple[np.ndarray, ...]:
        """Return the embeddings and the taps of transformers."""
        with torch.no_grad():
            grid = torch.tensor([image.grid])
            output = self.model.model.visual(torch.from_numpy(image.patches), grid)
        taps = output.get("deepstack_features") or ()
        return tuple(x.numpy() for x in (output.pooler_output, *taps))


@pytest.fixture(scope="module")
def towers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Towers:
    rng = generator_of(request)
    model = make_multimodal("qwen3_vl", rng, TOWER, rope_scaling=SECTIONS)
    return Towers(model, tmp_path_factory.mktemp("towers"), rng)


def worst(tower: Tower, image: ImagePatches, expected: tuple[Any, ...]) -> float:
    features = tower.encode(image)
    assert features.grid == (image.grid[0], image.grid[1] // 2, image.grid[2] // 2)
    pairs = zip((features.embeddings, *features.taps), expected, strict=True)
    return max(relative_error(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("grid", [IMAGE, (1, 4, 6), (1, 2, 2), (1, 16, 8), (2, 4, 6)])
def test_embeddings_and_taps_are_those_of_transformers(towers, grid):
    image = towers.patches(grid)
    expected = towers.expected(image)
    assert worst(towers.on_cpu("f32"), image, expected) <= CPU
    assert worst(towers.on_cpu("f16"), image, expected) <= HALF


@pytest.mark.parametrize(
    ("kind", "limit"), [("f32", 1e-3), pytest.param("f16", HALF, marks=pytest.mark.thorough)]
)
def test_the_gpu_computes_the_same_for_images_of_any_size(towers, device, kind, limit):
    with closing(GpuTower(towers.packages[kind], device)) as tower:
        # The third needs larger buffers than the others.
        for grid in (IMAGE, (2, 4, 6), (1, 18, 16), (1, 4, 6)):
            image = towers.patches(grid)
            assert worst(tower, image, towers.expected(image)) <= limit
            of_cpu = towers.on_cpu(kind).encode(image)
            rounds = kind == "f16" and device.capabilities.matrices  # factors are in f16 then
            assert worst(tower, image, (of_cpu.embeddings, *of_cpu.taps)) <= (
                HALF if rounds else CPU
            )


def test_memory_that_ends_is_freed_and_smaller_images_run_again(towers, device, monkeypatch):
    sizes = {}
    create, free = device.create_buffer, device.free_buffer

    def create_some(label: str, size: int) -> Any:
        if size > 1 << 21:
            raise DeviceError("no memory is left")
        buffer = create(label, size)
        sizes[id(buffer)] = size
        return buffer

    def free_one(buffer: Any) -> None:
        sizes.pop(id(buffer), None)
        free(buffer)

    with closing(GpuTower(towers.packages["f16"], device)) as tower:
        monkeypatch.setattr(device, "create_buffer", create_some)
        monkeypatch.setattr(device, "free_buffer", free_one)
        with pytest.raises(DeviceError, match="no memory"):
            tower.encode(towers.patches((1, 24, 24)))
        assert sizes == {}
        image = towers.patches(IMAGE)
        assert worst(tower, image, towers.expected(image)) <= HALF


def test_the_gpu_refuses_what_the_cpu_refuses(towers, device):
    with closing(GpuTower(towers.packages["f16"], device)) as tower:
        image = ImagePatches(towers.patches(IMAGE).patches, (1, 6, 8))
        with pytest.raises(GenerationError, match="patches"):
            tower.encode(image)


def test_the_tower_of_qwen_3_5_has_no_taps(rng, tmp_path):
    kinds = ["linear_attention", "full_attention"]
    model = make_multimodal("qwen3_5", rng, {"depth": 2}, layer_types=kinds)
    towers = Towers(model, tmp_path, rng)
    image = towers.patches(IMAGE)
    expected = towers.expected(image)
    assert len(expected) == 1
    assert worst(towers.on_cpu("f32"), image, expected) <= CPU


def test_attention_in_parts_is_that_of_all_rows_at_once(towers, monkeypatch):
    image = towers.patches(IMAGE)
    expected = towers.expected(image)
    monkeypatch.setattr(reference, "SCORES", 2 * 60 * 7)
    assert worst(towers.on_cpu("f32"), image, expected) <= CPU


def test_rows_and_columns_of_an_image_are_told_apart(towers):
    image = towers.patches(IMAGE)
    turned = ImagePatches(image.patches, (1, 10, 6))
    assert worst(towers.on_cpu("f32"), turned, towers.expected(image)) > HALF


@pytest.mark.parametrize("grid", [(1, 6, 8), (1, 5, 12), (1, 60, 1), (-1, -6, 10), (0, 0, 0)])
def test_patches_that_fit_no_grid_of_whole_tokens_are_refused(towers, grid):
    image = ImagePatches(towers.patches(IMAGE).patches, grid)
    with pytest.raises(GenerationError, match="patches"):
        CpuTower(towers.packages["f16"]).encode(image)


def test_a_package_without_a_tower_has_none(towers, device, tmp_path):
    towers.model.save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "out", quantize="f16", without_vision=True)
    package = open_package(tmp_path / "out")
    with pytest.raises(GenerationError, match="no vision tower"):
        CpuTower(package)
    with pytest.raises(GenerationError, match="no vision tower"):
        GpuTower(package, device)
