"""The socket that a server listens on, bound before anything is loaded: a taken port costs no minute."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modelreg.registry.errors import ModelregError, UsageError

_SOCKET_MODE = 0o660


class ListenError(ModelregError):
    """The address cannot be listened on."""


def bind_port(host: str, port: int) -> socket.socket:
    """
    Return a socket that is bound and does not listen yet.

    Args:
        host: An address or a name of this host; `::` and others of IPv6 too.
        port: 0 for any that is free.

    Raises:
        UsageError: The host is none of this machine's.
        ListenError: The port is taken, or needs a privilege.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"{host!r} is no address and no name of a host", hint=_HOST_HINT) from None
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the connections of a run before may still linger
        made.bind(address)
    except OSError as error:
        made.close()
        raise _explain(error, host, port) from None
    return made


def listen(bound: socket.socket) -> None:
    """Begin to take connections; raises ListenError where another process was bound to the port too, and was first."""
    try:
        bound.listen()
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _explain(error, host, port) from None


_HOST_HINT = "Write --host 127.0.0.1 for this machine alone, --host 0.0.0.0 for every network it is in."


def _explain(error: OSError, host: str, port: int) -> ModelregError:
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{host} is no address of this host", hint=_HOST_HINT)
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"port {port} of {host} is taken", hint="Choose another one with --http-port; 0 takes any that is free."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ListenError(
            f"port {port} of {host} needs a privilege that this process has not",
            hint="Choose one from 1024 on with --http-port, and put a proxy in front.",
        )
    return ListenError(f"{host} port {port} cannot be listened on: {error.strerror or error}")


@contextmanager
def bound_path(path: Path) -> Iterator[socket.socket]:
    """
    Give a Unix socket at a path, which is removed in the end; who may connect is who may write it: owner and group.

    Raises:
        ListenError: Somebody listens there, or the path is something else, or cannot be written.
    """
    _remove_stale(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~_SOCKET_MODE)
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        raise ListenError(f"{path} cannot be listened on: {error.strerror or error}") from None
    finally:
        os.umask(before)
    try:
        made.listen()  # at once: a path that nobody listens on counts as stale
        yield made
    finally:
        made.close()
        with suppress(OSError):
            path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is no more."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} is there and is no socket", hint="Choose another --uds.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise ListenError(f"{path} cannot be listened on: {error.strerror or error}") from None
    raise ListenError(f"somebody listens on {path}", hint="Choose another --uds.")


def describe_address(bound: socket.socket) -> str:
    """Return the URL of a bound socket, or `unix:PATH`."""
    address = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        return f"unix:{address}"
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
