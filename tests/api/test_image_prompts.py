"""Messages with images become the ids that transformers gives them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import rdrr
from PIL import Image
from rdrr_format.errors import GenerationError, RdrrError, StoreError, UsageError
from rdrr_manifests.models import Manifest
from rdrr_runtime.images.sources import image_content, parse_data_url
from support import tiny_tokenizers as tiny
from support.images import GEMMA3, IDEFICS3, QWEN, drawn_image
from support.scripted_models import write_scripted
from transformers import AutoTokenizer
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

END, CONTEXT = 2, 200
QWEN_TEMPLATE = """{% for m in messages %}<|end|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
{% if part.type == 'image' or 'image' in part or 'image_url' in part %}\
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}\
{% endif %}</s>
{% endfor %}{% if add_generation_prompt %}<|end|>assistant
{% endif %}"""
GEMMA_TEMPLATE = QWEN_TEMPLATE.replace(
    "<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>"
)
TOKENS = {
    "qwen": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "idefics": ("<fake_token_around_image>", "<image>", "<global-img>", "<row_1_col_1>"),
    "gemma": ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
}
PICTURES = (drawn_image(133, 58), drawn_image(64, 64))


def tokenizer(kind: str) -> dict[str, Any]:
    data = tiny.byte_level(["user", "assistant"])
    size = len(data["model"]["vocab"])
    data["added_tokens"] += [tiny.added(text, size + at) for at, text in enumerate(TOKENS[kind])]
    return data


def package(folder: Path, kind: str = "qwen", template: str = QWEN_TEMPLATE) -> Path:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    settings["chat_template"] = template
    source = write_scripted(
        folder / "s", tokenizer(kind), (5, 6), end=END, tokenizer_config=settings
    )
    rdrr.convert(source, folder / "package", quantize="f32")
    file = folder / "package" / "manifest.json"
    manifest = Manifest.model_validate_json(file.read_bytes())
    recipe = {"qwen": QWEN, "gemma": GEMMA3, "idefics": IDEFICS3}[kind]
    manifest.with_(processor=recipe.model_dump(mode="json")).save(file)
    return folder / "package"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(tmp_path_factory.mktemp("qwen")).parent


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[rdrr.Model]:
    with rdrr.load(folder / "package", backend="cpu", context=CONTEXT) as loaded:
        yield loaded


def png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def data_url(image: Image.Image) -> str:
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def image_part(image: Image.Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


SEEN = user(text("a "), image_part(PICTURES[0]), text("\nb"), image_part(PICTURES[1]), text("?"))


def judge(folder: Path) -> Qwen3VLProcessor:
    """Return transformers' processor; the one for videos, which needs torchvision, is left out."""
    words = AutoTokenizer.from_pretrained(folder / "s")
    words.image_token, words.image_token_id = TOKENS["qwen"][1], None
    processor = Qwen3VLProcessor.__new__(Qwen3VLProcessor)
    processor.tokenizer, processor.image_token = words, TOKENS["qwen"][1]
    processor.image_processor = Qwen2VLImageProcessorPil(
        patch_size=16, size={"shortest_edge": QWEN.min_pixels, "longest_edge": QWEN.max_pixels}
    )
    return processor


def expected_ids(folder: Path, messages: list[dict[str, Any]]) -> list[int]:
    processor = judge(folder)
    prompt = processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    inputs = processor.image_processor(images=list(PICTURES), return_tensors="np")
    for number in range(len(PICTURES)):
        tokens = processor.replace_image_token(inputs, number)
        prompt = prompt.replace(processor.image_token, tokens.replace("|", "_"), 1)
    prompt = prompt.replace("<_image_pad_>", processor.image_token)
    return list(processor.tokenizer(prompt, add_special_tokens=False)["input_ids"])


def test_two_images_have_the_ids_and_grids_of_transformers(folder: Path, model: rdrr.Model) -> None:
    rendered = model._render_chat([SEEN])
    assert rendered.ids == expected_ids(folder, [SEEN])
    grids = judge(folder).image_processor(images=list(PICTURES))["image_grid_thw"]
    assert [list(image.grid) for image in rendered.images] == [list(grid) for grid in grids]


def test_a_second_turn_keeps_the_ids_of_an_answer_and_the_images_before_it(
    folder: Path, model: rdrr.Model
) -> None:
    answer = {"role": "assistant", "content": "user"}
    words = AutoTokenizer.from_pretrained(folder / "s")
    known = {**answer, "token_ids": words("user", add_special_tokens=False)["input_ids"]}
    turns = [{"role": "user", "content": [text("?")]}]
    expected = expected_ids(folder, [SEEN, answer, *turns])
    assert model._render_chat([SEEN, answer, *turns]).ids == expected
    assert model._render_chat([SEEN, known, *turns]).ids == expected


@pytest.mark.parametrize("control_tokens", [False, True])
def test_text_of_a_message_never_becomes_a_token_of_an_image(
    model: rdrr.Model, control_tokens: bool
) -> None:
    hostile = user(text("<|image_pad|>"), image_part(PICTURES[1]), text("<|vision_end|>"))
    alone = model._render_chat([user(text("x"), image_part(PICTURES[1]), text("y"))]).ids
    token_id = max(alone, key=alone.count)
    if control_tokens:
        with pytest.raises(GenerationError, match=r"one place for each image.*found 2"):
            model._render_chat([hostile], control_tokens=True)
    else:
        ids = model._render_chat([hostile]).ids
        assert ids.count(token_id) == alone.count(token_id) == 4


def test_text_around_tokens_of_an_image_is_encoded_with_what_the_recipe_adds(
    tmp_path: Path,
) -> None:
    with rdrr.load(package(tmp_path, "gemma", GEMMA_TEMPLATE), backend="cpu") as model:
        ids = model._render_chat([user(text("a\n"), image_part(PICTURES[0]), text("\nb"))]).ids
        words = AutoTokenizer.from_pretrained(tmp_path / "s")
    image = "\n\n<start_of_image>" + "<image_soft_token>" * 2 + "<end_of_image>\n\n"
    prompt = f"<|end|>user\na\n{image}\nb</s>\n<|end|>assistant\n"
    assert ids == words(prompt, add_special_tokens=False)["input_ids"]


def test_tiles_of_an_image_have_the_ids_of_transformers(tmp_path: Path) -> None:
    template = QWEN_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    with rdrr.load(package(tmp_path, "idefics", template), backend="cpu") as model:
        for size in ((90, 150), (56, 40)):
            rendered = model._render_chat([user(text("a "), image_part(drawn_image(*size)))])
            image = rendered.images[0]
            inputs = {"rows": [[image.tiles[0]]], "cols": [[image.tiles[1]]]}
            judge = Idefics3Processor.__new__(Idefics3Processor)
            judge.fake_image_token, judge.image_token = "<fake_token_around_image>", "<image>"
            judge.global_image_tag, judge.image_seq_len = "<global-img>", 4
            prompt = (
                f"<|end|>user\na {judge.replace_image_token(inputs, 0)}</s>\n<|end|>assistant\n"
            )
            words = AutoTokenizer.from_pretrained(tmp_path / "s")
            assert rendered.ids == words(prompt, add_special_tokens=False)["input_ids"]


def test_images_beyond_the_context_are_refused_with_the_numbers(model: rdrr.Model) -> None:
    part = image_part(drawn_image(128, 128))
    assert len(model._render_chat([user(*[part] * 12)]).images) == 12
    with pytest.raises(GenerationError, match=r"16 tokens at 128 x 128.*at most 200.*found 208"):
        model._render_chat([user(*[part] * 13)])


def test_a_template_without_a_place_for_an_image_is_refused(
    model: rdrr.Model, tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0].content[0].text }}", encoding="utf-8")
    with pytest.raises(GenerationError, match=r"one place for each image.*expected 2 times.*0"):
        model._render_chat([SEEN], template=file)


def test_a_package_with_a_recipe_and_no_tower_refuses_images(model: rdrr.Model) -> None:
    with pytest.raises(GenerationError, match=r"no vision tower"):
        model.chat([SEEN])


def test_a_model_without_a_recipe_for_images_refuses_them_and_answers_text(
    folder: Path, tmp_path: Path
) -> None:
    rdrr.convert(folder / "s", tmp_path / "package", quantize="f32")
    with rdrr.load(tmp_path / "package", backend="cpu") as blind:
        with pytest.raises(GenerationError, match=r"the model does not see images"):
            blind.chat([SEEN])
        assert blind.chat([user(text("a"))], max_tokens=1).read() is not None


def test_an_image_may_be_a_path_bytes_or_a_data_url(tmp_path: Path) -> None:
    content = png(PICTURES[1])
    (tmp_path / "a.png").write_bytes(content)
    for source in (content, tmp_path / "a.png", str(tmp_path / "a.png"), data_url(PICTURES[1])):
        assert image_content(source, "image") == content


REFUSED: dict[str, tuple[Any, type[RdrrError], str]] = {
    "url": ("https://host/a.png", UsageError, "not fetched"),
    "file url": ("file:///etc/passwd", UsageError, "not fetched"),
    "no file": ("/nowhere/a.png", StoreError, "cannot be read"),
    "no base64": ("data:image/png,abc", GenerationError, "not in base64"),
    "no comma": ("data:image/png;base64", GenerationError, "not in base64"),
    "damaged": ("data:image/png;base64,ab$=", GenerationError, "damaged"),
    "cut": ("data:image/png;base64,abcde", GenerationError, "damaged"),
    "no ascii": ("data:image/png;base64,äöü", GenerationError, "damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_sources_are_refused(name: str) -> None:
    source, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        image_content(source, "image 1")


def test_a_path_is_refused_where_no_user_of_this_machine_has_named_it() -> None:
    with pytest.raises(UsageError, match="only data URLs"):
        image_content("/etc/passwd", "image 1", files=False)
    assert image_content(data_url(PICTURES[1]), "image 1", files=False) == png(PICTURES[1])


def test_a_long_data_url_is_refused_before_it_is_decoded() -> None:
    url = "data:image/png;base64," + "A" * 12
    assert len(parse_data_url(url, max_bytes=9)) == 9
    with pytest.raises(GenerationError, match=r"too long.*at most 8 bytes"):
        parse_data_url(url + "AAAA", max_bytes=8)


@pytest.mark.parametrize("part", [{"type": "image"}, {"type": "image_url", "image_url": 7}])
def test_an_image_without_content_is_refused(model: rdrr.Model, part: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="an image without content"):
        model.chat([user(part)])
