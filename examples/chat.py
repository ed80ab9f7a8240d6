"""Hold a conversation: each answer joins the messages of the next question.

python examples/chat.py my-package "Who are you?" "And where are you from?"
"""

import sys

import rdrr


def main(package: str, *questions: str) -> None:
    messages = [{"role": "system", "content": "Answer in one sentence."}]
    with rdrr.load(package) as model:
        for question in questions:
            messages.append({"role": "user", "content": question})
            # Only the new tokens are run: the model still holds those of the turns before.
            answer = model.chat(messages, max_tokens=24).read()
            messages.append({"role": "assistant", "content": answer})
            print(f"> {question}\n{answer}")


if __name__ == "__main__":
    main(*sys.argv[1:])
