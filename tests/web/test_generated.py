"""What the browser runtime has from Python: types of a program, and the records of its tests."""

from __future__ import annotations

import base64
import json
import runpy

import numpy as np
from PIL import Image
from rdrr_format.dtypes import parse_dtype
from rdrr_format.encoding import decode_tensor
from rdrr_format.errors import GenerationError
from rdrr_format.layouts import geometry, parse_layout
from rdrr_manifests.models import Vision
from rdrr_manifests.models.processor import RESAMPLING
from rdrr_runtime.images import sizes
from rdrr_runtime.images.patches import ImagePatches, image_patches
from rdrr_runtime.images.places import Places
from rdrr_runtime.images.rows import SeenImages, SequencePositions
from rdrr_runtime.images.tower import ImageFeatures
from rdrr_runtime.records import RECORDS
from support.commands import ROOT
from support.images import QWEN
from support.packages import random_bytes

WEB = ROOT / "web"


def test_the_types_of_a_program_are_those_of_its_schema():
    types = runpy.run_path(str(WEB / "generate_types.py"))["types"]()
    committed = (WEB / "src" / "program" / "schema.ts").read_text(encoding="utf-8")
    assert committed == types, "run python web/generate_types.py > web/src/program/schema.ts"


def test_the_records_that_the_tests_in_node_pack_are_ours():
    stated = json.loads((WEB / "test" / "data" / "records.json").read_text(encoding="utf-8"))
    assert stated == {
        "records": {
            name: {"fields": dict(table.fields), "words": table.words}
            for name, table in RECORDS.items()
        }
    }


DECODED = [(dtype, layout) for dtype in ("Q4_K_M", "Q6_K", "Q8_0") for layout in ("row", "column")]


def decoded_vectors():
    """Return random blocks of each type that browsers decode, and their values."""
    rng, shape = np.random.default_rng(33), (2, 40)
    vectors = []
    for dtype, layout in DECODED:
        entry = {"dtype": dtype, "layout": layout, "shape": list(shape)}
        stored = geometry(parse_dtype(dtype), shape, parse_layout(layout))
        raw = random_bytes(entry | {"size": stored.size}, rng)
        values = decode_tensor(raw, parse_dtype(dtype), shape, parse_layout(layout))
        texts = {"stored": _base64(raw), "values": _base64(np.ascontiguousarray(values))}
        vectors.append(entry | texts)
    return vectors


def _base64(array):
    return base64.b64encode(array.tobytes()).decode()


def test_the_blocks_that_the_tests_in_node_decode_have_our_values():
    stated = json.loads((WEB / "test" / "data" / "blocks.json").read_text(encoding="utf-8"))
    assert stated == decoded_vectors()


SMALL = QWEN.model_copy(
    update={"patch_size": 4, "min_pixels": 8 * 8, "max_pixels": 20 * 30, "resample": "bilinear"}
)
LAST = SMALL.model_copy(
    update={"patch_order": "raster", "channel_order": "last", "temporal_patch_size": 1}
)
FILTERS = ("box", "bilinear", "hamming", "bicubic", "lanczos")
NEW_SIZES = ((20, 9), (7, 31))
"""One of both is smaller than the image and the other larger, and the other way round."""

PROMPT = [5, 6, *range(100, 106), 7, 8, *range(110, 114), 9]
"""Ids of a prompt with an image of 2 x 3 tokens and one of 2 x 2."""


def image_vectors():
    """Return what the tests in Node compute of an image: pixels, patches, their places."""
    rng = np.random.default_rng(34)
    pixels = rng.integers(0, 256, (13, 17, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    resized = [
        {"filter": name, "size": size, "pixels": _base64(np.asarray(_resized(image, name, size)))}
        for name in FILTERS
        for size in NEW_SIZES
    ]
    asked = rng.integers(1, 400, (40, 2)).tolist()
    return {
        "pixels": _base64(pixels),
        "resized": resized,
        "sizes": [[*size, *resized_by(QWEN, tuple(size))] for size in asked],
        "patches": [_patches(recipe, image) for recipe in (SMALL, LAST)],
        "places": [_places(sampling) for sampling in ("bilinear", "nearest", "separate")],
        "prompt": {"ids": PROMPT, "positions": _positions(0), "continued": _positions(5)},
    }


def resized_by(recipe, size):
    """Return the height and width that an image gets; the browser refuses what Python refuses."""
    try:
        return sizes.resized(recipe, size)
    except GenerationError:
        return (0, 0)


def _resized(image, name, size):
    return image.resize(size[::-1], RESAMPLING.index(name))


def _patches(recipe, image):
    stated = recipe.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"recipe": stated, "values": _base64(image_patches(recipe, image).patches)}


def _places(sampling):
    patches = np.zeros((24, 12), np.float32)
    vision = Vision.model_construct(patch_inputs=12, merge_size=2)
    places = Places.of(vision, ImagePatches(patches, (1, 6, 4)))
    nearest, factors = places.interpolation(9, sampling)
    return {
        "sampling": sampling,
        "nearest": nearest.reshape(-1).tolist(),
        "factors": _base64(factors),
        "rope": _base64(places.rope_table(10_000.0, 16)),
    }


def _positions(base):
    """Return the positions of the prompt from a slot on, after those before it have run."""
    seen = SeenImages(100, 0, 1)
    for grid in ((1, 2, 3), (1, 2, 2)):
        tokens = np.full((grid[1] * grid[2], 1), grid[2], np.float32)
        ids = seen.add(ImageFeatures(tokens, (), grid))
        seen._next = ids.start + 10  # room between the images, as after others were forgotten
    positions = SequencePositions(seen)
    positions.of(PROMPT[:base], 0)
    return positions.of(PROMPT[base:], base).tolist()


def test_the_images_that_the_tests_in_node_read_have_our_pixels_and_places():
    stated = json.loads((WEB / "test" / "data" / "images.json").read_text(encoding="utf-8"))
    assert stated == json.loads(json.dumps(image_vectors()))


def test_the_package_of_npm_has_the_version_of_rdrr():
    import rdrr

    for name in ("package.json", "package-lock.json"):
        stated = json.loads((WEB / name).read_text(encoding="utf-8"))
        assert stated["version"] == rdrr.__version__
