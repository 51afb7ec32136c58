# SPDX-License-Identifier: Apache-2.0
"""Claim and Jobs of a Model against a real API server, without the controller around them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import cache_claim, cache_jobs, names
from controllers.model.cache import Work, plan_cache
from flexinfer.apply import Applier, Outcome
from flexinfer.apply.intent import clean
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.errors import NotOursError
from flexinfer.kinds.job import Job
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.meta.resource import NamespacedName
from internal.backends.source import parse_source
from internal.backends.vllm import VLLM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.resource import Resource

    Connect = Callable[[], AbstractAsyncContextManager["Client"]]

ENVIRONMENT = {"DEFAULT_FETCH_IMAGE": "flexinfer.local/none", "HF_ENDPOINT": "http://127.0.0.1:9"}
CASES: dict[Work, Tree] = {
    Work.PREFETCH: {
        "source": "HF://o/m",
        "cache": {"allowPatterns": ["*.json"], "tokenSecretRef": {"name": "hub"}},
        "gpu": {"vendor": "nvidia"},
    },
    Work.CHECK: {"source": "pvc://weights/sub"},
    Work.COPY: {"source": "pvc://weights/sub", "cache": {}},
}


class Client(DirectClient):
    async def live_read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        return await self.read(resource, key)


@pytest.fixture
def connect(control_plane: ControlPlane, model_crd: None) -> Connect:
    del model_crd

    @asynccontextmanager
    async def connected() -> AsyncIterator[Client]:
        credentials = StaticCredentials(
            control_plane.url,
            token=control_plane.admin_token,
            context=client_context(control_plane.ca_file.read_text()),
        )
        async with Transport(credentials) as transport:
            yield Client(transport)

    return connected


async def made(client: Client, plane: ControlPlane, namespace: str, spec: Tree) -> Model:
    """Make a Model whose pods no node takes."""
    path = Model.resource.collection_path(namespace)
    head = {"apiVersion": Model.resource.api_version, "kind": "Model"}
    whole = {"backend": "vllm", "nodeSelector": {"none": "such"}, **spec}
    plane.admin.create(path, head | {"metadata": {"name": "m"}, "spec": whole})
    found = await client.get(Model, NamespacedName(namespace, "m"))
    assert found is not None
    return found


def job(of: Model, tries: str) -> Tree:
    cache = plan_cache(of, parse_source(of.spec.source), VLLM)
    annotations = {names.CACHE_TRY_ANNOTATION: tries}
    return cache_jobs.job(of, cache, ENVIRONMENT, annotations=annotations)


@pytest.mark.parametrize("work", Work)
async def test_a_job_is_taken_and_another_try_is_another_job(
    connect: Connect, control_plane: ControlPlane, namespace: str, work: Work
) -> None:
    async with connect() as client:
        of = await made(client, control_plane, namespace, CASES[work])
        applier = Applier(client, field_manager=names.FIELD_MANAGER, recreate_timeout=20)
        first = await applier.apply(Job.resource, job(of, "1"), owner=of)
        again = await applier.apply(Job.resource, job(of, "1"), owner=of)
        assert (first.outcome, again.outcome) == (Outcome.CREATED, Outcome.UNCHANGED)
        second = await applier.apply(Job.resource, job(of, "2"), owner=of)
        assert (second.outcome, second.drift) == (Outcome.RECREATED, ())
        assert second.object.meta.uid != first.object.meta.uid
        assert second.object.meta.name == f"m-cache-{work}"


@pytest.mark.parametrize("work", Work)
async def test_pods_of_jobs_are_admitted_where_security_is_restricted(
    connect: Connect, control_plane: ControlPlane, namespace: str, work: Work
) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    admin = control_plane.admin
    admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": label}})
    async with connect() as client:
        of = await made(client, control_plane, namespace, CASES[work])
    template = clean(job(of, "1"))["spec"]["template"]
    metadata = template["metadata"] | {"name": "p", "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    path = f"/api/v1/namespaces/{namespace}/pods"
    answer = admin.request("POST", path, params={"dryRun": "All"}, body=body)
    assert answer


async def test_a_claim_is_kept_and_taken_over_and_handed_back(
    connect: Connect, control_plane: ControlPlane, namespace: str
) -> None:
    spec: Tree = {"source": "HF://o/m", "cache": {"storageClass": "none-such"}}
    kept = {"cache": {"storageClass": "none-such", "retain": True}}
    key = NamespacedName(namespace, "m-cache")
    path = PersistentVolumeClaim.resource.object_path(key)
    async with connect() as client:
        of = await made(client, control_plane, namespace, spec)
        applier = Applier(client, field_manager=names.FIELD_MANAGER)

        async def settle(changed: Tree) -> Tree:
            """Do with the claim what a reconcile does."""
            metadata = of.metadata
            owner = Model.model_validate(
                {"metadata": metadata, "spec": {"backend": "vllm", **spec, **changed}}
            )
            live = await client.read(PersistentVolumeClaim.resource, key)
            if live is not None:
                assert cache_claim.refusal(owner, live.meta) == ""
                if patch := cache_claim.handover(owner, live.meta):
                    await client.patch(
                        PersistentVolumeClaim.resource,
                        key,
                        patch,
                        content_type=Patch.JSON,
                        field_manager=names.FIELD_MANAGER,
                    )
                    applier.forget(Model.resource, of.key)
                    applier.forget(PersistentVolumeClaim.resource, key)
            await applier.apply(
                PersistentVolumeClaim.resource,
                cache_claim.claim(owner, "m-cache"),
                owner=None if cache_claim.is_retained(owner) else owner,
            )
            tree: Tree = control_plane.admin.get(path)
            return dict(tree["metadata"])

        uid = (await settle({}))["uid"]
        for _ in range(2):
            retained = await settle(kept)
            assert retained["uid"] == uid
            assert "ownerReferences" not in retained
            assert retained["labels"][names.RETAINED_LABEL] == "true"
            owned = await settle({})
            assert owned["uid"] == uid
            assert [owner["uid"] for owner in owned["ownerReferences"]] == [of.metadata.uid]
            assert names.RETAINED_LABEL not in owned["labels"]
        assert [entry["manager"] for entry in owned["managedFields"]] == [names.FIELD_MANAGER]


async def test_the_claim_of_somebody_else_is_left_untouched(
    connect: Connect, control_plane: ControlPlane, namespace: str
) -> None:
    async with connect() as client:
        of = await made(client, control_plane, namespace, {"source": "HF://o/m"})
        intent = clean(cache_claim.claim(of, "m-cache"))
        intent["metadata"]["labels"] = {"app": "theirs"}
        path = PersistentVolumeClaim.resource.collection_path(namespace)
        control_plane.admin.create(path, intent)
        key = NamespacedName(namespace, "m-cache")
        live = await client.read(PersistentVolumeClaim.resource, key)
        assert live is not None
        assert "was not made for this Model" in cache_claim.refusal(of, live.meta)
        applier = Applier(client, field_manager=names.FIELD_MANAGER)
        with pytest.raises(NotOursError):
            await applier.apply(
                PersistentVolumeClaim.resource, cache_claim.claim(of, "m-cache"), owner=of
            )
