"""Make a release: version, changelog section, wheel, sdist and npm tarball. Publishes nothing.

Usage: make release VERSION=0.2.0 [REPOSITORY=https://github.com/OWNER/continuo]

Sets the version in pyproject.toml and in the package.json of the client library, with the address
of the repository (default: that of the git remote `origin`), and gives what is unreleased in
CHANGELOG.md a section of its own. The distributions are built into dist/. If that fails, the
changed files are restored.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENT = "web/src/client"
PROJECT, MANIFEST, CHANGELOG = "pyproject.toml", f"{CLIENT}/package.json", "CHANGELOG.md"
VERSION = re.compile(r"\d+\.\d+\.\d+")
PROJECT_VERSION = re.compile(r'^version = "(.*)"$', re.MULTILINE)
URLS = re.compile(r"^\[project\.urls\]\n(?:.+\n)*\n", re.MULTILINE)
UNRELEASED = "## Unreleased\n"


class ReleaseRefused(Exception):
    """A release cannot be made. The message says why."""


def set_project_version(project: str, version: str, repository: str) -> str:
    """Return pyproject.toml with this version and repository. Raises ReleaseRefused if the version
    is not later than the present one."""
    found = PROJECT_VERSION.search(project)
    if found is None or not VERSION.fullmatch(version):
        raise ReleaseRefused(f"VERSION={version}: expected three numbers, as 0.2.0")
    if _numbers(version) <= _numbers(found[1]):
        raise ReleaseRefused(f"VERSION={version}: the present version is {found[1]}")
    changed = PROJECT_VERSION.sub(f'version = "{version}"', project, count=1)
    urls = (
        f'[project.urls]\nRepository = "{repository}"\n'
        f'Changelog = "{repository}/blob/v{version}/CHANGELOG.md"\n\n'
    )
    changed = URLS.sub("", changed)
    return changed.replace("[project.scripts]\n", f"{urls}[project.scripts]\n", 1)


def set_manifest_version(manifest: str, version: str, repository: str) -> str:
    """Return the package.json of the client library with this version and repository."""
    fields = json.loads(manifest)
    fields["version"] = version
    fields["repository"] = {
        "type": "git",
        "url": f"git+{repository}.git",
        "directory": CLIENT,
    }
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def cut_changelog(changelog: str, version: str, date: str) -> str:
    """Return the changelog with what is unreleased under `version`. Raises ReleaseRefused if that
    is nothing."""
    head, found, rest = changelog.partition(UNRELEASED)
    unreleased = rest.partition("\n## ")[0]
    if not found or not unreleased.strip():
        raise ReleaseRefused(f"{CHANGELOG}: nothing is listed under {UNRELEASED.strip()!r}")
    return f"{head}{UNRELEASED}\n## {version} ({date})\n{rest}"


def normalize_repository(url: str) -> str:
    """Return the https address of a repository. Raises ReleaseRefused for one that has none."""
    url = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", url.strip())
    url = url.removesuffix("/").removesuffix(".git")
    if not re.fullmatch(r"https://[^/\s]+/\S+", url):
        raise ReleaseRefused(
            "the address of the repository is part of a release: set REPOSITORY=https://…, or the "
            "git remote `origin`"
        )
    return url


def build(dist: Path) -> list[Path]:
    """Build all distributions into `dist`. Returns their files."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(dist), "-t", "sdist", "-t", "wheel")
    _run("npm", "pack", "--silent", "--pack-destination", str(dist), cwd=ROOT / CLIENT)
    return sorted(dist.iterdir())


def release(version: str, repository: str) -> list[Path]:
    """Edit the files of a release and build it. Returns the distributions. Raises ReleaseRefused
    and CalledProcessError, with the files as they were."""
    if _output("git", "status", "--porcelain"):
        raise ReleaseRefused("the working tree has changes: commit them first")
    repository = normalize_repository(repository or _output("git", "remote", "get-url", "origin"))
    before = {name: (ROOT / name).read_text("utf-8") for name in (PROJECT, MANIFEST, CHANGELOG)}
    date = datetime.now(UTC).date().isoformat()
    after = {
        PROJECT: set_project_version(before[PROJECT], version, repository),
        MANIFEST: set_manifest_version(before[MANIFEST], version, repository),
        CHANGELOG: cut_changelog(before[CHANGELOG], version, date),
    }
    try:
        _write(after)
        return build(ROOT / "dist")
    except BaseException:
        _write(before)
        raise


def _write(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (ROOT / name).write_text(text, "utf-8")


def _run(*command: str, cwd: Path = ROOT) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def main(arguments: Sequence[str]) -> int:
    """Make a release. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Make a release; publishes nothing.")
    parser.add_argument("version", nargs="?", default="")
    parser.add_argument("--repository", default="")
    options = parser.parse_args(arguments)
    try:
        files = release(options.version, options.repository)
    except (ReleaseRefused, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(f"  {file.stat().st_size / 1e6:5.1f} MB  {file.relative_to(ROOT)}")
    tag, python, npm = f"v{options.version}", "dist/continuo_server-*", "dist/continuo-client-*.tgz"
    print(
        "\nNothing is committed or published. After a look at `git diff`:\n\n"
        f"  git commit -am 'release: {tag}' && git tag {tag} && git push --follow-tags\n"
        f"  twine upload {python}\n"
        f"  npm publish --access public {npm}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
