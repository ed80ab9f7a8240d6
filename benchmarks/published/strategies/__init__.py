"""Decoding strategies that exist to be measured against."""
