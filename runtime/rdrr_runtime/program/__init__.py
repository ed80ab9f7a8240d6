"""Programs: all that the compiler makes of a package, as data that leaves the process.

A program states the shaders, kernels, buffers, load steps, passes and sampler of a model for a kind
of device and a range of context lengths. It holds no weights: those stay in the package, which may
be a public one. docs/PROGRAM.md describes the file.

`schema` and `steps` have the models, `checks` what they do not express, `files` reads and writes
them, and `pool` keeps shaders that several programs share. `export` makes a program of dry-run
plans at several contexts: `stated` states one of them with its `tables` and `load_steps`, and
`affine` joins them. `player` runs a program with the shards of its package: `loading` uploads them,
`loaded` holds what is on the device, and `generation` reads ids. They know nothing of the compiler:
whoever adds a phase changes nothing there.
"""
