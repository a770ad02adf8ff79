"""vLLM's API server, whose metrics include the counters of its engine core.

``python -m fairbench.live.plugins.vllm`` with the arguments of
``vllm.entrypoints.openai.api_server``. Both are separate processes, so the counters need a shared
folder, known before either imports prometheus_client.
"""

from __future__ import annotations

import os
import runpy
import tempfile

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fairbench-vllm-") as folder:
        # the folder of this server, however it was started
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
