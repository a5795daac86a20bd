from __future__ import annotations

from agents.chat import Answer, Finish, ToolCall, Usage
from agents.provider.calls import without_keys

LONG, LONGER = "a1b2c3d4e5f60718", "a1b2c3d4e5f60718-and-more"
SECRETS = {
    "OPENAI_API_KEY": LONG,
    "ANTHROPIC_AUTH_TOKEN": LONGER,
    "AWS_BEARER_TOKEN_BEDROCK": "bedrock-api-key-0123",
    "VERTEXAI_LOCATION": "global",
    "OPENAI_API_BASE": "http://127.0.0.1:8000/v1",
    "MY_API_KEY": "placeholder",
}


def test_keys_are_blotted_out_wherever_they_stand_and_nothing_else_is() -> None:
    text = f"{LONGER} {LONG} bedrock-api-key-0123 __global__ http://127.0.0.1:8000/v1 placeholder"
    answer = Answer("m", text, (ToolCall(LONG, LONG, LONG),), Finish.DONE, Usage(), 0.0)
    clear = without_keys(answer, SECRETS)
    assert clear.text == "[key] [key] [key] __global__ http://127.0.0.1:8000/v1 placeholder"
    assert clear.tool_calls == (ToolCall("[key]", "[key]", "[key]"),)
