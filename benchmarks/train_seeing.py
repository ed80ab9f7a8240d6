"""Train a small Qwen3-VL that says what it sees in pictures, and write it as a checkpoint.

    python benchmarks/train_seeing.py FIRST
    python benchmarks/train_seeing.py OUT --start FIRST --moved --steps 700 --seed 1

The pictures are those of `pictures.py`, new ones in each step; the loss is that of the words after
a fixed question. The checkpoint has everything that a published one has: configuration, tokenizer
with a chat template, settings of the image processor and weights in F16. Pixels are those of
transformers' processor, to which the script compares its own first. One thread computes, so the
same seed gives the same model on the same machine. The last line is one JSON object, with the share
of pictures never trained on whose words are all right.

Muon trains the matrices of layers and mergers, AdamW embeddings, vectors and the first convolution.
After 400 steps it named 80 % of shapes and digits and nearly all places; AdamW alone named colours.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _moved_places import PLAIN, MovedPlaces
from _muon import Muon
from pictures import COLORS, COLUMNS, ROWS, SHAPES, SIZES, Picture, picture
from torch import Tensor

PATCH, MERGE, FRAMES = 8, 2, 2
SETTINGS: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": PATCH,
    "merge_size": MERGE,
    "temporal_patch_size": FRAMES,
    "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
QUESTION = "What is it?"
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
{% if part.type == 'text' %}{{ part.text }}{% else %}<|vision_start|><|image_pad|><|vision_end|>\
{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
BATCH, WARM = 32, 100
RATE, MATRIX_RATE = 3e-3, 0.02
"""Learning rates of AdamW and of Muon."""

TESTED = 16
"""Batches of pictures that come after those of the training."""


def tokenizer() -> Any:
    """Return a byte-level tokenizer that has a token for each word of a picture."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        show_progress=False,
        special_tokens=[*SPECIAL, *VISION],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    said = [*COLORS, *(f" {word}" for word in (*SHAPES, *map(str, range(10)), *ROWS, *COLUMNS))]
    words.train_from_iterator([*said, "user", "assistant", QUESTION], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )


def new_model(words: Any) -> Any:
    """Return a small Qwen3-VL with random weights for the tokens of a tokenizer."""
    from transformers import AutoConfig, Qwen3VLForConditionalGeneration

    ids = {name: words.convert_tokens_to_ids(name) for name in VISION}
    text = {
        "vocab_size": -(-len(words) // 32) * 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
        },
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 3,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_heads": 3,
        "out_hidden_size": 64,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "num_position_embeddings": 8 * 8,
        "deepstack_visual_indexes": [1],
    }
    config: Any = AutoConfig.for_model(
        "qwen3_vl",
        text_config=text,
        vision_config=vision,
        image_token_id=ids[VISION[1]],
        vision_start_token_id=ids[VISION[0]],
        vision_end_token_id=ids[VISION[2]],
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # the usual deviation of 0.02 is that of models of other widths
            fan = parameter[0].numel()
            torch.nn.init.normal_(parameter, std=0.7 * fan**-0.5)
    return model


def at_once(model: Any) -> Any:
    """Return a model whose tower attends within all pictures of a step at once."""
    for block in model.model.visual.blocks:
        block.attn.forward = partial(attend, block.attn)
    return model


def attend(
    module: Any,
    hidden_states: Tensor,
    cu_seqlens: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    **_: object,
) -> Tensor:
    """Compute the attention of a layer of the tower for pictures of one size at once.

    transformers does it for one picture after the other, which takes most of a step.
    """
    from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

    rows, pictures = len(hidden_states), len(cu_seqlens) - 1
    parts = module.qkv(hidden_states).view(rows, 3, module.num_heads, -1).unbind(1)
    rotate: Any = apply_rotary_pos_emb_vision
    q, k = rotate(*parts[:2], *position_embeddings)
    q, k, v = (x.unflatten(0, (pictures, -1)).transpose(1, 2) for x in (q, k, parts[2]))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    output: Tensor = module.proj(attended.transpose(1, 2).reshape(rows, -1))
    return output


def patches_of(pixels: Tensor) -> Tensor:
    """Return the patches of pictures of one size, [pictures * patches, values].

    Args:
        pixels: uint8 [pictures, height, width, 3].
    """
    values = (pixels.float() / 255 - 0.5) / 0.5
    count, height, width, _ = values.shape
    rows, columns = height // PATCH // MERGE, width // PATCH // MERGE
    cut = values.view(count, rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    cut = cut.permute(0, 1, 4, 2, 5, 7, 3, 6)  # squares of patches, then [channels, height, width]
    frames = cut.unsqueeze(6).expand(*cut.shape[:6], FRAMES, PATCH, PATCH)
    return frames.reshape(count * rows * columns * MERGE**2, -1)


def check_patches(rng: np.random.Generator) -> None:
    """Compare the patches with those of transformers' processor."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    judge = Qwen2VLImageProcessorPil(**SETTINGS)
    for size in SIZES:
        shown = picture(rng, size)
        expected = judge(images=[shown.image], return_tensors="pt")
        torch.testing.assert_close(
            patches_of(torch.from_numpy(shown.pixels)[None]), expected["pixel_values"]
        )


def pictures_of(key: tuple[int, int]) -> list[Picture]:
    """Return the pictures of a step, all of one size.

    Args:
        key: The seed of a run, and the number of the step.
    """
    rng = np.random.default_rng(key)
    size = SIZES[rng.integers(len(SIZES))]
    return [picture(rng, size) for _ in range(BATCH)]


def ahead(pool: Pool, keys: Sequence[tuple[int, int]], count: int = 128) -> Iterator[list[Picture]]:
    """Yield the pictures of steps, while a pool draws those of the next ones."""
    parts = [keys[start : start + count] for start in range(0, len(keys), count)]
    pending = pool.map_async(pictures_of, parts[0])
    for part in (*parts[1:], ()):
        ready, pending = pending.get(), pool.map_async(pictures_of, part)
        yield from ready


class Batches:
    """Makes the inputs of the model of pictures of one size.

    Args:
        words: The tokenizer.
        model: The model.
        device: Where the inputs are.
    """

    def __init__(self, words: Any, model: Any, device: str) -> None:
        self._words, self._model, self._device = words, model, device
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        prompt = words.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        self._before, self._after = (
            words(part, add_special_tokens=False)["input_ids"] for part in prompt.split(VISION[1])
        )
        self._pad = words.convert_tokens_to_ids(VISION[1])

    def inputs(
        self, pictures: Sequence[Picture], moved: MovedPlaces = PLAIN
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the inputs of the model for pictures with their words, and the labels."""
        pixels = torch.from_numpy(np.stack([shown.pixels for shown in pictures]))
        rows, columns = (length // PATCH for length in pixels.shape[1:3])
        image = [self._pad] * (rows * columns // MERGE**2)
        prompt = [*self._before, *image, *self._after]
        said = self._words(list(map(moved.words, pictures)), add_special_tokens=False)
        answers = [[*ids, self._words.eos_token_id] for ids in said["input_ids"]]
        longest = max(map(len, answers))
        ids = [
            [*prompt, *answer, *[self._words.pad_token_id] * (longest - len(answer))]
            for answer in answers
        ]
        labels = [
            [-100] * len(prompt) + answer + [-100] * (longest - len(answer)) for answer in answers
        ]
        return {
            "input_ids": torch.tensor(ids).to(self._device),
            "pixel_values": patches_of(pixels.to(self._device)),
            # All pictures are frames of one, which do not see each other in the tower.
            "image_grid_thw": torch.tensor([[len(pictures), rows, columns]]).to(self._device),
            "position_ids": self._positions(ids[0], (rows, columns), len(pictures), moved),
        }, torch.tensor(labels).to(self._device)

    def _positions(
        self, ids: list[int], grid: tuple[int, int], count: int, moved: MovedPlaces
    ) -> Tensor:
        """Return the positions of the tokens, which are the same for all pictures of a size."""
        tokens, shape = torch.tensor([ids]), torch.tensor([[1, *grid]])
        kinds = (tokens == self._pad).int()
        positions, _ = self._model.model.get_rope_index(tokens, kinds, shape)
        of_image = kinds[0].bool()
        positions[:, 0, of_image] = moved.places(positions[:, 0, of_image])
        expanded: Tensor = positions.expand(-1, count, -1).to(self._device)
        return expanded


def share_right(model: Any, batches: Batches, steps: Iterable[list[Picture]]) -> float:
    """Return the share of answers that are right as a whole, each token given those before."""
    shares = []
    for pictures in steps:
        inputs, labels = batches.inputs(pictures)
        with torch.no_grad():
            chosen = model(**inputs, use_cache=False).logits[:, :-1].argmax(-1)
        right = (chosen == labels[:, 1:]) | (labels[:, 1:] < 0)
        shares.append(right.all(1).float().mean().item())
    return float(np.mean(shares))


def train(
    model: Any, batches: Batches, steps: Iterable[list[Picture]], moves: Sequence[MovedPlaces]
) -> None:
    """Train a model on the pictures of steps, each with a change of places."""
    optimizers = optimizers_of(model)
    rate = partial(rate_at, count=len(moves))
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, rate) for each in optimizers]
    start, losses = time.perf_counter(), list[Tensor]()
    for step, (pictures, moved) in enumerate(zip(steps, moves, strict=True), 1):
        inputs, labels = batches.inputs(pictures, moved)
        logits = model(**inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        losses.append(loss.detach())
        if step % 100 == 0:
            mean = torch.stack(losses[-100:]).mean().item()
            print(f"{step:6} {mean:.4f} {time.perf_counter() - start:.0f} s", flush=True)


def optimizers_of(model: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Return Muon for the matrices of layers and mergers, and AdamW for all other parameters."""
    matrices, others = list[Tensor](), list[Tensor]()
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "embed" not in name
        (matrices if is_matrix else others).append(parameter)
    adam = torch.optim.AdamW(others, lr=RATE, weight_decay=0.01, betas=(0.9, 0.98), fused=True)
    return Muon(matrices, MATRIX_RATE), adam


def rate_at(step: int, count: int) -> float:
    """Return the factor on the learning rate: a short rise, and the half of a cosine."""
    return min((step + 1) / WARM, 0.02 + 0.98 * (1 + math.cos(math.pi * step / count)) / 2)


def save(model: Any, words: Any, folder: Path) -> None:
    """Write a checkpoint with weights in F16."""
    model.half().save_pretrained(folder)
    words.save_pretrained(folder)
    text = json.dumps(SETTINGS, indent=1)
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description="Train a small model that sees.")
    add = parser.add_argument
    add("out", type=Path)
    add("--steps", type=int, default=2000)
    add("--seed", type=int, default=0)
    add("--start", type=Path, help="a checkpoint to begin with, for the second run")
    add("--moved", action="store_true", help="change the places of tokens, as in the second run")
    add("--device", default="cpu")
    add("--workers", type=int, default=1, help="processes that draw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    check_patches(np.random.default_rng(options.seed))
    words = tokenizer()
    model = new_model(words)
    if options.start is not None:
        model = type(model).from_pretrained(options.start, dtype=torch.float32)
    model = at_once(model).to(options.device)
    batches = Batches(words, model, options.device)
    keys = [(options.seed, step) for step in range(options.steps + TESTED)]
    moves = [MovedPlaces.of(key) if options.moved else PLAIN for key in keys[: options.steps]]
    with get_context("spawn").Pool(options.workers) as pool:
        steps = ahead(pool, keys)
        train(model.train(), batches, islice(steps, options.steps), moves)
        right = share_right(model.eval(), batches, steps)
    save(model, words, options.out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"parameters": parameters, "steps": options.steps, "right": right}))


if __name__ == "__main__":
    main()
