"""How large the workers' KV pools are, and the pages in them, as they say themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout

TIMEOUT = ClientTimeout(total=5.0)


class Sizes(NamedTuple):
    """The smallest pool, None if no worker says, and the largest page (SGLang's page_size)."""

    pool_tokens: int | None
    page_tokens: int


async def sizes(session: ClientSession, urls: Iterable[str]) -> Sizes:
    """What the workers say together."""
    told = await asyncio.gather(*(_ask(session, url) for url in urls))
    return Sizes(
        min((size for info in told if (size := _size(info, "max_total_num_tokens"))), default=None),
        max((size for info in told if (size := _size(info, "page_size"))), default=1),
    )


def _size(info: dict[str, Any], key: str) -> int | None:
    size = info.get(key)
    return size if isinstance(size, int) and size > 0 else None


async def _ask(session: ClientSession, url: str) -> dict[str, Any]:
    """What a worker says of itself, {} if it says nothing of the kind."""
    try:
        async with session.get(f"{url}/server_info", timeout=TIMEOUT) as answer:
            info: Any = await answer.json(content_type=None)
    except (ClientError, OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}
