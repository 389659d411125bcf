"""From what a person writes as `model` to a model object."""

from __future__ import annotations

import difflib
import os

from nbagent.errors import ConfigError
from nbagent.interfaces.model import Model

__all__ = ["resolve"]

_FORMS = ("local", "openai:NAME", "ollama:NAME")


def resolve(model: str | Model) -> Model:
    """The model object for "local", "openai:NAME", "ollama:NAME" or a model object.

    Raises
    ------
    ConfigError
        If it is none of these; the message lists what works.
    """
    if isinstance(model, str):
        return _named(model.strip())
    if isinstance(model, type):
        msg = f"model={model.__name__} is a class: give an object, {model.__name__}(…)"
        raise ConfigError(msg)
    if isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' values
        return model
    msg = f"model={model!r} is no model: give {_listed()}"
    raise ConfigError(msg)


def _named(text: str) -> Model:
    provider, colon, name = text.partition(":")
    if text == "local":
        from nbagent.models.local import Local

        return Local()
    if colon and name and provider == "openai":
        from nbagent.models.openai_chat import OpenAIChat

        return OpenAIChat(name)
    if colon and name and provider == "ollama":
        from nbagent.models.openai_chat import OpenAIChat

        return OpenAIChat(name, base_url=_ollama_url(), api_key="ollama", name=text)
    hint = _meant(text)
    ending = f"; did you mean {hint!r}?" if hint else ""
    msg = f"there is no model {text!r}: give {_listed()}{ending}"
    raise ConfigError(msg)


def _ollama_url() -> str:
    """Where Ollama's OpenAI-compatible interface is; OLLAMA_HOST may hold a host, port or URL.

    Source: https://docs.ollama.com/api/openai-compatibility and
    https://docs.ollama.com/faq (OLLAMA_HOST), 2026-11.
    """
    host = os.environ.get("OLLAMA_HOST", "").strip().rstrip("/") or "127.0.0.1:11434"
    if "://" not in host:
        host = f"http://{host}"
    scheme, _, rest = host.partition("://")
    rest = rest.replace("0.0.0.0", "127.0.0.1", 1)
    if ":" not in rest:
        rest = f"{rest}:11434"
    return f"{scheme}://{rest}/v1"


def _listed() -> str:
    return (
        ", ".join(f"{form!r}" for form in _FORMS) + " or a model object such as nb.models.Scripted"
    )


def _meant(text: str) -> str | None:
    """The string that was probably meant, None if there is no good guess."""
    lower = text.lower()
    if difflib.get_close_matches(lower, ["local"], 1, 0.75):
        return "local"
    for separator in (":", "/"):
        provider, found, name = lower.partition(separator)
        close = difflib.get_close_matches(provider, ["openai", "ollama"], 1, 0.7)
        if found and name and close:
            return f"{close[0]}:{text[len(provider) + 1 :]}"
    if lower.startswith(("gpt", "o1", "o3", "o4", "chatgpt")) and ":" not in lower:
        return f"openai:{text}"
    if lower.startswith(("llama", "qwen", "gemma", "mistral", "phi", "deepseek", "smollm")):
        return f"ollama:{text}"
    return None
