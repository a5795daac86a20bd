"""A search recalls once: what it learns itself changes nothing for a second life; a torn file is recalled anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.memory import Evidence, NoMemory, PatternRecord, Recollection
from gristmill import records
from gristmill.hardware import Hardware, local_cpu
from tasks.steady_recall import SteadyRecall, forget


class Growing(NoMemory):
    """Knows more each time that it is asked."""

    asked = 0

    def recall(self, operator: str, dtype: str, hardware: Hardware) -> Recollection:
        self.asked += 1
        return Recollection(operator, dtype, f"{hardware.key} {self.asked}")


def test_another_life_recalls_the_same_until_the_search_has_finished(tmp_path: Path) -> None:
    memory, cpu = Growing(), local_cpu()
    first = SteadyRecall(memory, tmp_path / "s").recall("rms_norm", "float32", cpu)
    assert SteadyRecall(memory, tmp_path / "s").recall("rms_norm", "float32", cpu) == first and memory.asked == 1
    assert SteadyRecall(memory, tmp_path / "s").recall("softmax", "float32", cpu) != first
    forget(tmp_path / "s")
    assert SteadyRecall(memory, tmp_path / "s").recall("rms_norm", "float32", cpu) != first


RECORD = PatternRecord("rms_norm", "h", "p", 1, 1, 1, 1, (0,) * 11, 1.0, Evidence(1.0, -5.0), 1)
IMPOSSIBLE = records.canonical_json(Recollection("rms_norm", "float32", "h", (RECORD,)))


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", IMPOSSIBLE])
def test_a_damaged_recollection_is_recalled_anew(tmp_path: Path, damage: bytes) -> None:
    memory, cpu = Growing(), local_cpu()
    SteadyRecall(memory, tmp_path).recall("rms_norm", "float32", cpu)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert SteadyRecall(memory, tmp_path).recall("rms_norm", "float32", cpu).hardware.endswith(" 2")
