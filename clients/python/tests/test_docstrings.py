"""The reference of the package is generated from docstrings: each public name has one, with all of its parameters."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Iterator, Union

import pytest

import forebay

pytestmark = pytest.mark.once

PACKAGE = Path(forebay.__file__).parent
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Definition = Union[Function, ast.ClassDef]


def definitions(module: str) -> dict[str, Definition]:
    """Public functions and classes of a module, by name. The source is read, because some modules need other packages."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    tree = ast.parse(path.with_suffix(".py").read_text())
    found = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    return {node.name: node for node in found if not node.name.startswith("_")}


def exported() -> Iterator[tuple[str, Definition]]:
    """Definitions in docs/reference/python.md, with their names there."""
    for name in forebay.__all__:
        if name != "errors":
            yield f"forebay.{name}", definitions(getattr(forebay, name).__module__)[name]
    for module in ("errors", "aio", "tensorboard"):
        for name, node in definitions(f"forebay.{module}").items():
            yield f"forebay.{module}.{name}", node
    for module, name in (("source", "Source"), ("tier", "Tier")):
        yield f"forebay.ray.{name}", definitions(f"forebay.ray.{module}")[name]


def parameters(function: Function) -> set[str]:
    """Names of the parameters, as a docstring has them."""
    given = function.args
    names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    names |= {f"{stars}{each.arg}" for stars, each in (("*", given.vararg), ("**", given.kwarg)) if each is not None}
    return names - {"self", "cls"}


def documented(docstring: str) -> set[str]:
    """Names in the section Args of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", inspect.cleandoc(docstring) + "\n", re.MULTILINE)
    return set(re.findall(r"^    (\*{0,2}\w+): \S", section[1], re.MULTILINE)) if section else set()


def lacking(name: str, node: Definition) -> Iterator[str]:
    """Describes each docstring that is missing, and each that does not describe exactly the parameters."""
    docstring = ast.get_docstring(node) or ""
    if not docstring:
        yield f"{name} has no docstring"
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if not isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            decorators = {ast.unparse(each) for each in member.decorator_list}
            if member.name == "__init__":
                # A class that others create may have no description of its constructor.
                of_init = documented(docstring) | documented(ast.get_docstring(member) or "")
                if of_init and of_init != parameters(member):
                    yield f"{name}() describes {sorted(of_init)}, and has {sorted(parameters(member))}"
            elif not member.name.startswith("_") and "overload" not in decorators:
                yield from lacking(f"{name}.{member.name}", member)
    elif documented(docstring) != parameters(node):
        yield f"{name} describes {sorted(documented(docstring))}, and has {sorted(parameters(node))}"


def test_every_public_name_has_a_docstring_with_all_of_its_parameters() -> None:
    found = list(exported())
    assert len(found) > 30
    assert [line for name, node in found for line in lacking(name, node)] == []


LACKING = '''
class A:
    """A class."""

    def f(self, a, *b, c, **d):
        """Returns nothing.

        Args:
            a: A number.
            *b: More numbers.
            e: Not a parameter.
        """

    def g(self): ...
'''


def test_a_missing_docstring_and_a_missing_parameter_are_found() -> None:
    (node,) = ast.parse(LACKING).body
    assert isinstance(node, ast.ClassDef)
    assert list(lacking("A", node)) == ["A.f describes ['*b', 'a', 'e'], and has ['**d', '*b', 'a', 'c']", "A.g has no docstring"]
