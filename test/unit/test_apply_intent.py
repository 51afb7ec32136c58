# SPDX-License-Identifier: Apache-2.0
"""What an intent asks for, what the live object holds there, and what is settled between them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.apply.immutable import can_recreate, carry_immutable, immutable_causes, learn
from flexinfer.apply.intent import canonical, check_entries, clean, digest, values_at
from flexinfer.errors import Cause, ConfigurationError, TerminalError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.immutable import ImmutableField, Policy, immutable_fields
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.service import Service
from flexinfer.kinds.structure import PLAIN, ListMap, Merge, shape_of, structure_of
from flexinfer.meta.envelope import encode
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

SHAPE = shape_of(structure_of(Deployment.resource))
JOB = Resource(GroupVersionKind("batch", "v1", "Job"), "jobs")
CLAIM = immutable_fields(PersistentVolumeClaim.resource)

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "b"])
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)
trees: st.SearchStrategy[Tree] = st.dictionaries(st.sampled_from("abc"), values)


def pod(**spec: object) -> Tree:
    return {"spec": {"template": {"spec": spec}}}


def has_none(value: object) -> bool:
    if isinstance(value, dict):
        return any(item is None or has_none(item) for item in value.values())
    return isinstance(value, list) and any(item is None or has_none(item) for item in value)


@given(trees)
def test_cleaning_leaves_out_none_alone_and_never_touches_its_input(tree: Tree) -> None:
    before = copy.deepcopy(tree)
    cleaned = clean(tree)
    assert tree == before
    assert not has_none(cleaned)
    assert clean(cleaned) == cleaned
    if not has_none(tree):
        assert cleaned == tree


def test_an_intent_that_is_too_deep_is_refused_and_not_cut() -> None:
    refused = 0
    for depth in range(400, 1100):
        intent: Tree = {"leaf": "ours"}
        for _ in range(depth):
            intent = {"a": intent}
        try:
            assert encode(clean(intent)) == encode(intent)
        except RecursionError:
            refused += 1
    assert refused


def test_what_is_empty_is_an_opinion() -> None:
    intent = {"a": {}, "b": [], "c": "", "d": 0, "e": False, "f": None, "g": (None, 1)}
    assert clean(intent) == {"a": {}, "b": [], "c": "", "d": 0, "e": False, "g": [1]}


@given(trees)
def test_the_digest_does_not_depend_on_the_order_of_keys(tree: Tree) -> None:
    assert digest(dict(reversed(tree.items()))) == digest(tree)


@given(trees, trees)
def test_different_trees_have_different_digests(one: Tree, other: Tree) -> None:
    assert (digest(one) == digest(other)) == (repr_json(one) == repr_json(other))


def repr_json(value: object) -> object:
    """Tell 1 from True, which Python's equality does not."""
    if isinstance(value, dict):
        return {k: repr_json(v) for k, v in value.items()}
    return [repr_json(v) for v in value] if isinstance(value, list) else repr(value)


@given(trees, trees, st.sampled_from("abc"), scalars)
def test_what_others_put_beside_our_fields_is_not_seen(
    intent: Tree, live: Tree, field: str, value: object
) -> None:
    beside = {**live, f"foreign-{field}": value}
    assert values_at(intent, beside, PLAIN) == values_at(intent, live, PLAIN)


@given(trees, values)
def test_a_change_at_one_of_our_leaves_is_seen(live: Tree, value: object) -> None:
    intent = {"a": "ours"}
    changed = {**live, "a": value}
    same = "a" in live and repr_json(live["a"]) == repr_json(value)
    seen = digest(values_at(intent, changed, PLAIN)) != digest(values_at(intent, live, PLAIN))
    assert seen != same


def test_containers_and_their_environment_are_followed_by_name_and_ports_by_key() -> None:
    intent = pod(
        containers=[
            {
                "name": "server",
                "image": "one",
                "env": [{"name": "A", "value": "1"}, {"name": "GONE", "value": "1"}],
                "ports": [{"containerPort": 80}],
            }
        ]
    )
    sidecar = {"name": "sidecar", "image": "theirs"}
    server = {
        "name": "server",
        "image": "two",
        "imagePullPolicy": "Always",
        "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}],
        "ports": [
            {"containerPort": 80, "protocol": "UDP"},
            {"containerPort": 80, "protocol": "TCP", "name": "web"},
        ],
    }
    live = pod(containers=[sidecar, server], nodeName="theirs")
    assert values_at(intent, live, SHAPE) == pod(
        containers={
            "('server',)": {
                "name": "server",
                "image": "two",
                "env": {"('A',)": {"name": "A", "value": "3"}},
                "ports": {"(80, 'TCP')": {"containerPort": 80}},
            }
        }
    )


def test_atomic_lists_and_maps_are_taken_whole_and_sets_value_by_value() -> None:
    intent = {
        "metadata": {"finalizers": ["b", "a"]},
        **pod(nodeSelector={"a": "1"}, tolerations=[{"key": "gpu"}], securityContext={}),
    }
    live = {
        "metadata": {"finalizers": ["a", "theirs", "b"]},
        **pod(
            nodeSelector={"a": "1", "added": "x"},
            tolerations=[{"key": "gpu"}, {"key": "added"}],
            securityContext={"added": 1},
        ),
    }
    assert values_at(intent, live, SHAPE) == {
        "metadata": {"finalizers": ["a", "b"]},
        **pod(
            nodeSelector={"a": "1", "added": "x"},
            tolerations=[{"key": "gpu"}, {"key": "added"}],
            securityContext={},
        ),
    }


def test_a_value_of_another_type_is_taken_as_it_is() -> None:
    assert values_at({"a": {"b": 1}, "c": [1]}, {"a": "x", "c": {}}, PLAIN) == {"a": "x", "c": {}}


ODD: list[list[Any]] = [["x"], [None], [{"type": ["q"]}], [{}, 7], [[]]]


@pytest.mark.parametrize("found", ODD)
def test_a_list_that_holds_what_its_schema_forbids_is_looked_at_all_the_same(
    found: list[Any],
) -> None:
    shape = shape_of(structure_of(JOB) | {"status.names": Merge.SET})
    ours = {"status": {"conditions": [{"type": "Ready"}], "names": ["a"]}}
    live = {"status": {"conditions": found, "names": [*found, "a", 1, "a"]}}
    assert digest(values_at(ours, live, shape)) != digest(canonical(ours, shape))
    assert digest(canonical(live, shape)) != digest(canonical(ours, shape))


@given(st.permutations(["Ready", "Cached", "Schedulable"]), st.permutations(["x", "y", "z"]))
def test_the_order_of_sets_and_keyed_lists_has_no_meaning(
    types: list[str], names: list[str]
) -> None:
    shape = shape_of(structure_of(JOB) | {"status.names": Merge.SET})

    def status(types: list[str], names: list[str]) -> Tree:
        conditions = [{"type": t, "status": "True"} for t in types]
        return canonical({"status": {"conditions": conditions, "names": names}}, shape)

    assert status(types, names) == status(sorted(types), sorted(names))


@pytest.mark.parametrize(
    ("intent", "message"),
    [
        (
            pod(containers=[{"name": "a"}, {"name": "a"}]),
            "spec.template.spec.containers: two entries have name=a; keep one of them",
        ),
        (
            pod(containers=[{"name": "a", "env": [{"name": "X"}, {"name": "Y"}, {"name": "X"}]}]),
            "spec.template.spec.containers.env: two entries have name=X; keep one of them",
        ),
        (
            pod(
                containers=[
                    {
                        "name": "a",
                        "ports": [
                            {"containerPort": 80},
                            {"containerPort": 80, "protocol": "TCP"},
                        ],
                    }
                ]
            ),
            (
                "spec.template.spec.containers.ports: two entries have containerPort=80, "
                "protocol=TCP; keep one of them"
            ),
        ),
        (
            pod(volumes=[{"emptyDir": {}}]),
            "spec.template.spec.volumes: an entry lacks name; set it",
        ),
        (
            pod(volumes=["model"]),
            "spec.template.spec.volumes: an entry lacks name; set it",
        ),
        (
            pod(topologySpreadConstraints=[{"topologyKey": "zone"}]),
            (
                "spec.template.spec.topologySpreadConstraints: an entry lacks topologyKey or "
                "whenUnsatisfiable; set it"
            ),
        ),
    ],
)
def test_entries_that_cannot_be_told_apart_are_refused_here(intent: Tree, message: str) -> None:
    with pytest.raises(TerminalError) as caught:
        check_entries(intent, SHAPE)
    assert str(caught.value) == message


def test_one_port_number_under_two_protocols_and_repeats_in_atomic_lists_are_fine() -> None:
    ports = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}]
    container = {"name": "a", "args": ["-v", "-v"], "ports": ports}
    check_entries(pod(containers=[container], tolerations=[{}, {}]), SHAPE)


def test_what_is_of_another_type_is_for_the_server_to_refuse() -> None:
    check_entries(pod(containers="x", volumes=7), SHAPE)
    check_entries({"spec": "x"}, SHAPE)


def deployment(selector: dict[str, str], labels: dict[str, str]) -> Tree:
    template = {"metadata": {"labels": labels}}
    return {"spec": {"selector": {"matchLabels": selector}, "template": template}}


def test_a_live_selector_is_kept_its_labels_go_on_the_pods_and_it_is_no_drift() -> None:
    intent = deployment({"name": "m", "new": "1"}, {"name": "m", "new": "1", "backend": "vllm"})
    live = deployment({"name": "old"}, {"name": "old"})
    rules = immutable_fields(Deployment.resource)
    before = copy.deepcopy(intent)
    carried, drift = carry_immutable(intent, live, rules)
    assert carried == deployment({"name": "old"}, {"name": "old", "new": "1", "backend": "vllm"})
    assert drift == ()
    assert intent == before
    assert carry_immutable(carried, live, rules) == (carried, ())


def test_a_live_selector_reaches_a_template_without_labels() -> None:
    intent: Tree = {"spec": {"selector": {"matchLabels": {"a": "1"}}}}
    live = {"spec": {"selector": {"matchLabels": {"a": "2"}}}}
    carried, _ = carry_immutable(intent, live, immutable_fields(Deployment.resource))
    assert carried == deployment({"a": "2"}, {"a": "2"})


@pytest.mark.parametrize(
    ("wanted", "live", "sent", "drift"),
    [
        ({"clusterIP": ""}, None, {}, ()),
        ({"clusterIP": "None"}, None, {"clusterIP": "None"}, ()),
        ({"clusterIP": "", "clusterIPs": []}, {"clusterIP": "10.0.0.1"}, {}, ()),
        ({"clusterIP": "10.0.0.1"}, {"clusterIP": "10.0.0.1"}, {"clusterIP": "10.0.0.1"}, ()),
        ({"clusterIP": "10.0.0.2"}, {"clusterIP": "10.0.0.1"}, {}, ("spec.clusterIP",)),
        ({"healthCheckNodePort": 30000}, {}, {"healthCheckNodePort": 30000}, ()),
        ({"type": "ClusterIP"}, {"clusterIP": "10.0.0.1"}, {"type": "ClusterIP"}, ()),
        ({"ipFamilies": ["IPv6"]}, {"ipFamilies": ["IPv4"]}, {"ipFamilies": ["IPv6"]}, ()),
    ],
)
def test_what_the_server_allocates_is_left_out_and_never_taken_over(
    wanted: Tree, live: Tree | None, sent: Tree, drift: tuple[str, ...]
) -> None:
    tree = None if live is None else {"spec": live}
    found = carry_immutable({"spec": wanted}, tree, immutable_fields(Service.resource))
    assert found == ({"spec": sent}, drift)


def claim(size: object, **more: object) -> Tree:
    return {"spec": {"resources": {"requests": {"storage": size}}, **more}}


@pytest.mark.parametrize(
    ("wanted", "live", "sent", "drift"),
    [
        ("20Gi", "10Gi", "20Gi", ()),
        ("10240Mi", "10Gi", "10240Mi", ()),
        ("5Gi", "10Gi", "10Gi", ("spec.resources.requests.storage",)),
        ("much", "10Gi", "much", ()),
        ("5Gi", None, "5Gi", ()),
    ],
)
def test_a_claim_may_grow_and_does_not_shrink(
    wanted: str, live: str | None, sent: str, drift: tuple[str, ...]
) -> None:
    tree = None if live is None else claim(live)
    assert carry_immutable(claim(wanted), tree, CLAIM) == (claim(sent), drift)


def test_the_rest_of_a_claim_is_preserved_and_reported() -> None:
    live = claim(
        "1Gi",
        accessModes=["ReadWriteOnce"],
        storageClassName="slow",
        dataSource={"kind": "PersistentVolumeClaim", "name": "a", "apiGroup": ""},
        volumeMode="Filesystem",
    )
    intent = claim(
        "1Gi",
        accessModes=["ReadWriteMany"],
        storageClassName="fast",
        dataSource={"kind": "PersistentVolumeClaim", "name": "a"},
        volumeMode="",
        selector={"matchLabels": {"a": "1"}},
    )
    carried, drift = carry_immutable(intent, live, CLAIM)
    assert carried == live
    assert drift == ("spec.accessModes", "spec.selector", "spec.storageClassName")


def test_atomic_lists_that_differ_in_defaults_alone_are_no_drift() -> None:
    rules = [ImmutableField(path="spec.claims")]
    live = {"spec": {"claims": [{"name": "a", "mode": "Filesystem"}]}}
    intent = {"spec": {"claims": [{"name": "a"}]}}
    assert carry_immutable(intent, live, rules) == (live, ())
    longer = {"spec": {"claims": [{"name": "a"}, {"name": "b"}]}}
    assert carry_immutable(longer, live, rules) == (live, ("spec.claims",))


@given(trees, trees)
def test_nothing_is_carried_where_the_intent_has_no_opinion(intent: Tree, live: Tree) -> None:
    intent = clean(intent)
    carried, drift = carry_immutable(
        intent, live, [ImmutableField(path="a.b"), ImmutableField(path="c")]
    )
    if "c" not in intent:
        assert "c" not in carried
    if not (isinstance(intent.get("a"), dict) and "b" in intent["a"]):
        assert carried.get("a") == intent.get("a")
        assert "a.b" not in drift


@given(trees, trees)
def test_carrying_twice_is_carrying_once(intent: Tree, live: Tree) -> None:
    rules = [ImmutableField(path="a.b"), ImmutableField(path="c", server_allocated=True)]
    carried, _ = carry_immutable(clean(intent), clean(live), rules)
    assert carry_immutable(carried, clean(live), rules) == (carried, ())


@pytest.mark.parametrize(
    "message",
    [
        'Invalid value: {"matchLabels":{}}: field is immutable',
        "Forbidden: spec is immutable after creation except resources.requests",
        "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
        "Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
        'Invalid value: "x": cannot change roleRef',
        'Invalid value: ["None"]: may not change once set',
        "Forbidden: may not be changed in an update.",
        "Invalid value: failed rule: self == oldSelf",
        "Forbidden: field is immutable when `immutable` is set",
    ],
)
def test_the_ways_in_which_the_server_says_immutable_are_known(message: str) -> None:
    assert immutable_causes([Cause("FieldValueInvalid", "spec.x", message)]) == ("spec.x",)


def test_a_refusal_for_another_reason_as_well_is_not_one_of_immutability() -> None:
    other = Cause("FieldValueRequired", "spec.y", "Required value")
    fixed = Cause("FieldValueInvalid", "spec.clusterIPs[0]", "may not change once set")
    assert immutable_causes([fixed, other]) == ()
    assert immutable_causes([]) == ()
    assert immutable_causes([fixed, fixed]) == ("spec.clusterIPs",)


def test_only_a_refusal_of_recreatable_fields_alone_recreates() -> None:
    rules = immutable_fields(JOB)
    assert can_recreate(["spec.template.spec.containers", "spec.completions"], rules)
    assert not can_recreate(["spec.template", "spec.selector"], rules)
    assert not can_recreate(["spec.templates"], rules)


def test_what_is_learned_is_what_nobody_knew_and_never_a_whole_object() -> None:
    rules = immutable_fields(JOB)
    learned = learn(["spec", "spec.model", "spec.template.metadata", "spec.model"], rules)
    assert {rule.path for rule in learned} == {"spec.model"}
    assert {rule.policy for rule in learned} == {Policy.PRESERVE}


@pytest.mark.parametrize("path", ["", "spec.", ".spec", "spec.ports[0]"])
def test_a_path_that_no_object_has_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write it like spec\.selector"):
        ImmutableField(path=path)


def test_kinds_nobody_described_have_the_rules_of_any_object() -> None:
    custom = Resource(GroupVersionKind("example.com", "v1", "Thing"), "things")
    assert immutable_fields(custom) == ()
    assert structure_of(custom)["status.conditions"] == ListMap(("type",))
