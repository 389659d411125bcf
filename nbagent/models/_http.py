"""HTTP for all wires: one client an event loop, requests whose answer is streamed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Self

from nbagent.errors import ConfigError, TransportError, TruncatedStreamError
from nbagent.models._http_errors import error_for, retry_after_s, shorten
from nbagent.models._target import Target, hidden_from_logs, shown_address

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["Answer", "block_requests", "close_clients", "post"]

_ERROR_BODY = 65_536  # bytes of an error's body that are read


class Answer:
    """An answer whose body is still coming."""

    def __init__(self, response: httpx.Response, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        encoded = response.headers.get("content-encoding", "identity") != "identity"
        self._body: AsyncIterator[bytes] = (
            response.aiter_bytes() if encoded else response.aiter_raw()
        )
        self.content_type: str = response.headers.get("content-type", "").partition(";")[0].lower()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes from the network.

        Raises
        ------
        TruncatedStreamError
            If the server closed the connection before the body's end.
        TransportError
            If the connection broke, or nothing came for `timeout_s`.
        """
        import httpx

        try:
            async for chunk in self._body:
                yield chunk
        except httpx.RemoteProtocolError:
            msg = f"{self._target.host} closed the connection in the middle of its answer"
            raise TruncatedStreamError(msg) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _transport_error(error, self._target, self._timeout_s) from None

    async def drain(self) -> None:
        """Read to the end if it is near, so that the connection can be used again."""
        import httpx

        with suppress(httpx.HTTPError, httpx.StreamError, TimeoutError):
            async with asyncio.timeout(0.25):
                async for _ in self._body:
                    pass

    async def aclose(self) -> None:
        """Read no more."""
        close = getattr(self._body, "aclose", None)
        if close is not None:
            await close()


@asynccontextmanager
async def post(target: Target, body: bytes, *, timeout_s: float) -> AsyncGenerator[Answer]:
    """Send a JSON body; gives the answer once its head is there and its status is good.

    Parameters
    ----------
    timeout_s
        Longest silence: to connect (at most 30 s), and between any two reads.

    Raises
    ------
    ModelError
        Typed by status, with the body's own words.
    TransportError
        If no connection could be made, it broke or timed out.
    ConfigError
        If `block_requests` forbids it, or the URL is no URL.
    """
    response = await _send(target, body, timeout_s)
    try:
        if response.status_code >= 300:
            raise await _refusal(response, target)
        answer = Answer(response, target, timeout_s)
        try:
            yield answer
        finally:
            await answer.aclose()
    finally:
        await response.aclose()


async def _send(target: Target, body: bytes, timeout_s: float) -> httpx.Response:
    import httpx

    _check_allowed(target)
    _check_headers(target)
    clients = await _clients()
    client = clients.of(target)
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 30))
    for again in (True, False):
        try:
            request = client.build_request(
                "POST",
                target.url,
                content=body,
                headers={"content-type": "application/json", **target.headers},
                timeout=timeout,
            )
            with hidden_from_logs(target):
                response = await client.send(request, stream=True)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            said = target.redact(str(error))
            msg = f"the model's address {target.shown!r} can't be used: {said}"
            raise ConfigError(msg) from None
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            # A kept connection that the server closed meanwhile shows only when it is used.
            if again and target.host in clients.used:
                continue
            raise _transport_error(error, target, timeout_s) from None
        except httpx.HTTPError as error:
            raise _transport_error(error, target, timeout_s) from None
        clients.used.add(target.host)
        return response
    raise AssertionError  # the second try returns or raises


def _check_headers(target: Target) -> None:
    """Refuse what can't stand in a header here: the library's own error would show the value."""
    for name, value in target.headers.items():
        if not (value.isascii() and value.isprintable()):
            msg = (
                f"the header {name!r} holds characters that can't be sent:"
                " look for line breaks and typographic signs in the API key"
            )
            raise ConfigError(msg)


async def _refusal(response: httpx.Response, target: Target) -> Exception:
    import httpx

    data = bytearray()
    with suppress(httpx.HTTPError, TimeoutError):  # what could be read of the body is enough
        async with asyncio.timeout(10):
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > _ERROR_BODY:
                    break
    text = target.redact(bytes(data[:_ERROR_BODY]).decode("utf-8", "replace"))
    status = response.status_code
    if status < 400:
        place = target.redact(shown_address(response.headers.get("location", "nowhere")))
        text = f"redirected to {place}: use that as base_url"
    return error_for(status, text, host=target.host, retry_after_s=retry_after_s(response.headers))


def _transport_error(error: Exception, target: Target, timeout_s: float) -> TransportError:
    import httpx

    host, said = target.host, shorten(target.redact(str(error) or type(error).__name__), 200)
    match error:
        case httpx.ConnectTimeout():
            msg = f"{host} could not be reached in time: check the address and the network"
        case httpx.TimeoutException():
            msg = f"{host} sent nothing for {timeout_s:g} s: try again, or set a larger timeout_s"
        case httpx.ConnectError() if target.local:
            msg = f"nothing answers at {target.shown} ({said}): is the server running?"
        case httpx.ConnectError():
            msg = f"no connection to {host} ({said}): check the address, the network and any proxy"
        case httpx.ProxyError():
            msg = f"the proxy refused the way to {host} ({said}): check HTTPS_PROXY and NO_PROXY"
        case _:
            msg = f"the connection to {host} broke ({said})"
    return TransportError(msg)


# ---- clients -----------------------------------------------------------------------------------


class _Clients:
    """The clients of one event loop: their connections can't be used from another."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self._made: dict[bool, httpx.AsyncClient] = {}
        self.keeper: AsyncGenerator[None] | None = None

    def of(self, target: Target) -> httpx.AsyncClient:
        import httpx

        plain = target.local and target.url.startswith("http:")
        client = self._made.get(plain)
        if client is None:
            client = self._made[plain] = httpx.AsyncClient(
                verify=False if plain else _tls(),
                trust_env=not plain,  # a proxy is no way to this machine
                # A body that is not compressed can be passed on as it comes.
                headers={"accept-encoding": "identity", "user-agent": "nbagent"},
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            )
        return client

    async def aclose(self) -> None:
        made, self._made = self._made, {}
        for client in made.values():
            await client.aclose()


_by_loop: dict[asyncio.AbstractEventLoop, _Clients] = {}
_lock = threading.Lock()


async def _clients() -> _Clients:
    loop = asyncio.get_running_loop()
    found = _by_loop.get(loop)
    if found is not None:
        return found
    with _lock:
        for closed in [other for other in _by_loop if other.is_closed()]:
            del _by_loop[closed]
        found = _by_loop[loop] = _Clients()
    # The loop ends its open async generators before it closes: the one moment at which its
    # connections can still be closed properly.
    found.keeper = _keep(found, loop)
    await anext(found.keeper)
    return found


async def _keep(clients: _Clients, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        with _lock:
            _by_loop.pop(loop, None)
        await clients.aclose()


async def close_clients() -> None:
    """Close this loop's connections; the next request opens new ones."""
    found = _by_loop.get(asyncio.get_running_loop())
    if found is not None and found.keeper is not None:
        await found.keeper.aclose()


@cache
def _tls() -> ssl.SSLContext:
    """Made once: it reads all certificates, which takes longer than the rest of a client."""
    import httpx

    return httpx.create_ssl_context()


# ---- no live requests --------------------------------------------------------------------------

_blocked = False


class block_requests:  # noqa: N801 - reads as a verb
    """Forbid requests to anything but this machine, so that a test can't reach a provider.

    Holds from the call on, or for the length of a ``with`` block. Loopback addresses stay
    allowed: the local model and test servers are there. A forbidden request raises `ConfigError`,
    which ends the run: neither recovery nor a fallback model takes it up.

    Examples
    --------
    >>> with block_requests():
    ...     pass  # a model of a provider can't be asked here
    """

    def __init__(self) -> None:
        global _blocked  # noqa: PLW0603 - it is a switch of the process
        self._before = _blocked
        _blocked = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Allow again what was allowed before."""
        global _blocked  # noqa: PLW0603
        _blocked = self._before


def _check_allowed(target: Target) -> None:
    if _blocked and not target.local:
        msg = (
            f"a request to {target.host} was stopped: nb.models.block_requests() is in force."
            " Use a Scripted model or a server on this machine"
        )
        raise ConfigError(msg)
