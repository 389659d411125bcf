"""Everything nbagent raises.

::

    NbAgentError
    ├── ModelError                 .status .retry_after_s .body .recoverable
    │   ├── AuthError              key missing or refused
    │   ├── NotFoundError          no such model or address
    │   ├── BadRequestError        the provider refused the request as written
    │   ├── ContextOverflowError   the request is larger than the model's window
    │   ├── RateLimitError         too many requests            (recoverable)
    │   ├── OverloadedError        the provider is overloaded   (recoverable)
    │   ├── ServerError            5xx                          (recoverable)
    │   ├── TransportError         no or broken connection      (recoverable)
    │   ├── TruncatedStreamError   the stream ended early       (recoverable)
    │   └── RefusedError           the provider's filter refused the request
    ├── OutputError                no valid output within the allowed tries
    ├── ConfigError                a setting is wrong
    │   ├── ToolDefinitionError    a tool can't be built from what was given
    │   └── RuleError              a permission rule can't be read
    ├── SessionError               the log can't be read or written
    │   ├── LockedError            another writer has the log
    │   ├── BusyError              a run is in progress and `if_busy="raise"`
    │   ├── CorruptLogError        the stored log is damaged
    │   └── FormatError            a foreign or newer log
    ├── NestingError               a run on a session from inside a run of it
    ├── HandoffError               a hand-off can't be made
    └── ScriptExhausted            a scripted model was asked once more than it has replies
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AuthError",
    "BadRequestError",
    "BusyError",
    "ConfigError",
    "ContextOverflowError",
    "CorruptLogError",
    "FormatError",
    "HandoffError",
    "LockedError",
    "ModelError",
    "NbAgentError",
    "NestingError",
    "NotFoundError",
    "OutputError",
    "OverloadedError",
    "RateLimitError",
    "RefusedError",
    "RuleError",
    "ScriptExhausted",
    "ServerError",
    "SessionError",
    "ToolDefinitionError",
    "TransportError",
    "TruncatedStreamError",
]


class NbAgentError(Exception):
    """Base of all errors of nbagent.

    An error that ends a run carries the run's ``session`` and its partial ``result``.
    """

    session: Any = None
    result: Any = None


class ModelError(NbAgentError):
    """A model call failed.

    Parameters
    ----------
    message
        What happened, with the provider's own words where there are any.
    status
        HTTP status, or None.
    retry_after_s
        Seconds the provider asked to wait, or None.
    body
        The provider's answer as text, cut to a readable size; never holds a key.
    recoverable
        Whether the same request may succeed later; None takes the class's own answer.
    """

    code = "model_error"
    recoverable = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        body: str | None = None,
        recoverable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.body = body
        self.others: Sequence[ModelError] = ()
        """The errors of the tries after this one."""
        self.tried = ""
        """What was done about it, such as "3 tries in 12 s"; shown with the message."""
        if recoverable is not None:
            self.recoverable = recoverable

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.tried})" if self.tried else message


class AuthError(ModelError):
    """Raised when the key is missing or refused."""

    code = "auth"


class NotFoundError(ModelError):
    """Raised when the model or the address doesn't exist."""

    code = "not_found"


class BadRequestError(ModelError):
    """Raised when the provider refuses the request as written."""

    code = "bad_request"


class ContextOverflowError(ModelError):
    """Raised when the request doesn't fit the model's context window."""

    code = "context_overflow"


class RateLimitError(ModelError):
    """Raised on too many requests; recoverable."""

    code = "rate_limit"
    recoverable = True


class OverloadedError(ModelError):
    """Raised when the provider says that it is overloaded; recoverable."""

    code = "overloaded"
    recoverable = True


class ServerError(ModelError):
    """Raised on a failure inside the provider (5xx); recoverable."""

    code = "server"
    recoverable = True


class TransportError(ModelError):
    """Raised when no connection could be made, it broke or timed out; recoverable."""

    code = "transport"
    recoverable = True


class TruncatedStreamError(ModelError):
    """Raised when a stream ended with neither end marker nor finish reason; recoverable."""

    code = "truncated_stream"
    recoverable = True


class RefusedError(ModelError):
    """Raised when the provider refused the request (content filter, safety).

    A model that declines is no error: its words are the answer, `stop_reason` is "refused".
    """

    code = "refused"


class OutputError(NbAgentError):
    """Raised when no valid output came within the allowed tries."""


class ConfigError(NbAgentError, ValueError):
    """Raised when a setting is wrong; the message names it and the way out."""


class ToolDefinitionError(ConfigError):
    """Raised when a tool can't be built from the function or schema that was given."""


class RuleError(ConfigError):
    """Raised when a permission rule can't be read; the message names its index."""


class SessionError(NbAgentError):
    """Raised when a session's log can't be read or written."""


class LockedError(SessionError):
    """Raised when another writer holds the log; names who, and the way out."""


class BusyError(SessionError):
    """Raised when a run is in progress on the session and `if_busy="raise"` was asked."""


class CorruptLogError(SessionError):
    """Raised when a stored log is damaged in front of its last line.

    `Session.open(path, until_damage=True)` gives what stands before the damage.
    """

    def __init__(self, message: str, *, seq: int = 0, what: str = "") -> None:
        super().__init__(message)
        self.seq = seq
        """The event that is damaged, the first one if there are more."""
        self.what = what
        """What is wrong, without the log's name."""


class FormatError(SessionError):
    """Raised when a file is no log of nbagent, or was written by a newer version."""


class NestingError(NbAgentError):
    """Raised when a run is asked on a session from inside a run of that session."""


class HandoffError(NbAgentError):
    """Raised when a conversation can't be handed to another agent."""


class ScriptExhausted(NbAgentError):
    """Raised when a scripted model is asked once more than it has replies."""
