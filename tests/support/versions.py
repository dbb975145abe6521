"""Source code of other versions, from the history of the repository."""

import io
import subprocess
import tarfile
from pathlib import Path

from tests.support.processes import ROOT


def has_commit(commit: str) -> bool:
    """Whether git is installed, and the history contains a commit."""
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    except OSError:
        return False


def extract_commit(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder, and return it."""
    command = ["git", "archive", commit]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="fully_trusted")
    return folder
