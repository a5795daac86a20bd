"""Cheap rules that name what they see in a source. They never convict: what they see goes into the evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.candidate import Candidate, Language

COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
CPP_RULES = {
    "starts a program": r"\b(system|popen|exec[lv]p?e?|posix_spawnp?)\s*\(",
    "forks": r"\bv?fork\s*\(|\bclone3?\s*\(",
    "starts a thread": r"\bstd::(j?thread|async)\b|\bpthread_create\b",
    "loads a library": r"\bdl(open|sym|mopen)\s*\(",
    "reads the process's files": r"/proc/|/dev/|/sys/",
    "opens files": r"\b(fopen|openat?|creat|memfd_create|shm_open)\s*\(|\bstd::[io]?fstream\b",
    "makes raw system calls": r"\bsyscall\s*\(|\bsyscall\b[^;\n]*\"|\bint\s+\$?0x80",
    "has inline assembly": r"\b(asm|__asm__|__asm)\b",
    "waits": r"\b(u?sleep|nanosleep|sleep_for|sleep_until|sched_yield)\s*\(",
    "asks who it is": r"\bget(ppid|pid|tid|env)\s*\(",
    "reads a clock": r"\bclock_gettime\b|\bgettimeofday\b|\bstd::chrono\b|\b__?rdtscp?\b",
    "keeps state between calls": r"\b(static|thread_local)\s+(?!(inline|const|constexpr|void)\b)"
    r"[\w:<>,\s*&]+(\[[^\]]*\])?\s*(=|;|\{)",
    "handles signals": r"\b(signal|sigaction|setjmp|longjmp)\s*\(",
    "ends the process": r"\b(_?exit|_Exit|abort|quick_exit|raise|kill)\s*\(",
    "writes to descriptors": r"\b(write|send|sendto|sendmsg|dprintf)\s*\(",
    "changes memory protection": r"\bm(protect|remap|map|unmap)\s*\(",
    "runs at load": r"__attribute__\s*\(\(\s*(constructor|destructor)",
}
CPP_WORDS = {
    "starts a program": ("system", "popen", "exec", "posix_spawn"),
    "forks": ("fork", "clone"),
    "starts a thread": ("thread", "async"),
    "loads a library": ("dlopen", "dlsym", "dlmopen"),
    "reads the process's files": ("/proc/", "/dev/", "/sys/"),
    "opens files": ("open", "creat", "memfd_create", "fstream"),
    "makes raw system calls": ("syscall", "0x80"),
    "has inline assembly": ("asm",),
    "waits": ("sleep", "sched_yield"),
    "asks who it is": ("getppid", "getpid", "gettid", "getenv"),
    "reads a clock": ("clock_gettime", "gettimeofday", "chrono", "rdtsc"),
    "keeps state between calls": ("static", "thread_local"),
    "handles signals": ("signal", "sigaction", "setjmp", "longjmp"),
    "ends the process": ("exit", "_Exit", "abort", "raise", "kill"),
    "writes to descriptors": ("write", "send", "dprintf"),
    "changes memory protection": ("mprotect", "mremap", "mmap", "munmap"),
    "runs at load": ("constructor", "destructor"),
}
"""Of these, what a rule matches holds one: they are found in a tenth of the time that most expressions take."""
PYTHON_RULES = {
    "starts a program": r"\b(subprocess|os\.(system|popen|exec\w*|spawn\w*))\b",
    "forks": r"\bos\.fork|\bmultiprocessing\b",
    "starts a thread": r"\b(threading|concurrent)\b",
    "opens files": r"\bopen\s*\(|\bpathlib\b",
    "reaches into memory": r"\bctypes\b|\bdata_ptr\b|\bmmap\b",
    "looks around": r"\binspect\b|\bgc\.|\bsys\.(_getframe|modules)\b|__builtins__",
    "runs built text": r"\b(eval|exec|compile|__import__|getattr)\s*\(",
    "reads a clock": r"\btime\b|\bdatetime\b",
    "waits": r"\bsleep\s*\(",
    "opens sockets": r"\bsocket\b",
    "keeps state between calls": r"\bglobal\b|\blru_cache\b|\bfunctools\.cache\b",
}


@dataclass(frozen=True)
class Sighting:
    """One thing a rule saw."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def inspect_source(candidate: Candidate) -> list[Sighting]:
    """What the rules see, by file and line; comments do not count."""
    rules, words = (CPP_RULES, CPP_WORDS) if candidate.language is Language.CPP else (PYTHON_RULES, {})
    sightings = []
    for path, text in sorted(candidate.files.items()):
        plain = _without_comments(text) if candidate.language is Language.CPP else text
        for what, expression in rules.items():
            likely = any(word in plain for word in words.get(what, ("",)))
            match = re.search(expression, plain) if likely else None
            if match:
                sightings.append(Sighting(path, plain.count("\n", 0, match.start()) + 1, what))
    return sightings


def refusal(candidate: Candidate) -> str | None:
    """Why this is plainly not a kernel, or None."""
    text = "\n".join(candidate.files.values())
    if candidate.language is Language.CPP:
        wanted = ["gm_run", *(["gm_setup", "gm_packed_bytes"] if candidate.needs_setup else [])]
        missing = [name for name in wanted if not re.search(rf"\b{name}\b", _without_comments(text))]
        return f"exports no {missing[0]}; see abi/gristmill_kernel.h" if missing else None
    if not re.search(r"^\s*(def\s+run\b|run\s*=|from\s+\S+\s+import\b.*\brun\b)", text, re.MULTILINE):
        return "main.py defines no run(*inputs, *scalars, *outputs)"
    return None


def _without_comments(text: str) -> str:
    """The text with comments blanked and every line where it was."""
    return COMMENTS.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
