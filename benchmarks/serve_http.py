"""What HTTP costs beside the same model in process: a call, and requests a second of 8 clients; taken in turns.

    python benchmarks/serve_http.py [--rounds 21] [--seconds 3]

The floor is a bare application on uvicorn that reads the same body and answers as many bytes. Clients and servers share
this host's cores, so CPU time of the process that answers is given beside wall time: less noise of the host. Binary
tensors, one connection that stays open for each client. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from modelreg.runtime.active import ActiveModel
from modelreg.runtime.trying import ServingOptions

LENET = Path(__file__).resolve().parents[1] / "examples" / "lenet"
CLIENTS = 8
FLOOR = """
import sys, uvicorn

async def app(scope, receive, send):
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    body = bytes(int(dict(scope["headers"])[b"wanted"]))
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print('{"url": "http://127.0.0.1:%d"}' % self.servers[0].sockets[0].getsockname()[1], flush=True)

Server(uvicorn.Config(app, port=0, lifespan="off", access_log=False, log_level="error")).run()
"""
Call = Callable[[], object]


def release(folder: Path) -> None:
    """Make a registry with LeNet in FP32 on production."""
    for words in (
        ("init",),
        ("register", "lenet", LENET / "lenet-v1.onnx", "--golden", LENET / "golden-v1.npz"),
        ("build", "lenet:1", "--precision", "fp32"),
        ("validate", "lenet:1"),
        ("promote", "lenet:1", "--to", "production"),
    ):
        command = [sys.executable, "-m", "modelreg.cli", *map(str, words)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


@contextmanager
def server(command: list[str], folder: Path) -> Iterator[tuple[int, int]]:
    """Run what prints its URL as JSON; give its port and process id."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(json.loads(process.stdout.readline())["url"].rpartition(":")[2]), process.pid
        process.terminate()


def caller(port: int, images: np.ndarray, *, answer_bytes: int) -> Call:
    """Return what asks once, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": list(images.shape),
        "parameters": {"binary_data_size": images.nbytes},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = header + images.tobytes()
    headers = {"Inference-Header-Content-Length": str(len(header)), "Wanted": str(answer_bytes)}

    def call() -> object:
        connection.request("POST", "/v2/models/lenet/infer", body, headers)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()

    return call


def time_calls(call: Call, number: int, pid: int) -> tuple[float, float]:
    """Return microseconds of a call, and of CPU time that the process took for it."""
    began, began_cpu_s = time.perf_counter(), read_cpu(pid)
    for _ in range(number):
        call()
    return (time.perf_counter() - began) / number * 1e6, (read_cpu(pid) - began_cpu_s) / number * 1e6


def read_cpu(pid: int) -> float:
    """Return the CPU seconds of a process, to the scheduler's nanosecond where it is our own."""
    if pid == os.getpid():
        return time.process_time()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def count_calls(make: Callable[[], Call], seconds: float) -> float:
    """Return the calls of all clients in a second."""
    done, over = [0] * CLIENTS, threading.Event()

    def work(number: int) -> None:
        call = make()
        while not over.is_set():
            call()
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def measure(
    batch: int, model: ActiveModel, floor: tuple[int, int], ours: tuple[int, int], *, rounds: int, seconds: float
) -> None:
    images = np.random.default_rng(0).normal(size=(batch, 1, 28, 28)).astype(np.float32)
    answer_bytes = len(caller(ours[0], images, answer_bytes=0)())  # type: ignore[arg-type]
    makers: dict[str, Callable[[], Call]] = {
        "in process": lambda: lambda: model.infer({"image": images}),
        "floor": lambda: caller(floor[0], images, answer_bytes=answer_bytes),
        "serve": lambda: caller(ours[0], images, answer_bytes=answer_bytes),
    }
    calls = {name: make() for name, make in makers.items()}
    pids = {"in process": os.getpid(), "floor": floor[1], "serve": ours[1]}
    for name, call in calls.items():
        time_calls(call, 20, pids[name])
    turns = [{name: time_calls(call, 40, pids[name]) for name, call in calls.items()} for _ in range(rounds)]
    rates = [{name: count_calls(make, seconds) for name, make in makers.items()} for _ in range(3)]
    print(f"\nbatch {batch}: {images.nbytes} bytes in, {answer_bytes} out")
    for name in makers:
        taken = statistics.median(turn[name][0] for turn in turns)
        cpu = statistics.median(turn[name][1] for turn in turns)
        rate = statistics.median(each[name] for each in rates)
        print(
            f"  {name:<11} {taken:9.0f} us a call   {cpu:9.0f} us of CPU   {rate:9.0f} requests/s of {CLIENTS} clients"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        release(folder)
        command = [sys.executable, "-m", "modelreg.cli", "serve", "lenet@production", "--http-port", "0", "--json"]
        command += ["--threads", "1", "--cache", str(folder / "cache")]
        with (
            ActiveModel(
                "lenet@production",
                store=folder / ".modelreg" / "store",
                cache=folder / "here",
                options=ServingOptions(threads=1),
                lease=False,
            ) as model,
            server([sys.executable, "-c", FLOOR], folder) as floor,
            server(command, folder) as ours,
        ):
            for batch in (1, 32):
                measure(batch, model, floor, ours, rounds=options.rounds, seconds=options.seconds)


if __name__ == "__main__":
    main()
