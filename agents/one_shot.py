"""One answer, one program; and one turn to mend an answer that is no program, or a program that does not build."""

from __future__ import annotations

from collections.abc import Callable

from agents.answer import Reading
from agents.chat import Answer
from agents.conversation import Conversation, Ending
from agents.episode import Outcome
from agents.proposals import Proposals
from agents.quotation import fenced
from kernels.candidate import Candidate
from kernels.verdict import Verdict

Build = Callable[[Candidate], Verdict | None]
"""As `agents.workshop.Workshop.build`."""


def work(
    conversation: Conversation,
    read: Callable[[Answer], Reading],
    proposals: Proposals,
    build: Build | None,
    verdict_text: Callable[[Verdict], str],
    redact: Callable[[str], str],
    repairs: int = 1,
) -> Ending:
    """Asks once, and again for at most `repairs` times.

    What does not build after the last repair is handed in all the same: its verdict belongs in the journal.

    Raises:
        BudgetSpentError, ModelError: see `Conversation.ask`.
    """
    for left in range(repairs, -1, -1):
        reading = read(conversation.ask())
        fresh = [candidate for candidate in reading.candidates if not proposals.is_known(candidate)]
        if fresh:
            failures = {candidate.digest: build(candidate) for candidate in fresh} if build is not None else {}
            built = tuple(candidate for candidate in fresh if failures.get(candidate.digest) is None)
            if built or not left:
                return Ending(Outcome.SUBMITTED, reading.reason, built or tuple(fresh))
            texts = [verdict_text(failure) for failure in failures.values() if failure is not None]
            conversation.tell("\n\n".join(["This does not build. Mend it, and give the whole program again.", *texts]))
            continue
        outcome, feedback = reading.outcome, list(reading.feedback)
        if reading.candidates:
            outcome = Outcome.KNOWN
            known = fenced("verdict", redact(proposals.what_is_known(reading.candidates[0])))
            feedback = [f"this very program was proposed before: write another\n{known}"]
        if outcome is Outcome.REFUSED or not left:
            return Ending(outcome, feedback[0].partition("\n")[0] if feedback else "")
        conversation.tell("\n".join(["There is no candidate in this answer:", *(f"* {line}" for line in feedback)]))
    raise AssertionError("the last turn returns")
