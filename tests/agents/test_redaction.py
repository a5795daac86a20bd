"""No secret, host path or name of this host gets through, in whatever form it stands; everything else does."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agents.chat import Answer, Finish, Message, Role, ToolCall, Usage
from agents.episode import Episode, ModelTurn, Outcome, Step, ToolTurn
from agents.redaction import KEY_LIKE, NAME, PATH, SECRET, Redactor

JOE, USERS, WORK = "/ho" + "me/joe", "/Us" + "ers", "/wo" + "rk"
"""In pieces, like the keys below: no file of this repository may hold such a thing whole."""
PRIVATE = "PRI" + "VATE KEY-----"
MARKS = SECRET + PATH + NAME
SECRETS = st.text(min_size=8, max_size=40).filter(lambda s: s.strip() == s and "\0" not in s and s not in MARKS)
ENCODINGS = {
    "plain": str,
    "JSON": lambda s: json.dumps(s)[1:-1],
    "JSON in Unicode": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "URL": lambda s: quote(s, safe=""),
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 for URLs": lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
}
CODE = """\
extern "C" int gm_run(const float* x, float* out) {
    // a / b, root mean square of x over /usr/include/c++/12/cmath; see std::max and https://example.org/home/page
    auto task = [&](int tmp) { return tmp /data[tmp]; };
    switch (x[0] > 0) { default: out[0] = home/work; }
}
"""


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(secret=SECRETS, before=st.text(max_size=20), after=st.text(max_size=20))
@example(secret='quote"and\\back', before="", after="")
def test_a_secret_is_gone_in_every_encoding(encoding: str, secret: str, before: str, after: str) -> None:
    written = ENCODINGS[encoding](secret)
    assume(written not in before + after and written not in MARKS)
    redacted = Redactor([secret]).text(before + written + after)
    assert written not in redacted
    assert SECRET in redacted


@given(st.lists(SECRETS, max_size=4), st.text(), st.lists(st.sampled_from([f"{JOE}/a/", "sk-" + "x" * 20, "joe@"])))
def test_redacting_twice_changes_nothing_more(secrets: list[str], text: str, pieces: list[str]) -> None:
    redactor = Redactor(secrets, [f"{JOE}/a"], ["joe", "builder-17"])
    once = redactor.text(text.join([*pieces, *secrets]))
    assert redactor.text(once) == once


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/~\\@:-=&?", exclude_categories=["Cs"])))
def test_text_without_any_of_it_stays_as_it_is(text: str) -> None:
    assert Redactor(["not in the text"], ["/nowhere"], ["nobody-17"]).text(text) == text


def test_code_stays_as_it_is() -> None:
    assert Redactor.of_this_host({"API_KEY": "0123456789", "USER": "max"}).text(CODE) == CODE


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-abcdefghijklmnop1234",
        "sk-ant-api03-abcdefghijklmnop",
        "AIza" + "B" * 35,
        "hf_abcdefghijklmnopqrst",
        "ghp_abcdefghijklmnopqrstuvwxyz",
        "AK" + "IAIOSFODNN7EXAMPLE",
        "xoxb-1234567890-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdef",
        "gsk_abcdefghijklmnopqrst",
    ],
)
@pytest.mark.parametrize(
    "context", ["{}", '{{"key": "{}"}}', "Authorization: Bearer {}", "error: invalid key {}.", "({})", "x\\n{}"]
)
def test_keys_of_providers_are_known_by_their_form(key: str, context: str) -> None:
    assert key[8:] not in Redactor().text(context.format(key))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgres://joe:hunter2@db/x", f"postgres://{SECRET}@db/x"),
        ("Authorization: Basic am9lOmh1bnRlcjI=", f"Authorization: Basic {SECRET}"),
        (f"-----BEGIN RSA {PRIVATE}\nMIIE\n-----END RSA {PRIVATE}.", f"{SECRET}."),
        (f"-----BEGIN {PRIVATE}\nMIIE, cut off", SECRET),
        ("api_key='0123456789abcdef'", f"api_key={SECRET}'"),
        (f"{JOE}/k/main.cpp:3:7: error", f"{PATH}/main.cpp:3:7: error"),
        ("/tmp/main.cpp:3: error", f"{PATH}/main.cpp:3: error"),
        (JOE, PATH),
        (f"in '{JOE}/' or {USERS}/joe.", f"in '{PATH}' or {PATH}"),
        (f'{{"path": "{WORK}/secret project/x"}}', f'{{"path": "{PATH}/secret project/x"}}'),
        ("file:///srv/www/index.html", f"{PATH}/index.html"),
        ("~joe/notes.txt and ~/x/y", f"{PATH}/notes.txt and {PATH}/y"),
        (r"C:\Users\joe\x.cpp", f"{PATH}/x.cpp"),
        (r'"C:\\Users\\joe\\x.cpp"', f'"{PATH}/x.cpp"'),
        ("-I/opt/company/include -L/nfs/joe/lib", f"-I{PATH}/include -L{PATH}/lib"),
        (rf'"failed:\n{JOE}/x.cpp"', rf'"failed:\n{PATH}/x.cpp"'),
        (r'"\/home\/joe\/k\/x.cpp"', f'"{PATH}/x.cpp"'),
        (r'"by:\njoe@builder-17"', rf'"by:\n{NAME}@{NAME}"'),
        ("/tmp and /data alone, a/home/b, x/tmp", "/tmp and /data alone, a/home/b, x/tmp"),
        ("joe@builder-17:~$ ls", f"{NAME}@{NAME}:~$ ls"),
        ("builder-17 rebuilder-175", f"{NAME} rebuilder-175"),
        ("joey met joe", "joey met joe"),
        ("lone \ud800 and \0", "lone ? and ?"),
    ],
)
def test_each_kind_in_its_place(text: str, expected: str) -> None:
    assert Redactor(["unrelated secret"], ["/opt/company"], ["joe", "builder-17"]).text(text) == expected


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_was_json_is_json_afterwards(value: object) -> None:
    secret = 'a "secret" \\ value'
    text = json.dumps([value, secret, f"{JOE}/x y", "C:\\Users\\joe\\z"])
    redacted = Redactor([secret], [JOE], ["joe"]).text(text)
    assert json.loads(redacted)[1] == SECRET


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("OPENAI_API_KEY", True),
        ("HF_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True),
        ("SENTRY_DSN", True),
        ("MILL_MAX_TOKENS", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("PATH", False),
        ("LANG", False),
    ],
)
def test_which_variables_hold_secrets(name: str, taken: bool) -> None:
    assert bool(KEY_LIKE.search(name)) is taken
    assert (Redactor.of_this_host({name: "value-of-it"}).text("value-of-it") == SECRET) is taken


def test_an_episode_keeps_its_form_and_loses_its_secrets() -> None:
    secret = "submitted"  # also a word of an enum, which stays
    message = Message(Role.ASSISTANT, f"key {secret}", (ToolCall("1", "build", f'{{"k": "{secret}"}}'),))
    answer = Answer("m", secret, (), Finish.DONE, Usage(1, 2, 0.5), 1.0)
    steps = (
        Step(model=ModelTurn(1, (message,), answer)),
        Step(tool=ToolTurn(2, "build", "{}", f"{JOE}/{secret}/x.cpp", 0.1)),
    )
    episode = Episode(
        "e1", "a", "m", "op", "float32", "p", "s", ("d",), steps, Outcome.SUBMITTED, secret, ("c",), Usage(1, 2, 0.5)
    )
    redacted = Redactor([secret]).record(episode)
    assert redacted.outcome is Outcome.SUBMITTED and redacted.usage == episode.usage and redacted.id == "e1"
    assert secret not in repr(redacted).replace("Outcome.SUBMITTED: 'submitted'", "")
    assert redacted.steps[1].tool == ToolTurn(2, "build", "{}", f"{PATH}/x.cpp", 0.1)
