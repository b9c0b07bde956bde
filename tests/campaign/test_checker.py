"""The checker itself: it finds each kind of fault when it is planted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from modelreg_testing.campaign.checker import Broken, Reader, check_database, check_objects, check_settled
from modelreg_testing.campaign.homes import CHANNEL, MODEL, Template

FOLDER = f"channels/{MODEL}/{CHANNEL}"
Objects = dict[str, bytes]


def flip_blob(objects: Objects) -> None:
    name = next(name for name in objects if name.startswith("blobs/"))
    objects[name] += b"!"


def lose_history(objects: Objects) -> None:
    del objects[f"{FOLDER}/history/000000000002.json"]


def swap_history(objects: Objects) -> None:
    objects[f"{FOLDER}/history/000000000002.json"] = objects[f"{FOLDER}/history/000000000001.json"]


def lose_pointer(objects: Objects) -> None:
    del objects[f"{FOLDER}/pointer.json"]


def tear_pointer(objects: Objects) -> None:
    objects[f"{FOLDER}/pointer.json"] = objects[f"{FOLDER}/pointer.json"][:100]


def edit_pointer(objects: Objects) -> None:
    objects[f"{FOLDER}/pointer.json"] = objects[f"{FOLDER}/pointer.json"].replace(b'"promote"', b'"rollback"')


def lose_release_file(objects: Objects) -> None:
    release = json.loads(objects[f"{FOLDER}/pointer.json"])["release"]
    names = [name for name in objects if name.startswith(f"releases/{release}/") and not name.endswith("manifest.json")]
    objects[names[0]] = b"another"


def go_back(objects: Objects) -> None:
    objects[f"{FOLDER}/pointer.json"] = objects[f"{FOLDER}/history/000000000001.json"]


@pytest.mark.parametrize(
    ("fault", "invariant"),
    [
        (flip_blob, "I6"),
        (lose_history, "I4"),
        (swap_history, "I4"),
        (lose_pointer, "I1"),
        (tear_pointer, "I1"),
        (edit_pointer, "I1"),
        (lose_release_file, "I1"),
        (go_back, "I4"),
    ],
)
def test_a_planted_fault_is_found(local: Template, fault: Callable[[Objects], None], invariant: str) -> None:
    objects = local.place.objects()
    check_objects(objects)
    fault(objects)
    with pytest.raises(Broken, match=rf"^{invariant}"):
        check_objects(objects)


def test_halves_that_tell_different_histories_are_found(local: Template) -> None:
    store, database = check_objects(local.place.objects()), check_database(local.place.database)
    check_settled(store, database)
    database.activations[f"{MODEL}@{CHANNEL}"].pop(2)  # type: ignore[attr-defined]
    with pytest.raises(Broken, match=r"^I5"):
        check_settled(store, database)


def test_a_reader_counts_what_it_must_never_see(local: Template) -> None:
    objects = local.place.objects()
    older, newer = (objects[f"{FOLDER}/history/{number:012d}.json"] for number in (1, 3))
    reader = Reader()
    manifests = {name.split("/")[1]: data for name, data in objects.items() if name.endswith("/manifest.json")}
    for pointer in (newer, older, None, newer[:50]):
        reader.note(pointer, manifests.get)
    reader.note(newer, lambda _release: None)
    assert (reader.reads, reader.bad) == (5, {"backwards": 1, "missing": 1, "torn": 1, "mixed": 1})


def test_the_checker_imports_nothing_of_modelreg() -> None:
    program = (
        "import sys; import modelreg_testing.campaign.checker;"
        "print([name for name in sys.modules if name.split('.')[0] in ('modelreg', 'sqlalchemy', 'boto3')])"
    )
    path = ":".join(each for each in sys.path if each)
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert told.stdout.strip() == "[]"
