"""``fairbench serve --peer``: other routers in front of the same workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairbench.errors import UsageError
from fairbench.files.secret import read_key

if TYPE_CHECKING:
    from fairbench.cli.serve_plan import Held


class PeersAsked(NamedTuple):
    """The peers' addresses, the common key, and the parts that may have settings."""

    urls: tuple[str, ...]
    key: str | None
    parts: tuple[str, ...]


def peers_by(
    urls: Sequence[str] | None, key_file: Path | None, router: str, held: Held, admin: int | None
) -> PeersAsked:
    """Return the peers from the flags. Raises UsageError for a conflict, DataError for a key.

    Peers exclude an admin port: workers would come and go, and routers would number them
    differently.
    """
    from fairbench.config.routers import served_routers
    from fairbench.live.processes.addresses import parse_worker
    from fairbench.live.router.peers import check_peers
    from fairbench.schedulers.gateway.params import admission_params
    from fairbench.schedulers.peers.params import ROUTERS
    from fairbench.schedulers.registry import router_class

    if not urls:
        if key_file is not None:
            raise UsageError("--peer-key-file needs --peer")
        return PeersAsked((), None, ())
    if key_file is None:
        raise UsageError(
            f"--peer {urls[0]} needs --peer-key-file, the file with the key of all routers"
        )
    if admin is not None:
        raise UsageError(
            f"--peer {urls[0]} cannot be combined with --admin-port, because all routers must "
            "have the same workers"
        )
    if admission_params(held.settings).is_on:
        raise UsageError(f"--peer {urls[0]} cannot be combined with admission.policy")
    for name in (router, held.policy):
        if held.settings.get(f"{name}.tenants") is not None:
            raise UsageError(f"--peer {urls[0]} cannot be combined with {name}.tenants")
    check_peers(router_class(router), router, held.policy)
    served_routers(held.settings)
    found = tuple(parse_worker(url, "--peer").url for url in urls)
    return PeersAsked(found, read_key(key_file, str(key_file)), (ROUTERS,))
