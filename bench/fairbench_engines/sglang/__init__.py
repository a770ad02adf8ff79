"""Fairbench's local schedulers in SGLang: entry point ``fairbench`` of ``sglang.srt.plugins``.

SGLang calls ``register`` in each of its processes, which has an effect only if the environment
variable ``FAIRBENCH_LOCAL`` names a local scheduler. A server that cannot run this scheduler ends;
it never continues with SGLang's own.
"""

from __future__ import annotations

import os
import sys


def register() -> None:
    """Install the hooks if environment variables ask for the plugin.

    End the process with exit code 2 if the plugin's hooks do not fit SGLang.

    Raises SystemExit, because SGLang only logs other exceptions of a plugin, and then serves
    without the plugin.
    """
    if not os.environ.get("FAIRBENCH_LOCAL"):
        return
    from fairbench.errors import FairbenchError
    from fairbench.live.plugin_config import config_from
    from fairbench_engines.sglang.hooks import install

    try:
        install(config_from(os.environ))
    except FairbenchError as error:
        sys.stderr.write(f"fairbench: {error}\n")
        raise SystemExit(2) from None
