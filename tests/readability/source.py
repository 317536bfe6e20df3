"""Figures of the source: lines of code, lengths of functions and files, importers of modules."""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = "runtimeproxy"
_SHARED_BY_CALLS: Final = "cri_proxy.calls.interceptor"
_IMPORTERS: Final = ("runtimeproxy", "policies")
_NO_CODE: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def figures(root: Path) -> dict[str, float]:
    """The figures of a checkout, by name."""
    modules = {_module_name(path, root): path for path in _files(root, _IMPORTERS)}
    trees = parsed(root)
    own = [name for name in modules if name.split(".")[0] == PACKAGE]
    importers = _importers(trees)
    real = [name for name in own if modules[name].name != "__init__.py"]
    lonely = [name for name in real if len(importers[name]) <= 1]
    lengths = sorted(_length(each) for name in own for each in _functions(trees[name]))
    sizes = sorted(len(modules[name].read_text().splitlines()) for name in real)
    return {
        "circles of imports": len(circles(trees)),
        "class names in more than one place": len(repeated_class_names(trees)),
        "modules": len(real),
        "% of modules with at most one importer": 100 * len(lonely) / len(real),
        "lines of code": sum(code_lines(modules[name].read_text()) for name in own),
        "functions": len(lengths),
        "function length, median": statistics.median(lengths),
        "function length, p90": statistics.quantiles(lengths, n=10)[-1],
        "file length, median": statistics.median(sizes),
        "file length, p90": statistics.quantiles(sizes, n=10)[-1],
    }


def parsed(root: Path) -> dict[str, ast.Module]:
    """The modules of a checkout's source, by name."""
    return {_module_name(path, root): ast.parse(path.read_text()) for path in _files(root, _IMPORTERS)}


def circles(trees: dict[str, ast.Module]) -> list[tuple[str, ...]]:
    """Groups of modules each of which imports all others, directly or not; imports for types count, too."""
    imports = {
        name: {each for node in ast.walk(tree) for each in _imported(node, trees) if each in trees} - {name}
        for name, tree in trees.items()
    }
    reached = {name: _reached(name, imports) for name in trees}
    return sorted(
        {
            tuple(sorted(each for each in reached[name] if name in reached[each]))
            for name in trees
            if name in reached[name]
        }
    )


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def repeated_class_names(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Names of classes that stand in more than one place, with the modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def calls_of(tree: ast.Module) -> Iterator[str]:
    """What a module calls, as it is written: `json.loads`, `self.path.write_text`."""
    return (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def code_lines(text: str) -> int:
    """Lines that are neither blank, nor comment, nor docstring."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        for each in _docstrings(node):
            lines.difference_update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return len(lines)


def _docstrings(node: ast.AST) -> Iterator[ast.stmt]:
    """String statements: docstrings, and those behind constants and fields."""
    for statement in getattr(node, "body", ()) if isinstance(node, _Documented) else ():
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield statement


def _functions(tree: ast.Module) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            yield node


def _length(function: _Function) -> int:
    """Its lines from `def` to the end, the docstring left out."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    return total - sum((each.end_lineno or each.lineno) - each.lineno + 1 for each in _docstrings(function))


def _importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            for imported in _imported(node, trees):
                if imported != name:
                    importers[imported].add(name)
    return importers


def _imported(node: ast.AST, trees: dict[str, ast.Module]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in trees else node.module


def _files(root: Path, packages: tuple[str, ...]) -> Iterator[Path]:
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes of a class's objects: those that its methods set, and the fields of a dataclass."""
    found = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
    for each in fields:
        if isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each.annotation):
            found.add(each.target.id)
    return found


_NOT_COMPOSED: Final = ("cgroup_tree", "state")
"""Modules of front ends whose objects are data: nothing of the daemon is in them."""


def composing_objects(trees: dict[str, ast.Module]) -> dict[str, int]:
    """How many attributes the objects of each class of the core, of the service, and of front ends have.

    Of what a front end is made of, only what its calls share is composed of the daemon's parts; a connection
    of the relay, say, is not.
    """
    found: dict[str, int] = {}
    for name, tree in trees.items():
        package, _, rest = name.removeprefix(f"{PACKAGE}.").partition(".")
        is_front_end = package == "frontends" and (rest.count(".") <= 1 or rest == _SHARED_BY_CALLS)
        is_front_end = is_front_end and rest.rpartition(".")[2] not in _NOT_COMPOSED
        if package not in ("core", "service") and not is_front_end:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[f"{name}.{node.name}"] = len(attributes(node))
    return found


def reaches(trees: dict[str, ast.Module]) -> list[str]:
    """Where the service takes a part of a part of the core: `core.x.y`, also as `parts.core.x.y`."""
    found: list[str] = []
    for name, tree in trees.items():
        if name.startswith(f"{PACKAGE}.service"):
            found += (
                f"{name}:{node.lineno} {ast.unparse(node)}"
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Attribute)
                and _last_name(node.value.value) in ("core", "engine")
            )
    return found


def _last_name(node: ast.expr) -> str:
    """`core` of `core`, `self._core` and `parts.core`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_")
