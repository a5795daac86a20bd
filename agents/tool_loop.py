"""A model at work with tools: it builds, checks and measures until it hands a program in or runs out of turns."""

from __future__ import annotations

from collections.abc import Callable

from agents.answer import Reading
from agents.chat import Answer, Finish
from agents.conversation import Conversation, Ending, now_ms
from agents.episode import Outcome
from agents.errors import BudgetSpentError, ModelError
from agents.proposals import Proposals
from agents.tools import Toolbox

MAX_CALLS = 4
"""Per turn; the others are answered with a request to wait."""
WAY = """\
How to work: use the tools. Build and check a program before you measure it, read what they say, change one thing at a
time, and submit the best program that was found correct. You have {turns} turns, and a turn may hold {calls} calls. A
program once passed has a name; pass that name instead of the files when you use it again unchanged."""
LAST_TURN = "This is the last turn: submit the best program now."
GO_ON = "Go on with a tool call, or submit."
CUT_OFF = (
    "Your answer was cut off at its limit of output tokens, so this call may not be whole: write less in one turn."
)


def work(
    conversation: Conversation,
    toolbox: Toolbox,
    read: Callable[[Answer], Reading],
    proposals: Proposals,
    turns: int,
) -> Ending:
    """Leads the conversation to its end. A program in an answer without tool calls is taken as handed in.

    Where the turns, the budget or the provider end first, or the model refuses, the fastest program that was found
    correct is handed in.

    Raises:
        BudgetSpentError, ModelError: see `Conversation.ask`; there was no such program.
    """
    try:
        for left in range(turns - 1, -1, -1):
            if conversation.is_too_long:
                return _fallen_back(toolbox, "the conversation grew too long")
            if not left and turns > 1:
                conversation.tell(LAST_TURN)
            ending = _turn(conversation, toolbox, read, proposals)
            if ending is not None:
                return ending
    except (BudgetSpentError, ModelError) as error:
        if toolbox.best is None:
            raise
        return _fallen_back(toolbox, str(error))
    return _fallen_back(toolbox, f"no program was handed in within {turns} turns")


def _turn(
    conversation: Conversation,
    toolbox: Toolbox,
    read: Callable[[Answer], Reading],
    proposals: Proposals,
) -> Ending | None:
    answer = conversation.ask(toolbox.tools)
    if answer.finish is Finish.REFUSED:
        return _fallen_back(toolbox, "the model refused to answer", Outcome.REFUSED)
    for place, call in enumerate(answer.tool_calls):
        started_ms = now_ms()
        if toolbox.submitted is not None or place >= MAX_CALLS:
            result = f"Not done: expected at most {MAX_CALLS} calls in one turn, and none after submit."
        else:
            result = toolbox.call(call)
        if answer.finish is Finish.LENGTH and place == len(answer.tool_calls) - 1:
            result = f"{result}\n{CUT_OFF}"
        conversation.return_result(call, result, started_ms)
    if toolbox.submitted is not None:
        return Ending(Outcome.SUBMITTED, "", (toolbox.submitted,))
    if answer.tool_calls:
        return None
    reading = read(answer)
    fresh = tuple(candidate for candidate in reading.candidates if not proposals.is_known(candidate))
    if fresh:
        return Ending(Outcome.SUBMITTED, reading.reason, fresh)
    if reading.outcome is Outcome.REFUSED:
        return _fallen_back(toolbox, reading.reason, Outcome.REFUSED)
    toolbox.handed_in_known |= bool(reading.candidates)
    known = ["this program was proposed before: write another"] if reading.candidates else []
    conversation.tell("\n".join([*known, *reading.feedback, GO_ON]))
    return None


def _fallen_back(toolbox: Toolbox, why: str, otherwise: Outcome = Outcome.GAVE_UP) -> Ending:
    best = toolbox.best
    if best is None:
        return Ending(Outcome.KNOWN if toolbox.handed_in_known else otherwise, why)
    return Ending(Outcome.SUBMITTED, f"{why}; the best program so far was taken", (best,))
