"""What every model is told before the brief: its part, the judge's rules, the calling convention, what an answer is."""

from __future__ import annotations

import functools
from pathlib import Path

import gristmill
from agents.assignment import MAIN_FILES, Assignment
from kernels.candidate import Language

HEADER = Path(gristmill.__file__).parent / "abi" / "gristmill_kernel.h"
PART = """\
You write fast kernels for operators of language models that are served on CPUs. A judge decides about them: it builds
each program, checks it against a float64 reference on the shapes of the traffic and on others (odd sizes, one row,
sizes one past a vector, extreme values), and times it in pairs against what the fleet runs today. Only measured speed
counts, weighted by the time that the engine spends in each workload. A program that is wrong anywhere in the domain
that it claims counts nothing.

Rules of the judge:
* Every call gets fresh values, and the outputs of timed calls are checked. What is kept from an earlier call is wrong.
* No state between calls but what gm_setup packs from weights. No files, network, clocks, processes, and no looking into
  the caller. Threads are joined before a call returns; OpenMP is fine.
* Outputs are allocated by the caller, dense, and have to be written in full. Inputs are read-only.
* Errors may be a few times those of the engine's own implementation in the same dtype, and no more: accumulate in
  float32 or better. Skipped work, lower precision and guesses about values are found out."""
FORM = """\
What an answer must look like: one fenced code block per file, with the file's name after the language, and nothing else
that is code:

```json
{header}
```
```{language} {main}
...
```

The JSON header is optional, and so is each of its fields:
* `domain`: extents per axis for which the program is right; left out: {everywhere}, or what the first parent claims if
  you include files of a parent.
* `layout`: the weakest memory order of inputs that it reads: contiguous, inner_contiguous (rows are dense, with any
  step from one to the next) or any; left out, it is guessed from whether the source reads strides.
* `needs_setup`: whether it exports the setup phase.
* `compile_flags`: that are added to the usual ones.
* `pattern`: the technique that it follows, in a word or two.
* `parameters`: constants that a tuner may vary afterwards, with the values worth trying. They are declared in the
  source with a plain number, as in `{declaration}`. Leave constants open where you cannot know the best value.

The program must be whole: nothing left out, no "rest as before". Files of the parents that you include unchanged need
not be repeated. If you give two programs, both are judged."""


def text(assignment: Assignment) -> str:
    """All of it; the same for all briefs of one operator, dtype and focus."""
    return "\n\n".join([PART, convention(assignment), FORM.format(**_form(assignment))])


def convention(assignment: Assignment) -> str:
    """How a program is called, for each language that is taken."""
    of_language = {Language.CPP: _cpp, Language.PYTHON: _python}
    return "\n\n".join(of_language[language](assignment) for language in assignment.toolchain.languages)


def _cpp(assignment: Assignment) -> str:
    flags, allowed = (" ".join(names) for names in (assignment.toolchain.flags, assignment.toolchain.allowed_flags))
    lines = [
        "Calling convention of C++17: main.cpp includes gristmill_kernel.h and defines gm_run.",
        *([f"It is compiled with {flags}."] if flags else []),
        *([f"Flags that may be added: {allowed}."] if allowed else []),
    ]
    return "\n".join([*lines, f"```c\n{_header()}```"])


def _python(assignment: Assignment) -> str:
    return (
        f"Calling convention of Python: main.py defines `def run({', '.join(assignment.parameters)})`. It takes inputs "
        "and outputs as torch tensors and scalars as floats, writes the outputs in place and returns None. There are "
        "torch and numpy."
    )


@functools.cache
def _header() -> str:
    return HEADER.read_text()


def _form(assignment: Assignment) -> dict[str, str]:
    language = assignment.toolchain.languages[0]
    definition, focus = assignment.definition, assignment.brief.focus
    axis = next((name for name in definition.axes if name not in definition.constant_axes), next(iter(definition.axes)))
    return {
        "header": f'{{"domain": {{"{axis}": {{"low": 1, "high": 64}}}}, "layout": "inner_contiguous", '
        '"parameters": {"ROWS": [1, 2, 4, 8]}}',
        "language": "cpp" if language is Language.CPP else "python",
        "main": MAIN_FILES[language],
        "everywhere": f"{focus.name} from {focus.low} to {focus.high}" if focus is not None else "everywhere",
        "declaration": "constexpr int ROWS = 4;" if language is Language.CPP else "ROWS = 4",
    }
