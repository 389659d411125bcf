"""A strict checker of histories: what providers refuse with a 400 is an assertion here."""

from __future__ import annotations

from collections.abc import Sequence

from nbagent.messages import Message


def check_history(messages: Sequence[Message]) -> None:
    """The messages are a history that strict providers accept."""
    assert messages, "a request without messages"
    assert messages[0].role == "user", f"the first message is of role {messages[0].role}"
    due: list[str] = []
    for place, message in enumerate(messages):
        at = f"message {place} ({message.role})"
        if due:
            assert message.role == "tool", f"{at}: results of {due} are due"
            assert message.call_id == due[0], f"{at}: result of {message.call_id}, {due[0]} is due"
            due.pop(0)
            assert message.name, f"{at}: a result without a name"
            continue
        assert message.role != "tool", f"{at}: a result that no call asked for"
        if message.role == "assistant":
            ids = [call.id for call in message.calls]
            assert all(ids), f"{at}: a call without an id"
            assert len(set(ids)) == len(ids), f"{at}: two calls with one id {ids}"
            assert message.parts, f"{at}: an empty answer"
            due = ids
        else:
            assert message.text.strip(), f"{at}: an empty text"
    assert not due, f"results of {due} are missing"
    assert messages[-1].role != "assistant", "the last message is the model's own"
