"""Where a request goes, and what of it must not be seen: in errors, reprs and other libraries' logs."""

from __future__ import annotations

import base64
import ipaddress
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit, urlunsplit

from nbagent.errors import ConfigError

__all__ = ["Target", "hidden_from_logs", "shown_address"]

_HIDDEN = "[hidden]"


@dataclass(frozen=True, repr=False)
class Target:
    """Where a request goes, and the headers that must not be seen.

    Parameters
    ----------
    url
        The whole address, with what its query carries.
    headers
        Their values are secrets.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def at(cls, address: str, path: str = "") -> Target:
        """The target for an address that a person gave: its user and password become a header.

        Raises
        ------
        ConfigError
            If it is no address of the web; the message shows nothing that may be secret.
        """
        try:
            url = urlsplit(address)
            port_is_good = url.port is None or url.port > 0
        except ValueError:
            raise ConfigError(_no_address(address)) from None
        if url.scheme not in ("http", "https") or not url.hostname or not port_is_good:
            raise ConfigError(_no_address(address))
        credentials, _, place = url.netloc.rpartition("@")
        headers: dict[str, str] = {}
        if credentials:
            user, _, password = credentials.partition(":")
            plain = f"{unquote(user)}:{unquote(password)}".encode()
            headers["authorization"] = f"Basic {base64.b64encode(plain).decode()}"
        full = url.path.rstrip("/").removesuffix(path) + path
        return cls(urlunsplit(url._replace(netloc=place, path=full, fragment="")), headers)

    def __repr__(self) -> str:
        return f"Target({self.shown!r})"

    @property
    def host(self) -> str:
        """The host's name, for messages."""
        return urlsplit(self.url).hostname or self.shown

    @property
    def shown(self) -> str:
        """The address for messages: no value of its query."""
        return shown_address(self.url)

    @property
    def local(self) -> bool:
        """Whether it is this machine."""
        return _is_loopback(self.host)

    def redact(self, text: str) -> str:
        """The text without any value of the headers and of the address's query."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        """The longest first, so that none is masked in part; the shortest would mask half words."""
        found: set[str] = set()
        for value in self.headers.values():
            found |= {value, value.partition(" ")[2], *_credentials(value)}
        for piece in urlsplit(self.url).query.split("&"):
            written = piece.partition("=")[2] or piece.rstrip("=")
            for plain in (written, unquote(written), unquote_plus(written)):
                found |= {plain, quote(plain, safe=""), quote_plus(plain)}
        return tuple(sorted((each for each in found if len(each) > 3), key=len, reverse=True))


def shown_address(address: str) -> str:
    """An address as a person may see it: no user and password, no value of the query, no fragment.

    Examples
    --------
    >>> shown_address("https://me:pw@example.org/v1?key=k&b=2#top")
    'https://example.org/v1?key=[hidden]&b=[hidden]'
    """
    front, _, query = address.partition("#")[0].partition("?")
    scheme, slashes, rest = front.partition("//")
    place, slash, path = rest.partition("/")
    pieces = (piece.partition("=") for piece in query.split("&") if piece)
    hidden = "&".join(f"{key}={_HIDDEN}" if value else _HIDDEN for key, _, value in pieces)
    front = f"{scheme}{slashes}{place.rpartition('@')[2]}{slash}{path}"
    return f"{front}?{hidden}" if hidden else front


def _no_address(address: str) -> str:
    # Without an address's form nobody can say where a password in it ends.
    shown = _HIDDEN if "@" in address else shown_address(address)
    return (
        f"base_url={shown!r} is no address: write it like 'https://api.openai.com/v1'"
        " (in a user or password `/` `?` `#` `@` are written %2F %3F %23 %40)"
    )


def _credentials(header: str) -> set[str]:
    """User and password of a basic authorization; nothing of any other."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return set()
    try:
        plain = base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        return set()
    _, _, password = plain.partition(":")
    return {plain, password, quote(password, safe="")}


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ---- logs of the libraries below ---------------------------------------------------------------

_asked: ContextVar[Target | None] = ContextVar("nbagent_target", default=None)


@contextmanager
def hidden_from_logs(target: Target) -> Generator[None]:
    """Mask the target's secrets in what the HTTP libraries log for the block that runs.

    They log whole addresses (httpx, at INFO) and the answer's headers, which may repeat one
    (httpcore, at DEBUG). Requests that others make through these libraries are not touched.
    """
    _watch_logs()
    before = _asked.set(target)
    try:
        yield
    finally:
        _asked.reset(before)


@cache
def _watch_logs() -> None:
    # For good: a filter that came and went with each request would be skipped by another thread's.
    for name in ("httpx", "httpcore.http11", "httpcore.http2"):
        logging.getLogger(name).addFilter(_masked)


def _masked(record: logging.LogRecord) -> bool:
    target = _asked.get()
    if target is not None:
        text = record.getMessage()
        masked = target.redact(text.replace(target.url, target.shown))
        if masked != text:
            record.msg, record.args = masked, ()
    return True
