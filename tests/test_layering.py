"""Test that imports go down the layers, without cycles in any folder.

Imports inside functions and under ``TYPE_CHECKING`` count, too.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench"
SOURCE = BENCH / "fairbench"
DOORS = sorted(path.name for path in BENCH.glob("fairbench_*"))
LOWER_DOORS = ("fairbench_load", "fairbench_logs", "fairbench_papers")
MODULES = sorted(BENCH.rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES})

# Every package by its layer. A package may use the layers below, and no other package of its own
# layer.
FLOORS = (
    ("errors", "compiled", "named", "version"),
    ("core", "streams", "targets", "tenants", "files", "doors"),
    ("schedulers", "workloads", "metrics", "hardware"),
    ("engine",),
    ("config",),
    ("results",),
    ("sim",),
    ("execute",),
    ("report",),
    ("figures",),
    ("api",),
    ("cli",),
    LOWER_DOORS,
    (*(name for name in DOORS if name not in LOWER_DOORS), "__main__"),
    ("__init__",),  # ``fairbench`` itself names what others import from it
)
ROOMS = [room for floor in FLOORS for room in floor]
STUDIES = ROOT / "studies" / "fairbench_studies"
IMPURE = (
    *("time", "random", "asyncio", "aiohttp", "threading", "datetime", "numpy.random"),
    "fairbench.streams",
)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes at which a file calls something or names an import."""
    every = ast.walk(tree_of(path))
    return tuple(node for node in every if isinstance(node, ast.Call | ast.ImportFrom))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return every module that a file imports, anywhere in the file."""
    return tuple(_imports(tree_of(path), path))


def _imports(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: relative import"
        assert node.module is not None
        # `from fairbench.sim import timing` names a module, too.
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # no import is allowed in an expression
            yield from _imports(child, path)


def within(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def target(name: str) -> Path | None:
    """Return the package's file that defines an imported name, or None outside the package."""
    package, *parts = name.split(".")
    if package not in ("fairbench", *DOORS):
        return None
    for length in range(len(parts), -1, -1):
        path = (BENCH / package).joinpath(*parts[:length])
        if path.with_suffix(".py").is_file() and length:
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    raise AssertionError(name)


def room(path: Path) -> str:
    """Return the package or module of the core that holds a file, or the file's add-on package."""
    door, *inside = path.relative_to(BENCH).parts
    return door if door in DOORS else inside[0].removesuffix(".py")


def label(path: Path) -> str:
    """Return a file's path below the core, or below the folder of all packages for add-ons."""
    return str(path.relative_to(SOURCE if SOURCE in path.parents else BENCH))


def is_command(path: Path) -> bool:
    return room(path) == "cli" or (room(path) in DOORS and path.stem.startswith("cli"))


@cache
def arrows() -> dict[Path, set[Path]]:
    """Return the files that each file imports."""
    return {path: {found for name in imports(path) if (found := target(name))} for path in MODULES}


def test_every_folder_has_a_layer():
    assert {room(path) for path in MODULES} == set(ROOMS)


@pytest.mark.parametrize("name", ROOMS)
def test_a_folder_imports_only_from_lower_layers(name):
    floor = next(number for number, rooms in enumerate(FLOORS) if name in rooms)
    below = {name, *(one for rooms in FLOORS[:floor] for one in rooms)}
    wrong = [
        f"{label(path)} -> {label(used)}"
        for path in MODULES
        if room(path) == name
        for used in sorted(arrows()[path])
        if room(used) not in below
    ]
    assert not wrong


@cache
def arrows_within() -> dict[Path, dict[str, set[str]]]:
    """Return, for every folder, which of its files and folders import which others."""
    graphs = defaultdict(lambda: defaultdict(set))
    for path, used in arrows().items():
        here = path.relative_to(BENCH).parts
        for one in used:
            there = one.relative_to(BENCH).parts
            ends = enumerate(zip(here, there, strict=False))
            at, (child, other) = next(pair for pair in ends if pair[1][0] != pair[1][1])
            # at the top of the core, no module may use it
            if here[:at] == ("fairbench",) or "__init__.py" not in (child, other):
                graphs[BENCH.joinpath(*here[:at])][child].add(other)
    return graphs


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(BENCH)))
def test_no_folder_has_a_cycle_of_imports(folder):
    try:
        TopologicalSorter(arrows_within().get(folder, {})).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_cycle_would_be_noticed():
    graph = arrows_within()[SOURCE / "schedulers"]
    assert "base.py" in graph["local"]
    with pytest.raises(CycleError):
        TopologicalSorter(graph | {"base.py": {"local"}}).prepare()


def test_the_core_names_no_door():
    """Add-on packages register by entry points, as users' packages do."""
    named = re.compile("|".join(DOORS))
    assert not [
        label(path)
        for path in MODULES
        if room(path) not in DOORS and named.search(path.read_text(encoding="utf-8"))
    ]


def test_the_plugins_inside_engines_import_little_of_the_core():
    allowed = {"core", "errors", "hardware", "engine", "schedulers", "version"}
    assert {
        room(used)
        for path in MODULES
        if room(path) == "fairbench_engines"
        for used in arrows()[path]
    } <= {"fairbench_engines", "fairbench_load", *allowed}


def test_the_package_imports_no_study():
    """Studies are found by their entry points, because a wheel has none."""
    assert not [path for path in MODULES if "fairbench_studies" in path.read_text(encoding="utf-8")]


def test_a_study_imports_only_the_kit_and_itself():
    allowed = {
        ("assumptions", "dlpm"),  # the conclusions that an error of the profile may change
        ("pages", "validation"),  # the shortest time to first token that has a target
    }
    wrong = [
        f"{path.relative_to(STUDIES)} -> {name}"
        for path in STUDIES.glob("*/**/*.py")
        for name in imports(path)
        if name.startswith("fairbench_studies.")
        and (here := path.relative_to(STUDIES).parts[0])
        and (there := name.split(".")[1]) not in (here, "kit")
        and (here, there) not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("path", sorted(STUDIES.rglob("*.py")), ids=lambda path: path.name)
def test_only_commands_of_studies_use_the_command_line(path):
    assert "print" not in calls(path)
    commands = (
        "command.py",
        "reproduce.py",
        "reproduction.py",
        "map_command.py",
        "paper_runs.py",
        "rediscover.py",
    )
    if path.name not in commands:
        assert not [name for name in imports(path) if within(name, ("typer",))]


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if room(path) == "schedulers" or path.name == "by_class.py"],
    ids=lambda path: path.name,
)
def test_schedulers_use_no_clock_no_randomness_and_no_input(path):
    assert not [name for name in imports(path) if within(name, IMPURE)]


def test_no_module_imports_the_source_root():
    everything = [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))]
    # most modules are not even parsed
    named = re.compile(r"^\s*(import|from)\b.*\bbench\b", re.MULTILINE)
    suspects = [path for path in everything if named.search(path.read_text(encoding="utf-8"))]
    assert not [path for path in suspects for name in imports(path) if within(name, ("bench",))]


@cache
def calls(path: Path) -> set[str]:
    """Return the names of a file's calls, as written there."""
    return {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}


def test_only_the_command_line_prints_or_exits():
    for path in MODULES:
        if not is_command(path):
            assert "print" not in calls(path), path
            assert not [name for name in imports(path) if within(name, ("typer",))], path
        if room(path) in ("execute", "api"):
            assert not calls(path) & {"exit", "sys.exit", "os._exit"}, path


@pytest.mark.parametrize("name", ["execute", "api"])
def test_modules_import_at_their_top_except_for_extras(name):
    for path in MODULES:
        if room(path) != name:
            continue
        late = [
            found
            for function in ast.walk(tree_of(path))
            if isinstance(function, ast.FunctionDef)
            for found in _imports(function, path)
            if found.startswith("fairbench.")
        ]
        allowed = {
            # the help of commands shows their tables of names
            "executors.py": ["fairbench.execute.tasks.LocalProcesses"],
        }
        assert late == allowed.get(path.name, []), path


# Calls that read a file, and the modules in which they may occur. These files are fairbench's own.
READS = re.compile(
    r"(.*\.)?(read_text|read_bytes|mmap|memmap|fromfile|from_file|FileIO|loadtxt|genfromtxt"
    r"|literal_eval)|(gzip|bz2|lzma)\..*"
    r"|(json|tomllib|np|numpy|pickle|yaml)\.loads?|csv\.\w*[rR]eader"
    r"|(pq|pa|pyarrow)\.(.*\.)?(read_|open_|Parquet(?!Writer)|memory_map|input_stream).*"
)
READERS = {
    "cli/list.py": "read_text, tomllib.loads: bundled meanings of parameters",
    "config/parse_flags.py": "tomllib.loads: a value on the command line",
    "fairbench_load/far_drivers.py": "open: records that this process has just written",
    "fairbench_ray/cluster.py": "pickle.loads: what our own task returned",
    "fairbench_ray/replicas.py": "json.loads, open: our own probe's answer; a server's log",
    "fairbench_load/sent_files.py": "read_bytes: regular files, copied and not parsed",
    "fairbench_ray/tasks.py": "pickle.loads, read_bytes: our own task, and what it saved",
    "fairbench_engines/replica/inside/bridge.py": "json.loads: messages of the simulator",
    "fairbench_engines/replica/inside/provenance.py": "read_bytes: the digest of code",
    "fairbench_engines/replica/process.py": "json.loads: answers of our own program",
    "fairbench_engines/rank_board.py": "np.memmap: sums that our own processes write",
    "hardware/catalogue.py": "json.loads, read_text: bundled profiles",
    "fairbench_load/plugin_config.py": "json.loads: a variable of the environment",
    "fairbench_load/server_facts.py": "json.loads, open: the answer of a server",
    "fairbench_load/processes/process.py": "open: the end of a log",
    "fairbench_load/processes/environment.py": "read_text: what the kernel says of GPUs",
    "metrics/tables.py": "np.memmap: columns that this run has just written",
    "report/pages/html.py": "read_text: the bundled style",
    "config/spec.py": "tomllib.loads: what was just written",
    "results/references.py": "csv.DictReader, read_text: bundled shares",
    "results/manifest.py": "read_bytes: our own code, and its digest",
    "sim/records.py": "mmap.mmap, open, pa.ipc.open_stream: logs, mapped, never read whole",
    "workloads/datasets.py": "literal_eval: a field of a record, of limited length",
}


PARSERS = {"json", "tomllib", "csv", "pickle", "numpy", "gzip", "io"}  # called by the module's name


def reads(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Return the calls by which a module reads files, as written there."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in PARSERS:
            yield from (
                f"from {node.module} import {one.name}"
                for one in node.names
                if re.search("load|[rR]eader|open|fromfile|memmap", one.name)
            )
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        opens = name == "open" or (name.endswith(".open") and name != "os.open")
        if READS.fullmatch(name) or (opens and not _writes(node, name)):
            yield name.rpartition(".")[2] if opens or "read_" in name else name


def _writes(call: ast.Call, name: str) -> bool:
    """Tell whether a call of ``open`` is in a mode that writes."""
    at = 1 if name in ("open", "io.open", "gzip.open") else 0  # otherwise, a path's own method
    named = [word.value for word in call.keywords if word.arg == "mode"]
    mode = next(iter([*named, *call.args[at : at + 1]]), None)
    return isinstance(mode, ast.Constant) and str(mode.value)[:1] in ("w", "a", "x")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("path.open(encoding='ascii')", ["open"]),
        ("open('workload.toml')", ["open"]),
        ("open(path, mode='rb')", ["open"]),
        ("path.read_text()", ["read_text"]),
        ("json.loads(text)", ["json.loads"]),
        ("from json import loads", ["from json import loads"]),
        ("np.memmap(path)", ["np.memmap"]),
        ("Tokenizer.from_file(path)", ["Tokenizer.from_file"]),
        ("io.FileIO(path)", ["io.FileIO"]),
        ("open(path, 'w'); path.open('ab'); path.open(mode='x'); os.open(path, 0)", []),
    ],
)
def test_calls_that_read_a_file_are_listed(code: str, found: list[str]) -> None:
    assert list(reads(ast.walk(ast.parse(code)))) == found


def test_files_of_users_are_read_in_one_folder():
    """``files/reader.py`` limits the size, depth and numbers of users' files."""
    found = {
        label(path): sorted(calls)
        for path in MODULES
        if room(path) != "files" and (calls := set(reads(nodes(path))))
    }
    assert {path: reason.partition(":")[0].split(", ") for path, reason in READERS.items()} == found


def test_each_compiled_module_exists_once():
    """The compiler stops at a module listed twice, and omits a moved module."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    package = ROOT / "bench" / "fairbench"
    found = [path for pattern in hook["modules"] for path in package.glob(pattern)]
    assert len(found) == len(set(found))
    assert [one for one in hook["modules"] if not list(package.glob(one))] == []


def public_classes(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the modules that define each public class at their top level."""
    homes = defaultdict(list)
    for module, source in sources.items():
        for one in ast.parse(source).body:
            if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
                homes[one.name].append(module)
    return homes


def test_the_name_of_a_public_class_is_in_one_module():
    homes = public_classes({label(path): path.read_text(encoding="utf-8") for path in MODULES})
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_a_name_in_two_modules_would_be_noticed():
    sources = {"a": "class Board: ...", "b": "class Board: ...", "c": "class _Board: ..."}
    assert public_classes(sources)["Board"] == ["a", "b"]
    nested = "class FCFS:\n    class Params: ..."
    assert public_classes({"a": nested, "b": nested})["FCFS"] == ["a", "b"]
    assert "Params" not in public_classes({"a": nested})
