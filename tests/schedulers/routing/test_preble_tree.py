"""Test Preble's tree against token-by-token LRU orders, and the windowed load by hand."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import prompt_tokens
from fairbench.schedulers.parts.preble_tree import PrebleTree
from fairbench.schedulers.parts.preble_windows import GpuWindow, TimeModel
from fairbench.schedulers.prefix_tree import path
from tests.schedulers.routing.router_helpers import NaiveLocations, prefixes, prompt, prompts

WORKERS = 2
TIMES = TimeModel(
    prefill_ms_per_token=0.05031337,
    prefill_base_ms=5.506,
    prefill_linear_from_tokens=256,
    prefill_short_ms=10.5,
    prefill_tiny_ms=8.96,
    decode_ms_per_token=12.5,
)


class NaivePreble(NaiveLocations):
    """An oracle that stamps every (worker, prefix) with its last dispatch number."""

    def __init__(self):
        super().__init__()
        self.dispatches, self.last = 0, {}

    def insert(self, of, worker):
        super().insert(of, worker)
        self.dispatches += 1
        for prefix in prefixes(of):
            self.last[worker, prefix] = self.dispatches

    def lru(self, worker, keep):
        held = [p for w, p in self.marks if w == worker and p not in keep]
        return sorted(held, key=lambda p: (self.last[worker, p], -len(p)))


def check(tree, naive, window, probe):
    for node in tree.nodes():
        assert node.workers or node.children or any(node.hits.values()), "a dead leaf"
        ends_here = prefixes(path(node))[-1]
        for worker in range(WORKERS):
            hits = sum(ends_here in prefixes(of) for of, w, _ in window if w == worker)
            assert node.hits.get(worker, 0) == hits
            assert (worker in node.touched) == bool(node.workers >> worker & 1)
    keep = frozenset(tree.upward(tree.find(probe)[0]))
    kept = {prefix for node in keep for prefix in prefixes(path(node))}
    for worker in range(WORKERS):
        numbers = {n.touched[worker] for n in tree.nodes() if worker in n.touched}
        assert set(tree._ends[worker]) == numbers, "the order leaks or lacks a dispatch"
        assert all(end.touched.get(worker) == n for n, end in tree._ends[worker].items())
        assert tree.held_tokens[worker] == sum(w == worker for w, _ in naive.marks)
        wanted = naive.lru(worker, kept)
        for tokens in (1, len(wanted) // 2, len(wanted) + 5):
            if tokens:
                victims = tree.victims(worker, tokens, keep)
                listed = [p for node, n in victims for p in prefixes(path(node))[: -n - 1 : -1]]
                assert listed == wanted[:tokens]


workers = st.integers(0, WORKERS - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), prompts(), workers),
        st.tuples(st.just("evict"), prompts(), workers, st.floats(0, 1)),
        st.tuples(st.just("forget")),
        st.tuples(st.just("purge"), workers),
    ),
    max_size=15,
)


@given(operations, prompts())
def test_hits_holdings_and_lru_order_equal_the_oracle(operations, probe):
    tree, naive, window = PrebleTree(), NaivePreble(), []
    for name, *arguments in operations:
        if name == "insert":
            of, worker = arguments
            window.append((of, worker, tree.insert(of, worker)))
            naive.insert(of, worker)
        elif name == "evict":
            of, worker, share = arguments
            tokens = 1 + int(share * (prompt_tokens(of) - 1))
            tree.evict(of, tokens, worker)
            naive.evict(of, tokens, worker)
        elif name == "forget" and window:
            _, worker, end = window.pop(0)
            tree.forget(end, worker)
        elif name == "purge":
            tree.purge(arguments[0])
            naive.purge(arguments[0])
            window = [entry for entry in window if entry[1] != arguments[0]]
        check(tree, naive, window, probe)


def test_a_node_outlives_its_holders_while_it_has_hits():
    tree = PrebleTree()
    of = prompt(("a", 5))
    end = tree.insert(of, 0)
    tree.evict(of, 5, 0)
    assert list(tree.nodes()) == [end]
    tree.forget(end, 0)
    assert list(tree.nodes()) == []


def test_prefill_times_of_the_a100_equal_hand_computed_values():
    assert TIMES.prefill_us(1000) == 55_819  # 50.31337 + 5.506 ms
    assert TIMES.prefill_us(256) == 18_386
    assert TIMES.prefill_us(255) == 10_500
    assert TIMES.prefill_us(64) == 10_500
    assert TIMES.prefill_us(63) == TIMES.prefill_us(0) == 8_960


def test_load_is_prefill_plus_average_outputs():
    window, end = GpuWindow(180.0, TIMES, 45.0), PrebleTree().root
    assert window.load_us == 0
    window.assign(0.0, 20_000, end)
    window.assign(10.0, 30_000, end)
    assert window.load_us == 50_000 + 2 * 562_500
    window.add_finished(20.0, 10)
    window.add_finished(30.0, 30)
    assert window.load_us == 50_000 + 2 * 250_000


def test_the_window_forgets_exactly_at_its_end():
    window, tree = GpuWindow(180.0, TIMES, 45.0), PrebleTree()
    ends = [tree.insert(prompt((key, 3)), 0) for key in "ab"]
    window.assign(0.0, 20_000, ends[0])
    window.add_finished(5.0, 100)
    window.assign(10.0, 30_000, ends[1])
    window.add_finished(20.0, 40)
    assert window.expire(179.9) == []
    assert window.expire(180.0) == [ends[0]]
    assert window.load_us == 30_000 + 70 * 12_500
    assert window.expire(185.0) == []
    assert window.load_us == 30_000 + 40 * 12_500
    assert window.expire(500.0) == [ends[1]]
    assert (window.assigned_requests, window.load_us) == (0, 0)
