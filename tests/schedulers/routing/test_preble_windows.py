"""Test windows of many GPUs together against a computation for each."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.parts import preble_windows
from fairbench.schedulers.parts.fleet import as_bits, members
from fairbench.schedulers.parts.preble_tree import PrebleTree
from fairbench.schedulers.parts.preble_windows import GpuWindow, TimeModel, Windows

WINDOW_S = 20.0
TIMES = TimeModel(1.0, 0.0, 0, 0.0, 0.0, 1.0)
WORKERS = 40
ROOT = PrebleTree().root

workers = st.integers(0, WORKERS - 1)
events = st.lists(
    st.tuples(
        st.floats(0, 9),
        st.one_of(
            st.tuples(st.just("assign"), workers, st.integers(0, 3)),
            st.tuples(st.just("finish"), workers, st.integers(1, 4)),
            st.tuples(st.sampled_from(["leave", "join", "expire"]), workers, st.just(0)),
        ),
    ),
    max_size=60,
)


def window():
    return GpuWindow(WINDOW_S, TIMES, 2.0)


def mostly_decoding(each, ratio):
    """Compute [Preble] §3.2 GPU by GPU."""
    prefill_us = sum(one.prefill_us for one in each.values())
    decode_us = sum(one.decode_us for one in each.values())
    if not prefill_us or not decode_us or ratio == inf:
        return set()
    busy = {w: one for w, one in each.items() if one.prefill_us}
    ratios = {w: one.decode_us * prefill_us / one.prefill_us for w, one in busy.items()}
    highest = max(ratios.values())
    return {w for w, of in ratios.items() if of == highest and highest > ratio * decode_us}


@given(events, st.sets(workers), st.sampled_from([1.0, 1.5, inf]), st.sampled_from([0, 16]))
def test_all_windows_together_equal_single_windows(events, chosen, ratio, few):
    windows, each, now_s = Windows(WINDOW_S, TIMES, 2.0), {}, 0.0
    for worker in range(WORKERS):
        windows.add_gpu(worker)
        each[worker] = window()
    for wait_s, (name, worker, amount) in events:
        now_s += wait_s
        dropped = {(w, 0) for w, one in each.items() for _ in one.expire(now_s)}
        assert {(w, 0) for w, _ in windows.expire(now_s)} == dropped
        if name == "leave" and worker in each and len(each) > 1:
            windows.drop_gpu(worker)
            del each[worker]
        elif name == "join" and worker not in each:
            windows.add_gpu(worker)
            each[worker] = window()
        elif name == "assign" and worker in each:
            windows.assign(worker, now_s, 1000 * amount, ROOT)
            each[worker].assign(now_s, 1000 * amount, ROOT)
        elif name == "finish" and worker in each:
            windows.add_finished(worker, now_s, amount)
            each[worker].add_finished(now_s, amount)
    of_each = {worker: one.load_us for worker, one in each.items()}
    assert {worker: windows.loads[worker] for worker in each} == of_each
    assert windows.loads.lightest_us == min(of_each.values())
    assert windows.loads.heaviest_us == max(of_each.values())
    assert set(members(windows.decode_heavy(ratio))) == mostly_decoding(each, ratio)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preble_windows, "FEW", few)
        some = chosen & each.keys()
        ascending = [
            (us, w) for us, bits in windows.loads.ascending(as_bits(some)) for w in members(bits)
        ]
    assert ascending == sorted((of_each[worker], worker) for worker in some)
