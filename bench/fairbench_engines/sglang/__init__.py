"""Fairbench's local schedulers in SGLang: entry point ``fairbench`` of ``sglang.srt.plugins``.

SGLang calls ``register`` in each of its processes. The plugin does nothing unless the environment
variable ``FAIRBENCH_LOCAL`` names a local scheduler. A server that cannot run the named scheduler
exits, and never falls back to SGLang's own scheduler.
"""

from __future__ import annotations

import os
import sys


def register() -> None:
    """Install the hooks if environment variables ask for the plugin.

    Raises SystemExit with exit code 2 if the hooks do not fit the installed SGLang release. SGLang
    ignores exceptions other than SystemExit, and would serve without the plugin.
    """
    if not os.environ.get("FAIRBENCH_LOCAL"):
        return
    from fairbench.errors import FairbenchError
    from fairbench_engines.sglang.hooks import install
    from fairbench_load.plugin_config import config_from

    try:
        install(config_from(os.environ))
    except FairbenchError as error:
        sys.stderr.write(f"fairbench: {error}\n")
        raise SystemExit(2) from None
