# SPDX-License-Identifier: Apache-2.0
"""The docstrings below the fields of a model, read from its source when somebody asks.

pydantic reads them too (`use_attribute_docstrings`), but when the class is made: a process that
only runs would find, read and parse the source of every model at its start, a tenth of the time
that its imports take.
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel


def below_fields(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings by the fields' names on the wire; those of a base class count too.

    A field whose `Field` has a description is left out. A class whose source is not at hand, such
    as one typed into a console, has none.
    """
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if hasattr(base, "model_fields"):
            found.update(_written(base))
    return {
        field.alias or name: found[name]
        for name, field in model.model_fields.items()
        if name in found and field.description is None
    }


def _written(model: type) -> Iterator[tuple[str, str]]:
    try:
        source = inspect.getsource(model)
    except (OSError, TypeError):
        return
    # A class in a block is parsed in one: to dedent it would break strings that reach the margin.
    (tree,) = ast.parse(f"if True:\n{source}" if source[0].isspace() else source).body
    if isinstance(tree, ast.If):
        (tree,) = tree.body
    for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
