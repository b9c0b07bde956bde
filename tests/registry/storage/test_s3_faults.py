"""Swaps and transfers while answers are lost, refused, late or cut, and writers killed at every request."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    IntegrityError,
    ModelregError,
    StorageError,
)
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.s3 import S3Storage
from modelreg_testing.s3_proxy import Fault, Proxy, Seen, proxy_to
from modelreg_testing.s3_server import BUCKET, LIMITS, S3Server, reopened
from modelreg_testing.storage import chain_of, manifest_of, pointer_after, published, stored_files
from modelreg_testing.storage_faults import exit_code, in_child, start_child

QUICK = replace(LIMITS, tries=3, first_wait_s=0.005, longest_wait_s=0.02, read_timeout_s=5.0, swap_patience_s=10.0)
LARGE = bytes(range(256)) * (9 << 12)
PASSING = (Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.SLOW_DOWN, Fault.TOO_MANY, Fault.ERROR, Fault.ERROR_AFTER)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with proxy_to(s3_server.endpoint_url) as made:
        yield made


class Place:
    """One store, seen directly and through the proxy, at generation 1."""

    def __init__(self, server: S3Server, proxy: Proxy) -> None:
        self.direct = server.make_store(limits=QUICK)
        self.release = published(self.direct)
        (self.first,) = chain_of(self.direct, length=1, release=self.release)
        self.proxy = proxy
        location = replace(self.direct.location, endpoint_url=proxy.endpoint_url)
        self.through = S3Storage(location, limits=QUICK)
        proxy.seen.clear()

    def swap(self, *, current: Pointer | None = None) -> Pointer:
        new = pointer_after(current or self.first, release=self.release)
        self.through.swap_pointer(new, expected=current or self.first)
        return new

    def served(self) -> Pointer:
        found = self.direct.read_pointer("lenet", "production")
        assert found is not None
        return found


@pytest.fixture
def place(s3_server: S3Server, proxy: Proxy) -> Place:
    return Place(s3_server, proxy)


def puts_pointer(seen: Seen) -> bool:
    return seen.method == "PUT" and seen.is_pointer


def puts_history(seen: Seen) -> bool:
    return seen.method == "PUT" and seen.is_history


def any_request(_seen: Seen) -> bool:
    return True


# -- swaps -------------------------------------------------------------------------------------------------
def test_a_swap_is_four_requests(place: Place) -> None:
    place.swap()
    assert [f"{seen.method} {seen.path.rpartition('/')[2]}" for seen in place.proxy.seen] == [
        "GET pointer.json",
        "GET manifest.json",
        "PUT 000000000002.json",
        "PUT pointer.json",
    ]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: str(fault.name))
def test_a_fault_at_any_request_of_a_swap_is_survived(place: Place, fault: Fault, times: int) -> None:
    current = place.first
    for number in range(1, 5):
        place.proxy.seen.clear()
        left = [times]

        def plan(seen: Seen, number: int = number, left: list[int] = left) -> Fault:
            if seen.number >= number and left[0]:
                left[0] -= 1
                return fault
            return Fault.NONE

        place.proxy.plan = plan
        current = place.swap(current=current)
        assert place.served() == current
    assert place.direct.list_generations("lenet", "production") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("matches", [puts_history, puts_pointer])
def test_one_s_own_swap_is_no_conflict_when_its_answer_was_lost(place: Place, matches: Callable[[Seen], bool]) -> None:
    place.proxy.plan_once(Fault.RESET_AFTER, matches)
    done = place.swap()
    assert place.served() == done


def test_a_swap_overtaken_while_its_answer_was_lost_is_still_ours(place: Place) -> None:
    """Our pointer is written, the answer is lost, and somebody goes on from it before we look."""

    def overtaken(seen: Seen) -> Fault:
        if puts_pointer(seen):
            place.proxy.plan = overtake
            return Fault.RESET_AFTER
        return Fault.NONE

    def overtake(_seen: Seen) -> Fault:
        place.proxy.plan = lambda _seen: Fault.NONE
        chained = pointer_after(place.served(), release=place.release)
        place.direct.swap_pointer(chained, expected=place.served())
        return Fault.NONE

    place.proxy.plan = overtaken
    ours = place.swap()
    assert place.served().generation == 3
    assert place.direct.read_history("lenet", "production", 2) == ours


@pytest.mark.parametrize("held", [puts_history, puts_pointer])
def test_a_write_that_arrives_late_changes_nothing(place: Place, held: Callable[[Seen], bool]) -> None:
    place.proxy.plan_once(Fault.LATE, held)
    done = place.swap()
    after = pointer_after(done, release=place.release)
    place.direct.swap_pointer(after, expected=done)
    assert place.proxy.deliver_late() == [412]
    assert place.served() == after
    assert place.direct.read_history("lenet", "production", 2) == done


def test_a_reservation_that_arrives_after_its_writer_gave_up_is_what_it_called_unknown(place: Place) -> None:
    def lose(seen: Seen) -> Fault:
        return Fault.LATE if puts_history(seen) else Fault.NONE

    place.proxy.plan = lose
    with pytest.raises(ActivationUnknownError, match="may yet") as caught:
        place.swap()
    assert caught.value.exit_code == 5
    assert place.served() == place.first
    assert 200 in place.proxy.deliver_late()
    completed = place.direct.complete_reserved("lenet", "production")
    assert completed is not None
    assert completed.generation == 2


def test_a_server_that_goes_away_after_the_reservation_is_unknown_and_the_next_one_finishes(place: Place) -> None:
    def away(seen: Seen) -> Fault:
        return Fault.RESET_BEFORE if any(puts_history(each) for each in place.proxy.seen[:-1]) else Fault.NONE

    place.proxy.plan = away
    started = time.monotonic()
    with pytest.raises(ActivationUnknownError, match="generation 2"):
        place.swap()
    assert time.monotonic() - started < QUICK.swap_patience_s
    assert place.served() == place.first
    done = place.direct.complete_reserved("lenet", "production")
    assert done is not None
    assert done.generation == 2


def test_a_server_that_is_away_before_anything_is_written_is_a_failure(place: Place) -> None:
    place.proxy.plan = lambda _seen: Fault.RESET_BEFORE
    with pytest.raises(StorageError) as caught:
        place.swap()
    assert not isinstance(caught.value, ActivationUnknownError)
    assert "network" in caught.value.hint()
    assert place.direct.complete_reserved("lenet", "production") == place.first


def test_a_loser_is_told_who_won_though_every_answer_to_it_was_lost(place: Place) -> None:
    winner = pointer_after(place.first, release=place.release, actor="grace")

    def beaten(seen: Seen) -> Fault:
        if puts_history(seen):
            if place.served() == place.first:
                place.direct.swap_pointer(winner, expected=place.first)
            return Fault.RESET_AFTER
        return Fault.NONE

    place.proxy.plan = beaten
    with pytest.raises(ActivationConflictError, match="grace"):
        place.swap()
    assert place.served() == winner


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CHANGED], ids=["cut", "changed"])
def test_a_pointer_that_comes_damaged_is_never_believed(place: Place, fault: Fault) -> None:
    place.proxy.plan_once(fault, lambda seen: seen.method == "GET" and seen.is_pointer, times=1)
    try:
        found = place.through.read_pointer("lenet", "production")
    except IntegrityError:
        found = place.through.read_pointer("lenet", "production")
    assert found == place.first


@pytest.mark.parametrize("matches", [puts_history, puts_pointer])
def test_a_swap_whose_readings_come_damaged_is_unknown_and_not_a_damaged_store(
    place: Place, matches: Callable[[Seen], bool]
) -> None:
    """The server acts, says so with an error under status 200, and everything read back is one too."""

    def garble(seen: Seen) -> Fault:
        return Fault.ERROR_AS_200 if any(matches(each) for each in place.proxy.seen) else Fault.NONE

    place.proxy.plan = garble
    with pytest.raises(ActivationUnknownError, match="generation 2"):
        place.swap()
    done = place.direct.complete_reserved("lenet", "production")
    assert done is not None
    assert done.generation == 2


# -- transfers ---------------------------------------------------------------------------------------------
@pytest.fixture
def parts(place: Place) -> S3Storage:
    limits = replace(QUICK, look_first_bytes=0, single_bytes=1 << 20, part_bytes=5 << 20, workers=2)
    return S3Storage(place.through.location, limits=limits)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*PASSING, Fault.CUT], ids=lambda fault: str(fault.name))
def test_a_fault_at_any_request_of_a_transfer_is_survived(
    place: Place, parts: S3Storage, fault: Fault, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    for number in range(1, 9):
        place.proxy.seen.clear()
        place.proxy.plan_once(fault, lambda seen, number=number: seen.number == number)  # type: ignore[misc]
        info = parts.put_file(tmp_path / "source")
        assert parts.fetch_blob(info.digest, tmp_path / f"out-{number}") == len(LARGE)
        assert (tmp_path / f"out-{number}").read_bytes() == LARGE
        place.proxy.plan = lambda _seen: Fault.NONE
        key = place.direct.location.key(f"blobs/sha256/{info.digest[:2]}/{info.digest}")
        parts._objects.client._client().delete_object(Bucket=BUCKET, Key=key)


@pytest.mark.parametrize("fault", [Fault.ERROR_AS_200, Fault.RESET_AFTER, Fault.ERROR_AFTER, Fault.LATE])
def test_a_completion_that_is_not_heard_of_is_looked_for(
    place: Place, parts: S3Storage, fault: Fault, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    place.proxy.plan_once(fault, lambda seen: seen.method == "POST" and "uploadId" in seen.path)
    info = parts.put_file(tmp_path / "source")
    assert place.direct.verify_blob(info.digest) == len(LARGE)
    place.proxy.deliver_late()
    assert place.direct.verify_blob(info.digest) == len(LARGE)


def test_bytes_changed_on_the_way_are_noticed(place: Place, tmp_path: Path) -> None:
    info = place.direct.put_bytes(b"plan" * 1000)
    place.proxy.plan_once(Fault.CHANGED, any_request, times=9)
    with pytest.raises(IntegrityError, match=info.digest):
        place.through.fetch_blob(info.digest, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_upload_cut_short_goes_on_from_the_parts_that_arrived(
    place: Place, parts: S3Storage, s3_server: S3Server, tmp_path: Path
) -> None:
    data = os.urandom(16 << 20)
    (tmp_path / "source").write_bytes(data)
    sent: list[str] = []

    def cut(seen: Seen) -> Fault:
        if "partNumber=3" in seen.path:
            return Fault.RESET_BEFORE
        sent.extend([seen.path] if "partNumber=" in seen.path else [])
        return Fault.NONE

    place.proxy.plan = cut
    with pytest.raises(StorageError):
        parts.put_file(tmp_path / "source")
    place.proxy.plan = lambda _seen: Fault.NONE
    place.proxy.seen.clear()
    done: list[int] = []
    info = parts.put_file(tmp_path / "source", progress=done.append)
    again = [seen.path for seen in place.proxy.seen if "partNumber=" in seen.path]
    assert sum(done) == len(data)
    assert len(sent) + len(again) == 4
    assert any("partNumber=1" in path for path in sent)
    assert not any("partNumber=1" in path for path in again)
    assert place.direct.verify_blob(info.digest) == len(data)


# -- kills -------------------------------------------------------------------------------------------------
def promote(store: S3Storage) -> object:
    files = stored_files(store, {"cpu/a": b"one", "b": b"two"})
    release = store.publish_release(manifest_of(files, note="new"), files)
    current = store.complete_reserved("lenet", "production")
    new = pointer_after(current, release=release)
    store.swap_pointer(new, expected=current)
    return new


def upload(store: S3Storage) -> object:
    path = Path(os.environ["MODELREG_TEST_SOURCE"])
    return store.put_file(path)


def check_objects(server: S3Server, store: S3Storage) -> int:
    """Read all objects of a store without modelreg, check every invariant, and return the generation served."""
    import hashlib

    client, prefix = server.boto, store.location.key("")
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
    objects = {
        entry["Key"][len(prefix) :]: client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()
        for entry in listed
    }
    for key, data in objects.items():
        digest = hashlib.sha256(data).hexdigest()
        assert not key.startswith("blobs/") or key.rpartition("/")[2] == digest
        assert not key.startswith("releases/") or key.split("/")[1] == digest
    history = {int(Path(key).stem): json.loads(data) for key, data in objects.items() if "/history/" in key}
    assert sorted(history) == list(range(1, len(history) + 1))
    pointer = objects["channels/lenet/production/pointer.json"]
    at = int(json.loads(pointer)["generation"])
    assert objects[f"channels/lenet/production/history/{at:012d}.json"] == pointer
    assert len(history) - at in (0, 1)
    for number, body in history.items():
        assert body["previous_txn"] == (history[number - 1]["txn"] if number > 1 else "")
        assert f"releases/{body['release']}/manifest.json" in objects
    return at


@pytest.mark.slow
@pytest.mark.parametrize("operation", [promote, upload], ids=lambda operation: operation.__name__)
def test_a_kill_before_any_request_leaves_a_whole_store(
    s3_server: S3Server, operation: Callable[[S3Storage], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    monkeypatch.setenv("MODELREG_TEST_SOURCE", str(tmp_path / "source"))
    limits = replace(
        QUICK, look_first_bytes=1, single_bytes=1 << 20, part_bytes=5 << 20, workers=2, abandoned_after_s=0
    )
    served, at, code = set(), 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        at += 1
        store = s3_server.make_store(limits=limits)
        chain_of(store, length=1, release=published(store, note="old"))

        def kill(number: int, _operation: str, _key: str, at: int = at) -> None:
            if number == at + 1:  # the first one opened the store
                os.kill(os.getpid(), signal.SIGKILL)

        code = in_child(lambda store=store, kill=kill: operation(reopened(store, on_step=kill, limits=limits)))  # type: ignore[misc]
        assert code in (0, -signal.SIGKILL)
        served.add(check_objects(s3_server, store))
        for again in {promote, operation}:
            again(store)
        store.sweep_leftovers()
        assert store.count_leftovers() == 0
        served.add(check_objects(s3_server, store))
        assert at < 40
    assert at > 5
    assert served >= {1, 2}


# -- races -------------------------------------------------------------------------------------------------
PROCESSES, TRIES = 8, 4


def swap_often(store: S3Storage, release: str, outcome: Path) -> None:
    won, lost = [], 0
    mine = reopened(store)
    for _ in range(TRIES):
        current = mine.read_pointer("lenet", "production")
        new = pointer_after(current, release=release, actor=str(os.getpid()))
        try:
            mine.swap_pointer(new, expected=current)
        except ActivationConflictError:
            lost += 1
        else:
            won.append(new.generation)
    outcome.write_text(json.dumps([won, lost]))


@pytest.mark.slow
def test_eight_processes_lose_no_swap_and_readers_see_whole_generations(s3_server: S3Server, tmp_path: Path) -> None:
    store = s3_server.make_store()
    release = published(store)
    chain_of(store, length=1, release=release)
    stop, reads = threading.Event(), Counter[int]()

    def read() -> None:
        seen, mine = 0, reopened(store)
        while not stop.is_set():
            pointer = mine.read_pointer("lenet", "production")
            assert pointer is not None
            assert pointer.generation >= seen, "a reader went backwards"
            seen = pointer.generation
            mine.read_manifest(pointer.release)
            reads[seen] += 1

    readers = [threading.Thread(target=read) for _ in range(2)]
    files = [tmp_path / f"outcome-{number}" for number in range(PROCESSES)]
    children = [start_child(lambda file=file: swap_often(store, release, file)) for file in files]  # type: ignore[misc]
    for reader in readers:
        reader.start()
    codes = [exit_code(child) for child in children]
    stop.set()
    for reader in readers:
        reader.join()
    assert codes == [0] * PROCESSES
    outcomes = [json.loads(file.read_text()) for file in files]
    wins = sorted(generation for won, _ in outcomes for generation in won)
    assert wins == store.list_generations("lenet", "production")[1:]
    assert len(wins) + sum(lost for _, lost in outcomes) == PROCESSES * TRIES
    assert check_objects(s3_server, store) == len(wins) + 1
    assert sum(reads.values()) > 10


def test_a_refusal_is_told_as_it_is(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelreg.registry.storage.s3_client._clients", type(_clients())())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ModelregError, match="SignatureDoesNotMatch") as caught:
        s3_server.make_store()
    assert "credentials" in caught.value.hint()


def _clients() -> object:
    from modelreg.registry.storage import s3_client

    return s3_client._clients
