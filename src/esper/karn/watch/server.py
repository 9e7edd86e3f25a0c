"""The server: a free port, a link with its token, and an end on Ctrl-C that keeps nobody waiting."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import uvicorn

from esper.karn.watch.app import make_app
from esper.karn.watch.library import Library
from esper.karn.watch.security import LOOPBACK, Access
from esper.leyline.errors import ConfigError

PORT = 8765
"""The first port that is tried where none is asked for."""
TRIED = 20
"""So many ports from there on are tried, and then any that is free."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where the page is."""

    url: str
    address: str

    @property
    def open_to_others(self) -> bool:
        """Whether other machines can reach it."""
        return self.address not in LOOPBACK


class WatchServer(uvicorn.Server):
    """The page of a run or of a folder of runs, bound to its port from the start and served by `run`."""

    def __init__(self, root: Path, *, port: int | None = None, host: str = LOOPBACK[0], awaited: bool = False) -> None:
        """Raises RunError for a folder that is not there, unless it is `awaited`, and ConfigError for a port or an address that cannot be
        had."""
        self._library = library = Library(root, awaited=awaited)
        self.sockets = [_bind(host, port)]
        bound = self.sockets[0].getsockname()[1]
        access = Access(token=secrets.token_urlsafe(24), port=bound, address=host.lower())
        app, self.streams = make_app(library, access)
        where = f"#/run/{quote(library.keys[0], safe='')}" if library.only else ""
        shown = socket.gethostname() if access.everywhere else f"[{host}]" if ":" in host else host
        self.link = Link(f"http://{shown}:{bound}/?token={access.token}{where}", host)
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )

    def serve_forever(self) -> None:
        """Serve until Ctrl-C, which is raised as KeyboardInterrupt when all is closed."""
        # What is there is read while the browser starts.
        threading.Thread(target=self._library.cards, daemon=True).start()
        self.run(sockets=self.sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first, which would last as long as their tabs."""
        self.streams.end()
        await super().shutdown(sockets)


def _bind(host: str, port: int | None) -> socket.socket:
    """A socket that listens, at that port or at a free one near the usual."""
    tried = [port] if port is not None else [*range(PORT, PORT + TRIED), 0]
    for each in tried:
        try:
            return socket.create_server((host, each), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)
        except OverflowError:
            raise ConfigError(f"port {each} is no port; expected a number from 1 to 65535") from None
        except socket.gaierror:
            raise ConfigError(f"{host!r} is no address of this machine; expected one, such as {LOOPBACK[0]}") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"{host!r} is no address of this machine; expected one, such as {LOOPBACK[0]}") from None
            if port is not None:
                why = "in use by another program" if error.errno == errno.EADDRINUSE else (error.strerror or "not to be had").lower()
                raise ConfigError(f"port {port} is {why}; choose another, or leave --port out for a free one") from None
    raise ConfigError("no port is free")
