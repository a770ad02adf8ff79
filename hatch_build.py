"""The optional compiled wheel: HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel --no-deps .

The modules that pyproject.toml lists are compiled with mypyc, from a copy, so that nothing is left
in the source tree; the wheel has their source as well. Needs a C compiler and minutes. The records
of a run are the same, byte for byte (tests/compiled). An editable installation is never compiled.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
setup(ext_modules=mypycify([*options, *{files!r}], opt_level={opt_level!r}))
"""


class CompiledModules(BuildHookInterface):
    """Compiles before the wheel is packed, and cleans up after that."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = Path(mkdtemp())
        package = self._folder / "fairbench"
        shutil.copytree(Path(self.root, "bench", "fairbench"), package)
        found = [path for pattern in self.config["modules"] for path in package.glob(pattern)]
        files = [str(path.relative_to(self._folder)) for path in found if path.stem != "__init__"]
        setup = self._folder / "setup.py"
        setup.write_text(SETUP.format(files=sorted(files), opt_level=self.config["opt-level"]))
        command = [sys.executable, setup.name, "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=self._folder, check=True)
        for built in [*self._folder.rglob("*.so"), *self._folder.rglob("*.pyd")]:
            place = built.relative_to(self._folder)
            if place.parts[0] != "build":
                build_data["force_include"][str(built)] = str(place)
        build_data["infer_tag"] = True
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._folder)
