"""From planned tensors to shards: reading chunks, encoding, writing, and comparing afterwards."""
