"""Who may see the dashboard, and from where: in front of everything that it serves.

Three dangers: strangers on the network (a token, which addresses beyond this machine need), pages of others in a
browser of ours (they may not frame it, nor post to it), and names of others that lead to this machine (DNS rebinding:
without a token only known host names are answered).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s3queue._errors import ConfigurationError

__all__ = ["COOKIE", "Guard", "check_token"]

COOKIE = "s3queue_dashboard"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: A token that can be guessed is none.
_TOKEN_LEAST = 16
#: What a page may do: load our files, ask us. No inline code or style, no frames, no other hosts.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": with that, browsers call the origin of our own form "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
#: What anybody may load: it says nothing of the workspace.
_OPEN = ("/login", "/static/")


def check_token(token: str | None) -> None:
    """Raises `ConfigurationError` for a token that protects nothing."""
    if token is not None and (len(token) < _TOKEN_LEAST or not token.isascii() or not token.isprintable()):
        raise ConfigurationError(
            f"a dashboard's token must be at least {_TOKEN_LEAST} printable ASCII characters, such as the output of "
            "`openssl rand -hex 16`"
        )


class Guard:
    """Answers what must not get through, and puts the headers on whatever does."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str] | None) -> None:
        check_token(token)
        self._app = app
        self._token = token
        #: Host names that are answered; None for all.
        self._hosts = frozenset(LOOPBACK if hosts is None else hosts) if token is None or hosts is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_known(headers.get("host", "")):
            return _refused(421, "this host name is not one of the dashboard's: see its `hosts`, or use a token")
        if scope["method"] not in ("GET", "HEAD") and not _is_ours(headers):
            return _refused(403, "this request comes from another site")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._token is None or path.startswith(_OPEN) or self.knows(headers):
            return None
        if path == "/":
            return RedirectResponse("login", 303)
        return JSONResponse({"error": "a token is needed"}, 401, {"www-authenticate": "Bearer"})

    def _is_known(self, host: str) -> bool:
        if self._hosts is None or "*" in self._hosts:
            return True
        try:
            return urlsplit(f"//{host}").hostname in self._hosts
        except ValueError:
            return False

    def knows(self, headers: Headers) -> bool:
        """Whether a request carries the token, as a bearer's or in the cookie."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.accepts(token.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.cookie.encode())

    def accepts(self, token: str) -> bool:
        """Whether this is the token; takes the same time whatever it is."""
        return self._token is not None and hmac.compare_digest(_digest(token), _digest(self._token))

    @property
    def cookie(self) -> str:
        """What a browser keeps in place of the token."""
        return hmac.new((self._token or "").encode(), b"s3queue dashboard", hashlib.sha256).hexdigest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _is_ours(headers: Headers) -> bool:
    """Whether a request that changes something comes from our own page, or from no page at all.

    A browser says where a request comes from. Another site's script cannot set a header of its own without asking us
    first, which we never allow; so even a browser that says nothing cannot be used.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)
