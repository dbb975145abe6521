"""Build hook of hatchling: the web page and the native decoder in the distributions.

Neither a wheel nor an sdist is built without the page. In a checkout, it is built from `web/` if it
is older than its sources. An sdist has no `web/`: the page in it was built before.

The native decoder is compiled for a wheel, for classes of processors of this machine and of those
with an installed cross compiler (`engine/device/native/prebuild.py`). The server chooses one of the
libraries when it starts, so that the wheel fits every machine; where none fits, it compiles the
sources. CONTINUO_PREBUILT_HEAD_SIZES, numbers separated by commas, limits the libraries to models
with these head sizes.
"""

import os
import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = "continuo/realtime/server/assets/index.html"
NATIVE = "continuo/engine/device/native"
HEAD_SIZES_VARIABLE = "CONTINUO_PREBUILT_HEAD_SIZES"


class BuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build page and libraries. Ends the build with an error if there is no page. An editable
        installation needs neither: its server reads the folder when it starts."""
        self._libraries = Path(tempfile.mkdtemp(prefix="continuo-native-"))
        if version == "editable":
            return
        self._build_page()
        if self.target_name == "wheel":
            build_data["force_include"] |= {
                str(library): f"{NATIVE}/prebuilt/{library.name}"
                for library in self._compile_libraries()
            }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        shutil.rmtree(self._libraries)

    def _build_page(self) -> None:
        root = Path(self.root)
        if (root / "web/package.json").exists() and shutil.which("sh"):
            built = subprocess.run(
                ["sh", "tools/build_web.sh"], cwd=root, capture_output=True, text=True
            )
            if built.returncode:
                self.app.abort(f"The web page cannot be built. {built.stderr.strip()}")
        if not (root / PAGE).exists():
            self.app.abort(f"{PAGE} is missing: a distribution without the web page is not built.")

    def _compile_libraries(self) -> list[Path]:
        """Return the compiled libraries; none, with a warning, if there is no compiler."""
        prebuild = runpy.run_path(str(Path(self.root) / NATIVE / "prebuild.py"))
        stated = os.environ.get(HEAD_SIZES_VARIABLE)
        sizes = prebuild["HEAD_SIZES"] if stated is None else [*map(int, stated.split(","))]
        try:
            libraries: list[Path] = prebuild["prebuild"](self._libraries, sizes)
        except subprocess.SubprocessError as error:
            reason = getattr(error, "stderr", None) or error
            self.app.abort(f"The native decoder cannot be compiled. {reason}")
        if not libraries:
            self.app.display_warning("No C compiler: the wheel has no native decoder for a CPU.")
        return libraries
