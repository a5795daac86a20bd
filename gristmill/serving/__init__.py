"""The reference engine: a Llama-architecture model of random weights, decoding in batches, fed by a replayed trace.

Small, but real: continuous batching, a growing key/value cache, per-request positions. It stands where a fleet's engine
stands, so that every step of the mill can be tried on any machine.
"""
