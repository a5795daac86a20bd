"""Every pattern is as its file's format says, its code compiles, and it is found where it applies."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib.util
import linecache
import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.errors import PatternError
from agents.patterns import catalogue, condition
from agents.patterns.pattern import Pattern, parse
from agents.patterns.situation import BOUNDS, FACTS, Situation, hardware_of_key, situation
from agents.sources import catalogue as sources
from gristmill.hardware import Hardware, describe_gpu, kind_of_key
from gristmill.workload import Workload
from kernels import catalogue as operators
from kernels import inputs
from kernels.candidate import Language

CUDA_WORDS = Path(__file__).parent / "cuda_words.h"
TEXT = (catalogue.FOLDER / "online-softmax.md").read_text()
X86 = ("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16")
PLAIN = Hardware("x86_64-test-avx2", "test", 8, ("avx2", "fma"))
SERVER = Hardware("x86_64-test-avx512_bf16", "test", 8, X86)
GPU = Hardware("sm_90", "test", 1, ())
named = {"argvalues": catalogue.patterns(), "ids": lambda p: p.name}


def workload(operator: str, dtype: str = "float32", **axes: int) -> Workload:
    return inputs.workload(operators.operator(operator), dtype, **axes)


def best(hardware: Hardware, *workloads: Workload) -> list[str]:
    return [p.name for p in catalogue.applicable(operators.operator(workloads[0].operator), workloads, hardware)]


def test_the_catalogue_is_large_enough() -> None:
    assert len(catalogue.patterns()) >= 24


def test_names_are_used_once() -> None:
    names = [name for p in catalogue.patterns() for name in (p.name, *p.formerly)]
    assert len(names) == len(set(names))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the snippets use x86's vector instructions")
def test_cpp_compiles(tmp_path: Path) -> None:
    """Compiles only: what it computes is not run here. CUDA's words are declared by a header, as there is no nvcc."""

    def complaint(pattern: Pattern) -> str:
        snippet = pattern.snippets["C++"]
        path = tmp_path / f"{pattern.name}.cpp"
        path.write_text(snippet.code)
        extra = [f"-include{CUDA_WORDS}"] if snippet.tag == "cuda" else []
        command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
        done = subprocess.run([*command, *snippet.flags, *extra, path], capture_output=True, text=True, check=False)
        return done.stderr

    with ThreadPoolExecutor(2) as pool:
        complaints = [text for text in pool.map(complaint, catalogue.patterns()) if text]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("pattern", **named)
def test_triton_parses_and_defines_kernels(pattern: Pattern) -> None:
    tree = ast.parse(pattern.snippets["Triton"].code)
    kernels = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    assert kernels, "no kernel"
    unbound = [argument.arg for k in kernels for argument in k.args.args[: -len(k.args.defaults) or None]]
    assert not [name for name in unbound if name.isupper()], "constants have defaults"
    assert _unknown_names(tree) == set()


def _unknown_names(tree: ast.Module) -> set[str]:
    """Names that are read and nowhere bound; what a function binds counts for all."""
    bound = {name for node in ast.walk(tree) if isinstance(node, ast.alias) for name in [node.asname or node.name]}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names if node.id not in bound and node.id not in dir(builtins)}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("pattern", **named)
def test_triton_compiles(pattern: Pattern, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For sm_90, without a GPU. Parameters `*_ptr` point to float32, or to what they say: `x_bf16_ptr`."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # it warns where nothing is said
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    code, place = pattern.snippets["Triton"].code, f"<{pattern.name}>"
    linecache.cache[place] = (len(code), None, code.splitlines(keepends=True), place)
    scope: dict[str, object] = {"__name__": pattern.name}
    exec(compile(code, place, "exec"), scope)
    compiled = 0
    for function in list(scope.values()):
        if not isinstance(function, triton.JITFunction) or function.__name__.startswith("_"):
            continue
        defaults = {p.name: p.default for p in function.params if p.is_constexpr}
        signature = {p.name: "constexpr" if p.is_constexpr else _type_of(p.name) for p in function.params}
        constants = {(p.num,): defaults[p.name] for p in function.params if p.is_constexpr}
        triton.compile(ASTSource(function, signature, constants), target=GPUTarget("cuda", 90, 32))
        compiled += 1
    assert compiled


def _type_of(name: str) -> str:
    pointed = re.fullmatch(r".*?(?:_(bf16|i8|i32|fp16))?_ptr", name)
    if pointed:
        return f"*{pointed[1] or 'fp32'}"
    return "fp32" if name in ("eps", "factor") else "i32"


@pytest.mark.parametrize("pattern", **named)
def test_texts_for_briefs_hold_what_an_agent_needs(pattern: Pattern) -> None:
    for language, section in ((Language.CPP, "C++"), (Language.PYTHON, "Triton")):
        text = pattern.text(language)
        assert pattern.name in text
        assert pattern.snippets[section].code in text
        assert pattern.sections["Pitfalls"] in text
        assert len(text) < 6000


def test_every_source_follows_a_pattern_of_the_catalogue() -> None:
    pairs = [(source.operator, source.name) for source in sources.SOURCES]
    assert len(pairs) == len(set(pairs))
    for _, name in pairs:
        assert catalogue.pattern(name).name == name


def test_former_names_are_understood() -> None:
    assert catalogue.pattern("row-dot-products").name == "register-blocking"
    assert catalogue.canonical("fused-row-passes") == "producer-consumer-fusion"
    assert catalogue.canonical("somebody's own") == "somebody's own"


def test_an_unknown_pattern_is_one_line_with_a_near_name() -> None:
    with pytest.raises(
        PatternError, match=r"'online-softmx' is unknown; did you mean 'online-softmax'\? ./mill patterns"
    ):
        catalogue.pattern("online-softmx")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("+++\nname", "name", "expected front matter"),
        ('name = "online-softmax"', "name = online", "no TOML"),
        ('name = "online-softmax"', 'name = "other"', "name is 'other'"),
        ("formerly = []\n", "", "key 'formerly' is missing or unknown"),
        ("formerly = []\n", "formerly = []\nlater = []\n", "key 'later' is missing or unknown"),
        ("formerly = []", "formerly = [1]", r"formerly: found \[1\], expected a list of words"),
        ('families = ["row_reduction"', 'families = ["soft"', "families: found 'soft', expected matrix_product"),
        ('"row_elements >= 128"', '"elements >= 128"', "names 'elements'; known are"),
        ('"row_elements >= 128"', '"row_elements >="', "is no expression"),
        ('"row_elements >= 128"', '"exit()"', "uses Call"),
        ("## When", "## Why", "expected the sections When, C"),
        ("## Pitfalls", "## Pitfalls\n\n## Pitfalls", "expected the sections When, C"),
        ("```cpp", "```c", r"expected one block of code, marked cpp or cuda"),
        ("```python", "```cpp\n```\n```python", "expected one block of code, marked python"),
        ("summary = ", 'summary = "" #', "summary: expected one line"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(old: str, new: str, complaint: str) -> None:
    assert old in TEXT
    with pytest.raises(PatternError, match=f"pattern online-softmax.*{complaint}"):
        parse(TEXT.replace(old, new, 1), "online-softmax")


@given(st.text() | st.text(alphabet='+\n="[]# `abc'))
def test_any_text_is_read_or_refused(text: str) -> None:
    for content in (text, TEXT.replace("softmax", text, 1), f"+++\n{text}\n+++\n{text}"):
        try:
            parse(content, "online-softmax")
        except PatternError as error:
            assert "online-softmax" in str(error)


@given(st.text(alphabet="rows<>=+-*/()[]{}'\"., 019andornotiKB_:lambda"))
def test_any_condition_is_read_or_refused(text: str) -> None:
    try:
        parsed = condition.parse(text, FACTS, "here")
    except PatternError:
        return
    assert parsed.text == text
    names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    assert names <= FACTS | condition.UNITS.keys()


def a_situation(operator: str, hardware: Hardware, dtype: str, scale: int) -> Situation:
    definition = operators.operator(operator)
    axes = dict.fromkeys(definition.axes, 64 * scale)
    return situation(definition, inputs.workload(definition, dtype, **axes), hardware)


@settings(deadline=None)
@given(
    st.sampled_from(operators.NAMES),
    st.sampled_from(
        [PLAIN, SERVER, GPU, Hardware("aarch64-x", "test", 1, ("asimd",)), Hardware("gfx942", "test", 1, ())]
    ),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(1, 64),
)
def test_every_pattern_can_be_asked_about_every_situation(
    operator: str, hardware: Hardware, dtype: str, scale: int
) -> None:
    found = a_situation(operator, hardware, dtype, scale)
    assert found.bound in BOUNDS
    for pattern in catalogue.patterns():
        merit = pattern.merit(found)
        assert 0 <= merit <= 1 + len(pattern.favours)
        if merit and pattern.hardware:
            assert found.kind in pattern.hardware


@pytest.mark.parametrize("pattern", **named)
def test_every_pattern_applies_somewhere_and_not_everywhere(pattern: Pattern) -> None:
    quantised = dataclasses.replace(operators.operator("skinny_linear"), name="int8_linear")
    merits = [
        pattern.merit(situation(definition, w, hardware))
        for hardware in (PLAIN, SERVER, GPU)
        for dtype in ("float32", "bfloat16")
        for tokens in (1, 8, 64, 4096)
        for w in (
            workload("rms_norm", dtype, tokens=tokens, hidden=1024),
            workload("rms_norm", dtype, tokens=tokens, hidden=131),
            workload("silu_and_mul", dtype, tokens=tokens, intermediate=14336),
            workload("softmax", dtype, rows=tokens, columns=32000),
            workload("rotary_embedding", dtype, tokens=tokens, query_heads=32, key_heads=8, head_dim=128),
            workload("skinny_linear", dtype, tokens=tokens, in_features=4096, out_features=8),
            workload("skinny_linear", dtype, tokens=tokens, in_features=4096, out_features=14336),
        )
        for definition in (operators.operator(w.operator), *([quantised] if w.operator == "skinny_linear" else []))
    ]
    assert max(merits) > 0
    assert min(merits) == 0


def test_the_best_guess_comes_first() -> None:
    assert best(PLAIN, workload("rms_norm", tokens=8, hidden=4096))[0] == "producer-consumer-fusion"
    linear = {"in_features": 4096, "out_features": 14336}
    assert best(SERVER, workload("skinny_linear", "bfloat16", tokens=8, **linear))[0] == "bf16-dot-products"
    assert "bf16-dot-products" not in best(PLAIN, workload("skinny_linear", "bfloat16", tokens=8, **linear))
    assert "register-blocking" in best(PLAIN, workload("skinny_linear", tokens=1, **linear))[:3]
    router = workload("skinny_linear", tokens=1, in_features=4096, out_features=8)
    assert "split-k" in best(SERVER, router)[:3]
    assert "split-k" not in best(SERVER, workload("skinny_linear", tokens=1, **linear))


def test_time_decides_which_workload_counts() -> None:
    few = workload("skinny_linear", tokens=1, in_features=4096, out_features=8)
    many = workload("skinny_linear", tokens=64, in_features=4096, out_features=14336)
    orders = [
        best(SERVER, dataclasses.replace(few, time_ns=one), dataclasses.replace(many, time_ns=100 - one))
        for one in (1, 99)
    ]
    assert orders[0].index("split-k") > orders[1].index("split-k")
    assert set(orders[0]) == set(orders[1])


def test_a_situation_says_what_the_call_is() -> None:
    found = a_situation("skinny_linear", SERVER, "bfloat16", 16)
    assert (found.family, found.kind, found.lanes, found.rows, found.depth) == ("matrix_product", "cpu", 16, 1024, 1024)
    assert (found.row_bytes, found.outputs_per_row, found.weight_bytes) == (2048, 1024, 2 << 20)
    assert not found.strided
    norm = situation(operators.operator("rms_norm"), workload("rms_norm", tokens=1, hidden=1024), SERVER)
    assert (norm.bound, norm.family, norm.activations) == ("latency", "row_reduction", 1)


def test_a_gpu_with_a_hardware_profile_is_known_by_what_it_can_do() -> None:
    call = workload("skinny_linear", "bfloat16", tokens=256, in_features=8192, out_features=8192)
    definition = operators.operator("skinny_linear")
    h200 = describe_gpu("NVIDIA H200", "sm_90")
    assert [situation(definition, call, one).bound for one in (GPU, h200)] == ["memory", "compute"]


@pytest.mark.parametrize(("key", "kind"), [("x86_64-a-1-1-avx2", "cpu"), ("sm_90a", "cuda"), ("gfx942", "rocm")])
def test_keys_say_the_kind_of_hardware(key: str, kind: str) -> None:
    assert kind_of_key(key) == kind


@pytest.mark.parametrize(
    ("key", "flags"),
    [
        ("x86_64-a-1-1-avx512f", ("avx2", "fma", "avx512f")),
        ("aarch64-a-1-1-asimd", ("asimd",)),
        ("x86_64-a-1-1-scalar", ()),
        ("sm_90", ()),
    ],
)
def test_keys_end_with_the_widest_vectors(key: str, flags: tuple[str, ...]) -> None:
    assert hardware_of_key(key, 4).vector_flags == flags
