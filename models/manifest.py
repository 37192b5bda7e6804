"""Folders that are whole or nothing: a manifest is renamed into place last.

`folder/step-<n>` counts only once it has its manifest, whatever ended its writer before.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
KEPT = 2
"""Complete folders that stay; older ones are deleted once a newer one is whole."""


def folder_of(folder: Path, step: int) -> Path:
    """Where step number `step` is kept."""
    return folder / f"step-{step:09d}"


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    """Write the manifest of `path`, all of it or none: from then on the folder is whole."""
    draft = path / f"{MANIFEST}.draft"
    with draft.open("w") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path / MANIFEST)
    for folder in (path, path.parent):
        sync_folder(folder)


def publish(path: Path, content: dict[str, Any]) -> None:
    """Write the manifest of `path`; then delete what is older than the last `KEPT`."""
    write_manifest(path, content)
    for old in complete(path.parent)[:-KEPT]:
        (old / MANIFEST).unlink()  # first: a folder half deleted must not look whole
        shutil.rmtree(old)


def sync_folder(folder: Path) -> None:
    """Names in `folder` are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def complete(folder: Path) -> list[Path]:
    """Folders with a manifest, oldest first."""
    return sorted(found.parent for found in folder.glob(f"step-*/{MANIFEST}"))


def latest(folder: Path) -> Path | None:
    """The newest complete folder, if there is one."""
    return max(complete(folder), default=None)
