"""How large the workers' KV pools are, as they say themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

TIMEOUT = ClientTimeout(total=5.0)


async def pool_tokens(session: ClientSession, urls: Iterable[str]) -> int | None:
    """The smallest pool, in tokens; None if no worker says."""
    told = await asyncio.gather(*(_ask(session, url) for url in urls))
    return min((tokens for tokens in told if tokens), default=None)


async def _ask(session: ClientSession, url: str) -> int | None:
    try:
        async with session.get(f"{url}/server_info", timeout=TIMEOUT) as answer:
            info: Any = await answer.json(content_type=None)
    except (ClientError, OSError, ValueError):
        return None
    tokens = info.get("max_total_num_tokens") if isinstance(info, dict) else None
    return tokens if isinstance(tokens, int) else None
