"""The life of a server in this process: what ends it, and the addresses that it cannot have."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.errors import ModelregError, NotFoundError
from modelreg.registry.leases import read_leases
from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.serve.listening import ListenError, bind_port, bound_path, describe_address, listen
from modelreg.runtime.serve.server import AbandonedError, Serving, serve
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.http_serving import Untold, adder_request
from modelreg_testing.serving import activate_plan, adder


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    made = LocalStorage.create(in_memory / "store")
    activate_plan(made, adder(1))
    return made


class Ending(Untold):
    """Sends requests whose bodies do not end when the server listens, then tells it to end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.connections: list[socket.socket] = []

    def listening(self, url: str, models: Any) -> None:
        """Ask for an inference and for the end."""
        client = socket.create_connection(("127.0.0.1", self._port))
        client.sendall(b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        self.connections.append(client)
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)


def run(
    store: LocalStorage, bound: socket.socket, told: Untold, *, name: str = "lenet@production", **changes: Any
) -> None:
    active = AsyncActiveModel(
        name,
        store=str(store.root),
        cache=store.root.parent / "cache",
        options=ServingOptions(trial=False),
        lease=False,
    )
    with bound:
        asyncio.run(serve(Serving(actives={name: active}, told=told, **changes), bound))


def test_what_does_not_end_in_time_is_given_up_and_said(store: LocalStorage) -> None:
    bound = bind_port("127.0.0.1", 0)
    told = Ending(bound.getsockname()[1])
    with pytest.raises(AbandonedError, match=r"requests still under way after 0\.1 s: 1$") as caught:
        run(store, bound, told, shutdown_timeout_s=0.1)
    assert "--shutdown-timeout" in caught.value.hint()
    told.connections[0].close()


def test_what_comes_in_the_delay_is_answered(store: LocalStorage) -> None:
    bound = bind_port("127.0.0.1", 0)

    class Asking(Ending):
        """Asks when the server says that it ends."""

        def stopping(self, under_way: int) -> None:
            body = adder_request()
            head = b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            self.connections[0].close()
            client = socket.create_connection(("127.0.0.1", self._port))
            client.sendall(head + body)
            self.connections.append(client)

    told = Asking(bound.getsockname()[1])
    run(store, bound, told, ready_delay_s=0.5)
    client = told.connections[-1]
    answer = b"".join(iter(lambda: client.recv(65536), b""))
    client.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer


def test_a_model_that_cannot_be_served_is_said_and_nothing_listens(store: LocalStorage) -> None:
    bound = bind_port("127.0.0.1", 0)
    with pytest.raises(ModelregError) as caught:
        run(store, bound, Untold(), name="lenet@nothing")
    assert isinstance(caught.value, NotFoundError)


def test_a_signal_while_models_are_loaded_ends_it_and_leaves_no_lease(store: LocalStorage) -> None:
    bound = bind_port("127.0.0.1", 0)

    async def start() -> None:
        active = AsyncActiveModel(
            "lenet@production",
            store=str(store.root),
            cache=store.root.parent / "cache",
            options=ServingOptions(trial=False),
        )
        asyncio.get_running_loop().call_later(0.0, os.kill, os.getpid(), signal.SIGTERM)
        await serve(Serving(actives={"lenet@production": active}, told=Untold()), bound)

    with bound:
        asyncio.run(start())
    assert read_leases(store).live == ()


def test_two_that_are_bound_to_a_port_and_the_second_to_listen() -> None:
    with bind_port("127.0.0.1", 0) as one, bind_port("127.0.0.1", one.getsockname()[1]) as two:
        listen(one)
        with pytest.raises(ListenError, match="is taken"):
            listen(two)
        with pytest.raises(ListenError, match="is taken"):
            bind_port("127.0.0.1", one.getsockname()[1])


def test_what_the_system_says_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        error = errno.EACCES

        def bind(self, _address: object) -> None:
            raise OSError(self.error, os.strerror(self.error))

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(ListenError, match="needs a privilege"):
        bind_port("127.0.0.1", 80)
    Refusing.error = errno.ENOBUFS
    with pytest.raises(ListenError, match="cannot be listened on"):
        bind_port("127.0.0.1", 80)


def test_a_path_that_a_dead_server_left_is_taken_over_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with bound_path(path) as bound:
        assert describe_address(bound) == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(ListenError, match="somebody listens on"), bound_path(path):
            pass
    assert not path.exists()
    path.mkdir()
    with pytest.raises(ListenError, match="is no socket"), bound_path(path):
        pass


def test_an_address_of_ipv6_is_written_as_a_url() -> None:
    try:
        bound = bind_port("::1", 0)
    except ModelregError:
        pytest.skip("this host has no IPv6")
    with bound:
        assert describe_address(bound) == f"http://[::1]:{bound.getsockname()[1]}"
