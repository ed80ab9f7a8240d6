"""What a conversion writes beside the shards, and where: the package is complete or absent."""
