"""Chat completions: OpenAI, and the many servers that speak its language."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal

from nbagent.errors import AuthError, ConfigError, ModelError
from nbagent.interfaces.model import Item, Prepared, Request
from nbagent.models._chat_ask import ask
from nbagent.models._chat_extra import family_of
from nbagent.models._chat_request import Translations, dumps, message, parameters, prepared
from nbagent.models._chat_stream import Reader
from nbagent.models._chat_strict import is_strict, strict_form, wants_strict_form
from nbagent.models._constrained import LARGE
from nbagent.models._constrained_wire import Constrained
from nbagent.models._target import Target

__all__ = ["OpenAIChat"]

_OPENAI = "https://api.openai.com/v1"
_HEADS = 64  # how many heads of bodies are kept


class OpenAIChat:
    """A model behind a chat-completions interface.

    Parameters
    ----------
    model
        The model's name as the server knows it.
    base_url
        Where the server is, up to and without "/chat/completions"; default: the environment's
        OPENAI_BASE_URL, else OpenAI. A user and password in it are sent as a header, and neither
        they nor the values of its query are ever shown or logged.
    api_key
        Default: the environment's OPENAI_API_KEY, read when it is needed, and never sent to a
        `base_url` that was given here unless that is OpenAI or on this machine.
    headers
        Further headers of each request; their values are treated as secrets.
    constrain_tools
        Lay tools out as one JSON schema that each reply must keep to: for models that don't call
        tools, on servers that honour `response_format` of type json_schema.
    window
        Context window in tokens; None = unknown, so that nothing is compacted by itself.
    empty_content
        What a message that only calls tools has as content: "null", "omit" or "text" (an empty
        one); servers differ in what they refuse.
    strict_history
        Send the conversation with user and assistant in turns and nothing of the user's right
        behind a tool's result, as some servers want it. None = where that is known, and from the
        first refusal on that says so; the refused request is then repeated in that form.
    name
        What is shown and logged; default "openai:MODEL", or "HOST:MODEL" elsewhere.

    Examples
    --------
    >>> OpenAIChat("qwen3", base_url="http://127.0.0.1:8000/v1").name
    '127.0.0.1:qwen3'
    """

    can_force = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        constrain_tools: bool = False,
        window: int | None = None,
        empty_content: Literal["null", "omit", "text"] = "null",
        strict_history: bool | None = None,
        name: str | None = None,
    ) -> None:
        given = base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI
        target = Target.at(given, "/chat/completions")
        if empty_content not in ("null", "omit", "text"):
            msg = f"empty_content is 'null', 'omit' or 'text', not {empty_content!r}"
            raise ConfigError(msg)
        self.model = model
        self.window = window
        self._target = target
        self._openai = target.host == "openai.com" or target.host.endswith(".openai.com")
        self._key = api_key
        self._takes_key = base_url is None or self._openai or self._target.local
        self._headers = dict(headers or {})
        self._empty: Literal["null", "omit", "text"] = empty_content
        self._strict = is_strict(target.host) if strict_history is None else strict_history
        self._learns = strict_history is None
        self._constrained = Constrained(LARGE) if constrain_tools else None
        self._family = family_of(target.host, model)
        self._translations = Translations()
        self._heads: dict[tuple[object, ...], bytes] = {}
        self.name = name or f"{'openai' if self._openai else target.host}:{model}"

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r}, name={self.name!r})"

    def prepare(self, request: Request) -> Prepared:
        """Make the request's body; pure.

        Raises
        ------
        ConfigError
            If a setting or tool can't be expressed on this wire.
        """
        return prepared(request, self._body(request, strict=self._strict))

    def stream(self, prepared: Prepared) -> AsyncGenerator[Item]:
        """Ask. Yields deltas as they arrive, then blocks and one `End`.

        Raises
        ------
        AuthError
            If there is no key though the server needs one.
        ModelError
            Typed by what went wrong.
        """
        target = self._target_with_key()
        reader = Reader(target, self._family)
        timeout_s = prepared.request.settings.get("timeout_s") or 120
        items = ask(target, prepared.body or b"", reader, timeout_s=timeout_s)
        if self._constrained is not None:
            items = self._constrained.read(items, prepared.request, reader)
        return self._heeding(items, prepared) if self._learns else items

    async def _heeding(
        self, items: AsyncGenerator[Item], prepared: Prepared
    ) -> AsyncGenerator[Item]:
        async with aclosing(items):
            try:
                async for item in items:
                    yield item
            except ModelError as error:
                if not wants_strict_form(error):
                    raise
                if self._body(prepared.request, strict=True) == prepared.body:
                    raise  # it was sent in that form
                self._strict = True
                msg = (
                    f"{error}; from now on the history is sent in the form for strict servers"
                    " (strict_history=True does so from the start)"
                )
                raise type(error)(
                    msg, status=error.status, body=error.body, recoverable=True
                ) from None

    def _body(self, request: Request, *, strict: bool) -> bytes:
        if self._constrained is not None:
            settings = self._parameters(request, tools=False)
            return self._constrained.body(request, settings, strict=strict)
        messages, holds_calls = self._translations.of(request, self._message)
        if strict:
            messages = strict_form(messages)
        key = (request.header.data, request.choice, holds_calls)
        head = self._heads.get(key)
        if head is None:
            head = self._head(request, holds_calls=holds_calls)
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[key] = head
        comma = b"," if messages and not head.endswith(b"[") else b""
        return b"".join((head, comma, messages, b"]}"))

    def _message(self, node: dict[str, Any], _before: str) -> bytes:
        return message(node, self._empty, self._family)

    def _head(self, request: Request, *, holds_calls: bool) -> bytes:
        """The body up to the first message of the conversation."""
        fields = dumps(self._parameters(request, tools=True, holds_calls=holds_calls))
        system = b""
        if request.instructions:
            system = dumps({"role": "system", "content": request.instructions})
        return b'%b,"messages":[%b' % (fields[:-1], system)

    def _parameters(
        self, request: Request, *, tools: bool, holds_calls: bool = False
    ) -> dict[str, Any]:
        # OpenAI's reasoning models refuse `max_tokens`, other servers don't know its successor.
        # Source: https://platform.openai.com/docs/api-reference/chat/create, 2026-11.
        limit = "max_completion_tokens" if self._openai else "max_tokens"
        return parameters(
            request, self.model, tools=tools, holds_calls=holds_calls, max_tokens=limit
        )

    def _target_with_key(self) -> Target:
        # What the address itself says wins over a key, and a header that was given over both.
        headers = {**self._target.headers, **self._headers}
        if "authorization" in {name.lower() for name in self._headers}:
            headers = dict(self._headers)
        elif not self._target.headers:
            key = self._key
            if key is None and self._takes_key:
                key = os.environ.get("OPENAI_API_KEY")
            key = (key or "").strip()
            if key:
                headers["authorization"] = f"Bearer {key}"
            elif self._openai:
                msg = (
                    f"there is no API key for {self._target.host}: set the environment variable"
                    " OPENAI_API_KEY, or give api_key=…"
                )
                raise AuthError(msg)
        return Target(self._target.url, headers)
