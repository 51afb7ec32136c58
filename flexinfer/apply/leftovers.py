# SPDX-License-Identifier: Apache-2.0
"""What a deleted owner of the same name left behind, which is in the way of its successor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer import log
from flexinfer.errors import ConflictError

if TYPE_CHECKING:
    from flexinfer.apply.live import LiveClient
    from flexinfer.meta.envelope import ObjectMeta
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import Resource

_log = log.get_logger(__name__)


def is_leftover(live: ObjectMeta, owner: Object | None) -> bool:
    """Tell whether another object of *owner*'s kind and name controls *live*, and has it alone.

    That one is gone, or *owner* is: two objects of one name are never there at once. What has
    further owners is no leftover: the garbage collector keeps it for them.
    """
    found = live.controller
    if found is None or owner is None or found.uid == owner.metadata.uid:
        return False
    if len(live.owner_references) > 1:
        return False
    gvk = owner.resource.gvk
    return (found.group, found.kind, found.name) == (gvk.group, gvk.kind, owner.key.name)


async def clear_leftover(
    client: LiveClient, resource: Resource, live: ObjectMeta, *, owner: Object
) -> bool:
    """Delete *live*, for which `is_leftover` is true; tell whether it is gone by now.

    The garbage collector of Kubernetes is to do this, mostly within a second. But it has been
    seen never to come back to what it met while the API server was restarted, and then the
    successor could wait for ever. Background propagation, as there. *live* has to be as the
    server has it: somebody may have given it another owner to keep it. Nor is it deleted when
    that is done meanwhile.

    Raises ConflictError when it is *owner* that is gone or *live* was changed, and what the
    client raises.
    """
    successor = await client.live_read(owner.resource, owner.key)
    if successor is None or successor.meta.uid != owner.metadata.uid:
        raise ConflictError(f"{owner.resource.kind} {owner.key} was made anew; read it again")
    if live.deletion_timestamp is None:
        _log.info("deleting what a deleted owner left behind", kind=resource.kind, name=live.name)
        version = live.resource_version
        await client.delete(resource, live.key, uid=live.uid, resource_version=version)
    return await client.live_read(resource, live.key) is None
