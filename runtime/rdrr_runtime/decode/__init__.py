"""Decoding strategies, one file each. A strategy yields runs of new token ids.

A strategy owns the order of forward passes; it knows neither text nor when to stop for a stop
string, which is the engine's and the model's business.
"""
