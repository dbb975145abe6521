"""The edits of a release, on the files of this repository, and what is refused."""

import json
import subprocess
import sys
import tomllib

import pytest

from tools import release
from tools.release import ROOT, ReleaseRefused

REPOSITORY = "https://git.example.org/someone/continuo"
PROJECT = (ROOT / release.PROJECT).read_text("utf-8")


def test_version_and_repository_are_set_in_both_packages() -> None:
    project = release.set_project_version(PROJECT, "98.0.0", REPOSITORY)
    again = tomllib.loads(release.set_project_version(project, "99.1.0", REPOSITORY))
    before = tomllib.loads(PROJECT)
    assert again["project"]["version"] == "99.1.0"
    assert again["project"].pop("urls") == {
        "Repository": REPOSITORY,
        "Changelog": f"{REPOSITORY}/blob/v99.1.0/CHANGELOG.md",
    }
    for table in (again, before):
        table["project"].pop("version")
        table["project"].pop("urls", None)
    assert again == before

    source = (ROOT / release.MANIFEST).read_text("utf-8")
    manifest = json.loads(release.set_manifest_version(source, "99.1.0", REPOSITORY))
    assert manifest["version"] == "99.1.0"
    assert manifest["repository"]["url"] == f"git+{REPOSITORY}.git"
    assert (ROOT / manifest["repository"]["directory"] / "package.json").exists()
    assert manifest.keys() - {"repository"} == json.loads(source).keys() - {"repository"}


@pytest.mark.parametrize("version", ["", "1", "v99.0.0", "99.0.0rc1", "0.0.0"])
def test_version_that_is_none_or_not_later_is_refused(version: str) -> None:
    with pytest.raises(ReleaseRefused, match=f"VERSION={version}: "):
        release.set_project_version(PROJECT, version, REPOSITORY)


def test_unreleased_changes_get_a_section() -> None:
    text = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n"
    cut = release.cut_changelog(text, "0.2.0", "2026-02-03")
    assert cut == text.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 (2026-02-03)\n")
    with pytest.raises(ReleaseRefused, match="nothing is listed"):
        release.cut_changelog(cut, "0.3.0", "2026-02-04")
    with pytest.raises(ReleaseRefused, match="nothing is listed"):
        release.cut_changelog("# Changelog\n", "0.3.0", "2026-02-04")


@pytest.mark.parametrize(
    "url",
    [
        REPOSITORY,
        f"{REPOSITORY}/",
        f"{REPOSITORY}.git\n",
        "git@git.example.org:someone/continuo.git",
    ],
)
def test_repository_is_an_https_address(url: str) -> None:
    assert release.normalize_repository(url) == REPOSITORY


@pytest.mark.parametrize("url", ["", "/srv/git/continuo.git", "http://plain.example.org/a/b"])
def test_release_without_a_public_repository_is_refused(url: str) -> None:
    with pytest.raises(ReleaseRefused, match="REPOSITORY=https"):
        release.normalize_repository(url)


@pytest.mark.process
def test_refusal_is_one_line() -> None:
    command = [sys.executable, "tools/release.py", "1", "--repository", REPOSITORY]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("release: ")
    assert run.stderr.count("\n") == 1
