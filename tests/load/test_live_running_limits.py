"""Test the running limits that workers report."""

import json

import pytest

from fairbench_serve.worker_info import headroom_of, most_told_by

STOCK = """# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="500"} 1.0
"""
OURS = """# TYPE fairbench_max_running_requests gauge
fairbench_max_running_requests 4.0
"""


def vllm(**config):
    return {"vllm_config": {"scheduler_config": config}}


@pytest.mark.parametrize(
    ("page", "most"),
    [
        ({"max_running_requests": 8}, 8),
        ({"loads": [{"max_running_requests": 8}, {"max_running_requests": 6}]}, 14),
        ({"loads": [{"max_running_requests": 8}, {}]}, None),
        (vllm(max_num_seqs=4, max_num_active_seqs=None), 4),
        (vllm(max_num_seqs=4, max_num_active_seqs=3), 3),
        (vllm(max_num_seqs="4"), None),
        ({"vllm_config": "VllmConfig(model=m)"}, None),
        ({"vllm_config": {"scheduler_config": []}}, None),
        ({"max_running_requests": True}, None),
        ({"max_running_requests": 0}, None),
        ([], None),
        ([{"max_running_requests": 8}], None),
        (STOCK, None),
        (STOCK + OURS, 4),
        (OURS.replace("4.0", "+Inf"), None),
        (OURS.replace("4.0", "NaN"), None),
        ("<html>", None),
        ("", None),
    ],
)
def test_only_reports_of_whole_numbers_for_every_rank_count(page, most):
    text = page if isinstance(page, str) else json.dumps(page)
    assert most_told_by(text.encode()) == most


@pytest.mark.parametrize(
    ("most", "headroom"), [(1, 1), (4, 1), (20, 1), (21, 2), (64, 4), (256, 13)]
)
def test_headroom_is_a_twentieth_and_at_least_one(most, headroom):
    assert headroom_of(most) == headroom
