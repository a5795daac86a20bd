"""`python -m gristmill.serving`: the reference engine as a process, spoken to in JSON lines (see `protocol`).

Store credentials come from the environment. The process ends when its standard input closes or a
signal asks it to, after a last flush.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from gristmill.cohort import FOLLOWING
from gristmill.errors import GristmillError
from gristmill.sampler import DEFAULT_PERIOD
from gristmill.serving.model import DTYPES, ModelShape
from gristmill.serving.protocol import LineWriter, PlainCommand, command_id, parse_command
from gristmill.serving.settings import EngineSettings

if TYPE_CHECKING:
    from gristmill.serving.engine import Engine


def parser() -> argparse.ArgumentParser:
    """Flags of the process; each is a field of `EngineSettings` or `ModelShape`."""
    result = argparse.ArgumentParser(prog="python -m gristmill.serving", description="Serve a model of random weights.")
    for shape_field in dataclasses.fields(ModelShape):
        result.add_argument("--" + shape_field.name.replace("_", "-"), type=int, default=shape_field.default)
    result.add_argument("--dtype", choices=DTYPES, default="float32")
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--threads", type=int, default=0, help="within an operator; 0 leaves torch's default")
    result.add_argument("--store", default="", help="object store URL; without it nothing is spooled")
    result.add_argument("--fleet", default="demo")
    result.add_argument("--model", default="reference", help="the model's name in channels and spools")
    result.add_argument("--channel", choices=FOLLOWING, default="stable")
    result.add_argument("--root-file", default="", help="trusted root metadata; without it no channel is followed")
    result.add_argument("--cache-dir", default="", help="the process's own; without a store, the one a sidecar fills")
    result.add_argument("--poll-s", type=float, default=1.0)
    result.add_argument("--no-sampling", dest="sampling", action="store_false")
    result.add_argument("--sample-period", type=int, default=DEFAULT_PERIOD)
    result.add_argument("--spool-s", type=float, default=10.0)
    result.add_argument("--shadow-every", type=int, default=1024)
    result.add_argument("--worker", default="", help="name of this process, where several share a cache folder")
    return result


def read_commands(engine: Engine, writer: LineWriter) -> None:
    """Queues commands until standard input closes; `status` and `quit` are obeyed at once, also during a replay."""
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            command = parse_command(line)
        except GristmillError as error:
            writer.write("error", id=command_id(line), message=str(error))
            continue
        if isinstance(command, PlainCommand) and command.command == "status":
            writer.write("result", id=command.id, result=engine.status())
        elif isinstance(command, PlainCommand) and command.command == "quit":
            engine.closed.set()
            writer.write("result", id=command.id, result=engine.status())
        else:
            engine.commands.put(command)
    engine.closed.set()


def main(arguments: list[str] | None = None) -> int:
    """Runs until standard input closes; 2 with one line on standard error if it cannot start."""
    flags = vars(parser().parse_args(arguments))
    shape = ModelShape(
        **{shape_field.name: flags.pop(shape_field.name) for shape_field in dataclasses.fields(ModelShape)}
    )
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what libraries print must not mix with answers
        writer = LineWriter(answers)
        try:
            settings = EngineSettings(shape=shape, **flags)
            settings.check(os.environ)
            from gristmill.serving.engine import Engine  # loads torch and transformers

            closed = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: closed.set())
            engine = Engine(settings, writer, closed)
        except GristmillError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        threading.Thread(target=read_commands, args=(engine, writer), name="commands", daemon=True).start()
        engine.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
