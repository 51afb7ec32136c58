# SPDX-License-Identifier: Apache-2.0
"""Rules beside reconcilers become roles that allow just that."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.crd.rbac import Rule, cluster_role, merge, role
from flexinfer.errors import ConfigurationError
from flexinfer.kinds.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Iterable


def some(values: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3).map(tuple)


rules = st.lists(
    st.builds(
        Rule,
        groups=some(["", "apps", "batch"]),
        resources=some(["pods", "jobs", "pods/status"]),
        verbs=some(["get", "watch", "list", "patch", "use", "bind"]),
        names=st.sampled_from([(), ("a",), ("b", "a")]),
    ),
    max_size=5,
)


def allowed(given_rules: Iterable[Rule]) -> set[tuple[str, ...]]:
    """Return every single right that *given_rules* give."""
    return {
        right
        for r in given_rules
        for right in product(r.groups, r.resources, r.verbs, r.names or ("",))
    }


@given(rules)
def test_merging_neither_adds_nor_takes_away(given_rules: list[Rule]) -> None:
    merged = merge(given_rules)
    assert allowed(merged) == allowed(given_rules)
    assert merge(merged) == merged


@given(rules, st.randoms())
def test_the_order_of_rules_does_not_matter(given_rules: list[Rule], random: object) -> None:
    shuffled = list(given_rules)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis's own Random
    assert merge(shuffled) == merge(given_rules)


def test_a_cluster_role_reads_well() -> None:
    tree = cluster_role(
        "manager",
        [
            Rule(groups=("apps",), resources=("deployments",), verbs=("watch", "get", "list")),
            Rule(groups=("",), resources=("services",), verbs=("patch", "get")),
            Rule(groups=("apps",), resources=("deployments",), verbs=("patch", "bind")),
            Rule(groups=("",), resources=("nodes", "pods"), verbs=("list", "watch")),
            Rule(groups=("",), resources=("secrets",), verbs=("get",), names=("b", "a")),
        ],
        labels={"b": "2", "a": "1"},
    )
    assert tree == {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "manager", "labels": {"a": "1", "b": "2"}},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]},
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": ["a", "b"],
                "verbs": ["get"],
            },
            {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "patch"]},
            {
                "apiGroups": ["apps"],
                "resources": ["deployments"],
                "verbs": ["get", "list", "watch", "patch", "bind"],
            },
        ],
    }


def test_a_role_has_a_namespace_or_leaves_it_open() -> None:
    lease = Rule(groups=("coordination.k8s.io",), resources=("leases",), verbs=("create",))
    assert role("leader", [lease])["metadata"] == {"name": "leader"}
    placed = role("leader", [lease], namespace="system")
    assert placed["kind"] == "Role"
    assert placed["metadata"] == {"name": "leader", "namespace": "system"}


@pytest.mark.parametrize("part", ["groups", "resources", "verbs", "names"])
@pytest.mark.parametrize("wildcard", ["*", "*/status", "pods/*"])
def test_a_wildcard_is_refused(part: str, wildcard: str) -> None:
    fields = {"groups": ("",), "resources": ("pods",), "verbs": ("get",), part: (wildcard,)}
    with pytest.raises(ConfigurationError, match="name what is needed"):
        Rule(**fields)


@pytest.mark.parametrize("part", ["groups", "resources", "verbs"])
def test_an_empty_part_is_refused(part: str) -> None:
    fields: dict[str, tuple[str, ...]] = {
        "groups": ("",),
        "resources": ("pods",),
        "verbs": ("get",),
        part: (),
    }
    with pytest.raises(ConfigurationError, match=f"a rule has no {part}"):
        Rule(**fields)


def test_create_by_name_works_for_subresources_only() -> None:
    with pytest.raises(ConfigurationError, match="make create a rule of its own"):
        Rule(groups=("",), resources=("pods",), verbs=("create",), names=("a",))
    Rule(groups=("",), resources=("serviceaccounts/token",), verbs=("create",), names=("a",))


def test_a_rule_on_a_kind_names_it_as_the_api_does() -> None:
    assert Rule.on(Deployment, "get", "list") == Rule(
        groups=("apps",), resources=("deployments",), verbs=("get", "list")
    )
    assert Rule.on(Deployment, "patch", subresource="status").resources == ("deployments/status",)
    with pytest.raises(ConfigurationError, match="no verbs"):
        Rule.on(Deployment)
