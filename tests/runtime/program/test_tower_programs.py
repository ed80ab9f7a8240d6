"""Programs of vision towers, whose contexts are patches, and what texts need of images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rdrr
from rdrr_device.capabilities import Capabilities
from rdrr_format.errors import FormatError
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.program.export import make_program
from rdrr_runtime.program.files import at_context, program_bytes, read_program
from rdrr_runtime.program.towers import make_tower_program
from support.seeing_checkpoints import write_seeing

CHECKPOINT = Path(__file__).parents[2] / "data" / "small-qwen3-vl"
PATCHES = 64
MOST = 4096 * PATCHES
"""Pixels of the largest image: 4,096 patches of 8 x 8."""
GPU = Capabilities(features=frozenset({"subgroup", "shader-f16"}))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tower") / "package"
    rdrr.convert(CHECKPOINT, folder, quantize="f16")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["processor"]["maxPixels"] = MOST
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return open_package(folder)


def tower_of(package, tokens):
    return make_tower_program(package, GPU, Policy(), most_tokens=tokens)


@pytest.fixture(scope="module")
def program(package):
    return tower_of(package, 1024)


def sizes(program):
    return [buffer.size for buffer in program.buffers]


def test_a_tower_has_one_program_for_images_of_all_sizes(package, program):
    assert (program.contexts.least, program.contexts.most) == (768, 4096)
    for patches in (768, 1792, 4096):
        alone = tower_of(package, patches // 4)
        assert sizes(at_context(program, patches)) == sizes(at_context(alone, patches))
        assert at_context(program, patches) == at_context(alone, patches)
    assert tower_of(package, 64).contexts.most == 768
    assert tower_of(package, 256).contexts.most == 1024  # what the context has room for


def test_a_tower_whose_tokens_are_of_nine_patches_has_one_program(rng, tmp_path):
    write_seeing(tmp_path / "model", rng, "gemma4")
    rdrr.convert(tmp_path / "model", tmp_path / "package", quantize="f16")
    package = open_package(tmp_path / "package")
    recipe = package.manifest.processor.model_copy(update={"max_tokens": 320})
    manifest = package.manifest.with_(processor=recipe)
    manifest.save(tmp_path / "package" / "manifest.json")
    package = open_package(tmp_path / "package")
    multiple = 64 * package.manifest.vision.merge_size**2
    program = tower_of(package, 320)
    assert (program.contexts.least, program.contexts.multiple) == (3 * multiple, multiple)
    for times in (3, 4, 5):
        assert at_context(program, times * multiple) == at_context(
            tower_of(package, 64 * times), times * multiple
        )


def test_the_parts_of_a_tower_leave_taps_and_embeddings(program):
    results = [part.result for part in program.tower.parts if part.result is not None]
    assert len(results) == len(set(results)) == 2  # a tap, then the embeddings
    assert program.passes == ()
    assert read_program(program_bytes(program)) == program


def test_a_program_of_texts_says_where_features_and_rotations_of_images_go(package):
    images = make_program(package, GPU, Policy()).images
    assert images.first >= package.graph.vocab_size
    assert len(images.features) == 2
    (rope,) = images.ropes
    assert {*rope.axes} == {0, 1, 2}
    assert len(rope.axes) == len(rope.frequencies)


CHANGES = {
    "patches": lambda tower: tower.update(inputs=10**6),
    "nearest": lambda tower: tower.update(nearest=10**6),
    "token_rows": lambda tower: tower["token_rows"].update(segments=10**6),
    "result": lambda tower: tower["parts"][-1].update(result=10**6),
    "contexts": lambda tower: tower.update(merge=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_tower_that_contradicts_its_buffers_is_refused(program, name):
    content = json.loads(program_bytes(program))
    CHANGES[name](content["tower"])
    with pytest.raises(FormatError, match="contradicts itself"):
        read_program(json.dumps(content).encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images.update(first=5),
        lambda images: images.update(width=10**6),
        lambda images: images["ropes"][0].update(axes=[0]),
        lambda images: images["ropes"][0]["axes"].__setitem__(0, 3),
    ],
    ids=["first", "features", "axes", "an axis"],
)
def test_a_program_that_contradicts_itself_about_images_is_refused(package, change):
    content = json.loads(program_bytes(make_program(package, GPU, Policy())))
    change(content["images"])
    with pytest.raises(FormatError, match="contradicts itself"):
        read_program(json.dumps(content).encode())
