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
from rdrr_runtime.text.image_places import ImagePlaces
from support.commands import ROOT
from support.images import GEMMA3, GEMMA4, IDEFICS3, QWEN
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
TILED = IDEFICS3.model_copy(
    update={
        "patch_size": 4,
        "height": 8,
        "width": 8,
        "tiles": IDEFICS3.tiles.model_copy(update={"longest_side": 20}),
    }
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
        "sizes": [
            {"recipe": _stated(recipe), "sizes": [_sized(recipe, tuple(size)) for size in asked]}
            for recipe in (QWEN, IDEFICS3, GEMMA3, GEMMA4)
        ],
        "patches": [_patches(recipe, image) for recipe in (SMALL, LAST, TILED)],
        "places": [
            *(_places(sampling, (0, 0)) for sampling in ("bilinear", "nearest", "separate")),
            _places("nearest", (1, 2)),
        ],
        "texts": [
            _text(QWEN, (4, 0, 0)),
            *(_text(IDEFICS3, (4, *tiles)) for tiles in ((0, 0), (2, 3))),
        ],
        "prompt": {"ids": PROMPT, "positions": _positions(0), "continued": _positions(5)},
    }


def _sized(recipe, size):
    """Return a size, the one that an image gets, and its tokens; zeros where Python refuses it."""
    try:
        new = sizes.resized(recipe, size)
    except GenerationError:
        return (*size, 0, 0, 0)
    return (*size, *new, sizes.token_count(recipe, new))


def _resized(image, name, size):
    return image.resize(size[::-1], RESAMPLING.index(name))


def _stated(recipe):
    return recipe.model_dump(mode="json", by_alias=True, exclude_none=True)


def _patches(recipe, image):
    cut = image_patches(recipe, image)
    return {"recipe": _stated(recipe), "tiles": cut.tiles, "values": _base64(cut.patches)}


def _places(sampling, tiles):
    pictures = tiles[0] * tiles[1] + 1
    patches = np.zeros((24 * pictures, 12), np.float32)
    vision = Vision.model_construct(patch_inputs=12, merge_size=2)
    places = Places.of(vision, ImagePatches(patches, (pictures, 6, 4), tiles))
    nearest, factors = places.interpolation(9, sampling)
    return {
        "sampling": sampling,
        "tiles": tiles,
        "nearest": nearest.reshape(-1).tolist(),
        "factors": _base64(factors),
        "rope": _base64(places.rope_table(10_000.0, 16)),
    }


def _text(recipe, layout):
    """Return what stands for an image in a prompt, given tokens, rows and columns of tiles."""
    each, *tiles = layout
    text = ImagePlaces(recipe, [layout]).filled(recipe.placeholder)
    tokens = each * (tiles[0] * tiles[1] + 1)
    return {"recipe": _stated(recipe), "tokens": tokens, "tiles": tiles, "text": text}


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
