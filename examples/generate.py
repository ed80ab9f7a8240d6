"""Continue a prompt, and print the text while it is generated.

python examples/generate.py my-package "Once upon a time"
"""

import sys

import rdrr


def main(package: str, prompt: str) -> None:
    with rdrr.load(package) as model:  # a GPU if there is one, else torch on the CPU
        generation = model.generate(prompt, max_tokens=32, temperature=0.8, top_p=0.95, seed=7)
        for piece in generation:
            print(piece, end="", flush=True)
        print()
        print(generation.stats, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
