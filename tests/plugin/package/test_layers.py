"""The imports of the package, read without running them, against the layers that docs/architecture.md lists."""

import ast
import functools
import graphlib
import importlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = "pytest_flashinfer_perf"
MOST_NAMES = 32
LONGEST_MODULE = 400  # lines
DOORS = {"__init__.py", "__main__.py"}
PAGE = "docs/architecture.md"


def sources():
    """The text of each module by its dotted name."""
    paths = {path.relative_to(ROOT).with_suffix(""): path for path in (ROOT / PACKAGE).rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path.read_text() for name, path in paths.items()}


SOURCES = sources()


@functools.cache
def imported(source):
    """Dotted names, wherever in the file they are imported; `from a import b` may name a module or what is in one."""
    nodes = list(ast.walk(ast.parse(source)))
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level], "imports are absolute"
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}


TYPES_ALONE = (f"{PACKAGE}.hookspecs", f"{PACKAGE}.api")  # they name what is above them, and import it when it is used


def graph(modules):
    """The modules that each imports."""
    known = {name: set() if name in TYPES_ALONE else imported(text) for name, text in modules.items()}
    return {name: {_module(one, modules) for one in names} - {name, None} for name, names in known.items()}


def _module(dotted, modules):
    return next((name for name in (dotted, dotted.rpartition(".")[0]) if name in modules), None)


def layers(page):
    """The names at the root that a paragraph of the page lists, from the top to the bottom."""
    listed = re.search(r"<!-- layers -->\n```text\n(.*?)```", page, re.DOTALL)[1]
    return [set(re.findall(r"^(\w+)", paragraph, re.MULTILINE)) for paragraph in listed.split("\n\n")]


LAYERS = layers((ROOT / PAGE).read_text())
HEIGHT = {room: -depth for depth, rooms in enumerate(LAYERS) for room in rooms}


def room(module):
    """The name at the root; the doors, which are the root itself and `__main__`, lie above all."""
    return module.removeprefix(PACKAGE).lstrip(".").partition(".")[0]


def height(module):
    return HEIGHT.get(room(module), 1)


def file(module):
    path = Path(module.removeprefix(PACKAGE).lstrip(".").replace(".", "/"))
    return str(path / "__init__.py" if (ROOT / PACKAGE / path).is_dir() else path.with_suffix(".py"))


EXTENSIONS = f"{PACKAGE}.extensions"


def of_core(modules):
    return {name: text for name, text in modules.items() if not name.startswith(EXTENSIONS)}


def extension(module):
    return module.removeprefix(EXTENSIONS).lstrip(".").partition(".")[0]


def known_extensions(modules):
    """Each file of the core that imports an extension, with that one's name."""
    for name, targets in graph(modules).items():
        if not name.startswith(EXTENSIONS):
            yield from {(file(name), extension(target)) for target in targets if target.startswith(EXTENSIONS)}


def upward(modules):
    """A sentence for each import of what does not lie below."""
    for name, targets in graph(of_core(modules)).items():
        for target in sorted(targets):
            if room(name) != room(target) and height(target) >= height(name):
                where = "above it" if height(target) > height(name) else "beside it"
                yield f"{file(name)} imports {file(target)}, which lies {where}: {PAGE} has the order"


def circle(modules):
    """A sentence for the first circle that is found."""
    try:
        graphlib.TopologicalSorter(graph(modules)).prepare()
    except graphlib.CycleError as error:
        return f"{' is imported by '.join(map(file, error.args[1]))}: what both need goes into a module below them"
    return None


def test_each_package_imports_only_what_lies_below_it():
    assert list(upward(SOURCES)) == []


def test_the_core_imports_no_extension():
    assert list(known_extensions(SOURCES)) == []


def test_what_times_a_call_and_what_reads_a_row_need_no_pytest():
    roots = {name: {one.partition(".")[0] for one in imported(text)} for name, text in SOURCES.items()}
    assert [file(name) for name in roots if room(name) in ("engine", "rows") and "pytest" in roots[name]] == []


ROUTINES = f"{PACKAGE}.routines"
OF_ROUTINES = {f"{ROUTINES}.all_routines", f"{ROUTINES}.in_package"}  # for everybody


def built_on_routines(modules):
    """The extensions that import more of the suite's routines than their list."""
    texts = {name: text for name, text in modules.items() if name.startswith(f"{EXTENSIONS}.")}
    return {
        extension(name)
        for name, text in texts.items()
        if any(one.startswith(f"{ROUTINES}.") and one not in OF_ROUTINES for one in imported(text))
    }


def test_an_extension_says_what_it_uses_of_others_and_of_the_suite():
    used = {}
    for name, targets in graph(SOURCES).items():
        if name.startswith(f"{EXTENSIONS}."):
            others = {extension(one) for one in targets if one.startswith(f"{EXTENSIONS}.")}
            used.setdefault(extension(name), set()).update(others - {extension(name)})
    for name in built_on_routines(SOURCES):
        used[name].add("routines")
    said = {one: set(getattr(importlib.import_module(f"{EXTENSIONS}.{one}"), "USES", ())) for one in used}
    assert used == said


SPEC = f"{PACKAGE}.spec"
API = f"{PACKAGE}.api"
# Modules of the core that an extension imports beside what all may: each goes with a seam that takes its place.
STILL_INTERNAL = {
    "apis": {"plugin"},
    "bisect": {"gate.confirmation"},
    "compare": {"session.gpu_lock", "settings.project_file"},
    "compat": {"engine.call", "engine.measure"},
    "host": {"engine.tracebacks"},
    "many": {"rows.row"},
    "prebuild": {"plugin.options"},
    "ranks": {"plugin.options"},
    "testlists": {"cli"},
    "trace_sets": {"engine.graphs"},
    "tuner": {"engine.autotune", "engine.repeated", "gate.noise", "machine.patches"},
}


def internals(modules):
    """By extension what it imports of the core beside what everybody may, and routines, which it says."""
    found = {}
    for name, targets in graph(modules).items():
        if not name.startswith(f"{EXTENSIONS}."):
            continue
        beyond = {one for one in targets - {PACKAGE} if not one.startswith((EXTENSIONS, SPEC, API, ROUTINES))}
        found.setdefault(extension(name), set()).update(one.removeprefix(f"{PACKAGE}.") for one in beyond)
    return {name: beyond for name, beyond in found.items() if beyond}


def test_an_extension_imports_the_api_and_the_spec_of_routines():
    here = {extension(name) for name in SOURCES if name.startswith(f"{EXTENSIONS}.")}
    assert internals(SOURCES) == {name: modules for name, modules in STILL_INTERNAL.items() if name in here}


def test_the_api_is_sixty_names():
    api = importlib.import_module(API)
    assert len(api.__all__) <= 60
    assert [name for name in api.__all__ if getattr(api, name, None) is None] == []


def test_no_modules_import_each_other_in_a_circle():
    assert circle(SOURCES) is None


def test_a_class_has_a_name_of_its_own_and_a_module_an_end():
    """A reader who looks for a name finds one class; a module that is longer than this is two thoughts."""
    found = Counter(
        node.name for text in SOURCES.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in found.items() if times > 1] == []
    assert [name for name, text in SOURCES.items() if len(text.splitlines()) > LONGEST_MODULE] == []


def test_the_root_has_few_names_and_the_page_lists_each():
    at_the_root = {path.name for path in (ROOT / PACKAGE).iterdir()} - {"__pycache__"}
    assert len(at_the_root) <= MOST_NAMES, sorted(at_the_root)
    rooms = {Path(name).stem for name in at_the_root - DOORS - {"py.typed"}}
    assert rooms | {"extensions"} == set(HEIGHT), f"{PAGE} lists {sorted(HEIGHT)}"


def test_the_page_has_a_line_for_each_extension():
    folders = {path.parent.name for path in (ROOT / PACKAGE / "extensions").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"^\| `(\w+)/` \|", (ROOT / PAGE).read_text(), re.MULTILINE))


# A module's package where it has another name; pytest_flashinfer_perf.cli and others are what is measured here.
DISTRIBUTIONS = {"cuda": "cuda-core", "cupti": "cupti-python", "flashinfer": "flashinfer-python", "yaml": "pyyaml"}
DISTRIBUTIONS |= {"pynvml": "nvidia-ml-py", "vl_convert": "vl-convert-python", "xdist": "pytest-xdist"}
OF_ANOTHER = {"execnet": "xdist", "_pytest": "pytest"}


def test_what_is_imported_is_declared():
    """A package that only comes along with another one is gone once that one does without it."""
    roots = {name.partition(".")[0] for text in SOURCES.values() for name in imported(text)}
    roots = {OF_ANOTHER.get(root, root) for root in roots - sys.stdlib_module_names - {PACKAGE}}
    of_users = (ROOT / "pyproject.toml").read_text().partition("\ndev = [")[0]
    declared = set(re.findall(r'^  "([a-z0-9-]+)[>=]', of_users, re.MULTILINE))
    assert {DISTRIBUTIONS.get(root, root.replace("_", "-")) for root in roots} - declared == set()


FORMS = (
    "from {package} import {name}",
    "from {target} import anything",
    "import {target}",
    "def planted():\n    from {target} import anything",
    "if TYPE_CHECKING:\n    from {target} import anything",
)


@pytest.mark.parametrize("form", FORMS)
def test_an_import_of_what_lies_above_and_one_back_are_named(form):
    line = form.format(package=PACKAGE, name="cli", target=f"{PACKAGE}.cli")
    modules = {f"{PACKAGE}.gate.x": line, f"{PACKAGE}.cli": ""}
    assert list(upward(modules)) == [f"gate/x.py imports cli/__init__.py, which lies above it: {PAGE} has the order"]
    assert circle(modules) is None
    modules[f"{PACKAGE}.cli"] = f"from {PACKAGE}.gate import x"
    assert {*re.findall(r"[\w/]+\.py", circle(modules))} == {"gate/x.py", "cli/__init__.py"}


def test_the_tests_have_the_rooms_of_the_package():
    def rooms(folder, pattern):
        return {path.parent.name for path in folder.glob(pattern)}

    package, tests = ROOT / PACKAGE, ROOT / "tests" / "plugin"
    of_core = rooms(package, "*/__init__.py") - {"extensions"}
    assert rooms(tests, "*/test_*.py") - {"extensions"} == of_core | {"package"}
    assert rooms(tests / "extensions", "*/test_*.py") == rooms(package / "extensions", "*/__init__.py")


@pytest.mark.parametrize("facade", ["pytest_flashinfer_perf", "pytest_flashinfer_perf.spec"])
def test_each_name_that_a_facade_promises_can_be_imported(facade):
    module = importlib.import_module(facade)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
