"""What is active, served from this GPU: right answers, swaps under load, batching, several devices, no leak."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from typing import Any

import numpy as np
import pytest

from modelreg.runtime.batches import Batching
from modelreg.runtime.runner import Timing
from modelreg.runtime.serving import Alarm
from modelreg_testing.gpu_lab import Lab, require_gpu, require_time
from modelreg_testing.gpu_latency import load_net, read_images
from modelreg_testing.gpu_serving import (
    Flipper,
    images_like,
    move,
    note,
    served,
    set_up,
    set_up_resnet,
    until,
    watching_utilisation,
)
from modelreg_testing.serving import resident_bytes
from modelreg_testing.serving_load import Known, Swaps, describe_swaps, first_output, know, run_closed, run_open

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SWAPS = 100
LOAD = 0.5
"""Of what clients and server, which share one Python process, can do: near 1, it is their queue that is timed."""


def heavy(lab: Lab) -> str:
    """Return the network that gives a GPU something to do."""
    return "lenet" if lab.setting.is_rehearsal else "resnet18"


def test_releases_are_made_to_be_served(lab: Lab) -> None:
    set_up(lab)
    lab.modelreg("promote", "lenet:1", "--to", "production")
    lab.modelreg("promote", "lenet:2", "--to", "production")


def test_resnet_is_made_to_be_served(lab: Lab) -> None:
    require_gpu(lab)
    require_time(150)
    set_up_resnet(lab)


def test_answers_are_those_of_pytorch(lab: Lab) -> None:
    import torch

    lab.modelreg("rollback", "lenet", "--channel", "production")  # `load_net` has the first version's weights
    images = read_images(lab, "lenet", 32)
    with torch.inference_mode():
        wanted = load_net(lab, "lenet").to(lab.setting.device)(torch.from_numpy(images).to(lab.setting.device)).cpu()
    with served(lab, "lenet") as model:
        answer = model.infer({"image": images})
    found, exact = first_output(answer).astype(np.float64), wanted.numpy().astype(np.float64)
    error = float(np.sqrt(np.mean((found - exact) ** 2)) / np.sqrt(np.mean(exact**2)))
    note(lab, "against PyTorch", served=str(answer.served), relative_rms=error)
    assert error <= 0.01
    lab.modelreg("promote", "lenet:2", "--to", "production")


@pytest.mark.parametrize("batching", [None, Batching(max_batch=8, max_delay_us=500)], ids=["alone", "batched"])
def test_swaps_under_load_fail_no_request_and_mix_no_answer(lab: Lab, batching: Batching | None) -> None:
    seconds = 12.0
    require_time(seconds + 30)
    options: dict[str, Any] = {"trial": False, "batching": batching}
    with served(lab, "lenet", **options) as model:
        requests, answers = images_like(lab, "lenet", 4), dict[int, Any]()
        for turn in range(2):
            know(model, requests, answers)
            before = model.state().swaps
            move(lab, turn)
            until(lambda: model.state().swaps > before)  # noqa: B023 - asked before the next
        known = Known(requests=requests, answers=answers)
        until(lambda: model.state().retired == 0)
        free = current_free(model)
        capacity, _ = run_closed(model.infer, requests, clients=12, seconds=2.0, known=known)
        swaps = Swaps(model, lambda turn: move(lab, turn), number=4, seconds=seconds)
        rate = LOAD * capacity
        found = run_open(model.infer, known, rate=rate, clients=12, seconds=seconds, meanwhile=swaps)
        entry = note(
            lab,
            f"swaps under load, {'batched' if batching else 'alone'}",
            **describe_swaps(found, swaps, rate=rate, capacity=capacity),
            free_before=free,
            free_after=current_free(model),
        )
    assert (entry["failures"], entry["failed"], entry["mixed"]) == (0, [], 0)
    assert entry["swaps"] == 4
    if not lab.setting.is_rehearsal:
        assert entry["free_after"] >= entry["free_before"] - 64 * MIB


def engine_of(model: Any) -> Any:
    return model._lender.current.seat.engine


def current_free(model: Any) -> int:
    """Return the free bytes of where the engine lives."""
    free: int = engine_of(model).read_free_memory()
    return free


def test_batching_makes_more_of_the_gpu(lab: Lab) -> None:
    require_time(60)
    network = heavy(lab)
    requests = images_like(lab, network, 1)
    rates = {}
    for size in (None, 1, 2, 4, 8, 16, 32):
        batching = None if size is None else Batching(max_batch=size)
        options: dict[str, Any] = {"trial": False, "batching": batching, "instances_per_device": 2}
        with served(lab, network, **options) as model, watching_utilisation() as busy:
            run_closed(model.infer, requests, clients=64, seconds=0.5)
            rate, latencies = run_closed(model.infer, requests, clients=64, seconds=2.5)
        rates[size] = rate
        p50, p99 = (float(np.quantile(latencies, part)) * 1000 for part in (0.5, 0.99))
        percent = statistics.median(busy) if busy else None
        note(
            lab,
            "batching",
            network=network,
            max_batch=size,
            rows_s=rate,
            p50_ms=p50,
            p99_ms=p99,
            gpu_percent=percent,
        )
    if not lab.setting.is_rehearsal:
        assert max(rates[size] for size in (8, 16, 32)) > rates[1]


def test_cuda_graphs_change_no_byte(lab: Lab) -> None:
    require_time(30)
    network = heavy(lab)
    requests = [each for rows in (1, 8, 1, 1, 1, 8, 8, 8) for each in images_like(lab, network, rows, number=2)]
    found, took = {}, {}
    for graphs in (False, True):
        with served(lab, network, trial=False, cuda_graphs=graphs) as model:
            found[graphs] = [first_output(model.infer(each)).tobytes() for each in requests]
            rate, _ = run_closed(model.infer, requests[:1], clients=1, seconds=1.5)
            took[graphs] = 1000 / rate
            replayed = 0 if lab.setting.is_rehearsal else engine_of(model)._runner.replayed
    note(lab, "CUDA graphs", network=network, plain_ms=took[False], graph_ms=took[True], replayed=replayed)
    assert found[True] == found[False]
    if not lab.setting.is_rehearsal:
        assert replayed > 0


def test_what_a_call_costs_beside_the_gpus_own_time(lab: Lab) -> None:
    """Record it: a call copies 19 MB to the child and to the GPU, and instances do that side by side."""
    require_time(40)
    network = heavy(lab)
    requests = images_like(lab, network, 32)
    gpu_ms = None
    for instances in (1, 2, 3):
        options: dict[str, Any] = {"trial": False, "instances_per_device": instances}
        with served(lab, network, **options) as model:
            run_closed(model.infer, requests, clients=2 * instances, seconds=0.5)
            rate, latencies = run_closed(model.infer, requests, clients=2 * instances, seconds=2.5)
            if gpu_ms is None and not lab.setting.is_rehearsal:
                gpu_ms = float(np.median(engine_of(model)._runner.bench(requests[0], Timing())))
        p50_ms = float(np.median(latencies)) * 1000
        found = {"batches_s": rate, "ms_a_batch": 1000 / rate, "p50_ms": p50_ms, "gpu_compute_ms": gpu_ms}
        note(lab, "batches of 32 rows", network=network, instances=instances, **found)


def devices_here(lab: Lab) -> int:
    from modelreg.runtime.devices import find_devices

    return 0 if lab.setting.is_rehearsal else len(find_devices(lab.setting.toolchain))


def test_throughput_grows_with_devices(lab: Lab) -> None:
    require_gpu(lab)
    number = devices_here(lab)
    if number < 2:
        pytest.skip(f"{number} GPU is visible, and two are needed")
    require_time(40)
    requests = images_like(lab, "resnet18", 32)
    rates: dict[tuple[int, int], float] = {}
    for instances in (1, 2):
        for devices in ([0], [0, 1]):
            options: dict[str, Any] = {"trial": False, "devices": devices, "instances_per_device": instances}
            with served(lab, "resnet18", **options) as model:
                clients = 3 * instances * len(devices)
                run_closed(model.infer, requests, clients=clients, seconds=0.5)
                rate, _ = run_closed(model.infer, requests, clients=clients, seconds=3.0)
                looks = [(each.device, each.uuid, each.done) for each in model.state().instances]
            rates[instances, len(devices)] = rate
            note(lab, "devices", devices=len(devices), per_device=instances, images_s=rate * 32, looks=looks)
    ratio = rates[1, 2] / rates[1, 1]
    note(lab, "two devices to one", ratio=ratio, with_two_each=rates[2, 2] / rates[2, 1])
    assert ratio >= 1.6


def test_a_killed_child_fails_nobodys_request_and_comes_back(lab: Lab) -> None:
    require_time(40)
    several = devices_here(lab) > 1
    options: dict[str, Any] = {"devices": "all"} if several else {"instances_per_device": 2}
    heard: list[Alarm] = []
    failed: list[Exception] = []
    over = threading.Event()
    requests = images_like(lab, "lenet", 8)
    with served(lab, "lenet", trial=False, isolate=True, **options) as model:
        model._follower.swapper._on_alarm = heard.append

        def ask() -> None:
            while not over.is_set():
                try:
                    model.infer(requests[0])
                except Exception as error:
                    failed.append(error)
                    return

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: all(each.done > 20 for each in model.state().instances if not each.reason))
            pid = model.state().instances[0].pid
            assert pid is not None
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            until(lambda: heard)
            until(lambda: model.state().alarms == ())
            back_s = time.monotonic() - began
            done = model.state().instances[0].done
            until(lambda: failed or model.state().instances[0].done > done + 20)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        instances = len(model.state().instances)
    note(lab, "kill -9 of a child", instances=instances, back_s=back_s, alarms=[str(each.kind) for each in heard])
    assert failed == []


def test_nothing_is_left_of_a_hundred_swaps(lab: Lab) -> None:
    require_time(30)
    flip = Flipper(lab)
    image = images_like(lab, "lenet", 1)[0]
    end = float(os.environ.get("MODELREG_GPU_UNTIL", "inf")) - 10
    with served(lab, "lenet", trial=False) as model:

        def swap() -> None:
            generation = flip()
            model.look_now()
            until(lambda: model.served.generation == generation)
            until(lambda: model.state().retired == 0)
            model.infer(image)

        for _ in range(3):
            swap()
        free, resident, done = current_free(model), resident_bytes(), 0
        with contextlib.suppress(StopIteration):
            while done < SWAPS and time.time() < end:
                swap()
                done += 1
        later_free, later_resident = current_free(model), resident_bytes()
    entry = note(
        lab, "after swaps", swaps=done, device_mib=(free - later_free) / MIB, host_mib=(later_resident - resident) / MIB
    )
    assert done >= 10
    assert entry["host_mib"] < 64
    if not lab.setting.is_rehearsal:
        assert entry["device_mib"] < 64
