"""A small model inside this process: no key, no network, no other program."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbagent.errors import ConfigError
from nbagent.interfaces.model import Choice, Item, Prepared, Request, Situation
from nbagent.models._chat_ask import ask
from nbagent.models._chat_request import Translations, dumps, message, parameters, prepared
from nbagent.models._chat_stream import Reader
from nbagent.models._constrained import SMALL, choose
from nbagent.models._constrained_wire import Constrained, opening
from nbagent.models._target import Target
from nbagent.models.fetch import weights_path

__all__ = ["Local", "weights_path"]

_MODEL = "local"


class Local:
    """A model on this machine's CPU, by default SmolLM2-135M-Instruct.

    It needs ``pip install "nbagent[local]"`` and, without `path`, ``python -m nbagent fetch``.
    Objects with the same settings share one loaded model, which answers one request at a time.

    Parameters
    ----------
    path
        A GGUF file; None = the weights that ``python -m nbagent fetch`` brought.
    n_ctx
        Context window in tokens.
    threads
        Threads that compute; None = half of the cores, at most 4.
    constrain_tools
        Lay tools out as one JSON schema that each reply must keep to, and decide by rule when the
        model may read, write and finish (`choose`). False asks the model in the usual form: for
        larger models that call tools by themselves.

    Notes
    -----
    Unless set otherwise: temperature 0, seed 1, at most 200 tokens an answer. With
    `constrain_tools` the first sentence of each free text is kept: further ones of a model of
    this size repeat themselves.

    Examples
    --------
    >>> Local().name
    'local'
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        n_ctx: int = 4096,
        threads: int | None = None,
        constrain_tools: bool = True,
    ) -> None:
        self.window = n_ctx
        self.can_force = True
        self._path = None if path is None else Path(path).expanduser()
        self._threads = threads or max(1, min(4, (os.cpu_count() or 1) // 2))
        self._constrained = Constrained(SMALL) if constrain_tools else None
        self._translations = Translations()
        self._target: Target | None = None
        self.name = _MODEL if self._path is None else f"{_MODEL}:{self._path.stem}"

    def __repr__(self) -> str:
        return f"Local({self.name!r}, n_ctx={self.window})"

    def choose(self, situation: Situation) -> Choice | None:
        """What the next request offers, by rules that small models need."""
        return choose(situation) if self._constrained is not None else None

    def prepare(self, request: Request) -> Prepared:
        """Make the request's body; pure.

        Raises
        ------
        ConfigError
            If a setting can't be expressed, or a tool is called "final_answer".
        """
        if self._constrained is not None:
            body = self._constrained.body(request, self._parameters(request, tools=False))
            return prepared(request, body)
        messages, holds_calls = self._translations.of(request, _message)
        fields = dumps(self._parameters(request, tools=True, holds_calls=holds_calls))
        system = b""
        if request.instructions:
            system = dumps({"role": "system", "content": request.instructions})
        joined = b",".join(filter(None, (system, messages)))
        return prepared(request, b'%b,"messages":[%b]}' % (fields[:-1], joined))

    async def stream(self, prepared: Prepared) -> AsyncGenerator[Item]:
        """Ask; the first time in a process the model is loaded.

        Raises
        ------
        ConfigError
            If the runtime or the weights are missing, or the file is no model.
        ModelError
            Typed by what went wrong.
        """
        if self._target is None:
            self._target = await asyncio.to_thread(self._server)
        target = self._target
        reader = Reader(target)
        timeout_s = prepared.request.settings.get("timeout_s") or 120
        items = ask(target, prepared.body or b"", reader, timeout_s=timeout_s)
        if self._constrained is not None:
            items = self._constrained.read(items, prepared.request, reader)
        async with aclosing(items):
            async for item in items:
                yield item

    def warm(self) -> None:
        """Load the model and let it read its examples, in the background; returns at once.

        The first request of a process takes some 3 s longer without it.

        Raises
        ------
        ConfigError
            If the runtime or the weights are missing.
        """
        self._require()
        threading.Thread(target=self._warm, name="nbagent-warm", daemon=True).start()

    def _warm(self) -> None:
        import httpx

        target = self._server()
        user = dumps({"role": "user", "content": "Tools:\n"})
        body = b'{"model":"local","max_tokens":1,"messages":[%b,%b]}' % (opening(), user)
        try:
            httpx.post(
                target.url, content=body, headers=dict(target.headers), timeout=60, trust_env=False
            )
        except httpx.HTTPError:
            return  # the first request then does the work

    def _parameters(
        self, request: Request, *, tools: bool, holds_calls: bool = False
    ) -> dict[str, Any]:
        out = parameters(
            request, _MODEL, tools=tools, holds_calls=holds_calls, max_tokens="max_tokens"
        )
        # An answer that is cut at its first sentence has no usage, but timings of each chunk.
        defaults = {"temperature": 0, "seed": 1, "max_tokens": 200, "timings_per_token": True}
        return {**defaults, **out}

    def _require(self) -> Path:
        """The model's file, if all that is needed is there."""
        if find_spec("xllamacpp") is None:
            msg = (
                "the local model needs its runtime and its weights:"
                ' pip install "nbagent[local]", then python -m nbagent fetch'
            )
            raise ConfigError(msg)
        path = self._path or weights_path()
        if path is None:
            msg = (
                "the local model's weights are not here: run python -m nbagent fetch"
                ' (and pip install "nbagent[local]" for its runtime), or give Local("model.gguf")'
            )
            raise ConfigError(msg)
        if not path.is_file():
            msg = f"there is no model file {path}"
            raise ConfigError(msg)
        return path

    def _server(self) -> Target:
        return _serve(self._require(), self.window, self._threads)


def _message(node: dict[str, Any], _before: str) -> bytes:
    return message(node, "null")


# ---- loaded models -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Server:
    handle: Any
    target: Target


_servers: dict[tuple[Path, int, int], _Server] = {}
_lock = threading.Lock()


def _serve(path: Path, n_ctx: int, threads: int) -> Target:
    """The address of the model, loaded if it is not yet; blocks for some 0.4 s then."""
    key = (path.resolve(), n_ctx, threads)
    with _lock:
        found = _servers.get(key)
        if found is None:
            if not _servers:
                atexit.register(_close)
            found = _servers[key] = _load(path, n_ctx, threads)
        return found.target


def _load(path: Path, n_ctx: int, threads: int) -> _Server:
    xllamacpp: Any = import_module("xllamacpp")  # it has no types
    key = secrets.token_urlsafe(24)
    p = xllamacpp.CommonParams()
    p.model.path = str(path)
    p.model_alias = {_MODEL}
    p.n_ctx = n_ctx
    p.n_parallel = 1
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
    p.hostnames = ["127.0.0.1"]
    p.port = 0
    p.api_keys = [key]
    p.ui = False
    p.warmup = False
    p.verbosity = -1
    p.use_jinja = True
    try:
        server = xllamacpp.Server(p)
    except Exception as error:
        msg = f"{path} can't be loaded as a model: {error}"
        raise ConfigError(msg) from error
    url = f"{server.listening_address.rstrip('/')}/v1/chat/completions"
    return _Server(server, Target(url, {"authorization": f"Bearer {key}"}))


def _close() -> None:
    """Free the models before the interpreter goes: their threads must not outlive it."""
    with _lock:
        _servers.clear()
