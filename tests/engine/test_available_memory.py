"""Memory that a process can take, from files as Linux has them."""

from pathlib import Path

import pytest

from continuo.engine import available_memory_bytes

MACHINE_BYTES = 8_000_000 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/service.slice/continuo.service").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 9000000 kB\nMemFree: 100 kB\nMemAvailable: 8000000 kB\nHugePages_Total: 0\n"
    )
    return tmp_path


def enter_cgroup(root: Path, path: str) -> None:
    (root / "proc/self/cgroup").write_text(f"4:memory:/other\n0::/{path}\n")


def limit_cgroup(root: Path, path: str, limit: str, used: int, cached: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / path
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cached}\ninactive_file {cached}\n")


def test_without_a_system_that_says_so_it_is_unknown(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) is None


def test_without_cgroups_it_is_that_of_the_machine(root: Path) -> None:
    assert available_memory_bytes(root) == MACHINE_BYTES
    enter_cgroup(root, "service.slice")
    assert available_memory_bytes(root) == MACHINE_BYTES


def test_container_has_what_its_limit_leaves(root: Path) -> None:
    enter_cgroup(root, "")
    limit_cgroup(root, "", "max", 5000)
    assert available_memory_bytes(root) == MACHINE_BYTES
    limit_cgroup(root, "", "1000000", 300_000, cached=100_000)
    assert available_memory_bytes(root) == 800_000
    limit_cgroup(root, "", "1000000", 1_200_000)
    assert available_memory_bytes(root) == 0
    limit_cgroup(root, "", str(10**15), 0)
    assert available_memory_bytes(root) == MACHINE_BYTES


def test_limit_of_an_outer_cgroup_counts_too(root: Path) -> None:
    enter_cgroup(root, "service.slice/continuo.service")
    limit_cgroup(root, "service.slice/continuo.service", "900000", 100_000)
    assert available_memory_bytes(root) == 800_000
    limit_cgroup(root, "service.slice", "1000000", 400_000)
    assert available_memory_bytes(root) == 600_000
