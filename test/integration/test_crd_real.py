# SPDX-License-Identifier: Apache-2.0
"""A kind that uses every construct, against a real API server: what is generated is what it keeps,
its rules compile, its defaults apply, and wrong objects are refused in the words of the rules."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import Field

from flexinfer.crd.document import render
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import (
    Format,
    IntOrString,
    ListMap,
    ListSet,
    Nullable,
    PreserveUnknown,
    PrintColumn,
    Rule,
    Scale,
    resource,
)
from flexinfer.crd.rbac import Rule as Right
from flexinfer.crd.rbac import cluster_role
from flexinfer.meta.condition import Condition, ConditionStatus
from flexinfer.meta.duration import Duration, NonNegativeDuration
from flexinfer.meta.envelope import decode_object, encode
from flexinfer.meta.object import Model, Object
from flexinfer.meta.quantity import Quantity
from flexinfer.meta.selector import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree


class Vendor(StrEnum):
    """Who made the device."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    AMD = "amd"


class Gpu(Model):
    """What the widget asks of devices."""

    vendor: Vendor = Vendor.AUTO
    """Who made the devices."""

    count: int | None = Field(default=None, ge=1, le=8)
    """How many devices."""

    memory: Annotated[int, Format("int64")] | None = Field(default=None, ge=0)
    """How much memory in MB, for placement only."""


class Serverless(Model):
    enabled: bool = True
    """Whether the widget may scale to zero."""

    idle_timeout: NonNegativeDuration | None = None
    """How long it may idle."""

    cold_start_timeout: NonNegativeDuration = Duration.parse("60s")
    """How long a start may take."""


class Port(Model):
    name: str = Field(max_length=15, pattern="^[a-z]+$")
    """What the port is called."""

    port: IntOrString
    """Its number or its name."""

    protocol: Literal["TCP", "UDP"] = "TCP"
    """What is spoken there."""


class Spec(Model):
    """What is wanted of the widget."""

    backend: Annotated[str, Rule("self == oldSelf", "backend is immutable")] = Field(
        min_length=1, max_length=63
    )
    """Which engine serves. This text is long enough to be folded, so that the file that carries it
    stays readable in a diff.

    A second paragraph."""

    mode: Literal["fast"] = "fast"
    """The only mode there is."""

    gpu: (
        Annotated[
            Gpu,
            Rule(
                "self.vendor != 'amd' || !has(self.count)",
                "count must be absent with vendor amd",
                reason="FieldValueForbidden",
                field_path=".count",
            ),
        ]
        | None
    ) = None
    """Devices; absent for none."""

    serverless: Serverless = Serverless()
    """When to scale to zero."""

    ports: Annotated[tuple[Port, ...], ListMap("name", "protocol")] = Field(
        default=(), max_length=8
    )
    """Where to listen."""

    labels: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], ListSet()] = Field(
        default=(), max_length=10
    )
    """Groups of the widget."""

    arguments: tuple[str, ...] = ()
    """In order."""

    size: Quantity = Quantity.parse("12e6")
    """How large."""

    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=10)
    """Bounds by resource."""

    config: dict[str, Any] = Field(default_factory=dict)
    """Knobs of the engine."""

    anything: Annotated[Any, PreserveUnknown()] = None
    """Any value at all."""

    note: Annotated[str | None, Nullable()] = None
    """A text that may be null."""

    ratio: float = Field(default=0.5, gt=0, lt=1)
    """Between zero and one, both excluded."""

    replicas: int = Field(default=1, ge=0, le=100)
    """How many."""

    selector: LabelSelector | None = None
    """Which nodes."""

    until: datetime | None = None
    """When to stop."""


class Status(Model):
    phase: Literal["Idle", "Ready"] | None = None
    """Where it is."""

    replicas: int = 0
    """How many there are."""

    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = ()
    """What was observed."""


READY = ".status.conditions[?(@.type=='Ready')].status"


@resource(
    group="test.flexinfer.example",
    version="v1alpha1",
    plural="widgets",
    short_names=("wdg",),
    categories=("flexwidgets",),
    columns=(
        PrintColumn("Backend", ".spec.backend"),
        PrintColumn("Ready", READY, description="Whether it works."),
        PrintColumn("Replicas", ".spec.replicas", type="integer", priority=1),
        PrintColumn("Age", ".metadata.creationTimestamp", type="date"),
    ),
    rules=(
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,46}[a-z0-9])?$')",
            "the name must be a DNS label of at most 48 characters, starting with a letter",
        ),
    ),
    scale=Scale(".spec.replicas", ".status.replicas"),
    selectable=(".spec.backend",),
)
class Widget(Object):
    """Tries every construct of the generator."""

    spec: Spec
    """What is wanted."""

    status: Status | None = None
    """What is seen."""


KIND = str(Widget.resource)


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Give the control plane with the kind installed."""
    control_plane.kubectl("apply", "--server-side", "-f", "-", stdin=render(crd_for(Widget)))
    control_plane.wait_established(KIND)
    yield control_plane
    control_plane.kubectl("delete", "crd", KIND, "--timeout=60s")


def widget(name: str = "sample", **spec: Any) -> Tree:
    return {
        "apiVersion": Widget.resource.api_version,
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"backend": "vllm"} | spec,
    }


def apply(plane: ControlPlane, namespace: str, tree: Tree, *options: str) -> Tree:
    said = plane.kubectl(
        "apply", "--server-side", "-n", namespace, "-o", "json", *options, "-f", "-",
        stdin=json.dumps(tree),
    )  # fmt: skip
    answer: Tree = json.loads(said)
    return answer


def refusal(plane: ControlPlane, namespace: str, tree: Tree, *options: str) -> str:
    with pytest.raises(Exception, match="kubectl apply") as caught:
        apply(plane, namespace, tree, *options)
    return str(caught.value)


def test_the_server_keeps_the_definition_as_it_was_generated(plane: ControlPlane) -> None:
    stored = json.loads(plane.kubectl("get", "crd", KIND, "-o", "json"))
    wanted = crd_for(Widget)["spec"]
    assert stored["spec"]["names"] == wanted["names"]
    assert stored["spec"]["versions"] == wanted["versions"]
    conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_defaults_apply_and_the_model_reads_them(plane: ControlPlane, namespace: str) -> None:
    answer = apply(plane, namespace, widget(gpu={}))
    assert answer["spec"] == {
        "backend": "vllm",
        "mode": "fast",
        "gpu": {"vendor": "auto"},
        "serverless": {"enabled": True, "coldStartTimeout": "1m0s"},
        "size": "12e6",
        "ratio": 0.5,
        "replicas": 1,
    }
    read = Widget.decode(decode_object(encode(answer)))
    assert read.spec == Spec(backend="vllm", gpu=Gpu())
    assert read.spec.wire().items() >= answer["spec"].items()


def test_every_construct_takes_what_it_should(plane: ControlPlane, namespace: str) -> None:
    spec: Tree = {
        "gpu": {"vendor": "nvidia", "count": 8, "memory": 2**40},
        "serverless": {"idleTimeout": "1h30m"},
        "ports": [
            {"name": "http", "port": 80},
            {"name": "http", "port": "web", "protocol": "UDP"},
        ],
        "labels": ["a", "b"],
        "arguments": ["x", "x"],
        "size": 5,
        "limits": {"cpu": 1, "memory": "1.5Gi"},
        "config": {"deep": {"down": [1, {"a": None}]}},
        "anything": ["goes"],
        "note": None,
        "ratio": 0.999,
        "selector": {
            "matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "c", "operator": "Exists"}],
        },
        "until": "2026-01-31T12:00:00Z",
    }
    # kubectl drops nulls from what it applies, so this one is created.
    answer = json.loads(
        plane.kubectl(
            "create", "-n", namespace, "-o", "json", "-f", "-", stdin=json.dumps(widget(**spec))
        )
    )
    for name, value in spec.items():
        if name not in {"ports", "serverless"}:
            assert answer["spec"][name] == value
    read = Widget.decode(decode_object(encode(answer))).spec
    assert read.size == Quantity.parse(5)
    assert read.limits["memory"] == Quantity.parse("1536Mi")
    assert read.serverless.idle_timeout == Duration.parse("90m")
    assert [port.protocol for port in read.ports] == ["TCP", "UDP"]
    assert read.selector is not None
    assert str(read.selector.selector()) == "a=b,c"


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (widget("9lives"), "the name must be a DNS label of at most 48 characters"),
        (widget("x" * 49), "the name must be a DNS label of at most 48 characters"),
        (widget("a.b"), "starting with a letter"),
        (widget(backend=""), "spec.backend"),
        (widget(mode="slow"), 'supported values: "fast"'),
        (
            widget(gpu={"vendor": "amd", "count": 1}),
            "spec.gpu.count: Forbidden: count must be absent with vendor amd",
        ),
        (widget(gpu={"count": 9}), "should be less than or equal to 8"),
        (widget(gpu={"vendor": "intel"}), 'supported values: "auto", "nvidia", "amd"'),
        (widget(serverless={"idleTimeout": "-5s"}), "spec.serverless.idleTimeout"),
        (widget(serverless={"idleTimeout": "soon"}), "spec.serverless.idleTimeout"),
        (widget(size="1 Gi"), "spec.size"),
        (widget(size="1e1.5"), "spec.size"),
        (widget(limits={"cpu": "many"}), "spec.limits.cpu"),
        (widget(ratio=1), "should be less than 1"),
        (widget(ratio=0), "should be greater than 0"),
        (widget(labels=["a", "a"]), "duplicate entries for key"),
        (widget(labels=[str(i) for i in range(11)]), "must have at most 10 items"),
        (widget(ports=[{"name": "a", "port": 1}, {"name": "a", "port": 2}]), "duplicate entries"),
        (widget(ports=[{"name": "a"}]), "spec.ports[0].port: Required value"),
        (widget(unknown=1), ".spec.unknown: field not declared in schema"),
    ],
)
def test_wrong_objects_are_refused_by_name(
    plane: ControlPlane, namespace: str, tree: Tree, words: str
) -> None:
    assert words in refusal(plane, namespace, tree)


def test_an_immutable_field_stays(plane: ControlPlane, namespace: str) -> None:
    apply(plane, namespace, widget())
    said = refusal(plane, namespace, widget(backend="ollama"))
    assert "spec.backend: " in said
    assert "backend is immutable" in said


def test_columns_print(plane: ControlPlane, namespace: str) -> None:
    apply(plane, namespace, widget())
    condition = Condition(
        type="Ready",
        status=ConditionStatus.TRUE,
        observed_generation=1,
        last_transition_time=datetime.now(UTC),
        reason="AllGood",
        message="",
    )
    status = widget() | {"status": {"conditions": [condition.wire()]}}
    del status["spec"]
    answer = apply(plane, namespace, status, "--subresource=status", "--field-manager=status")
    assert answer["status"]["conditions"] == [condition.wire()]
    assert answer["status"]["replicas"] == 0
    narrow = plane.kubectl("get", "wdg", "-n", namespace).splitlines()
    assert narrow[0].split() == ["NAME", "BACKEND", "READY", "AGE"]
    assert narrow[1].split()[:3] == ["sample", "vllm", "True"]
    wide = plane.kubectl("get", "flexwidgets", "-n", namespace, "-o", "wide").splitlines()
    assert wide[0].split() == ["NAME", "BACKEND", "READY", "REPLICAS", "AGE"]
    plane.kubectl("wait", "-n", namespace, "--for=condition=Ready", "--timeout=10s", "wdg/sample")


def test_two_managers_each_keep_their_condition(plane: ControlPlane, namespace: str) -> None:
    apply(plane, namespace, widget())
    for manager in ("One", "Two"):
        condition = Condition(
            type=manager,
            status=ConditionStatus.UNKNOWN,
            last_transition_time=datetime.now(UTC),
            reason="Unseen",
            message="",
        )
        tree = widget() | {"status": {"conditions": [condition.wire()]}}
        del tree["spec"]
        options = ("--subresource=status", f"--field-manager={manager}")
        answer = apply(plane, namespace, tree, *options)
    assert [c["type"] for c in answer["status"]["conditions"]] == ["One", "Two"]


def test_explain_shows_the_texts(plane: ControlPlane, eventually_sync: Any) -> None:
    def explained() -> None:
        spec = plane.kubectl("explain", "wdg.spec")
        assert "What is wanted" in spec
        assert "A second paragraph." in " ".join(spec.split())
        assert "-required-" in spec
        assert "How long a start may take." in plane.kubectl(
            "explain", "wdg.spec.serverless.coldStartTimeout"
        )
        vendor = plane.kubectl("explain", "wdg.spec.gpu.vendor")
        assert "ENUM: auto nvidia amd" in " ".join(vendor.split())
        assert "Who made the devices." in vendor

    # The OpenAPI document follows the definition within a second or so.
    eventually_sync(explained, within=30)


def test_scaling_and_selecting_work(plane: ControlPlane, namespace: str) -> None:
    apply(plane, namespace, widget())
    apply(plane, namespace, widget("other", backend="ollama"))
    plane.kubectl("scale", "-n", namespace, "wdg/sample", "--replicas=5")
    replicas = plane.kubectl(
        "get", "wdg/sample", "-n", namespace, "-o", "jsonpath={.spec.replicas}"
    )
    assert replicas == "5"
    found = plane.kubectl(
        "get", "wdg", "-n", namespace, "--field-selector=spec.backend=ollama", "-o", "name"
    )
    assert found.split() == ["widget.test.flexinfer.example/other"]


def test_a_role_is_taken_as_it_was_generated(plane: ControlPlane) -> None:
    role = cluster_role(
        "widget-reader",
        [Right(groups=(Widget.resource.gvk.group,), resources=("widgets",), verbs=("get",))],
    )
    answer = json.loads(
        plane.kubectl(
            "apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-",
            stdin=render(role),
        )
    )  # fmt: skip
    assert answer["rules"] == role["rules"]
