"""Continue several prompts at once: on a GPU each pass reads the weights once for all of them.

python examples/batch.py my-package "Once upon a time" "In the beginning"
"""

import sys

import rdrr


def main(package: str, *prompts: str) -> None:
    with rdrr.load(package) as model:
        for prompt, done in zip(prompts, model.generate_batch(prompts, max_tokens=16), strict=True):
            print(f"{prompt}|{done.text}  ({len(done.token_ids)} tokens, {done.finish})")


if __name__ == "__main__":
    main(*sys.argv[1:])
