"""Open constants are found, marked one way, and vary without changing anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.errors import PatternError
from agents.tunable_source import MAX_CHOICES, TunableSource, marked, read
from gristmill.domain import Domain
from kernels.candidate import Candidate, Language, Origin

SOURCE = """#define TILE 8 // tune: 8, 16
constexpr int ROWS = 4; // rows at once
  static const int64_t STEP = 1024;   /* tune: 512,2048, */
constexpr float SCALE = 4.0f; // tune: 1, 2
constexpr int SUM = 4 + 2; // tune: 1, 2
int ROWS4 = 0x10; // tune: 1
for (int i = 0; i < 3; ++i) {}
"""
NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)
CHOICES = st.lists(st.integers(-1000, 100_000), min_size=1, max_size=6)


def candidate(text: str, language: Language = Language.CPP) -> Candidate:
    main = "main.cpp" if language is Language.CPP else "main.py"
    return Candidate("rms_norm", language, {main: text}, Domain("rms_norm", "float32"), Origin("llm:a", "p", model="m"))


def test_what_is_marked_is_found_and_nothing_else() -> None:
    found = {place.name: (place.value, place.choices) for place in read({"main.cpp": SOURCE}, Language.CPP)}
    assert found == {"TILE": (8, (8, 16)), "STEP": (1024, (512, 1024, 2048))}


def test_a_header_opens_what_the_source_does_not_mark() -> None:
    files = marked({"main.cpp": SOURCE}, Language.CPP, {"ROWS": [2, 8]})
    assert "constexpr int ROWS = 4;  // tune: 2, 4, 8\n // rows at once\n" in files["main.cpp"]
    assert "#define TILE 8  // tune: 8, 16\n" in files["main.cpp"]
    assert marked(files, Language.CPP, {}) == files


@pytest.mark.parametrize("name", ["SCALE", "SUMS", "ROWS4", "i"])
def test_what_is_no_plain_number_is_refused(name: str) -> None:
    with pytest.raises(PatternError, match=f"parameter {name}: nowhere declared"):
        marked({"main.cpp": SOURCE}, Language.CPP, {name: [1, 2]})


def test_python_constants() -> None:
    files = marked({"main.py": "ROWS = 4\nX: int = 3  # tune: 3, 5\nY = 3 * 2\n"}, Language.PYTHON, {"ROWS": [1]})
    assert files["main.py"] == "ROWS = 4  # tune: 1, 4\nX: int = 3  # tune: 3, 5\nY = 3 * 2\n"
    with pytest.raises(PatternError, match="Y"):
        marked(files, Language.PYTHON, {"Y": [1]})


@given(st.dictionaries(NAMES, st.tuples(st.integers(-9, 10_000), CHOICES), min_size=1, max_size=5), st.data())
def test_variants_share_their_family(constants: dict[str, tuple[int, list[int]]], data: st.DataObject) -> None:
    text = "".join(f"constexpr int {name} = {value};\n" for name, (value, _) in constants.items()) + "int x;\n"
    opened = marked({"main.cpp": text}, Language.CPP, {name: choices for name, (_, choices) in constants.items()})
    first = candidate(opened["main.cpp"])
    source = TunableSource.of(first)
    if source is None:
        assert all(set(choices) == {value} for value, choices in constants.values())
        return
    assert source.values == {name: value for name, (value, _) in constants.items()}
    values = {p.name: data.draw(st.sampled_from(p.choices)) for p in source.space.parameters}
    variant = source.variant(values, "tuning")
    again = TunableSource.of(variant)
    assert again is not None
    assert again.family == source.family
    assert again.values == values
    assert again.variant(source.values, "tuning").digest == first.digest
    assert variant.origin == Origin(
        "tuning", "p", {name: str(value) for name, value in values.items()}, (first.digest,), "m"
    )


def test_other_sources_are_other_families() -> None:
    texts = [
        "constexpr int A = 1; // tune: 1, 2\n",
        "constexpr int A = 1; // tune: 1, 3\n",
        "const int A = 1; // tune: 1, 2\n",
    ]
    sources = [TunableSource.of(candidate(text)) for text in texts]
    assert len({source.family for source in sources if source is not None}) == 3


def test_values_outside_are_refused() -> None:
    source = TunableSource.of(candidate("constexpr int A = 1; // tune: 1, 2\n"))
    assert source is not None
    with pytest.raises(PatternError, match="found 3"):
        source.variant({"A": 3}, "tuning")


def test_choices_are_bounded_and_hold_the_value() -> None:
    many = ", ".join(map(str, range(100, 160)))
    (place,) = read({"main.cpp": f"constexpr int A = 1; // tune: {many}\n"}, Language.CPP)
    assert len(place.choices) == MAX_CHOICES
    assert place.value in place.choices


def test_one_choice_is_none() -> None:
    assert TunableSource.of(candidate("constexpr int A = 1; // tune: 1\n")) is None


@given(st.text("#define ROWS=4;/*tune:,. \n1-uL", max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    for language in Language:
        for place in read({"f": text}, language):
            assert (
                text[place.start : place.end] == str(place.value) or int(text[place.start : place.end]) == place.value
            )
        files = marked({"f": text}, language, {})
        assert marked(files, language, {}) == files
