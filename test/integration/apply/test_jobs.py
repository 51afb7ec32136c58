# SPDX-License-Identifier: Apache-2.0
"""Jobs, whose template cannot be changed, are made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.apply import Applier, Outcome
from flexinfer.errors import ConflictError, DeadlineError, NotOursError
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from flexinfer.envtest.eventually import Eventually
    from test.integration.apply.conftest import Connect

JOB = Resource(GroupVersionKind("batch", "v1", "Job"), "jobs")


async def test_a_job_with_another_template_is_made_anew(bench: Connect) -> None:
    async with bench() as b:
        first = await b.applier.apply(JOB, b.job("one"), owner=b.owner)
        second = await b.applier.apply(JOB, b.job("two"), owner=b.owner)
        assert second.outcome is Outcome.RECREATED
        assert second.object.meta.uid != first.object.meta.uid
        template = b.get(JOB, "fetch")["spec"]["template"]
        assert template["spec"]["containers"][0]["command"] == ["two"]
        again = await b.applier.apply(JOB, b.job("two"), owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == [
            ("patch", "jobs", 201),
            ("patch", "jobs", 422),
            ("delete", "jobs", 200),
            ("patch", "jobs", 201),
        ]


async def test_a_job_that_does_not_go_is_waited_for_and_then_made_anew(
    bench: Connect, eventually: Eventually
) -> None:
    async with bench() as b:
        impatient = Applier(b.client, field_manager=b.manager, recreate_timeout=0.3)
        await impatient.apply(JOB, b.job("one"), owner=b.owner)
        path = b.path(JOB, "fetch")
        b.admin.merge(path, {"metadata": {"finalizers": ["example.com/hold"]}})
        changed = b.job("two")
        for _ in range(2):
            with pytest.raises(DeadlineError, match=r"still being deleted after 0\.3 s; see"):
                await impatient.apply(JOB, changed, owner=b.owner)
        assert [write for write in b.writes() if write[0] == "delete"] == [("delete", "jobs", 200)]

        seen = b.client.looks

        async def release() -> None:
            # It is found terminating, and looked for again: so it is waited for.
            await eventually(lambda: b.client.looks >= seen + 2)
            b.admin.merge(path, {"metadata": {"finalizers": []}})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(release)
            made = await b.applier.apply(JOB, changed, owner=b.owner)
        assert made.outcome is Outcome.CREATED


async def test_a_job_that_somebody_else_made_anew_is_looked_at_afresh(bench: Connect) -> None:
    async with bench() as b:
        await b.applier.apply(JOB, b.job("one"), owner=b.owner)

        def made_by_somebody() -> None:
            b.admin.create(JOB.collection_path(b.namespace), b.job("theirs"))

        def once_more() -> None:
            b.client.meanwhile = made_by_somebody

        b.client.meanwhile = once_more
        with pytest.raises(ConflictError, match="made anew by somebody else"):
            await b.applier.apply(JOB, b.job("two"), owner=b.owner)
        with pytest.raises(NotOursError):
            await b.applier.apply(JOB, b.job("two"), owner=b.owner)
