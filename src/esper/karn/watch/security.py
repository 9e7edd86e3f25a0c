"""Who may see the page: whoever has the link. Everything is checked before any route runs, and nothing can be changed from the page.

A link carries a token, which the first request exchanges for a cookie that scripts cannot read and other sites cannot send. The Host
header must name this server: a page elsewhere whose name was bent to this address (DNS rebinding) asks with a name of its own. Origin and
Sec-Fetch-Site, where a browser sends them, must say that the page itself asks.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect")),
        "img-src 'self' data:",
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")),
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every response, refusals too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a request must show."""

    token: str = field(repr=False)
    port: int
    address: str = LOOPBACK[0]
    """The address that the server listens at."""

    @property
    def cookie(self) -> str:
        """The cookie's name. Cookies know no ports, so two pages on one machine need two names."""
        return f"esper-{self.port}"

    @property
    def everywhere(self) -> bool:
        """Whether the server listens at every address of the machine."""
        return self.address in ("0.0.0.0", "::", "")

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server: with its port, by a name for this machine or, from elsewhere, by its address."""
        name, port = _split(host)
        if port != self.port:
            return False
        if name in (*LOOPBACK, self.address):
            return True
        # A name that was bent to this address cannot be a bare address.
        return self.everywhere and (_is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower()))

    def matches(self, token: str) -> bool:
        """Whether that is the token; takes as long for a wrong one as for the right one."""
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.token.encode())


class Guard:
    """The application behind its checks."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it in a sentence."""
        if scope["type"] != "http":
            return
        presented = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1] if scope["path"] == "/" else ""
        refusal = self._refusal(scope, Headers(scope=scope), presented)

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if presented and refusal is None:
                    about = "HttpOnly; SameSite=Strict; Path=/"
                    headers.append("Set-Cookie", f"{self.access.cookie}={self.access.token}; {about}")
            await send(message)

        await (self.app if refusal is None else refusal)(scope, receive, secured)

    def _refusal(self, scope: Scope, headers: Headers, presented: str) -> Response | None:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self.access.knows(host.lower()):
            return PlainTextResponse("This is not the name of this server.\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The page only shows; it takes no orders.\n", 405, {"Allow": "GET, HEAD"})
        if (origin := headers.get("origin")) is not None and origin.lower() != f"http://{host.lower()}":
            return PlainTextResponse("Another site asks for this; it is not given.\n", 403)
        # A link may be followed from anywhere, since it carries the token; all else is asked for by the page itself.
        followed = scope["path"] == "/" and headers.get("sec-fetch-mode", "navigate") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not followed:
            return PlainTextResponse("Another site asks for this; it is not given.\n", 403)
        if self.access.matches(presented or _cookie(headers, self.access.cookie)):
            return None
        told = "Open the link that esper watch printed: it carries the token that this page needs."
        return JSONResponse({"error": told}, 403) if scope["path"].startswith("/api/") else PlainTextResponse(told + "\n", 403)


def _cookie(headers: Headers, name: str) -> str:
    """The value of a cookie; other programs on this machine may have set odd ones beside it."""
    pairs = (each.strip().partition("=") for line in headers.getlist("cookie") for each in line.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def _split(host: str) -> tuple[str, int]:
    """Name and port of a Host header; port 80 where there is none, and -1 where it is no number."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":") if rest.startswith(":") or not rest else "?"
    else:
        name, _, port = host.partition(":")
    if not port:
        return name, 80
    return name, int(port) if port.isascii() and port.isdigit() else -1


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
