"""What may be written as `model`."""

from __future__ import annotations

from typing import Any

import pytest

from nbagent.errors import ConfigError
from nbagent.models import Local, OpenAIChat, Scripted
from nbagent.models.resolve import resolve


def test_strings_name_a_provider_and_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    found = resolve("openai:gpt-5")
    assert isinstance(found, OpenAIChat)
    assert (found.name, found.model) == ("openai:gpt-5", "gpt-5")
    found = resolve("ollama:qwen3:8b")
    assert isinstance(found, OpenAIChat)
    assert (found.name, found.model) == ("ollama:qwen3:8b", "qwen3:8b")
    assert isinstance(resolve("local"), Local)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("box:8080", "http://box:8080/v1"),
        ("https://models.example.org:443/", "https://models.example.org:443/v1"),
    ],
)
def test_ollama_is_where_its_own_variable_says(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    found: Any = resolve("ollama:qwen3")
    assert found._target.url == f"{url}/chat/completions"


def test_a_model_object_is_taken_as_it_is() -> None:
    model = Scripted(["x"])
    assert resolve(model) is model


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpt-5", "openai:gpt-5"),
        ("o3-mini", "openai:o3-mini"),
        ("opneai:gpt-5", "openai:gpt-5"),
        ("openai/gpt-5", "openai:gpt-5"),
        ("OpenAI:gpt-5", "openai:gpt-5"),
        ("llama3.2", "ollama:llama3.2"),
        ("Local", "local"),
    ],
)
def test_what_was_probably_meant_is_said(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        resolve(written)


@pytest.mark.parametrize("written", ["", "openai:", "zzz", "anthropic:claude", 3, None])
def test_unknown_models_are_answered_with_what_works(written: Any) -> None:
    with pytest.raises(ConfigError, match="'local', 'openai:NAME', 'ollama:NAME'"):
        resolve(written)


def test_a_class_instead_of_an_object_is_named() -> None:
    with pytest.raises(ConfigError, match="Scripted is a class"):
        resolve(Scripted)  # pyright: ignore[reportArgumentType]
