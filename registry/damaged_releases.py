"""What mends a release whose files are not what its manifest names."""

from __future__ import annotations

from modelreg.registry.errors import ModelregError
from modelreg.registry.manifest import parse_manifest
from modelreg.registry.storage.interface import Storage


def advise_damaged_release(storage: Storage, release: str) -> str:
    """Return how a damaged release is mended: by promoting what its manifest names, where that can still be read."""
    anew = "the release is laid out anew from the blobs."
    try:
        manifest = parse_manifest(storage.read_manifest(release), where=release[:12])
    except ModelregError:
        return f"Promote its version again: {anew}"
    engines = ", ".join(f"{engine.target} {engine.precision}" for engine in manifest.listed)
    return f"Promote {manifest.model}:{manifest.version} with the same engines ({engines}) again: {anew}"
