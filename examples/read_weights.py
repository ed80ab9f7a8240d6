"""Read the weights of a package as NumPy arrays; no GPU, torch or wgpu is needed.

python examples/read_weights.py my-package
"""

import sys

import numpy as np
import rdrr


def main(package: str) -> None:
    with rdrr.open(package) as weights:
        print(f"{weights.metadata['modelId']}: {len(weights)} tensors")
        for name in weights:
            entry = weights.tensor(name)
            print(f"{name}: {entry.dtype} {list(entry.shape)}")

        name = max(weights, key=lambda one: weights.tensor(one).size)
        values = weights[name]  # the whole tensor, dequantized to float32
        rows = weights.get_slice(name)[2:4]  # these rows alone
        stored = weights.get_tensor(name, raw=True)  # the bytes as they are stored
        assert np.array_equal(rows, values[2:4])
        print(f"{name}: root mean square {np.sqrt(np.mean(values**2)):.4f}, {stored.size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
