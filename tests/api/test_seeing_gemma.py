"""Packages of Gemma 3 and 4 answer messages with images as transformers does."""

from __future__ import annotations

import numpy as np
import pytest
import rdrr
import torch
from rdrr_runtime.decode.scheduler import Pace, ScheduledText, Scheduler
from rdrr_runtime.sampling.params import SamplingParams
from support.image_prompts import PICTURES, SEEN, text, user
from support.seeing_checkpoints import KINDS, write_seeing
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

COUNT = 12


def judged(name: str, ids: torch.Tensor, image_token: int) -> dict[str, torch.Tensor]:
    """Return what transformers makes of the pictures."""
    kinds, images, settings = (ids == image_token).int(), list(PICTURES), KINDS[name].settings
    if name == "gemma":
        inputs = Gemma3ImageProcessorPil(**settings)(images=images, return_tensors="pt")
        return {"pixel_values": inputs["pixel_values"], "token_type_ids": kinds}
    inputs = Gemma4ImageProcessorPil(**settings)(images=images, return_tensors="pt")
    names = ("pixel_values", "image_position_ids")
    return {**{name: inputs[name] for name in names}, "mm_token_type_ids": kinds}


@pytest.mark.parametrize("name", ["gemma", pytest.param("gemma4", marks=pytest.mark.thorough)])
def test_two_images_and_a_second_turn_are_answered_as_by_transformers(rng, tmp_path, name):
    model = write_seeing(tmp_path / "model", rng, name)
    rdrr.convert(tmp_path / "model", tmp_path / "out", quantize="f32", vision_quantize="f32")
    turns = [SEEN, {"role": "assistant", "content": "user"}, user(text("a b?"))]
    with rdrr.load(tmp_path / "out", backend="cpu", context=320) as package:
        for messages in ([SEEN], turns):
            rendered = package._render_chat(messages)
            answer = package.chat(messages, max_tokens=COUNT)
            answer.read()
            ids = torch.tensor([[*rendered.ids, *answer.token_ids]])
            inputs = judged(name, ids, model.config.image_token_id)
            with torch.no_grad():
                logits = model(ids, **inputs, use_cache=False).logits[0]
            logits = logits[len(rendered.ids) - 1 : -1].numpy()
            chosen = np.take_along_axis(logits, np.array(answer.token_ids)[:, None], 1)[:, 0]
            assert (logits.max(axis=1) - chosen).max() <= 2e-4 * np.abs(logits).max()
        # A server reads prompts in parts, none of which ends within an image.
        prompt = package._with_images(rendered)
        texts = [ScheduledText(prompt, COUNT, SamplingParams(), frozenset()) for _ in range(2)]
        Scheduler(package._opened.backend.batch(2, 320), Pace(prompt_rows=10)).run(texts)
        assert [each.ids[: len(answer.token_ids)] for each in texts] == [answer.token_ids] * 2
