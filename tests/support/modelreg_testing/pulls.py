"""Releases to pull, a source that is there, and a server's look at the folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.manifest import make_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import Precision
from modelreg.runtime.following import pull_once
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import Pulled, PullRequest
from modelreg_testing.records import TRT, make_engine, make_version
from modelreg_testing.storage import pointer_after, stored_files
from modelreg_testing.storage_faults import overwrite


def _lead_elsewhere(link: Path) -> None:
    link.unlink()
    link.symlink_to("releases")


SPOILED: tuple[Callable[[Path], object], ...] = (
    lambda root: overwrite(root / "current" / "cpu" / "plan", b""),
    lambda root: overwrite(root / "current" / "manifest.json", b"{}"),
    lambda root: (root / "current").unlink(),
    lambda root: _lead_elsewhere(root / "current"),
    lambda root: (root / "state.json").write_text("{}"),
    lambda root: (root / "state.json").write_text("nonsense"),
    lambda root: (root / "state.json").write_text('{"txn": "other"}'),
    lambda root: shutil.rmtree(root / "releases"),
)
"""What makes a folder that `pull` filled incomplete, each in another way."""

REQUEST = PullRequest(store_url="here", model="lenet", channel="production", host_targets=("sm_90", "cpu"))


def released(storage: Storage, word: str, *, shared: bytes = b"weights " * 999) -> str:
    """Publish a release for two targets whose CPU engine has a file that all releases share."""
    made = make_manifest(
        make_version(), {"cpu": make_engine(1), "sm_90": make_engine(2, Precision.FP16, target="sm_90", toolchain=TRT)}
    )
    engines = []
    for engine in made.engines:
        content = {f"{engine.target}/plan": f"plan {word} {engine.target}".encode()}
        if engine.target == "cpu":
            content["cpu/data/weights"] = shared
        engines.append(engine._replace(files=stored_files(storage, content)))
    manifest = made._replace(engines=tuple(engines))
    return storage.publish_release(manifest.to_bytes(), manifest.files)


def activate(storage: Storage, word: str) -> Pointer:
    """Publish a release and make it active."""
    current = storage.read_pointer("lenet", "production")
    new = pointer_after(current, release=released(storage, word))
    storage.swap_pointer(new, expected=current)
    return new


@dataclass(frozen=True)
class From:
    """A source that is always there."""

    storage: Storage

    def connect(self) -> Storage:
        return self.storage

    def open(self) -> Storage:
        return self.storage


def pull(storage: Storage, root: Path, request: PullRequest = REQUEST) -> Pulled:
    return pull_once(From(storage), PullFolder(root), request)


def check_folder(root: Path) -> int:
    """Read a folder as a server does, check every file of what is current, and return its generation; 0: nothing."""
    if not (root / "pointer.json").exists():
        return 0
    pointer = json.loads((root / "pointer.json").read_bytes())
    linked = {(root / "current").readlink().name} if (root / "current").is_symlink() else set()
    for release in {pointer["release"], *linked}:
        folder = root / "releases" / release
        document = (folder / "manifest.json").read_bytes()
        assert hashlib.sha256(document).hexdigest() == release
        for engine in json.loads(document)["engines"]:
            for file in engine["files"]:
                assert hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest() == file["sha256"]
    return int(pointer["generation"])


def blob_of(local: LocalStorage, content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    return local.root / "blobs" / "sha256" / digest[:2] / digest
