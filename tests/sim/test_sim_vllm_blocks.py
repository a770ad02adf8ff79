"""Test the simulated block cache, which stores runs of blocks, against single blocks."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment
from fairbench.engine.vllm_blocks import BlockCache

SIZE, POOL = 4, 24


class SingleBlocks:
    """vLLM's pool with a list entry per block: numbered blocks with tuples of tokens."""

    def __init__(self):
        self.blank, self.numbers = POOL, iter(range(10**6))
        self.unused = OrderedDict()  # the block to be evicted next comes first
        self.users, self.content = {}, {}
        self.cached = {}  # for each prefix of whole blocks, the blocks that hold its last one
        self.evicted = []

    def match(self, tokens):
        blocks = []
        while (end := SIZE * (len(blocks) + 1)) <= len(tokens) and tokens[:end] in self.cached:
            blocks.append(self.cached[tokens[:end]][0])
        return blocks

    def take(self, count):
        taken = []
        for _ in range(count):
            if self.blank:
                self.blank -= 1
                block = next(self.numbers)
            else:
                block, _ = self.unused.popitem(last=False)
                self.forget(block)
            self.users[block] = 1
            taken.append(block)
        return taken

    def forget(self, block):
        holders = self.cached[self.content[block]]
        holders.remove(block)
        if not holders:
            del self.cached[self.content[block]]
            self.evicted.append(self.content[block])
        del self.content[block]

    def use(self, blocks):
        for block in blocks:
            self.unused.pop(block, None)
            self.users[block] = self.users.get(block, 0) + 1

    def store(self, tokens, blocks, first, until):
        for number in range(first, until):
            prefix = tokens[: SIZE * (number + 1)]
            self.content[blocks[number]] = prefix
            self.cached.setdefault(prefix, []).append(blocks[number])

    def give_back(self, blocks):
        for block in reversed(blocks):
            self.users[block] -= 1
            if self.users[block]:
                continue
            if block in self.content:
                self.unused[block] = None
            else:
                self.blank += 1


def tokens_of(prompt):
    return tuple((key, place) for key, length in prompt for place in range(length))


class Both:
    """A pool in runs beside one in single blocks, which get the same calls by request number."""

    def __init__(self):
        self.evicted = []
        self.runs = BlockCache(POOL, SIZE, self.hear)
        self.single = SingleBlocks()
        self.held = {}

    def hear(self, prefix, tokens):
        whole = tokens_of(prefix)
        self.evicted += [whole[: len(whole) - gone] for gone in range(0, tokens, SIZE)]

    def begin(self, number, prompt, filled):
        """Admit a request with ``filled`` blocks more than it finds, if there is room."""
        runs, single, tokens = self.runs, self.single, tokens_of(prompt)
        node, place = runs.match(prompt, len(tokens) - 1)
        found = single.match(tokens[:-1])
        assert node.depth == SIZE * len(found)
        copies = [each.copies[0] for each in node.path()]
        needed = sum(copy.node.blocks for copy in copies if not copy.users) + filled
        if number in self.held or needed > runs.free_blocks:
            return
        for copy in copies:
            runs.use(copy, number)
        single.use(found)
        self.held[number] = [prompt, node, place, found]
        self.fill(number, filled)

    def fill(self, number, blocks):
        """Give a request blocks, and store the full ones."""
        if number not in self.held or blocks > self.runs.free_blocks:
            return
        prompt, node, place, mine = self.held[number]
        tokens, stored = tokens_of(prompt), node.depth // SIZE
        self.runs.take_blocks(blocks)
        mine += self.single.take(blocks)
        full = min(len(tokens) // SIZE, len(mine))
        self.single.store(tokens, mine, stored, full)
        node, place = self.runs.store(number, node, prompt, place, full - stored)
        self.held[number] = [prompt, node, place, mine]

    def end(self, number):
        if number in self.held:
            _, node, _, mine = self.held.pop(number)
            self.runs.give_back(number, node, len(mine) - node.depth // SIZE)
            self.single.give_back(mine)

    def check(self):
        runs, single = self.runs, self.single
        assert (runs.blank, runs.unused_blocks) == (single.blank, len(single.unused))
        assert runs.shared == sum(users - 1 for users in single.users.values() if users)
        assert self.evicted == single.evicted
        order = []
        for copy in runs.unused():
            whole = tokens_of(copy.node.prompt)[: copy.node.depth]
            order += [whole[: len(whole) - SIZE * n] for n in range(copy.node.blocks)]
        assert order == [single.content[block] for block in single.unused]


# Few names, and lengths that are no multiples of a block, make prompts diverge within blocks.
PROMPTS = st.lists(
    st.builds(Segment, st.sampled_from("abc"), st.integers(0, 14)), min_size=1, max_size=4
).filter(lambda prompt: sum(length for _, length in prompt) > 0)
BEGIN = st.tuples(st.just("begin"), st.integers(0, 5), PROMPTS.map(tuple), st.integers(0, 6))
FILL = st.tuples(st.just("fill"), st.integers(0, 5), st.integers(1, 3))
END = st.tuples(st.just("end"), st.integers(0, 5))


@given(st.lists(st.one_of(BEGIN, FILL, END), max_size=40))
def test_runs_of_blocks_equal_single_blocks(steps):
    both = Both()
    for name, *arguments in steps:
        getattr(both, name)(*arguments)
        both.check()
