"""Traces of others as the newest traffic profile: read, batched where they hold requests only, folded and kept."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gristmill import __version__
from gristmill.errors import TraceError
from kernels.errors import ModelError
from kernels.imports import flashinfer_traces, request_traces, trace_file
from kernels.imports.batching import Limits
from kernels.imports.imported import Collector, Imported
from kernels.imports.modelled import Device, ModelledTraffic
from kernels.imports.request_traces import FORMATS, Reading
from kernels.imports.torch_trace import TorchTrace
from kernels.imports.trace_file import Tell, silent
from kernels.models.listing import ModelOperators, model_operators
from kernels.roofline import cached_peaks
from kernels.tally import Source
from tasks.settings import Settings

TORCH, FLASHINFER = "torch", "flashinfer"


@dataclass(frozen=True)
class ImportOptions:
    """How traces are read. All but `start_ns` and `device` concern traces of requests."""

    model_config: Path | None = None
    """The model's `config.json`: what the requests would have called."""
    packed: bool = False
    """Whether the engine has joined the projections of one input."""
    limits: Limits = field(default_factory=Limits)
    only_model: str = ""
    """Requests to this model, in traces that name it."""
    cache_tokens: int = 0
    """Of the engine's prefix cache, for traces that tell which prompts begin alike."""
    engines: int = 1
    """That share the requests in turn; one of them is simulated, and the profile is that one's."""
    start_ns: int | None = None
    """When a trace began that does not say so, since 1970. By default the time at which its file was written."""
    device: Device | None = None
    """The fleet's; by default this machine."""


def import_traces(
    kind: str, paths: Sequence[Path], settings: Settings, options: ImportOptions, tell: Tell = silent
) -> Imported:
    """The profile of all these traces together, of the settings' fleet, model and hardware.

    Raises:
        TraceError: a trace cannot be read, or was not recorded so that it can be used.
        SchemaError: a definition of FlashInfer-Bench cannot be read.
        ModelError: the model's `config.json` cannot be used.
        EmptyProfileError: nothing that can be compiled is in them.
    """
    source = Source(settings.fleet, settings.model, settings.hardware)
    collector = Collector(kind, source, {"gristmill": __version__, "imported from": kind})
    if kind == TORCH:
        for path in paths:
            trace = TorchTrace(path)
            trace.read(tell)
            trace.collect(collector, _began_ns(path, options))
    elif kind == FLASHINFER:
        at_ns = max(_began_ns(path, options) for path in paths)
        flashinfer_traces.collect(paths, _device(settings, options), collector, at_ns, tell)
    else:
        _serve(kind, paths, settings, options, collector, tell)
    return collector.finish()


def _serve(
    kind: str, paths: Sequence[Path], settings: Settings, options: ImportOptions, collector: Collector, tell: Tell
) -> None:
    traffic = ModelledTraffic(_model(options), _device(settings, options), options.limits, collector)
    form = FORMATS[kind]
    for path in paths:
        reading = Reading(options.only_model, options.cache_tokens)
        requests = itertools.islice(request_traces.read(form, path, reading, tell), 0, None, options.engines)
        traffic.serve(requests, 0 if form.absolute else _began_ns(path, options))
        for reason, count in reading.left_out.items():
            collector.facts[f"left out: {reason}"] += count


def _model(options: ImportOptions) -> ModelOperators:
    path = options.model_config
    if path is None:
        raise ModelError(
            "import of requests: no model is named, so that nobody knows what they call; give its config.json with "
            "--model-config"
        )
    try:
        config = json.loads(trace_file.document(path))
    except TraceError as error:
        raise ModelError(f"model configuration: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"model configuration {path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ModelError(f"model configuration {path}: found {str(config)[:60]!r}, expected an object")
    return model_operators(config, packed=options.packed)


def _device(settings: Settings, options: ImportOptions) -> Device:
    if options.device is not None:
        return options.device
    peaks = cached_peaks(settings.peaks_path)
    return Device(tflops=max(peaks.gflops.values()) / 1000, gb_s=peaks.memory_bandwidth_gb_s)


def _began_ns(path: Path, options: ImportOptions) -> int:
    if options.start_ns is not None:
        return options.start_ns
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror}; name a file that is there") from None
