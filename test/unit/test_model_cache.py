# SPDX-License-Identifier: Apache-2.0
"""What is mounted and what prepares it, and the claim that is made for a Model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonpatch
import pytest

from api.flexinfer.v1alpha2.model_spec import CacheStrategy
from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import cache_claim, names
from controllers.model.cache import Cache, Work, fetched_path, model_volume, plan_cache
from flexinfer.apply.immutable import carry_immutable
from flexinfer.apply.intent import clean
from flexinfer.kinds.immutable import immutable_fields
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.meta.envelope import meta_from
from internal.backends.ollama import OLLAMA as OLLAMA_BACKEND
from internal.backends.source import parse_source
from internal.backends.vllm import VLLM

if TYPE_CHECKING:
    from flexinfer.meta.envelope import ObjectMeta, Tree
    from internal.backends.backend import Backend

MEMORY, SHARED, LOCAL, NONE = CacheStrategy
HUB, OLLAMA, FILE, PVC = "HF://o/m", "ollama://m:1b", "file:///srv/m", "pvc://weights/sub/m"


def model(source: str = HUB, cache: Tree | None = None, **spec: object) -> Model:
    meta = meta_from({"name": "m", "namespace": "ns", "uid": "u", "generation": 3})
    block = {} if cache is None else {"cache": cache}
    tree = {"backend": "vllm", "source": source, **block, **spec}
    return Model.model_validate({"metadata": meta, "spec": tree})


def plan(of: Model, backend: Backend = VLLM) -> Cache:
    return plan_cache(of, parse_source(of.spec.source), backend)


def live(**fields: Any) -> PersistentVolumeClaim:
    meta = meta_from({"name": "m-cache", "namespace": "ns", **fields.pop("metadata", {})})
    return PersistentVolumeClaim.model_validate({"metadata": meta, **fields})


def amount(asked: str, has: str = "") -> PersistentVolumeClaim:
    status = {"phase": "Bound", "capacity": {"storage": has}} if has else {}
    return live(spec={"resources": {"requests": {"storage": asked}}}, status=status)


# What is mounted, and what prepares it


@pytest.mark.parametrize(
    ("source", "cache", "strategy", "claim", "work"),
    [
        (HUB, None, SHARED, "m-cache", Work.PREFETCH),
        (HUB, {}, SHARED, "m-cache", Work.PREFETCH),
        (HUB, {"strategy": "SharedPVC"}, SHARED, "m-cache", Work.PREFETCH),
        (HUB, {"pvcName": "kept"}, SHARED, "kept", Work.PREFETCH),
        (HUB, {"strategy": "Memory"}, MEMORY, "", None),
        (HUB, {"strategy": "Local"}, LOCAL, "", None),
        (HUB, {"strategy": "None"}, NONE, "", None),
        (PVC, None, SHARED, "weights", Work.CHECK),
        (PVC, {}, SHARED, "m-cache", Work.COPY),
        (PVC, {"strategy": "SharedPVC"}, SHARED, "m-cache", Work.COPY),
        (PVC, {"pvcName": "kept"}, SHARED, "kept", Work.COPY),
        (PVC, {"strategy": "Local"}, SHARED, "weights", Work.CHECK),
        (PVC, {"strategy": "None"}, SHARED, "weights", Work.CHECK),
        (FILE, None, NONE, "", None),
        (FILE, {}, SHARED, "m-cache", None),
        (FILE, {"pvcName": "kept"}, SHARED, "kept", None),
        (FILE, {"strategy": "Memory"}, MEMORY, "", None),
        (OLLAMA, None, NONE, "", None),
        (OLLAMA, {"strategy": "SharedPVC"}, SHARED, "m-cache", None),
    ],
)
def test_what_is_mounted_and_what_prepares_it(
    source: str, cache: Tree | None, strategy: str, claim: str, work: Work | None
) -> None:
    found = plan(model(source, cache))
    assert (found.strategy, found.claim, found.work) == (strategy, claim, work)
    assert found.is_made is (claim == "m-cache")
    assert found.source_claim == ("weights" if work is Work.COPY else "")
    assert set(found.claims) == {claim, found.source_claim} - {""}


@pytest.mark.parametrize(
    ("source", "cache", "strategy", "claim"),
    [
        (OLLAMA, None, NONE, ""),
        (HUB, None, NONE, ""),
        (HUB, {"pvcName": "kept"}, SHARED, "kept"),
        (PVC, None, SHARED, "weights"),
        (PVC, {"pvcName": "kept"}, SHARED, "weights"),
    ],
)
def test_nothing_is_ever_prepared_for_a_backend_that_pulls_models_itself(
    source: str, cache: Tree | None, strategy: str, claim: str
) -> None:
    found = plan(model(source, cache), OLLAMA_BACKEND)
    assert (found.strategy, found.claim, found.work) == (strategy, claim, None)


@pytest.mark.parametrize(
    ("cache", "strategy"),
    [
        (None, MEMORY),
        ({}, MEMORY),
        ({"strategy": "Local"}, LOCAL),
        ({"pvcName": "kept"}, SHARED),
    ],
)
def test_shared_gpus_keep_weights_in_memory_unless_it_is_said(
    cache: Tree | None, strategy: str
) -> None:
    assert plan(model(HUB, cache, gpu={"shared": "g"})).strategy == strategy
    assert plan(model(PVC, None, gpu={"shared": "g"})).work is Work.CHECK


@pytest.mark.parametrize(
    ("source", "cache"),
    [("pvc://kept/x", {"pvcName": "kept"}), ("pvc://m-cache/x", {}), ("pvc://m-cache", {})],
)
def test_a_claim_is_never_copied_onto_itself(source: str, cache: Tree) -> None:
    found = plan(model(source, cache))
    assert (found.work, found.is_made) == (Work.CHECK, False)


def test_the_server_is_told_where_a_job_puts_the_files() -> None:
    for of, path in (
        (model(HUB), "/models/m"),
        (model(PVC, {}), "/models/m"),
        (model(PVC), ""),
        (model(HUB, {"strategy": "None"}), ""),
        (model(FILE), ""),
    ):
        assert fetched_path(of, plan(of)) == path


@pytest.mark.parametrize(
    ("source", "cache", "volume"),
    [
        (HUB, None, {"persistentVolumeClaim": {"claimName": "m-cache"}}),
        (PVC, None, {"persistentVolumeClaim": {"claimName": "weights"}}),
        (HUB, {"strategy": "None"}, {"emptyDir": {}}),
        (HUB, {"strategy": "Memory"}, {"emptyDir": {"medium": "Memory"}}),
        (HUB, {"strategy": "Memory", "size": "50Gi"}, {"emptyDir": {"medium": "Memory"}}),
        (
            HUB,
            {"strategy": "Memory", "size": "8Gi"},
            {"emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ),
        (
            HUB,
            {"strategy": "Local"},
            {
                "hostPath": {
                    "path": "/var/lib/flexinfer/models/ns/m",
                    "type": "DirectoryOrCreate",
                }
            },
        ),
        (
            HUB,
            {"strategy": "Local", "hostPath": "/"},
            {"hostPath": {"path": "/ns/m", "type": "DirectoryOrCreate"}},
        ),
    ],
)
def test_the_volume_at_models(source: str, cache: Tree | None, volume: Tree) -> None:
    of = model(source, cache)
    assert clean(model_volume(of, plan(of))) == volume


@pytest.mark.parametrize(
    ("source", "cache", "words"),
    [
        (PVC, {"strategy": "Local", "retain": True}, "spec.cache.retain without effect"),
        (HUB, {"pvcName": "kept", "storageClass": "fast"}, "spec.cache.storageClass without"),
        (
            PVC,
            {"revision": "v1", "tokenSecretRef": {"name": "s"}},
            "spec.cache.revision, spec.cache.tokenSecretRef without effect",
        ),
        (HUB, {"strategy": "None", "allowPatterns": ["*"]}, "spec.cache.allowPatterns without"),
    ],
)
def test_a_user_hears_of_what_has_no_effect(source: str, cache: Tree, words: str) -> None:
    (note,) = plan(model(source, cache)).notes
    assert words in note


def test_a_claim_that_is_not_used_is_said() -> None:
    (note,) = plan(model(PVC, {"pvcName": "kept"}), OLLAMA_BACKEND).notes
    assert note == "spec.cache.pvcName has no effect: the source's own claim is mounted"


def test_what_has_an_effect_is_not_spoken_of() -> None:
    cache = {"revision": "v1", "allowPatterns": ["*"], "retain": True, "storageClass": "fast"}
    assert plan(model(HUB, cache)).notes == ()
    assert plan(model(HUB)).notes == ()


# The claim


def test_a_claim_asks_for_nothing_of_one_cluster_in_particular() -> None:
    """Point 34: no storage class but the cluster's own, unless the user names one."""
    found = clean(cache_claim.claim(model(), "m-cache"))
    assert found["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "50Gi"}},
    }
    named = clean(cache_claim.claim(model(HUB, {"storageClass": "fast", "size": "1Ti"}), "x"))
    assert named["spec"]["storageClassName"] == "fast"
    assert named["spec"]["resources"] == {"requests": {"storage": "1Ti"}}
    assert (
        cache_claim.claim(model(HUB, {"storageClass": ""}), "x")["spec"]["storageClassName"] == ""
    )


def test_a_size_that_was_refused_is_stood_in_for() -> None:
    of = model(HUB, {"size": "90Gi"})
    found = cache_claim.claim(of, "m-cache", size="50Gi")
    assert found["spec"]["resources"] == {"requests": {"storage": "50Gi"}}


@pytest.mark.parametrize("retain", [True, False])
def test_a_retained_claim_says_so(*, retain: bool) -> None:
    """Point 32: the claim may outlive the Model."""
    of = model(HUB, {"retain": retain})
    labels = cache_claim.claim(of, "m-cache")["metadata"]["labels"]
    assert cache_claim.is_retained(of) is retain
    assert (labels.get(names.RETAINED_LABEL) == "true") is retain
    assert labels.items() >= names.cache_labels(of).items()


def owner(uid: str, *, controller: bool = True) -> Tree:
    return {
        "apiVersion": "ai.flexinfer/v1alpha2",
        "kind": "Model",
        "name": "m",
        "uid": uid,
        "controller": controller,
    }


def claim_meta(*owners: Tree, labels: dict[str, str] | None = None) -> ObjectMeta:
    tree = {"name": "m-cache", "resourceVersion": "7", "labels": labels or {}}
    return meta_from(tree | {"ownerReferences": list(owners)})


OURS = {"app.kubernetes.io/managed-by": "flexinfer", names.MODEL_LABEL: "m"}


def test_only_a_claim_made_for_a_model_of_that_name_is_taken_over() -> None:
    of = model()
    assert cache_claim.refusal(of, claim_meta(owner("u"))) == ""
    assert cache_claim.refusal(of, claim_meta(labels=OURS)) == ""
    for labels in ({}, OURS | {names.MODEL_LABEL: "other"}):
        refused = cache_claim.refusal(of, claim_meta(labels=labels))
        assert "was not made for this Model; name it in spec.cache.pvcName" in refused
    refused = cache_claim.refusal(of, claim_meta(owner("before"), labels=OURS))
    assert "is controlled by Model m, which is not this Model" in refused


@pytest.mark.parametrize("retain", [True, False])
@pytest.mark.parametrize("is_owned", [True, False])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_claim_changes_hands_when_its_retention_changes(
    others: int, *, is_owned: bool, retain: bool
) -> None:
    of = model(HUB, {"retain": retain})
    foreign = [owner(f"o{n}", controller=False) for n in range(others)]
    meta = claim_meta(*foreign[:1], *([owner("u")] if is_owned else []), *foreign[1:])
    tree: Tree = {"metadata": {"resourceVersion": "7"}}
    if meta.owner_references:
        tree["metadata"]["ownerReferences"] = [{"uid": o.uid} for o in meta.owner_references]
    patched = jsonpatch.apply_patch(tree, cache_claim.handover(of, meta))
    references = patched["metadata"].get("ownerReferences", [])
    uids = [reference["uid"] for reference in references]
    assert sorted(uids) == sorted([f"o{n}" for n in range(others)] + ["u"] * (not retain))
    if not is_owned and not retain:
        assert references[-1] == owner("u") | {"blockOwnerDeletion": True}


def test_a_claim_that_changed_meanwhile_does_not_change_hands() -> None:
    patch = cache_claim.handover(model(), claim_meta())
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch({"metadata": {"resourceVersion": "8"}}, patch)


@pytest.mark.parametrize(
    ("size", "claim", "shrinks", "grows"),
    [
        ("10Gi", amount("50Gi"), "spec.cache.size 10Gi is less than the 50Gi of", ""),
        ("10Gi", amount("50Gi", "50Gi"), "set the size to 50Gi, or delete the claim", ""),
        ("90Gi", amount("50Gi", "50Gi"), "", "Claim m-cache has 50Gi and is to grow to 90Gi"),
        ("90Gi", amount("90Gi", "50Gi"), "", "Claim m-cache has 50Gi and is to grow to 90Gi"),
        ("60Gi", amount("90Gi", "50Gi"), "is less than the 90Gi of", "is to grow to 60Gi"),
        ("50Gi", amount("50Gi", "64Gi"), "", ""),
        ("50Gi", amount("50Gi"), "", ""),
        ("50Gi", amount("much", "less"), "", ""),
        ("50Gi", live(), "", ""),
    ],
)
def test_point_32_a_change_of_the_size_is_followed_or_answered(
    size: str, claim: PersistentVolumeClaim, shrinks: str, grows: str
) -> None:
    of = model(HUB, {"size": size})
    for words, note in (
        (shrinks, cache_claim.shrink_note(of, claim)),
        (grows, cache_claim.growth_note(of, claim)),
    ):
        assert words in note
        assert bool(words) is bool(note)


@pytest.mark.parametrize(
    ("size", "claim", "is_held_back"),
    [
        ("90Gi", amount("50Gi"), True),
        ("50Gi", amount("50Gi"), False),
        ("10Gi", amount("50Gi"), False),
        ("90Gi", amount("50Gi", "50Gi"), False),
        ("90Gi", live(), False),
    ],
)
def test_a_claim_that_is_not_bound_is_not_asked_to_grow(
    size: str, claim: PersistentVolumeClaim, *, is_held_back: bool
) -> None:
    note = cache_claim.unbound_growth_note(model(HUB, {"size": size}), claim)
    assert ("grows to 90Gi once it is bound" in note) is is_held_back
    assert bool(note) is is_held_back


def test_a_model_without_a_cache_block_asks_for_the_size_of_claims_by_default() -> None:
    assert "less than the 90Gi" in cache_claim.shrink_note(model(), amount("90Gi"))
    assert "to grow to 50Gi" in cache_claim.growth_note(model(), amount("10Gi", "10Gi"))


@pytest.mark.parametrize(("size", "sent", "drift"), [("10Gi", "50Gi", True), ("1Ti", "1Ti", False)])
def test_what_is_sent_for_a_live_claim_can_be_accepted(
    size: str, sent: str, *, drift: bool
) -> None:
    intent = clean(cache_claim.claim(model(HUB, {"size": size, "storageClass": "x"}), "m-cache"))
    tree = {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "standard",
            "resources": {"requests": {"storage": "50Gi"}},
        }
    }
    settled, drifted = carry_immutable(
        intent, tree, immutable_fields(PersistentVolumeClaim.resource)
    )
    assert settled["spec"]["storageClassName"] == "standard"
    assert settled["spec"]["resources"]["requests"]["storage"] == sent
    wanted = {"spec.storageClassName"} | ({"spec.resources.requests.storage"} if drift else set())
    assert set(drifted) == wanted
