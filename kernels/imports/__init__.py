"""Imports: traffic profiles of fleets that cannot install a plugin, from traces that others wrote.

`torch_trace` reads what torch.profiler recorded, `flashinfer_traces` the traces of FlashInfer-Bench. `request_traces`
reads lengths and arrivals, from which `batching` and a model's operators make shapes. All of them stream.
"""
