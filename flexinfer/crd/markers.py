# SPDX-License-Identifier: Apache-2.0
"""What a model says beyond its types.

Field markers go into `Annotated[...]`; `resource` decorates the class of a kind:

```python
@resource(group="example.com", version="v1", plural="widgets", short_names=("wd",))
class Widget(Object):
    spec: WidgetSpec
    status: WidgetStatus | None = None

class WidgetSpec(Model):
    name: Annotated[str, Rule("self == oldSelf", "name is immutable")] = Field(max_length=63)
    ports: Annotated[tuple[Port, ...], ListMap("name")] = Field(default=(), max_length=8)
```
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

from flexinfer.errors import ConfigurationError
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.object import Object

__all__ = [
    "CustomResource",
    "Format",
    "IntOrString",
    "ListMap",
    "ListSet",
    "Nullable",
    "PreserveUnknown",
    "PrintColumn",
    "Rule",
    "Scale",
    "custom_resource",
    "resource",
]


T = TypeVar("T", bound="Object")

_REASONS = {"FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"}
_COLUMN_TYPES = {"string", "integer", "number", "boolean", "date"}
_SCOPES = {"Namespaced", "Cluster"}
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?")
# The API server's rule for groups whose CRDs need the annotation api-approved.kubernetes.io.
_PROTECTED = re.compile(r"(^|\.)(k8s|kubernetes)\.io$")
_SELECTABLE_MAX = 8


class _Marker(ABC):
    """Add keys to the JSON schema of the type it annotates."""

    __slots__ = ()

    @abstractmethod
    def _keys(self) -> Tree:
        """Return what is added to the schema."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), **self._keys()}


@dataclass(frozen=True, slots=True)
class Rule:
    """Let the API server check a CEL expression and answer with *message* when it is false.

    *reason* is one of the API's FieldValue reasons, *field_path* a path below the marked field
    such as `.name`. With *on_create_only* what is stored already is let be: a rule on the whole
    object would otherwise refuse every status of an object that is older than the rule. Raises
    ConfigurationError for what the API server would refuse.
    """

    rule: str
    message: str
    on_create_only: bool = field(default=False, kw_only=True)
    reason: str | None = field(default=None, kw_only=True)
    field_path: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.rule.strip():
            raise ConfigurationError("the rule of a Rule is empty: write a CEL expression")
        if not self.message.strip() or "\n" in self.message:
            raise ConfigurationError(
                f"the message of the rule {self.rule!r} is not one line: say what is wrong in one"
            )
        if self.reason is not None and self.reason not in _REASONS:
            raise ConfigurationError(
                f"the reason {self.reason!r} of the rule {self.rule!r} is unknown: "
                f"use one of {', '.join(sorted(_REASONS))}"
            )
        if self.field_path is not None and not self.field_path.startswith((".", "[")):
            raise ConfigurationError(
                f"the field_path {self.field_path!r} of the rule {self.rule!r} is not relative: "
                "start it with a dot"
            )

    def tree(self) -> Tree:
        """Return the entry of `x-kubernetes-validations`."""
        entry: Tree = {"rule": self.rule, "message": self.message}
        if self.on_create_only:
            entry |= {"rule": f"oldSelf.hasValue() || ({self.rule})", "optionalOldSelf": True}
        if self.reason is not None:
            entry["reason"] = self.reason
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        return entry

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        inner = handler(schema)
        rules = [*inner.get("x-kubernetes-validations", ()), self.tree()]
        return {**inner, "x-kubernetes-validations": rules}


@dataclass(frozen=True, slots=True, init=False)
class ListMap(_Marker):
    """Let the items of a list be merged by the values of *names*, and refuse duplicates."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        if not names:
            raise ConfigurationError("a ListMap has no keys: name the fields that identify an item")
        object.__setattr__(self, "names", names)

    def _keys(self) -> Tree:
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.names)}


@dataclass(frozen=True, slots=True)
class ListSet(_Marker):
    """Let the items of a list be merged as a set, and refuse duplicates."""

    def _keys(self) -> Tree:
        return {"x-kubernetes-list-type": "set"}


@dataclass(frozen=True, slots=True)
class PreserveUnknown(_Marker):
    """Keep fields that the schema does not name instead of pruning them."""

    def _keys(self) -> Tree:
        return {"x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True, slots=True)
class Nullable(_Marker):
    """Let the field be null on the wire, which is not the same as absent."""

    def _keys(self) -> Tree:
        return {"nullable": True}


@dataclass(frozen=True, slots=True)
class Format(_Marker):
    """Name the format of a scalar, such as `int32` where the bounds do not tell."""

    name: str

    def _keys(self) -> Tree:
        return {"format": self.name}


@dataclass(frozen=True, slots=True)
class _IntOrString(_Marker):
    def _keys(self) -> Tree:
        return {"x-kubernetes-int-or-string": True}


IntOrString = Annotated[int | str, _IntOrString()]
"""A number or a string, such as a port or a percentage."""


@dataclass(frozen=True, slots=True)
class PrintColumn:
    """Be a column of `kubectl get`; a *priority* above 0 shows it only with `-o wide`."""

    name: str
    json_path: str
    type: str = field(default="string", kw_only=True)
    priority: int = field(default=0, kw_only=True)
    description: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if self.type not in _COLUMN_TYPES:
            raise ConfigurationError(
                f"the type {self.type!r} of the column {self.name!r} is unknown: "
                f"use one of {', '.join(sorted(_COLUMN_TYPES))}"
            )
        _check_path(f"the column {self.name!r}", self.json_path)


@dataclass(frozen=True, slots=True)
class Scale:
    """Serve the scale subresource, so that `kubectl scale` and autoscalers work."""

    spec_replicas: str
    status_replicas: str
    label_selector: str | None = None

    def __post_init__(self) -> None:
        for path in (self.spec_replicas, self.status_replicas, self.label_selector):
            if path is not None:
                _check_path("scale", path)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomResource:
    """Describe a kind to the generators; `resource` makes it."""

    resource: Resource
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[PrintColumn, ...] = ()
    rules: tuple[Rule, ...] = ()
    status: bool = True
    scale: Scale | None = None
    selectable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        group, version, kind = self.resource.gvk
        labels = group.split(".")
        if len(labels) < 2 or not all(map(_LABEL.fullmatch, labels)):  # noqa: PLR2004 - a dot
            raise ConfigurationError(
                f"the group {group!r} of {kind} is no DNS name with a dot: use a domain of yours; "
                f"{self._cure_of_a_built_in()}"
            )
        if _PROTECTED.search(group):
            raise ConfigurationError(
                f"the group {group!r} of {kind} belongs to Kubernetes, whose API server takes no "
                f"CRD for it that was not approved: {self._cure_of_a_built_in()}"
            )
        if not _VERSION.fullmatch(version):
            raise ConfigurationError(
                f"the version {version!r} of {kind} is none: write v1, v1beta1 or v1alpha1"
            )
        for name in (self.resource.plural, *self.short_names, *self.categories):
            if not _LABEL.fullmatch(name):
                raise ConfigurationError(
                    f"the name {name!r} of {kind} is no lower-case DNS label: correct it"
                )
        if len(self.selectable) > _SELECTABLE_MAX:
            raise ConfigurationError(
                f"{kind} has over {_SELECTABLE_MAX} selectable fields: drop some"
            )
        for path in self.selectable:
            _check_path("selectable", path)

    def _cure_of_a_built_in(self) -> str:
        group, version, kind = self.resource.gvk
        scope = "" if self.resource.namespaced else ", namespaced=False"
        return (
            "for a kind that the cluster has already leave out @resource, and write in the class "
            f'resource: ClassVar[Resource] = Resource(GroupVersionKind("{group}", "{version}", '
            f'"{kind}"), "{self.resource.plural}"{scope})'
        )


def resource(  # noqa: PLR0913 - one keyword for each thing a CRD may say
    *,
    group: str,
    version: str,
    plural: str,
    short_names: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    columns: tuple[PrintColumn, ...] = (),
    scope: str = "Namespaced",
    rules: tuple[Rule, ...] = (),
    status: bool = True,
    scale: Scale | None = None,
    selectable: tuple[str, ...] = (),
) -> Callable[[type[T]], type[T]]:
    """Declare the decorated class as a kind; the kind's name is the class's.

    Sets `resource`, which the clients use, and `custom_resource`, which the generators use.
    Without *columns* the class's `default_columns` are shown, where it has any.
    *rules* check the whole object and may name `self.metadata.name`; *selectable* are JSON paths
    that field selectors may use. Raises ConfigurationError for names that Kubernetes refuses, and
    for a group of Kubernetes' own: a kind that the cluster has already only sets `resource`.
    """
    if scope not in _SCOPES:
        raise ConfigurationError(f"the scope {scope!r} is unknown: use Namespaced or Cluster")

    def decorate(kind: type[T]) -> type[T]:
        kind.resource = Resource(
            GroupVersionKind(group, version, kind.__name__), plural, scope == "Namespaced"
        )
        info = CustomResource(
            resource=kind.resource,
            short_names=short_names,
            categories=categories,
            columns=columns or getattr(kind, _DEFAULT_COLUMNS, ()),
            rules=rules,
            status=status,
            scale=scale,
            selectable=selectable,
        )
        setattr(kind, _ATTRIBUTE, info)
        return kind

    return decorate


_ATTRIBUTE = "custom_resource"
_DEFAULT_COLUMNS = "default_columns"


def is_custom_resource(kind: type[Object]) -> bool:
    """Tell whether `resource` decorates *kind* itself, not only a class it derives from."""
    return isinstance(vars(kind).get(_ATTRIBUTE), CustomResource)


def custom_resource(kind: type[Object]) -> CustomResource:
    """Return what `resource` said of *kind*; raise ConfigurationError when it said nothing."""
    info = vars(kind).get(_ATTRIBUTE)
    if not isinstance(info, CustomResource):
        raise ConfigurationError(
            f"{kind.__name__} is no custom resource: decorate it with @resource"
        )
    return info


def _check_path(owner: str, path: str) -> None:
    if not path.startswith("."):
        raise ConfigurationError(f"the JSON path {path!r} of {owner} must start with a dot")
