from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from modelreg.runtime.serve.connections import choose_cut
from modelreg.runtime.serve.limits import Limits

LIMITS = Limits(max_connections=10, read_timeout_s=30.0)


@pytest.mark.parametrize(
    ("idle", "connections", "cut"),
    [
        ({"a": 1.0, "b": 30.0}, 2, ""),
        ({"a": 31.0, "b": 30.0, "c": 40.0}, 3, "ca"),
        ({"a": 1.0, "b": 3.0, "c": 2.0}, 9, ""),
        ({"a": 1.0, "b": 3.0, "c": 2.0}, 10, "b"),
        ({"a": 1.0, "b": 3.0, "c": 2.0}, 11, "bc"),
        ({"a": 1.0}, 50, "a"),
        ({}, 50, ""),
    ],
)
def test_what_is_idle_goes_when_it_is_so_too_long_or_when_others_have_no_room(
    idle: dict[str, float], connections: int, cut: str
) -> None:
    assert "".join(choose_cut(idle, connections=connections, limits=LIMITS)) == cut


def test_the_files_that_connections_need_may_be_opened() -> None:
    program = (
        "import resource; from modelreg.runtime.serve.limits import Limits\n"
        "from modelreg.runtime.serve.connections import make_room_for_files\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "for number in (100, 1): make_room_for_files(Limits(max_connections=number))\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(done.stdout) == (712 if hard == resource.RLIM_INFINITY else min(712, hard))
