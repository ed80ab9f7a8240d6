"""A package of Qwen3-VL answers messages with images as transformers does."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import rdrr
import torch
from rdrr._chat import Conversation
from rdrr._sight import content_with_images
from rdrr.cli import chat
from rdrr.serve.worker import Worker
from rdrr_format.errors import DeviceError, FormatError, GenerationError, StoreError, UsageError
from rdrr_runtime.backend import images_of
from rdrr_runtime.images.rows import SeenImages
from rdrr_runtime.images.tower import ImageFeatures
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.checkpoints import make_multimodal
from support.commands import rdrr as command
from support.image_prompts import (
    PICTURES,
    QWEN_TEMPLATE,
    SEEN,
    TOKENS,
    expected_ids,
    image_part,
    judge,
    png,
    text,
    tokenizer,
    user,
)
from support.images import QWEN, drawn_image
from support.remote_machine import Machine
from support.seeds import generator_of
from support.serving import serving

SECTIONS = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]}
COUNT = 12
IMAGE_MEAN = [0.48145466, 0.4578275, 0.40821073]
IMAGE_STD = [0.26862954, 0.26130258, 0.27577711]
"""What the processor of images has by default, and that of videos has not."""


def animation() -> bytes:
    """Return a video of five frames, of which a second has ten."""
    buffer, frames = BytesIO(), [drawn_image(70, 50).rotate(40 * turn) for turn in range(5)]
    frames[0].save(
        buffer, "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True
    )
    return buffer.getvalue()


ANIMATION = animation()
VIDEO = user(text("a "), {"type": "video", "video": ANIMATION}, text("?"))


def filmed(**more: Any) -> dict[str, Any]:
    """Return the message of the video as clients of OpenAI's interface send it."""
    url = "data:image/webp;base64," + base64.b64encode(ANIMATION).decode()
    part = {"type": "video_url", "video_url": {"url": url}, **more}
    return user(text("a "), part, text("?"))


class Seeing:
    """A random Qwen3-VL in transformers, and its package."""

    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        self.folder, words = folder, tokenizer("qwen")
        added = {entry["content"]: entry["id"] for entry in words["added_tokens"]}
        size = -(-(max(added.values()) + 1) // 8) * 8
        tower = {"deepstack_visual_indexes": [0], "num_position_embeddings": 49}
        self.model = make_multimodal("qwen3_vl", rng, tower, rope_scaling=SECTIONS, vocab_size=size)
        self.pad = added[TOKENS["qwen"][1]]
        self.model.save_pretrained(folder / "s")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
        (folder / "s" / "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
        (folder / "s" / "tokenizer_config.json").write_text(
            json.dumps({**settings, "chat_template": QWEN_TEMPLATE}),
            encoding="utf-8",
        )
        size = {"shortest_edge": QWEN.min_pixels, "longest_edge": QWEN.max_pixels}
        (folder / "s" / "preprocessor_config.json").write_text(
            json.dumps(
                {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "size": size}
            ),
            encoding="utf-8",
        )
        videos = {"video_processor_type": "Qwen3VLVideoProcessor"}
        videos |= {"image_mean": IMAGE_MEAN, "image_std": IMAGE_STD}
        (folder / "s" / "video_preprocessor_config.json").write_text(
            json.dumps(
                {**videos, "size": {"shortest_edge": 4 * 64 * 64, "longest_edge": 4 * 96 * 96}}
            ),
            encoding="utf-8",
        )
        rdrr.convert(folder / "s", folder / "package", quantize="f32", vision_quantize="f32")

    def inputs_of(
        self, prompt: list[int], answer: list[int], images: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids of a prompt and of its answer for transformers, and their kinds.

        In transformers tokens of videos are others than those of images. Here neither is an id that
        the answer may say, which a random model does.

        Args:
            prompt: Ids of a prompt, in which tokens of images and videos are the same.
            answer: Ids of the answer.
            images: Number of tokens of images, which come first; all when None.
        """
        ids = np.array([[*prompt, *answer]])
        unsaid = sorted({*range(3, ids.max())} - {*ids[0].tolist()})
        places = np.flatnonzero(np.array(prompt) == self.pad)
        kinds = np.zeros_like(ids)
        kinds[0, places] = 2
        kinds[0, places[:images]] = 1
        for kind, name in ((1, "image_token_id"), (2, "video_token_id")):
            setattr(self.model.config, name, unsaid[kind])
            ids[kinds == kind] = unsaid[kind]
        return torch.from_numpy(ids), torch.from_numpy(kinds)

    def expected(self, messages: list[dict[str, Any]], answer: list[int]) -> np.ndarray:
        """Return the logits of transformers for each token of an answer."""
        ids, kinds = self.inputs_of(expected_ids(self.folder, messages), answer)
        images = judge(self.folder).image_processor(images=list(PICTURES), return_tensors="pt")
        with torch.no_grad():
            output = self.model(
                ids,
                pixel_values=images["pixel_values"],
                image_grid_thw=images["image_grid_thw"],
                mm_token_type_ids=kinds,
                use_cache=False,
            )
        return output.logits[0, -len(answer) - 1 : -1].numpy()


@pytest.fixture(scope="module")
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(tmp_path_factory.mktemp("seeing"), generator_of(request))


@pytest.fixture(scope="module")
def model(seeing: Seeing) -> Iterator[rdrr.Model]:
    with rdrr.load(seeing.folder / "package", backend="cpu", context=256) as loaded:
        yield loaded


def shortfall(logits: np.ndarray, answer: list[int]) -> float:
    """Return by how much the tokens of an answer are less probable than the best, at most."""
    chosen = np.take_along_axis(logits, np.array(answer)[:, None], 1)[:, 0]
    return float((logits.max(axis=1) - chosen).max() / np.abs(logits).max())


def test_two_images_and_a_second_turn_are_answered_as_by_transformers(seeing, model):
    first = model.chat([SEEN], max_tokens=COUNT)
    first.read()
    assert shortfall(seeing.expected([SEEN], first.token_ids), first.token_ids) <= 2e-4
    turns = [SEEN, {"role": "assistant", "content": "user"}, user(text("a b?"))]
    second = model.chat(turns, max_tokens=COUNT)
    second.read()
    assert shortfall(seeing.expected(turns, second.token_ids), second.token_ids) <= 2e-4


def test_a_video_behind_an_image_is_answered_as_by_transformers(seeing, model):
    frames = [png(drawn_image(70, 50).rotate(40 * turn)) for turn in range(5)]
    said = [text("a "), image_part(PICTURES[1]), {"type": "video", "video": frames, "fps": 2}]
    answer = model.chat([user(*said, text("?"))], max_tokens=COUNT)
    answer.read()
    rendered = model._render_chat([user(*said, text("?"))])
    image, *parts = rendered.images
    assert [part.grid[0] for part in parts] == [1, 1, 1]
    words = model.decode(rendered.ids)
    assert re.findall("<([0-9.]+) seconds>", words) == ["0.2", "1.2", "2.0"]
    ids, kinds = seeing.inputs_of(rendered.ids, answer.token_ids, len(image.patches) // 4)
    with torch.no_grad():
        output = seeing.model(
            ids,
            pixel_values=torch.from_numpy(image.patches),
            image_grid_thw=torch.tensor([image.grid]),
            pixel_values_videos=torch.from_numpy(np.concatenate([x.patches for x in parts])),
            video_grid_thw=torch.tensor([[len(parts), *parts[0].grid[1:]]]),
            mm_token_type_ids=kinds,
            use_cache=False,
        )
    logits = output.logits[0, -len(answer.token_ids) - 1 : -1].numpy()
    assert shortfall(logits, answer.token_ids) <= 2e-4


def test_an_image_is_encoded_once_and_the_prompt_before_a_turn_is_not_run_again(model, monkeypatch):
    model.chat([SEEN], max_tokens=2).read()
    monkeypatch.setattr(SeenImages, "add", None)  # a second encoding would fail
    again = model.chat([SEEN], max_tokens=2)
    again.read()
    assert again.stats.cached_tokens == len(again.prompt_ids) - 1


def test_an_answer_and_a_session_begin_although_other_images_took_the_place_of_theirs(seeing):
    with rdrr.load(seeing.folder / "package", backend="cpu", context=256) as other:
        expected = other.chat([SEEN], max_tokens=3).read()
        answer = other.chat([SEEN], max_tokens=3)
        session = other.session(answer.prompt_ids)
        images_of(other._engine.backend).forget(0)
        other.generate([5, 6], max_tokens=1).read()  # nothing of the prompt is in the cache
        assert answer.read() == expected
        del answer
        other.generate([5, 6], max_tokens=1).read()
        assert session.generate(max_tokens=3).read() == expected


def test_other_images_of_the_same_size_share_no_prompt_behind_their_place(model):
    def prompt_of(url: str) -> list[int]:
        part = {"type": "image_url", "image_url": {"url": url}}
        return model.chat([user(text("a"), part, text("b"))], max_tokens=1).prompt_ids

    urls = [part["image_url"]["url"] for part in SEEN["content"] if part["type"] == "image_url"]
    assert prompt_of(urls[0]) == prompt_of(urls[0])
    assert prompt_of(urls[0]) != prompt_of(urls[1])


def test_penalties_and_sampling_leave_the_tokens_of_images_out(model):
    options = {"repeat_penalty": 1.3, "temperature": 0.8, "seed": 1, "max_tokens": 4}
    answer = model.chat([SEEN], **options)
    answer.read()
    assert len(answer.token_ids) in range(1, 5)


def test_a_prompt_that_ends_with_an_image_or_shifts_is_refused(model):
    ids = model.chat([SEEN], max_tokens=1).prompt_ids
    with pytest.raises(GenerationError, match="ends with an image"):
        model.generate([1, max(ids)])
    with pytest.raises(GenerationError, match="does not shift"):
        model.chat([SEEN], context_shift=4)
    with pytest.raises(GenerationError, match="outside the vocabulary"):
        model.generate([1, max(ids) + 1000, 2])


def test_images_beyond_the_context_are_refused_with_the_numbers(seeing, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(png(PICTURES[1]))
    count = 64 // 32 * (64 // 32)
    package = str(seeing.folder / "package")
    message = f"the image needs {count} tokens at 64 x 64 pixels.*at most 3 tokens.*found {count}"
    for context, why in ((3, message), (8, "context")):  # the second with the tokens of its text
        with (
            rdrr.load(package, backend="cpu", context=context) as small,
            pytest.raises(GenerationError, match=why),
        ):
            small.chat([user(image_part(PICTURES[1]), text("b"))])
    options = ["--backend", "cpu", "--context", 3]
    ran = command("generate", package, "--image", str(file), "-p", "b", *options)
    assert ran.code == 1
    assert re.search(message, ran.err)


def test_the_memory_of_the_tower_counts_before_it_is_taken(seeing):
    package = str(seeing.folder / "package")
    with pytest.raises(DeviceError, match="more GPU memory than `max_vram` allows") as caught:
        rdrr.load(package, backend="wgpu", context=64, max_vram=1)
    parts = "weights + .*cache + .*tables + .* vision tower + .* the largest image"
    assert re.search(parts.replace("+", r"\+"), str(caught.value))


def test_a_session_with_images_goes_on_where_it_was_saved_although_their_ids_differ(
    seeing, model, tmp_path
):
    session = model.session(model.chat([SEEN], max_tokens=1).prompt_ids)
    session.generate(max_tokens=3).read()
    saved_ids = session.ids
    session.save(tmp_path / "a.session")
    with rdrr.load(seeing.folder / "package", backend="cpu", context=256) as other:
        seen = images_of(other._engine.backend)
        noise = np.ones((4, seen.width), np.float32)
        seen.add(ImageFeatures(noise, (noise,), (1, 2, 2)))  # takes the first ids
        again = other.restore(tmp_path / "a.session")
        assert again.ids != saved_ids
        answer = again.generate(max_tokens=3)
        answer.read()
        # What was saved is not computed again; the last id had not run.
        assert answer.stats.cached_tokens == len(saved_ids) - 1
    expected = session.generate(max_tokens=3)
    expected.read()
    assert answer.token_ids == expected.token_ids


def test_a_session_whose_images_are_damaged_is_refused(model, tmp_path):
    session = model.session(model.chat([SEEN], max_tokens=1).prompt_ids)
    session.save(tmp_path / "a.session")
    tensors = load_file(tmp_path / "a.session")
    with safe_open(tmp_path / "a.session", "numpy") as file:
        metadata = file.metadata()
    first = min(name for name in tensors if name.startswith("image.") and ".grid" not in name)
    values, grid = tensors[first], tensors[f"{first}.grid"]
    nothing = np.full_like(values, np.nan)
    damaged = {
        "other width": tensors | {first: values[..., 1:].copy()},
        "other grid": tensors | {f"{first}.grid": grid[::-1] + 1},
        "not finite": tensors | {first: nothing},
        "other type": tensors | {first: values.astype(np.float16)},
        "no grid": {name: part for name, part in tensors.items() if name != f"{first}.grid"},
        "no name": {name.replace(first, "image.x"): part for name, part in tensors.items()},
        "no image": {name: part for name, part in tensors.items() if first not in name},
    }
    for what, left in {"": tensors, **damaged}.items():
        save_file(left, tmp_path / "b.session", metadata)
        if not what:
            model.restore(tmp_path / "b.session")
            continue
        with pytest.raises(FormatError, match=r"image of another model|not in the vocabulary"):
            model.restore(tmp_path / "b.session")


def test_a_command_shows_images_in_their_places(seeing, model, tmp_path):
    files = []
    for number, picture in enumerate(PICTURES):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(png(picture))
    flags = [flag for file in files for flag in ("--image", str(file))]
    prompt = "a <image>\nb<image>?"
    package = str(seeing.folder / "package")
    options = ["-n", 6, "--backend", "cpu", "--context", 256, "--json"]
    ran = command("generate", package, *flags, "-p", prompt, *options)
    answer = model.chat([SEEN], max_tokens=6)
    answer.read()
    assert ran.json()["token_ids"] == answer.token_ids


def test_a_command_shows_a_video(seeing, model, tmp_path):
    file = tmp_path / "a.webp"
    file.write_bytes(ANIMATION)
    package = str(seeing.folder / "package")
    options = ["-n", 6, "--backend", "cpu", "--context", 256, "--json"]
    ran = command("generate", package, "--video", str(file), "-p", "a <video>?", *options)
    answer = model.chat([VIDEO], max_tokens=6)
    answer.read()
    assert ran.json()["token_ids"] == answer.token_ids
    ran = command("generate", package, "--video", str(file), "--prompt-ids", "5", *options)
    assert ran.code == 2
    assert "exclude each other" in ran.out


def test_a_conversation_keeps_its_images(model, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(png(PICTURES[0]))
    talk = Conversation(model)
    talk.show(file)
    first = talk.ask("what?", max_tokens=3)
    talk.answered(first.read(), first.token_ids)
    second = talk.ask("and?", max_tokens=3)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    talk.save(tmp_path / "talk.json")
    again = Conversation(model)
    again.load(tmp_path / "talk.json")
    assert again.messages == talk.messages
    with pytest.raises(StoreError, match="no such image"):
        talk.show(tmp_path / "b.png")


def test_a_conversation_shows_videos_beside_images(model, tmp_path):
    (tmp_path / "a.webp").write_bytes(ANIMATION)
    (tmp_path / "a.png").write_bytes(png(PICTURES[0]))
    talk = Conversation(model)
    chat._command(talk, f"/video {tmp_path / 'a.webp'}")
    chat._command(talk, f"/image {tmp_path / 'a.png'}")
    asked = talk.ask("a <video>? <image>", max_tokens=1)
    parts = [*VIDEO["content"], text(" "), image_part(PICTURES[0])]
    parts[2:4] = [text("? ")]
    assert list(asked.prompt_ids) == list(model.chat([user(*parts)], max_tokens=1).prompt_ids)
    with pytest.raises(StoreError, match="no such video"):
        talk.show(tmp_path / "b.webp", "video")
    with pytest.raises(StoreError, match="no such image"):
        talk.show(tmp_path)  # frames in a folder are a video
    talk.show(tmp_path, "video")


FORMS = (
    ("/v1/responses", {"max_output_tokens": 2}, "input", ("usage",)),
    ("/v1/messages", {"max_tokens": 2}, "messages", ("usage",)),
    ("/v1/messages/count_tokens", {}, "messages", ()),
)
"""Other interfaces: path, options, key of the messages, and where the counts are."""


def send(connection, content):
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)


def asked(running, name, path, options, key, place, *, is_remote=False):
    """Ask the question with images in the form of an interface; return the tokens of the prompt."""
    numbers = iter(range(len(PICTURES)))
    said = [
        written(path, part, f"http://host/{next(numbers)}.png")
        if is_remote and part["type"] == "image_url"
        else written(path, part)
        for part in SEEN["content"]
    ]
    body = {"model": name, key: [{"role": "user", "content": said}], **options}
    status, content = running.ask(
        "POST", path, json.dumps(body).encode(), content_type="application/json"
    )
    assert status == 200, content
    value = json.loads(content)
    for step in place:
        value = value[step]
    # Anthropic's count leaves out what the cache had.
    return value["input_tokens"] + value.get("cache_read_input_tokens", 0)


def written(path, part, url=None):
    """Return a part of a message as an interface writes it, an image by a URL if there is one."""
    if path == "/v1/responses":
        if part["type"] == "text":
            return {"type": "input_text", "text": part["text"]}
        return {"type": "input_image", "image_url": url or part["image_url"]["url"]}
    if part["type"] == "text":
        return part
    if url is not None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, data = part["image_url"]["url"].removeprefix("data:").split(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
def test_a_server_sees_data_urls_with_the_tower_on_its_device_and_urls_if_it_may(seeing, backend):
    files = {f"/{number}.png": png(picture) for number, picture in enumerate(PICTURES)}
    machine = Machine(lambda connection, line: send(connection, files[line.split()[1]]), {})
    worker = Worker(
        lambda: rdrr.load(seeing.folder / "package", backend=backend, context=256),
        slots=2,
        queue=2,
    )
    worker.start()
    try:
        with (
            serving(worker, network=machine.network()) as running,
            openai.OpenAI(
                base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0
            ) as client,
        ):
            name = client.models.list().data[0].id
            first, again = (
                client.chat.completions.create(
                    model=name, messages=[SEEN], max_tokens=3, temperature=0, logprobs=True
                )
                for _ in range(2)
            )
            video = client.chat.completions.create(model=name, messages=[filmed()], max_tokens=1)
            with pytest.raises(openai.BadRequestError, match="rate"):
                client.chat.completions.create(model=name, messages=[filmed(fps=0)], max_tokens=1)
            others = [asked(running, name, *form) for form in FORMS]
            remote = [asked(running, name, *form, is_remote=True) for form in FORMS]
    finally:
        worker.stop(60)
    with rdrr.load(seeing.folder / "package", backend="cpu", context=256) as model:
        parts = model._render_chat([VIDEO])
    assert len(parts.images) == 2
    assert video.usage.prompt_tokens == len(parts.ids)
    count = len(expected_ids(seeing.folder, [SEEN]))
    assert [first.usage.prompt_tokens, *others, *remote] == [count] * (1 + 2 * len(FORMS))
    assert len(machine.asked) == len(PICTURES) * len(FORMS)
    # The second prompt runs only what follows the first one's beginning, in shorter passes.
    tokens, expected = again.choices[0].logprobs.content, first.choices[0].logprobs.content
    assert [token.token for token in tokens] == [token.token for token in expected]
    close = pytest.approx([token.logprob for token in expected], abs=1e-3)
    assert [token.logprob for token in tokens] == close


@pytest.mark.thorough
def test_a_program_of_a_package_that_sees_plays_its_texts(seeing, tmp_path):
    folder = seeing.folder / "package"
    rdrr.export_program(folder, tmp_path / "program.json")
    with rdrr.load(folder, backend="wgpu", context=256) as loaded:
        answer = loaded.generate([5, 6, 7, 8], max_tokens=8)
        answer.read()
    with rdrr.play(tmp_path / "program.json", folder) as player:
        assert list(player.generate([5, 6, 7, 8], max_tokens=8)) == answer.token_ids
    rdrr.web(folder, tmp_path / "web")


def test_videos_have_places_of_their_own():
    film = {"type": "video", "video": "v"}
    image = {"type": "image_url", "image_url": {"url": "x"}}
    assert content_with_images("a<video>", [], ["v"]) == [text("a"), film]
    assert content_with_images("a", ["x"], ["v"]) == [image, film, text("a")]
    assert content_with_images("a<video>b", ["x"], ["v"]) == [image, text("a"), film, text("b")]
    assert content_with_images("<video><image>", ["x"], ["v"]) == [film, image]
    assert content_with_images("<video>", ["x"]) == [image, text("<video>")]
    with pytest.raises(UsageError, match=r"one place for each video.*expected 1 times <video>"):
        content_with_images("<video><video>", [], ["v"])


def test_images_come_where_the_text_says_so_or_before_it():
    image = [{"type": "image_url", "image_url": {"url": name}} for name in "xy"]
    assert content_with_images("a", []) == "a"
    assert content_with_images("a", ["x", "y"]) == [*image, text("a")]
    assert content_with_images("a<image>b<image>", "xy") == [
        text("a"),
        image[0],
        text("b"),
        image[1],
    ]
    with pytest.raises(UsageError, match="expected 2 times <image>, or none, found 1"):
        content_with_images("a<image>", "xy")
