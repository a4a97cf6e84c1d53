"""How foreign values get into a message: bounded, without secrets, never by raising."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.errors import (
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    JournalCorrupt,
    did_you_mean,
    redacted,
    sample,
    show,
    text_of,
)
from gymckpt.standins import note_on
from gymckpt.wording import TEXT_MAX, clipped, lines_of, visible

TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(categories=["Cs", "Cc", "L"])),
    st.integers(1, 1_000).map(lambda size: "x.y-" * size),
)
"""Also texts that UTF-8 or a database cannot hold, and long ones."""

SECRET = "S3cr3tValue0123456789"


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {}",
        "Authorization: Basic {}",
        "{{'Authorization': 'Bearer {}', 'x': 1}}",
        '{{"authorization":"{}"}}',
        r"{{\"token\": \"{}\"}}",
        "proxy-authorization={}",
        "bearer   {}",
        "bearer \t{}",
        "password:\u2028{}",
        "token=\u200b{}",
        "api_key={}&x=1",
        "X-Api-Key: {}",
        "aws_secret_access_key = {}",
        "access_token={}",
        "password: {}",
        "'passwd': '{}'",
        "http://user:{}@host/path",
        "postgresql+psycopg://user:p@{}@host/db",
        "postgresql://user:a/{}@host/db",
        "postgresql://user:{}/b@host/db",
        "redis://:{}@host",
        "https://{}@github.example/x",
    ],
)
@given(before=st.text(max_size=30), after=st.sampled_from(["", " and more", ", x", "\nnext"]))
def test_secrets_never_reach_a_message(text: str, before: str, after: str) -> None:
    """B28: tokens, passwords and credentials in URLs are gone from every text."""
    said = f"{before} {text.format(SECRET)}{after}"

    assert SECRET not in redacted(said)
    assert SECRET not in text_of(GymCheckpointUnavailable(said))
    assert SECRET not in str(GymCheckpointOperationError("commit", {"a": RuntimeError(said)}))
    assert SECRET not in sample([said])


@given(st.text() | st.text("abearin:/@=token '\"\\ S"))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    """A text that is quoted by one error after the other keeps its form."""
    once = redacted(text)

    assert redacted(once) == once


def test_ordinary_texts_are_left_alone() -> None:
    """What merely speaks of tokens stays readable."""
    text = "r1-a2: max_tokens=4096 after 3 tokens at http://host:8080/v1?x=1 (HTTP 409 stale)"

    assert redacted(text) == text


@given(
    st.sampled_from(["a.", "bearer ", "://", "s://a:", "token", "a:", "@", "authorization:", "\\"])
)
def test_long_texts_are_searched_in_time_that_grows_with_them(piece: str) -> None:
    """A megabyte of what looks like the beginning of a secret does not stall the reporting."""
    assert len(text_of(piece * (1_000_000 // len(piece)))) <= TEXT_MAX
    assert redacted(piece * 20_000)


@given(st.text(), st.integers(50, 300))
def test_a_clipped_text_keeps_both_its_ends(text: str, limit: int) -> None:
    """A text is returned as it is, or bounded with its beginning, its end and its length."""
    long = text + "x" * limit + text

    clipped_text = clipped(long, limit)

    assert clipped(clipped_text, limit) == clipped_text
    if len(long) <= limit:
        assert clipped_text == long
    else:
        assert len(clipped_text) == limit
        assert f"({len(long)} characters)" in clipped_text
        assert clipped_text[:5] == long[:5]
        assert clipped_text[-5:] == long[-5:]


@given(TEXTS)
def test_every_message_can_be_stored(text: str) -> None:
    """No text of a failure holds half a character pair or a NUL, which stores refuse."""
    said = text_of(RuntimeError(text))

    assert said.encode().decode() == said
    assert "\0" not in said
    assert text_of(said) == said


@given(TEXTS, st.sampled_from(["\x1b[36m{}\x1b[39m", "\x1b]0;{}\x07", "\x9b2J{}", "{}\x7f\b"]))
def test_no_message_commands_a_terminal(text: str, command: str) -> None:
    """Colours are left out, every other control is spelled, and only a traceback has lines."""
    assert unseen(text_of(command.format(text))) == set()
    assert unseen(lines_of(command.format(text))) <= {"\n"}
    assert text_of("\x1b[1;36mray::f()\x1b[39m\r\nend\x1b[2J") == "ray::f() end\\x1b[2J"
    assert lines_of("\x1b[1;36mray::f()\x1b[39m\r\n end\x1b[2J") == "ray::f()\n end\\x1b[2J"


def unseen(text: str) -> set[str]:
    """Return the controls, format characters, separators and half pairs that a text holds."""
    return {char for char in text if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


def test_no_character_at_all_leaves_that_cannot_be_seen() -> None:
    """Of all that Unicode has, alone and between others, only what shows as itself is printed."""
    every = [chr(code) for code in range(sys.maxunicode + 1)]

    assert unseen(visible("".join(every))) == {"\n"}
    for char in filter(unseen, every):
        said = [text_of(f"a{char}b"), text_of(char), sample([char]), show(f"a{char}b")]
        said += [str(GymCheckpointUnavailable(char)), str(JournalCorrupt(f"/{char}"))]
        assert unseen("".join(said)) <= {"\n"}, hex(ord(char))
    assert visible("naïve 日本語 \xa0— 🎲") == "naïve 日本語 \xa0— 🎲"
    assert visible("\u202ecod.exe\u2066\t\u200f.") == "\\u202ecod.exe\\u2066 \\u200f."


@given(st.text())
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    """A text that went through the rule once is not changed by it again."""
    assert visible(visible(text)) == visible(text)


@given(TEXTS)
def test_no_note_holds_what_cannot_be_seen(text: str) -> None:
    """What is added to an error afterwards keeps the rule that its message keeps."""
    error = RuntimeError()
    note_on(error, text)
    assert unseen("".join(error.__notes__)) <= {"\n"}


@given(TEXTS | st.lists(TEXTS).map("\r\n  ".join), st.integers(50, 300))
def test_a_message_is_one_line(text: str, limit: int) -> None:
    """Lines are joined before the text is bounded, and a text that is one is left as it is."""
    said = text_of(text, limit)

    assert len(said.splitlines()) <= 1
    assert len(said) <= limit
    assert text_of(said, limit) == said
    assert text_of("one\n\n  two\u2028three ") == "one two three"


@given(st.lists(st.integers(), max_size=40), st.none() | st.integers(40, 10**9))
def test_a_sample_counts_what_it_does_not_name(items: list[int], total: int | None) -> None:
    """Named and counted items together are all of them, and at most five are named."""
    said = sample(items, total)

    shown = [str(item) for item in items[:5]]
    rest = (len(items) if total is None else total) - len(shown)
    assert said == ", ".join(shown) + (f" and {rest} more" if rest else "")


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_can_be_quoted(value: Any) -> None:
    """A quoted value is short, however large or deep it is."""
    assert len(show(value)) <= 200


def test_a_value_that_nests_without_end_can_be_quoted() -> None:
    """Neither a list in itself nor one nested ten thousand deep stops an error message."""
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = []
    for _level in range(10_000):
        deep = [deep]

    assert show(circle)
    assert show(deep)
    assert show(10**10_000)


def test_an_unknown_word_is_answered_with_the_closest_known_one() -> None:
    """A near miss is named, anything else gets a sample of what is known, nothing gets nothing."""
    assert did_you_mean("parkd", ["parked", "open"]) == "; did you mean 'parked'?"
    assert did_you_mean("zzz", ["parked", "open"]) == "; known: parked, open"
    assert did_you_mean("zzz", []) == ""


def test_an_interrupt_while_formatting_leaves_as_itself() -> None:
    """Ctrl-C during a foreign `__str__` is not taken for that object's failure."""

    class Interrupted(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        text_of(Interrupted())
