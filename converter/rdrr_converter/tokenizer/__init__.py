"""The tokenizer of a package: the files of a checkpoint, and what is built from older files."""
