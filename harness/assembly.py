"""What the compiler made of a candidate, read from a disassembly: widths, loops, calls and spills, and one hint.

Counted are the functions that can be reached from `gm_run` within the object, also through pointers (OpenMP hands its
outlined bodies over that way). A loop is a jump backwards within a function; it is innermost if it holds no other. All
of it is evidence for agents, and convicts nobody. Pure: `builder.py` runs objdump, in the compiler's sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kernels.verdict import ObjectReport

ENTRY = "gm_run"
ARGUMENTS = ("-d", "--no-show-raw-insn", "-w")
"""Of objdump; `-M intel` besides on x86."""
MAX_LOOPS_CHARACTERS = 12_000
"""Of the text of innermost loops: what an agent reads at once."""
MANY_SPILLS = 8
MIN_SERIAL_ADDITIONS = 4
FUNCTION = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.+?)\s*$")
MATH_FUNCTION = re.compile(
    r"(exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|tanh|sinh|cosh|erf|erfc|cbrt|atan2?)f?"
)
REFERENCE = re.compile(r"<([^>+]+)(?:\+0x[0-9a-f]+)?>")
PREFIXES = ("lock", "rep", "repz", "repnz", "notrack", "bnd", "data16", "cs", "ds")


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly."""

    address: int
    mnemonic: str
    operands: str


@dataclass(frozen=True)
class Dialect:
    """How to read the instructions of one architecture."""

    name: str
    jump: re.Pattern[str]
    call: re.Pattern[str]
    division: re.Pattern[str]
    gather: re.Pattern[str]
    fma: re.Pattern[str]
    scalar_addition: re.Pattern[str]
    """Of floating point numbers; matched with the whole instruction, like what follows."""
    packed_addition: re.Pattern[str]
    """Of whole vectors."""
    spill: re.Pattern[str]
    moves: re.Pattern[str]
    """Instructions whose registers say nothing about arithmetic."""
    vectors: tuple[tuple[re.Pattern[str], int], ...]
    """Operands or instructions that show a vector width, widest first."""


X86 = Dialect(
    name="x86-64",
    jump=re.compile(r"j\w+|loop\w*"),
    call=re.compile(r"call"),
    division=re.compile(r"v?(div|sqrt)[sp][sdh]|i?div"),
    gather=re.compile(r"vp?gather\w+"),
    fma=re.compile(r"vfn?m(add|sub)\w+|vdpbf16ps|vpdpbusd\w*"),
    scalar_addition=re.compile(r"(v?adds[sd]|vfn?madd\d+s[sd])\b"),
    packed_addition=re.compile(r"v?addp[sd]|vfn?madd\d+p[sd]|vdpbf16ps"),
    spill=re.compile(r"v?mov\w+\s+\w* ?\w* ?\w*\[r[sb]p[^\]]*\],[xyz]mm"),
    moves=re.compile(r"v?(mov|xor|pxor|insert|extract|broadcast|pbroadcast|zero|lddqu|pinsr|pextr)\w*"),
    vectors=(
        (re.compile(r"\bzmm\d"), 512),
        (re.compile(r"\bymm\d"), 256),
        (re.compile(r"^(v?[a-z0-9]+p[sdh]|v?p[a-z]+[bwdq]|vdpbf16ps)\s.*\bxmm\d"), 128),
    ),
)
AARCH64 = Dialect(
    name="aarch64",
    jump=re.compile(r"b|b\.\w+|cbn?z|tbn?z"),
    call=re.compile(r"blr?"),
    division=re.compile(r"fdivr?|fsqrt|[su]div"),
    gather=re.compile(r"(ld1|ldff1|ldnt1)\w*\s+\{z\d+\.\w\}.*\[(x\d+|sp), z\d+"),
    fma=re.compile(r"fn?ml[as]l?|fn?m(add|sub)|fn?mad|bfdot|bfmmla|bfmlal[bt]"),
    scalar_addition=re.compile(r"(fadd|fn?madd)\s+[sdh]\d+,|fadda\b"),
    packed_addition=re.compile(r"(fadd|fn?ml[as]|fn?mad)\s+[vz]\d+|bfdot"),
    spill=re.compile(r"(st[rup]|stur)\s+(q\d+|z\d+)[^\[]*\[(sp|x29)"),
    moves=re.compile(r"(ld|st|mov|fmov|dup|ins|umov|smov|ptrue|while|eor|index|cnt)\w*"),
    vectors=((re.compile(r"\bz\d+\.[bhsd]"), 128), (re.compile(r"\bv\d+\.\d+[bhsd]"), 128)),
)
SCALABLE = re.compile(r"\bz\d+\.[bhsd]")


def report(listing: str) -> ObjectReport:
    """The report on what objdump printed."""
    dialect = _dialect(listing)
    if dialect is None:
        return ObjectReport(
            "", note="no disassembly: objdump (binutils) is not installed, or does not know this object"
        )
    functions = _functions(listing)
    reached = _reached(functions)
    if not reached:
        return ObjectReport(dialect.name, note="no disassembly of gm_run")
    loops = [loop for name in reached for loop in innermost_loops(functions[name], dialect)]
    everything = [instruction for name in reached for instruction in functions[name]]
    in_loops = [instruction for loop in loops for instruction in loop]
    arithmetic = in_loops if loops else everything
    packed = any(dialect.packed_addition.match(_whole(one)) for one in in_loops)
    counted = ObjectReport(
        architecture=dialect.name,
        instructions=len(everything),
        loop_instructions=len(in_loops),
        vector_bits=max((_vector_bits(one, dialect) for one in arithmetic), default=0),
        scalable=any(SCALABLE.search(one.operands) for one in arithmetic) and dialect is AARCH64,
        fma=any(dialect.fma.fullmatch(one.mnemonic) for one in everything),
        serial_sums=0 if packed else sum(_adds_serially(loop, dialect) for loop in loops),
        gathers=sum(bool(dialect.gather.match(_whole(one))) for one in everything),
        loop_divisions=sum(bool(dialect.division.fullmatch(one.mnemonic)) for one in in_loops),
        loop_calls=sum(bool(dialect.call.fullmatch(one.mnemonic)) for one in in_loops),
        spills=sum(bool(dialect.spill.match(_whole(one))) for one in in_loops),
    )
    return replace(counted, hint=hint(counted, _called(in_loops, dialect)))


def loops(listing: str) -> str:
    """The innermost loops of what `gm_run` reaches, as objdump printed them, under their functions' names; empty if
    there are none. Whole loops, as many as fit.
    """
    dialect = _dialect(listing)
    functions = _functions(listing)
    if dialect is None:
        return ""
    texts = [
        _loop_text(name, loop) for name in _reached(functions) for loop in innermost_loops(functions[name], dialect)
    ]
    shown, size = 0, 0
    while shown < len(texts) and size + len(texts[shown]) <= MAX_LOOPS_CHARACTERS:
        size += len(texts[shown])
        shown += 1
    left_out = [f"{len(texts) - shown} more loops\n"] if shown < len(texts) else []
    return "".join([*texts[:shown], *left_out])


def _loop_text(name: str, loop: Sequence[Instruction]) -> str:
    lines = [f"  {one.address:x}: {_whole(one)}\n" for one in loop]
    return f"{name}:\n{''.join(lines)}"


def hint(report: ObjectReport, called: Sequence[str] = ()) -> str:
    """The first thing that is worth trying, in one line; empty if nothing strikes."""
    if report.loop_calls and called and called[0].startswith("sqrt"):
        return f"an innermost loop calls {called[0]} for its errno only: -fno-math-errno removes the call"
    mathematical = next((name for name in called if MATH_FUNCTION.fullmatch(name)), "")
    if report.loop_calls and mathematical:
        return (
            f"an innermost loop calls {mathematical}: one element at a time; an inlined polynomial, "
            "or -ffast-math where the compiler has a vector version, takes a whole vector"
        )
    if not report.vector_bits and report.loop_instructions:
        return (
            "the hot loops are scalar (no vector arithmetic): 1024 floats take 1024 steps; "
            "try -ffast-math, __restrict pointers or explicit vectors"
        )
    if report.serial_sums:
        return (
            "a sum adds one element after another, in order: -ffast-math (or -fassociative-math with -fno-signed-zeros "
            "-fno-trapping-math), or several accumulators, let it add whole vectors"
        )
    if report.vector_bits == 128 and report.architecture == X86.name:
        return "the widest vectors are of 128 bits: try __restrict pointers, simple bounds or -mprefer-vector-width=512"
    if report.gathers:
        return f"{report.gathers} gathers: rows that are read in order need plain loads; treat unit strides apart"
    if report.spills > MANY_SPILLS:
        return f"{report.spills} vector registers are spilled to the stack: unroll or block less"
    if report.loop_divisions:
        return f"{report.loop_divisions} divisions or roots in innermost loops: multiply by a reciprocal taken once"
    return ""


def innermost_loops(function: Sequence[Instruction], dialect: Dialect = X86) -> list[list[Instruction]]:
    """The bodies of loops that hold no other loop."""
    spans = set()
    first = function[0].address
    for one in function:
        target = re.match(r"([0-9a-f]+)\b", one.operands.rpartition(", ")[2])
        if dialect.jump.fullmatch(one.mnemonic) and target and first <= int(target[1], 16) <= one.address:
            spans.add((int(target[1], 16), one.address))
    inner = [
        (start, end)
        for start, end in sorted(spans)
        if not any(start <= s and e <= end and (s, e) != (start, end) for s, e in spans)
    ]
    return [[one for one in function if start <= one.address <= end] for start, end in inner]


def _dialect(listing: str) -> Dialect | None:
    head = listing[:400]
    if "x86-64" in head:
        return X86
    return AARCH64 if "aarch64" in head else None


def _functions(listing: str) -> dict[str, list[Instruction]]:
    """Instructions by the name of their function."""
    functions: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in listing.splitlines():
        named = FUNCTION.match(line)
        if named:
            body = functions.setdefault(named[1], [])
            continue
        found = INSTRUCTION.match(line)
        if found:
            words = found[2].split()
            while len(words) > 1 and words[0] in PREFIXES:
                words = words[1:]
            body.append(Instruction(int(found[1], 16), words[0], " ".join(words[1:])))
    return {name: body for name, body in functions.items() if body}


def _reached(functions: dict[str, list[Instruction]]) -> list[str]:
    """Names of the entry and of all that it refers to, within the object; stubs of other libraries do not count."""
    waiting = [ENTRY] if ENTRY in functions else []
    reached: dict[str, None] = {}
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached[name] = None
        referred = {match for one in functions[name] for match in REFERENCE.findall(one.operands)}
        waiting += [other for other in sorted(referred) if other in functions and _is_code(other)]
    return list(reached)


def _is_code(name: str) -> bool:
    return "@" not in name and name not in ("_init", "_fini", "frame_dummy", ".plt")


def _whole(one: Instruction) -> str:
    return f"{one.mnemonic} {one.operands}"


def _vector_bits(one: Instruction, dialect: Dialect) -> int:
    if dialect.moves.fullmatch(one.mnemonic):
        return 0
    whole = _whole(one)
    return next((bits for expression, bits in dialect.vectors if expression.search(whole)), 0)


def _adds_serially(loop: Iterable[Instruction], dialect: Dialect) -> bool:
    """Whether a loop loads or multiplies vectors, or is unrolled, and still adds lane by lane into one register."""
    targets: dict[str, int] = {}
    for one in loop:
        if dialect.scalar_addition.match(_whole(one)):
            into = one.operands.partition(",")[0]
            targets[into] = targets.get(into, 0) + 1
    return max(targets.values(), default=0) >= MIN_SERIAL_ADDITIONS


def _called(instructions: Iterable[Instruction], dialect: Dialect) -> list[str]:
    """Names of what is called, without linkage."""
    names = [
        match.partition("@")[0]
        for one in instructions
        if dialect.call.fullmatch(one.mnemonic)
        for match in REFERENCE.findall(one.operands)
    ]
    return list(dict.fromkeys(names)) or ["a function"]
