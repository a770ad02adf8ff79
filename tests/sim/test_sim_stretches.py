"""Test that rows of decode stretches made in bulk equal those made one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbench.engine.logs import (
    SERVICE_COLUMNS,
    InBatch,
    PrefillShare,
    ServiceLog,
    Stretch,
    shares_upto,
)
from fairbench.hardware.gpu_time import Decoding, decode_parts

CLIENTS = list("abcdef")


@st.composite
def stretches(draw):
    """Draw stretches of some steps, and each client's part of the first step."""
    batch = draw(
        st.dictionaries(
            st.sampled_from(CLIENTS),
            st.builds(Decoding, st.integers(1, 300), st.integers(1, 10**7)),
            min_size=1,
        )
    )
    steps, fixed_ps = draw(st.integers(1, 10**5)), draw(st.integers(1, 10**11))
    start_ps, read_ps = draw(st.integers(0, 10**16)), draw(st.integers(0, 10**16))
    context = sum(one.context_tokens for one in batch.values())
    end_ps = start_ps + fixed_ps * steps + read_ps
    return Stretch(start_ps, draw(st.integers(0, 10**9)), context, fixed_ps, steps, end_ps), batch


def rows_of(stretch, batch, worker):
    """Return the rows of a stretch, one by one."""
    gpu_ps = decode_parts(
        stretch.end_ps - stretch.start_ps, stretch.fixed_ps * stretch.steps, batch, stretch.steps
    )
    times = (stretch.start_ps, stretch.end_ps, stretch.steps, stretch.growth_ps)
    shared = (sum(one.requests for one in batch.values()), stretch.context_tokens, 0, 0, 0, 0)
    return [
        (worker, CLIENTS.index(client), *times, *shared, stretch.steps * number, gpu_ps[client])
        for client, (number, _) in batch.items()
    ]


def in_batch(log, batch, step):
    """Return the batch by request. Another client's request is added and removed in between."""
    made = InBatch(log.index)
    made.step = step
    for client, of in batch.items():
        for number in range(of.requests):
            made.add("gone", 5)
            made.add(client, 0 if number else of.context_tokens - of.requests * step)
            made.remove("gone", 5)
    return made


@given(
    st.lists(st.tuples(stretches() | st.none(), st.integers(0, 50), st.integers(0, 3))),
    st.integers(1, 12),
)
def test_rows_equal_those_made_one_by_one_in_the_order_of_the_log(written, rows_per_block):
    log, expected = ServiceLog([*CLIENTS, "gone"]), []
    log._block_bytes = rows_per_block * 8 * len(SERVICE_COLUMNS)
    for one, step, worker in written:
        if one is None:  # a prefill iteration between them
            log.prefill(worker, 5, 9, 1, {"b": PrefillShare(1, 2, 3, 4, 5, 6)}, 7)
            expected.append((worker, 1, 5, 9, 1, 0, 1, 7, 1, 2, 3, 4, 5, 6))
        else:
            stretch, batch = one
            log.decode(worker, stretch, in_batch(log, batch, step))
            expected += rows_of(stretch, batch, worker)
        assert len(log) == len(expected)
    made = [log.column(name).tolist() for name in SERVICE_COLUMNS]
    assert list(zip(*made, strict=True)) == expected


@given(
    st.lists(
        st.integers(1, 2**54).flatmap(
            lambda whole: st.tuples(
                st.integers(-(2**62), 2**62), st.integers(0, whole), st.just(whole)
            )
        ),
        min_size=1,
    )
)
def test_shares_are_exact_for_any_product(drawn):
    found = shares_upto(*np.array(drawn, dtype=np.int64).T)
    assert found.tolist() == [total * upto // whole for total, upto, whole in drawn]
    for total, upto, whole in drawn:  # even if none of the others needs wide integers
        one = shares_upto(*(np.array([value]) for value in (total, upto, whole)))
        assert one.tolist() == [total * upto // whole]
