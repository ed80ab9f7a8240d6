"""Conversations with images for a tiny tokenizer, and what transformers makes of them."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from support import tiny_tokenizers as tiny
from support.images import QWEN, drawn_image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

QWEN_TEMPLATE = """{% for m in messages %}<|end|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
{% if part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
{% elif part.type == 'image' or 'image' in part or 'image_url' in part %}\
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}\
{% endif %}</s>
{% endfor %}{% if add_generation_prompt %}<|end|>assistant
{% endif %}"""
TOKENS = {
    "qwen": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"),
    "idefics": ("<fake_token_around_image>", "<image>", "<global-img>", "<row_1_col_1>"),
    "gemma4": ("<|image>", "<|image|>", "<image|>"),
    "gemma": ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
}
PICTURES = (drawn_image(133, 58), drawn_image(64, 64))


def tokenizer(kind: str) -> dict[str, Any]:
    data = tiny.byte_level(["user", "assistant"])
    size = len(data["model"]["vocab"])
    data["added_tokens"] += [tiny.added(text, size + at) for at, text in enumerate(TOKENS[kind])]
    return data


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
