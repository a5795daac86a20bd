"""What has come of a streamed answer so far, bounded, and what it cost if no more comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agents.chat import Answer, Finish, ToolCall, Usage
from agents.provider import prices
from agents.provider.wire import Call, clean, input_bytes

MAX_ANSWER_BYTES = 1 << 20
"""Of text and tool calls together, and of thoughts; the stream is cut off there, as at the limit of output tokens."""
MAX_TOOL_CALLS = 64
MOST_TOKENS = 1 << 27
"""That a server may say it counted, for one call: no model reads or writes so many."""
FINISHES = {
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), Finish.TOOLS),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), Finish.LENGTH),
    **dict.fromkeys(("content_filter", "content_filtered", "refusal", "safety", "sensitive"), Finish.REFUSED),
    **dict.fromkeys(("recitation", "blocklist", "prohibited_content", "guardrail_intervened"), Finish.REFUSED),
}
"""By a server's own word in lower case, or litellm's for it; all others mean that the model was done."""
BROKEN = frozenset(("error", "network_error", "insufficient_system_resource", "abort"))
"""Words of servers that failed halfway, which litellm would take for the end of an answer."""


@dataclass
class _Fragments:
    """A tool call in the making."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Received:
    """Takes in the chunks of one answer."""

    def __init__(self, call: Call, hidden_output: bool) -> None:
        self._call = call
        self._hidden_output = hidden_output
        """Whether the model may write tokens that are billed and not shown."""
        self._text: list[str] = []
        self._calls: dict[int, _Fragments] = {}
        self._refusal: list[str] = []
        self._finish = ""
        self._raw_finish = ""
        self._cut = False
        self._reported: Any = None
        self._size_bytes = 0
        self._thoughts_bytes = 0

    @property
    def full(self) -> bool:
        """Whether the answer was cut off because it is too long."""
        return self._cut

    @property
    def whole(self) -> bool:
        """Whether the provider said why the answer ended, and it was not a failure of its own."""
        return self._cut or (bool(self._finish) and self._raw_finish not in BROKEN)

    def take(self, chunk: Any) -> None:
        """One chunk of litellm's stream."""
        if getattr(chunk, "usage", None) is not None:
            self._reported = chunk.usage
        for choice in chunk.choices[:1]:
            delta = choice.delta
            self._count_thoughts(getattr(delta, "reasoning_content", None))
            if isinstance(delta.content, str):
                self._text.append(self._bounded(delta.content))
            for part in delta.tool_calls or ():
                self._take_tool_call(part)
            if choice.finish_reason:
                self._finish = str(choice.finish_reason)

    def overhear(self, chunk: Any) -> None:
        """One chunk as the provider sent it, before `take`: litellm drops what a model says in its `refusal`, and calls
        a reason to finish that it does not know `stop`.
        """
        for choice in (getattr(chunk, "choices", None) or ())[:1]:
            refusal = getattr(getattr(choice, "delta", None), "refusal", None)
            if isinstance(refusal, str):
                self._refusal.append(self._bounded(refusal))
            self._raw_finish = str(getattr(choice, "finish_reason", None) or self._raw_finish).lower()

    def answer(self, latency_s: float) -> Answer:
        """What came, as a whole; of a refusal its words, if there are no others."""
        return Answer(
            model=self._call.route.model,
            text=clean("".join(self._text) or "".join(self._refusal)),
            tool_calls=self._tool_calls(),
            finish=self._why(),
            usage=self.usage(),
            latency_s=latency_s,
        )

    def usage(self) -> Usage:
        """What was billed: as reported, or as estimated from what went out and came in where a server counted nothing,
        or no number of tokens, or had not counted to the end.
        """
        route = self._call.route
        read, written = self._told("prompt_tokens"), self._told("completion_tokens")
        came_bytes = self._size_bytes + self._thoughts_bytes
        if read and (written or not came_bytes) and self.whole and not self._cut:
            return prices.cost_of(route, read, written, self._reported)
        estimated = prices.estimated_tokens(came_bytes)
        if self._hidden_output:
            estimated = max(estimated, self._call.max_output_tokens)
        read = read or prices.estimated_tokens(input_bytes(self._call))
        return prices.cost_of(route, read, max(written, estimated), None)

    def _told(self, name: str) -> int:
        """One of the reported counts; 0 where there is none that can be believed."""
        count = getattr(self._reported, name, None)
        return count if isinstance(count, int) and 0 <= count <= MOST_TOKENS else 0

    def _why(self) -> Finish:
        if self._cut:
            return Finish.LENGTH
        if any(self._refusal):
            return Finish.REFUSED
        finish = FINISHES.get(self._raw_finish) or FINISHES.get(self._finish, Finish.DONE)
        return Finish.TOOLS if finish is Finish.DONE and self._calls else finish

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(clean(one.id) or f"call_{index}", clean(one.name), clean("".join(one.arguments)))
            for index, one in sorted(self._calls.items())
        )

    def _take_tool_call(self, part: Any) -> None:
        index = part.index if isinstance(part.index, int) else 0
        if index not in self._calls and len(self._calls) >= MAX_TOOL_CALLS:
            self._cut = True
            return
        fragments = self._calls.setdefault(index, _Fragments())
        fragments.id = fragments.id or self._bounded(part.id or "")
        function = part.function
        fragments.name += self._bounded(function.name or "")
        fragments.arguments.append(self._bounded(function.arguments or ""))

    def _count_thoughts(self, thoughts: Any) -> None:
        """Billed like any output, and kept by nobody. There are servers that set them no limit."""
        if isinstance(thoughts, str):
            self._thoughts_bytes += len(thoughts.encode("utf-8", "replace"))
            self._cut |= self._thoughts_bytes > MAX_ANSWER_BYTES

    def _bounded(self, text: str) -> str:
        """As much of the text as the answer still has room for."""
        room = MAX_ANSWER_BYTES - self._size_bytes
        size = len(text.encode("utf-8", "replace"))
        self._size_bytes += size
        if size <= room:
            return text
        self._cut = True
        return text.encode("utf-8", "replace")[: max(room, 0)].decode(errors="ignore")
