"""A checkpoint as a lazy table of tensors, which is what every reader returns."""
