"""Who may read the page, and who may break things: Host, Origin, token, cookie. No I/O.

Reading needs a Host header that cannot come from a foreign page. DNS rebinding lets a page of
evil.example reach 127.0.0.1, but its requests say Host: evil.example: names that are not ours are
refused. On loopback these are localhost and loopback addresses. A page that is open to the network
takes any address (a name is needed to rebind) and the names that were given.

Breaking needs the token, in the header `X-Raidx-Token` (programs) or, from the page's form, as a
cookie that is made from it: HttpOnly and SameSite=Strict, so that no other site's request carries
it. A request with the cookie needs an Origin header that is this page's own, too. Nothing secret is
ever part of an address.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection, Mapping

from raidx_fuse.errors import UsageError

TOKEN_CHARS_MIN, TOKEN_CHARS_MAX = 16, 256
COOKIE_S = 12 * 3600

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


def new_token() -> str:
    return secrets.token_urlsafe(18)


def check_token(text: str) -> str:
    """Return *text*, a token that the user has chosen. Raises UsageError."""
    token = text.strip()
    if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise UsageError(
            f"a token has {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters, not {len(token)}"
        )
    if not token.isascii() or not token.isprintable():
        raise UsageError("a token consists of printable ASCII characters")
    return token


class Access:
    """The rules of one page. *names*: host names of this machine, in addition to localhost.

    *is_public*: others than this machine reach it. *token*: None if nothing may be broken.
    *port* is part of the cookie's name: cookies do not tell ports apart.
    """

    def __init__(
        self,
        *,
        port: int,
        is_public: bool = False,
        names: Collection[str] = (),
        token: str | None = None,
    ) -> None:
        self._is_public = is_public
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._token = token
        self.cookie_name = f"raidx_view_{port}"

    @property
    def may_break(self) -> bool:
        return self._token is not None

    def knows_host(self, host: str) -> bool:
        """Return whether a request with this Host header was meant for this page."""
        name = _name_of(host)
        if name is None:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return self._is_public or address.is_loopback

    def is_own_origin(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request comes from this page itself, by its Origin header."""
        scheme, _, host = headers.get("origin", "").partition("://")
        return scheme in ("http", "https") and host.lower() == headers.get("host", "").lower()

    def is_foreign(self, headers: Mapping[str, str]) -> bool:
        """Return whether a browser says that another site makes this request."""
        site = headers.get("sec-fetch-site", "none")
        if site not in ("none", "same-origin"):
            return True
        return "origin" in headers and not self.is_own_origin(headers)

    def is_token(self, text: str) -> bool:
        return self._token is not None and _same(text, self._token)

    def cookie(self) -> str:
        """Return the Set-Cookie header of somebody who has shown the token."""
        value = f"{self.cookie_name}={self._cookie_value()}"
        return f"{value}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict"

    def no_cookie(self) -> str:
        return f"{self.cookie_name}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"

    def has_cookie(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request has the cookie of somebody who has shown the token."""
        if self._token is None:
            return False
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie_name and _same(value, self._cookie_value()):
                return True
        return False

    def permits_breaking(self, headers: Mapping[str, str]) -> bool:
        """Return whether this request, with a body that changes something, may do so."""
        if self.is_foreign(headers):
            return False
        if self.is_token(headers.get("x-raidx-token", "")):
            return True
        return self.has_cookie(headers) and self.is_own_origin(headers)

    def _cookie_value(self) -> str:
        assert self._token is not None
        return hmac.new(self._token.encode(), b"raidx view cookie", hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _name_of(host: str) -> str | None:
    """Return the name or address in a Host header, without port and brackets; None if invalid."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        port = port.removeprefix(":")
        if not bracket:
            return None
    else:
        name, _, port = host.partition(":")
    if port and not (port.isascii() and port.isdecimal()):
        return None
    return name.rstrip(".") or None
