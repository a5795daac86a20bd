"""`python -m cli COMMAND ...`: what `./mill` becomes once the environment is there."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cli import commands, home, interrupt
from gristmill.errors import GristmillError
from gristmill.limits import one_line


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code: 2 for what the caller can mend, 130 after Ctrl-C."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(commands.overview())
        return 0
    command = commands.find(arguments[0])
    if command is None:
        return _complain(commands.unknown(arguments[0]))
    os.environ[home.VARIABLE] = str(home.home())
    interrupt.install()
    try:
        return _run(command, arguments[1:])
    except GristmillError as error:
        return _complain(str(error), error.exit_code)
    except OSError as error:
        return _end_after_os_error(error)
    except KeyboardInterrupt as interruption:
        return _complain("; ".join(["interrupted", *map(str, interruption.args)]), 130)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Tells a default once, and none that says nothing: no, none and an empty list."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = "(default:" in (action.help or "")
        silent = action.default is None or action.default is False or action.default in ("", [], ())
        return action.help if told or silent else super()._get_help_string(action)


class OneLineParser(argparse.ArgumentParser):
    """Bad arguments are one line, like any other bad input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says what it takes\n")


def _run(command: commands.Command, arguments: Sequence[str]) -> int:
    """A command whose `configure` sets the default `rest` takes any further arguments there, unparsed."""
    module = importlib.import_module(command.module)
    parser = OneLineParser(
        prog=f"mill {command.name}",
        description=command.summary,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    parsed, rest = parser.parse_known_args(arguments)
    if rest and "rest" not in parsed:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        parsed.rest = tuple(rest)
    code: int = module.run(parsed)
    sys.stdout.flush()
    return code


def _complain(message: str, exit_code: int = 2) -> int:
    print(f"mill: {one_line(' '.join(message.splitlines()))}", file=sys.stderr)
    return exit_code


def _end_after_os_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of our output has gone (`./mill operators | head`); keep the interpreter from saying so at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or home.home()
        return _complain(f"no space left on the disk while writing {where}; free some, then run the same command again")
    raise error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
