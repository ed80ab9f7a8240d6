"""Parallel residual streams (AltUp), whose rows consist of several streams.

`stream_coefficients` computes how the streams of a row are mixed, `streams` mixes, corrects and
averages them, and `append_stream` begins a stream.

No pattern leads here: `rdrr_runtime.compile.lowering.streams` lowers each op by itself.
"""
