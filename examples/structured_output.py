"""Generate JSON that a schema describes; it needs `pip install '.[grammar]'` in the clone.

python examples/structured_output.py my-package "The name and the age of the king: "
"""

import json
import sys

import rdrr

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main(package: str, prompt: str) -> None:
    with rdrr.load(package) as model:
        generation = model.generate(
            prompt,
            max_tokens=64,
            response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        )
        print(json.loads(generation.read()))


if __name__ == "__main__":
    main(*sys.argv[1:])
