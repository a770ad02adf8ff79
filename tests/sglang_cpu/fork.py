"""A fork of an installed engine: a Python whose copy of the package has some changed files.

The installed package stays as it is. The copy consists of links, except for the changed files.
"""

import subprocess
from pathlib import Path

FACTS = """
import sys, sysconfig
from importlib.util import find_spec
print(sysconfig.get_path("purelib"))
print(find_spec(sys.argv[1]).submodule_search_locations[0])
"""


def fork_of(python, package, folder, changes):
    """Return the Python of a fork in ``folder``.

    ``changes`` maps a file of the package to (old, new) texts. Each old text must occur once.
    """
    run = [str(python), "-c", FACTS, package]
    told = subprocess.run(run, capture_output=True, text=True, check=True)
    installed, source = map(Path, told.stdout.split())
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    _copy(source, site / package, {Path(name): pairs for name, pairs in changes.items()})
    stubs = "import sglang_cpu_stubs\n" if (installed / "sglang_cpu_stubs.py").exists() else ""
    (site / "engine.pth").write_text(f"{installed}\n{stubs}")
    return folder / "bin" / "python"


def _copy(source, target, changes):
    target.mkdir(parents=True)
    for one in source.iterdir():
        below = {
            Path(*path.parts[1:]): how for path, how in changes.items() if path.parts[0] == one.name
        }
        if one.name == "__pycache__":
            _link_compiled(one, target / one.name, {path.stem for path in changes})
        elif not below:
            (target / one.name).symlink_to(one)
        elif one.is_dir():
            _copy(one, target / one.name, below)
        else:
            text = one.read_text()
            for old, new in below[Path()]:
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            (target / one.name).write_text(text)


def _link_compiled(source, target, changed):
    """Link a folder's compiled modules, which Python would otherwise compile again in every fork.

    Modules in ``changed`` are left out.
    """
    target.mkdir()
    for one in source.iterdir():
        if one.name.partition(".")[0] not in changed:
            (target / one.name).symlink_to(one)
