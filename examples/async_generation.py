"""Serve several tasks of asyncio from one model, without blocking the event loop.

python examples/async_generation.py my-package "Once upon a time" "In the beginning"
"""

import asyncio
import sys

import rdrr


async def answer(model: rdrr.Model, prompt: str) -> str:
    # `async with` ends the generation where the loop is left early or the task is cancelled.
    async with model.agenerate(prompt, max_tokens=16) as generation:
        pieces = [piece async for piece in generation]
    return prompt + "".join(pieces)


async def main(package: str, *prompts: str) -> None:
    with rdrr.load(package) as model:
        # The model runs one generation at a time; the others wait for their turn.
        for text in await asyncio.gather(*(answer(model, prompt) for prompt in prompts)):
            print(text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
