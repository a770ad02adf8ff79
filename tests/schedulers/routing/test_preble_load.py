"""Test Preble's estimate of a GPU's load on hand-computed examples."""

from fairbench.schedulers.parts.preble_tree import PrebleTree
from fairbench.schedulers.parts.preble_windows import GpuWindow, TimeModel


def test_outputs_older_than_the_window_set_no_decode_times():
    """An output token takes 1 ms, the window 10 s; without observations 5 tokens are assumed."""
    window = GpuWindow(10.0, TimeModel(0.0, 0.0, 0, 0.0, 0.0, 1.0), 5.0)
    window.add_finished(1.0, 100)
    window.add_finished(4.0, 20)
    window.assign(8.0, 0, PrebleTree().root)
    loads = []
    for now_s in (8.0, 10.9, 11.0, 14.0):
        window.expire(now_s)
        loads.append(window.load_us)
    assert loads == [60_000, 60_000, 20_000, 5_000]
