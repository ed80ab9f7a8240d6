"""The op library: each op is one WGSL file and one Python file of the same name beside it."""
