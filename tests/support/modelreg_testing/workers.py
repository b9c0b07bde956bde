"""Worker modules with real faults, and the processes that run them."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

FAULTS = textwrap.dedent(
    """
    import ctypes, os, sys, time


    def echo(request, arrays, report):
        report(0.5, "halfway")
        print("a library prints this")
        return {"request": request, "names": sorted(arrays)}, dict(arrays)


    def fail(request, arrays, report):
        class OddError(Exception):
            details = {"nodes": ["conv1"]}

        raise OddError("the graph\\nis odd")


    def segfault(request, arrays, report):
        ctypes.string_at(0)


    def leave(request, arrays, report):
        print("leaving now", file=sys.stderr)
        os._exit(request["code"])


    def kill(request, arrays, report):
        os.kill(os.getpid(), request["signal"])


    def hang(request, arrays, report):
        if request.get("child"):
            import subprocess
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            report(None, str(child.pid))
        while True:
            time.sleep(60)


    def spam(request, arrays, report):
        while True:
            sys.stderr.write("spam " * 20000)


    def garbage(request, arrays, report):
        for fd in range(3, 40):
            try:
                os.write(fd, request["text"].encode())
            except OSError:
                pass
        time.sleep(60)


    def odd_array(request, arrays, report):
        import numpy as np
        return {}, {"x": np.array([object()])}


    def where(request, arrays, report):
        import registry_shadow_probe
        return registry_shadow_probe.__file__


    def paths(request, arrays, report):
        return {"path": sys.path, "stdin": os.read(0, 10).decode(), "pythonpath": os.environ.get("PYTHONPATH")}


    def outlived(request, arrays, report):
        if not os.fork():
            time.sleep(60)
        report(None, "forked")
        os._exit(4)


    def fail_oddly(request, arrays, report):
        class OddError(Exception):
            def __str__(self):
                raise LookupError

        raise OddError


    def spam_busily(request, arrays, report):
        while True:
            sys.stderr.write("spam " * 2000)
            report(None, "spam")


    def exit_inside(request, arrays, report):
        sys.exit(3)


    JOBS = {name: value for name, value in list(globals().items()) if callable(value)}
    """
)


def write_faults(folder: Path) -> Path:
    """Write the module with every fault as a job; return its path."""
    path = folder / "faults.py"
    path.write_text(FAULTS)
    return path


def is_alive(pid: int) -> bool:
    """Return whether a process runs, or waits for anything but its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Return whether a process ends in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_alive(pid):
            return True
        time.sleep(0.02)
    return False
