"""Registries to hurt: one template for each kind of store, and cheap copies of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelreg.config.settings import create_home
from modelreg_testing import onnx_models
from modelreg_testing.campaign.checker import read_folder, sha256, temporary_names
from modelreg_testing.cli import CliResult, Shop, run_cli
from modelreg_testing.registry import make_database
from modelreg_testing.s3_server import BUCKET, S3Server

MODEL, CHANNEL = "lenet", "production"
VERSIONS = 4
"""Versions of `lenet`; the first three were active in turn, so two rollbacks are possible."""


class RemoteShop(Shop):
    """A registry whose store is in S3."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self.path = folder / "home"
        self.path.mkdir(parents=True)
        store = server.make_store()
        make_database(self.path).close()
        self.home = create_home(self.path, store_url=store.url)


@dataclass(frozen=True)
class Place:
    """One registry of a trial: its folder, and how to look into its store from outside."""

    folder: Path
    server: S3Server | None = None
    prefix: str = ""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def database(self) -> Path:
        return self.home / "registry.db"

    @property
    def served(self) -> Path:
        return self.folder / "served"

    def cli(self, *words: object) -> CliResult:
        """Run a command in this process."""
        return run_cli(*words, home=self.home)

    def objects(self) -> dict[str, bytes]:
        """Return the store's bytes, read without modelreg."""
        if self.server is None:
            return read_folder(self.home / "store")
        return read_objects(self.server.boto, self.prefix)

    def marks(self) -> dict[str, str]:
        """Return what differs when any byte of the store does: digests, or the ETags that the server gives."""
        if self.server is None:
            return {name: sha256(data) for name, data in self.objects().items()}
        pages = self.server.boto.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix)
        return {
            entry["Key"]: f"{entry['ETag']} {entry['LastModified']}" for p in pages for entry in p.get("Contents", ())
        }

    def temporary(self) -> list[str]:
        """Return temporary names in the store: files of a folder, unfinished uploads of S3."""
        if self.server is None:
            return temporary_names(self.home / "store")
        found = self.server.boto.list_multipart_uploads(Bucket=BUCKET, Prefix=self.prefix).get("Uploads", ())
        return [upload["Key"] for upload in found]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.server is not None:
            client = self.server.boto
            keys = list_keys(client, self.prefix)
            for first in range(0, len(keys), 1000):
                named = [{"Key": key} for key in keys[first : first + 1000]]
                client.delete_objects(Bucket=BUCKET, Delete={"Objects": named, "Quiet": True})


@dataclass(frozen=True)
class Template:
    """A registry at rest; `copy` makes another one like it."""

    place: Place

    @property
    def store(self) -> str:
        return "local" if self.place.server is None else "s3"

    @contextmanager
    def copy(self, name: str) -> Iterator[Place]:
        """Give a copy that is removed afterwards."""
        folder = self.place.folder.parent / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.place.folder, folder, symlinks=True)
        made = Place(folder)
        if self.place.server is not None:
            made = Place(folder, self.place.server, f"campaign/{os.urandom(6).hex()}/")
            config = made.home / "config.toml"
            text = config.read_text(encoding="utf-8")
            assert self.place.prefix.rstrip("/") in text
            config.write_text(text.replace(self.place.prefix.rstrip("/"), made.prefix.rstrip("/")), encoding="utf-8")
            self._copy_objects(made)
        try:
            yield made
        finally:
            made.remove()

    def _copy_objects(self, made: Place) -> None:
        assert self.place.server is not None
        client = self.place.server.boto
        with ThreadPoolExecutor(8) as pool:
            for done in [
                pool.submit(client.put_object, Bucket=BUCKET, Key=made.prefix + name, Body=data)
                for name, data in self.place.objects().items()
            ]:
                done.result()


def make_template(folder: Path, server: S3Server | None) -> Template:
    """Make a registry with versions, a channel with a history, a network to build, and a host that has pulled."""
    folder.mkdir(parents=True)
    shop = Shop(folder) if server is None else RemoteShop(folder, server)
    for word in range(VERSIONS):
        shop.add_version(model=MODEL, word=word)
    place = Place(folder)
    if server is not None:
        url = shop.home.store_url
        place = Place(folder, server, url.partition("?")[0].removeprefix(f"s3://{BUCKET}/") + "/")
    network = folder / "network"
    onnx_models.save(onnx_models.mlp(), network / "mlp.onnx")
    onnx_models.save_with_external_data(onnx_models.mlp(seed=1, hidden=4096), network / "large" / "mlp.onnx")
    must(place, "register", "mlp", network / "mlp.onnx")
    for number in (1, 2):
        must(place, "promote", f"{MODEL}:{number}", "--to", CHANNEL)
    must(place, "pull", f"{MODEL}@{CHANNEL}", "--into", place.served, "--target", "cpu")
    must(place, "promote", f"{MODEL}:3", "--to", CHANNEL)
    return Template(place)


def must(place: Place, *words: object) -> CliResult:
    """Run a command that has to succeed."""
    done = place.cli(*words)
    assert done.code == 0, f"{words}: {done.err}"
    return done


def list_keys(client: Any, prefix: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def read_objects(client: Any, prefix: str) -> dict[str, bytes]:
    """Return every object below a prefix, by the path below it; temporary ones are left out."""

    def read(key: str) -> bytes:
        data: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return data

    keys = list_keys(client, prefix)
    with ThreadPoolExecutor(8) as pool:
        return {key[len(prefix) :]: data for key, data in zip(keys, pool.map(read, keys), strict=True)}
