"""`./mill doctor`: what this machine offers: compiler, sandbox, memory, disk, hardware, store, models."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass

from cli.table import compact_table
from gristmill.errors import GristmillError
from tasks.settings import Settings, from_environment

GIB = 1 << 30
NEEDED_MEMORY_BYTES = 6 * GIB
NEEDED_DISK_BYTES = 5 * GIB


@dataclass(frozen=True)
class Examined:
    """One thing that was looked at."""

    what: str
    good: bool
    detail: str
    needed: bool = True
    """Whether Gristmill cannot do its work without it."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    settings = from_environment()
    checks: dict[str, Callable[[Settings], tuple[bool, str]]] = {
        "hardware": _hardware,
        "compiler": _compiler,
        "sandbox": _sandbox,
        "memory": _memory,
        "disk": _disk,
        "peaks": _peaks,
        "object store": _store,
        "language models": _models,
        "kill switch": _kill_switch,
    }
    found = [_examine(name, check, settings) for name, check in checks.items()]
    found += [*_layers(), *_noise(settings)]
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        print(compact_table([[e.what, _mark(e), e.detail] for e in found], ["what", "", "detail"]))
    return 0 if all(one.good or not one.needed for one in found) else 1


def _mark(one: Examined) -> str:
    return "ok" if one.good else "LACKING" if one.needed else "absent"


def _examine(name: str, check: Callable[[Settings], tuple[bool, str]], settings: Settings) -> Examined:
    try:
        good, detail = check(settings)
    except GristmillError as error:
        good, detail = False, str(error)
    return Examined(name, good, detail)


def _hardware(settings: Settings) -> tuple[bool, str]:
    from gristmill.hardware import local_cpu, local_gpu

    cpu, gpu = local_cpu(), local_gpu()
    told = f"{cpu.description}, {cpu.cores} cores, key {cpu.key}"
    return True, told if gpu is None else f"{told}; {gpu.description}, key {gpu.key}"


def _compiler(settings: Settings) -> tuple[bool, str]:
    from harness.builder import Builder

    return True, Builder(settings.judge_dir / "builds").compiler_version


def _sandbox(settings: Settings) -> tuple[bool, str]:
    from harness.layers import examine

    standing = examine()
    lacking = [one.layer.name for one in standing if not one.active]
    return True, f"{len(standing) - len(lacking)} of {len(standing)} layers" + (
        f", without {', '.join(lacking)}" if lacking else ""
    )


def _layers() -> list[Examined]:
    """A row per layer, and what measuring may do; candidates are judged without those that are absent."""
    from harness import layers

    try:
        standing = layers.examine()
    except GristmillError:
        return []  # the sandbox's own row says why
    rows = []
    for one in standing:
        detail = one.layer.meaning + (f" ({one.form})" if one.form else "")
        if not one.active:
            detail = f"not so here: {one.layer.meaning}; to get it: {one.layer.remedy}"
        rows.append(Examined(f"sandbox: {one.layer.name}", one.active, detail, needed=False))
    permitted = layers.real_time_permitted()
    detail = "busy neighbours do not decide timings"
    if not permitted:
        detail = f"not so here: {detail}; to get it: run as root, or grant CAP_SYS_NICE"
    return [*rows, Examined("real-time priority", permitted, detail, needed=False)]


def _noise(settings: Settings) -> list[Examined]:
    """A row if this host was calibrated: a judge works without, but does not know how well."""
    from harness import calibration

    kept = calibration.kept(settings.judge_dir)
    return [Examined("noise", True, kept.summary, needed=False)] if kept else []


def _memory(settings: Settings) -> tuple[bool, str]:
    size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    good = size_bytes >= NEEDED_MEMORY_BYTES
    return good, f"{size_bytes / GIB:.0f} GiB" + (
        "" if good else f"; the demo takes up to {NEEDED_MEMORY_BYTES // GIB}"
    )


def _disk(settings: Settings) -> tuple[bool, str]:
    free_bytes = shutil.disk_usage(settings.home).free
    good = free_bytes >= NEEDED_DISK_BYTES
    return good, f"{free_bytes / GIB:.0f} GiB free" + ("" if good else f"; {NEEDED_DISK_BYTES // GIB} are wanted")


def _peaks(settings: Settings) -> tuple[bool, str]:
    from kernels.roofline import cached_peaks

    peaks = cached_peaks(settings.peaks_path)
    rates = ", ".join(f"{rate:.0f} GFLOP/s {dtype}" for dtype, rate in peaks.gflops.items())
    return (
        True,
        f"{peaks.memory_bandwidth_gb_s:.0f} GB/s from memory, {rates}, last-level cache {peaks.l3_bytes >> 20} MiB",
    )


def _models(settings: Settings) -> tuple[bool, str]:
    from agents.models import configuration

    models = configuration.from_environment()
    if not models:
        return True, "none configured (MILL_MODELS or MILL_MODELS_FILE): pattern agents search alone"
    python = configuration.agents_python()
    asked = [str(python), "-I", "-c", "from importlib.metadata import version; print(version('litellm'))"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    if told.returncode:
        return False, f"no litellm in {python.parents[1]}; unset MILL_AGENTS_VENV, and ./mill sets one up"
    return True, f"{', '.join(one.model for one in models)}, by litellm {told.stdout.strip()}"


def _kill_switch(settings: Settings) -> tuple[bool, str]:
    """Of a host on this machine, in this environment."""
    from gristmill import kill_switch

    switch = kill_switch.read_kill_switch(os.environ)
    if switch.problem:
        return False, switch.problem
    says = "; ".join(" ".join(text.split()) for text in kill_switch.kill_text(os.environ) if text)
    file = os.environ.get(kill_switch.FILE_VARIABLE) or kill_switch.DEFAULT_FILE
    return True, f"says {says or 'nothing'}; words in {kill_switch.VARIABLE} or {file}: {kill_switch.WORDS}"


def _store(settings: Settings) -> tuple[bool, str]:
    from registry.doctor import examine
    from tasks import object_store

    with object_store.opened(settings) as opened:
        findings = examine(opened.store)
        failed = [finding for finding in findings if finding.essential and not finding.passed]
        if failed:
            return False, f"{opened.store.url}: {failed[0].check}: {failed[0].detail}"
        return True, f"{opened.store.url}: {len(findings)} checks passed"
