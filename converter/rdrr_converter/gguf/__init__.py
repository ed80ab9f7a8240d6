"""GGUF, the format of llama.cpp: the file, its metadata, and the form of each family."""
