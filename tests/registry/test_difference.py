from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gristmill.domain import AxisRange, Domain, Layout
from gristmill.kernel_table import KernelTable, TableEntry
from registry.difference import Change, compare, range_text
from tests.registry.world import ref


def entry(low: int, high: int, code: bytes = b"a", ratio: str = "2.0") -> TableEntry:
    domain = Domain("softmax", "float32", (AxisRange("rows", low, high),))
    return TableEntry(domain, "c" * 64, ref("kernel.so", code), False, (), ratio, "1.5")


def table(*entries: TableEntry) -> dict[str, KernelTable]:
    return {"softmax.float32": KernelTable("softmax", "float32", "cpu", entries)}


def changes(old: dict[str, KernelTable], new: dict[str, KernelTable]) -> list[tuple[Change, bool, bool]]:
    return [(one.change, one.old is not None, one.new is not None) for one in compare(old, new)]


def test_each_kind() -> None:
    one = entry(1, 8)
    assert changes({}, table(one)) == [(Change.CAME, False, True)]
    assert changes(table(one), {}) == [(Change.WENT, True, False)]
    assert changes(table(one), table(entry(1, 8, ratio="3.0"))) == [(Change.GAIN, True, True)]
    assert changes(table(one), table(entry(1, 16))) == [(Change.MOVED, True, True)]
    assert changes(table(one), table(entry(1, 8, b"b"))) == [(Change.KERNEL, True, True)]
    assert changes(table(one), table(entry(1, 16, b"b"))) == [(Change.WENT, True, False), (Change.CAME, False, True)]
    assert changes(table(one), table(one)) == []


def test_one_kernel_in_two_ranges_of_which_one_grows() -> None:
    old, new = table(entry(1, 8), entry(16, 32)), table(entry(1, 8), entry(16, 64))
    (found,) = compare(old, new)
    assert found.change is Change.MOVED
    assert (
        found.old and found.new and (found.old.domain, found.new.domain) == (entry(16, 32).domain, entry(16, 64).domain)
    )


ENTRIES = st.lists(
    st.builds(
        lambda at, code, ratio: entry(at, at, code, ratio),
        st.integers(1, 4),
        st.sampled_from([b"a", b"b"]),
        st.sampled_from(["2.0", "3.0"]),
    ),
    max_size=4,
    unique_by=lambda one: one.domain,
)


@given(ENTRIES, ENTRIES)
def test_the_differences_lead_from_one_to_the_other_and_back(old: list[TableEntry], new: list[TableEntry]) -> None:
    found = compare(table(*old), table(*new))
    kept = [one for one in old if one not in [each.old for each in found]]
    reached = kept + [each.new for each in found if each.new is not None]
    assert sorted(map(repr, reached)) == sorted(map(repr, new))
    assert all(each.old != each.new for each in found)
    back = compare(table(*new), table(*old))
    assert sorted(each.change.value for each in back if each.change in (Change.KERNEL, Change.GAIN)) == sorted(
        each.change.value for each in found if each.change in (Change.KERNEL, Change.GAIN)
    )


def test_ranges_in_words() -> None:
    domain = Domain("x", "float32", (AxisRange("hidden", 64, 64), AxisRange("tokens", 2, 8, 2)))
    assert range_text(domain) == "hidden 64, tokens 2 to 8 by 2"
    assert range_text(replace(domain, ranges=(), layout=Layout.ANY)) == "any strides"
    assert range_text(Domain("x", "float32")) == "all"
