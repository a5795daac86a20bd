"""The commands of `./mill`, as data. The launcher reads them before any package is there: standard library only."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One command of the door."""

    name: str
    summary: str
    """One line, shown in the list."""
    module: str
    """Module with `configure(parser)` and `run(arguments) -> int`."""
    requirements: str = "pipeline"
    """Which set the environment must hold: `pipeline`, or `dev`, which has the tests' and linters' packages as well."""


COMMANDS = (
    Command("demo", "turn the mill once, from traffic to an A/B of proven kernels in a live process", "cli.demo"),
    Command("test", "run the tests; arguments go to pytest", "cli.test", "dev"),
    Command("capture", "fold a fleet's spool into a traffic profile", "cli.capture"),
    Command("import", "make a traffic profile from traces, for fleets without the plugin", "cli.import_traces"),
    Command("rank", "rank a profile's operators by what optimising them could save", "cli.rank"),
    Command("drift", "tell what of the traffic has moved since it was compiled for, or between profiles", "cli.drift"),
    Command("compile", "search for faster kernels for a profile, within a budget in seconds", "cli.compile"),
    Command("judge", "judge one candidate file and print its verdict", "cli.judge"),
    Command("promote", "re-judge the winners, sign them and publish them to a channel", "cli.promote"),
    Command("approve", "sign what canary serves, so that stable may serve it", "cli.approve"),
    Command("canary", "show how canary hosts fare beside the rest, and release or roll back", "cli.canary"),
    Command("rollback", "point a channel back at what it served before", "cli.rollback"),
    Command("revoke", "take a kernel from every host by its digest, for ever", "cli.revoke"),
    Command("continuous", "capture, compile and promote, again whenever the traffic drifts", "cli.continuous"),
    Command("revalidate", "judge again what is served, and revoke what has expired or fails", "cli.revalidate"),
    Command("renew", "sign the registry's metadata anew before it expires", "cli.renew"),
    Command("report", "tell what the mill did in the last week: searches, channels, spending", "cli.report"),
    Command("serve", "serve a replayed trace and follow a channel", "cli.serve"),
    Command("registry", "show and compare what channels serve and served; clean up; check the store", "cli.registry"),
    Command("keys", "make, replace, revoke or show the keys that sign the registry", "cli.keys"),
    Command("model", "list a model's operators by share of time, and draft definitions for new ones", "cli.model"),
    Command("operators", "list the operators that can be compiled", "cli.operators"),
    Command("budget", "show what searches may spend, have spent and have in flight", "cli.budget"),
    Command("replay", "show how a candidate came about: prompts, answers, tool calls, costs, verdict", "cli.replay"),
    Command("patterns", "list the optimisation patterns and what became of them so far", "cli.patterns"),
    Command("memory", "list what searches have learned, or let it be forgotten", "cli.known"),
    Command("ui", "open the MLflow and Prefect pages of past runs", "cli.ui"),
    Command("worker", "join a Prefect server, and work off what is deployed for this machine", "cli.worker"),
    Command("figures", "show the measured figures beside their targets", "cli.figures"),
    Command("doctor", "check this machine: compiler, sandbox, store, memory", "cli.doctor"),
    Command("lint", "run ruff, mypy and import-linter", "cli.lint", "dev"),
)


def find(name: str) -> Command | None:
    """The command of that name, if there is one."""
    return next((command for command in COMMANDS if command.name == name), None)


def unknown(name: str) -> str:
    """What to say of a name that is no command."""
    near = difflib.get_close_matches(name, [command.name for command in COMMANDS], n=1)
    return f"unknown command {name!r}; " + (f"did you mean {near[0]!r}? " if near else "") + "./mill lists them all"


def overview() -> str:
    """The list that `./mill` alone prints."""
    width = max(len(command.name) for command in COMMANDS)
    rows = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    return "\n".join(
        [
            "usage: ./mill COMMAND [ARGUMENTS]",
            "",
            *rows,
            "",
            "./mill COMMAND --help says more. The first command sets up .venv/ (minutes, once); state lives in .mill/.",
            "MILL_HOME moves the state, MILL_VENV uses an environment as it is, MILL_PYTHON picks the interpreter,",
            "MILL_TORCH_INDEX is a package index with the torch build to install, e.g. one for CPUs.",
        ]
    )
