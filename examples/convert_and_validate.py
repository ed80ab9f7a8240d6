"""Convert a checkpoint to a package, and check every byte of it.

python examples/convert_and_validate.py examples/small-llama my-package
"""

import sys

import rdrr


def main(checkpoint: str, package: str) -> None:
    result = rdrr.convert(checkpoint, package, quantize="q4_k_m")
    print(f"{result.model_id}: {result.total_size:,} bytes")

    report = rdrr.validate(package, deep=True)  # hashes every shard and decodes every tensor
    for fault in report.faults:
        print(fault.line())
    print("valid" if report.ok() else "not valid")


if __name__ == "__main__":
    main(*sys.argv[1:])
