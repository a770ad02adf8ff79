"""Test the account that a server's data-parallel ranks share, with a delayed exchange."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.schedulers.accounts.deficit_credits import Credits
from fairbench_engines.rank_accounts import ranks_of
from fairbench_load.plugin_config import plugin_config
from tests.schedulers.rank_engines import server_of

QUANTUM = 200
LOCALS = {"vtc": {}, "dlpm": {"dlpm.quantum": QUANTUM}}


@pytest.mark.parametrize(
    ("elsewhere", "here", "cancelled"),
    [
        (5.0, -9.0, False),  # the clients with credit wait at the other rank alone
        (-5.0, -9.0, True),  # no client there has credit
        (5.0, 9.0, True),  # a client that waits here has credit of its own
        (-5.0, 9.0, True),
    ],
)
def test_loans_end_unless_all_clients_with_credit_wait_elsewhere(elsewhere, here, cancelled):
    credits = Credits(100.0, 2)
    for client in ("there", "a", "b"):
        credits.begin_request(client)
    credits.of |= {"there": elsewhere, "a": here, "b": -10.0 + 50.0}
    credits.loans["b"] = 50.0
    credits.elsewhere = {"there": True}
    credits.call_in(["a", "b"])
    assert (credits.of["b"], credits.loans) == ((-10.0, {}) if cancelled else (40.0, {"b": 50.0}))


def flood(server, steps, lights=(0,), *, light=6, heavy=20, prompt=10, output=10):
    """Keep requests waiting: of ``heavy`` at every rank, and of ``light`` at the given ranks."""
    for _ in range(steps):
        for number, rank in enumerate(server.ranks):
            for _ in range(heavy - rank.waiting("heavy")):
                server.send(number, "heavy", prompt, output)
            for _ in range(light - rank.waiting("light") if number in lights else 0):
                server.send(number, "light", prompt, output)
        server.step()
    return server.charged("light") / (server.charged("light") + server.charged("heavy"))


@pytest.mark.parametrize("local", LOCALS)
def test_a_client_at_one_rank_gets_its_share_of_the_server(local):
    """Without the shared account, the client shares its rank: a quarter of the server."""
    apart = flood(server_of(local, LOCALS[local], linked=False), 600)
    shared = flood(server_of(local, LOCALS[local], delay=3), 600)
    assert apart == pytest.approx(0.25, abs=0.03)
    assert shared == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("local", LOCALS)
def test_no_rank_idles_for_a_client_that_waits_elsewhere(local):
    work = []
    for linked in (False, True):
        server = server_of(local, LOCALS[local], linked=linked)
        flood(server, 300)
        work.append([rank.charged.total() for rank in server.ranks])
    assert work[0] == work[1]
    assert len(set(work[1])) == 1


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize(("ranks", "lights"), [(3, (0,)), (3, (1, 2)), (4, (0, 3))])
def test_more_ranks_share_too(local, ranks, lights):
    shared = flood(server_of(local, LOCALS[local], ranks=ranks, delay=2), 600, lights)
    assert shared == pytest.approx(min(0.5, len(lights) / ranks), abs=0.05)


@pytest.mark.parametrize("local", LOCALS)
def test_weights_hold_over_all_ranks(local):
    server = server_of(local, LOCALS[local], weights={"light": 1, "heavy": 3})
    assert flood(server, 800) == pytest.approx(0.25, abs=0.03)


def at_one_rank(local):
    """Let ``heavy`` be served at rank 1 for long, and then come to rank 0 with ``light``."""
    server = server_of(local, LOCALS[local])
    for _ in range(400):
        for _ in range(5 - server.ranks[1].waiting("heavy")):
            server.send(1, "heavy", 10, 10)
        server.step()
    assert server.charged("heavy") > 4_000
    return server


@pytest.mark.parametrize("local", LOCALS)
def test_a_client_that_joins_has_no_claim_on_the_past(local):
    """``light`` was idle. From now on, both get the same at a rank that was idle before."""
    server = at_one_rank(local)
    before = server.charged("heavy")
    for _ in range(200):
        for client in ("light", "heavy"):
            for _ in range(5 - server.ranks[0].waiting(client)):
                server.send(0, client, 10, 10)
        server.step()
    light, heavy = server.charged("light"), server.charged("heavy") - before
    assert light == pytest.approx(heavy, rel=0.15)


@pytest.mark.parametrize("local", LOCALS)
def test_a_rank_that_is_started_again_learns_the_charges_of_all(local):
    server = server_of(local, LOCALS[local])
    flood(server, 300)
    old = server.ranks[1]
    again = server_of(local, LOCALS[local]).ranks[1]
    told = {"0": server.ranks[0].link.export_totals(), "old 1": old.link.export_totals()}
    again.link.merge_ranks(told, server.ranks[0].states(), 0.0)
    assert dict(again.scheduler.balances()) == dict(server.ranks[0].scheduler.balances())


def test_late_repeated_and_lost_messages_count_once():
    server = server_of("vtc")
    one, other = (rank.link for rank in server.ranks)
    server.send(0, "a", 10, 5)
    server.ranks[0].admit(0.0)
    first = one.export_totals()
    server.ranks[0].decode()
    second = one.export_totals()  # complete, so the first message may be lost
    for totals in (second, first, second):
        other.merge_ranks({"0": totals}, {"a": False}, 0.0)
    assert server.ranks[1].scheduler.balances() == {"a": 12}


def test_the_shared_credit_by_hand():
    """Two ranks with a quantum of 100 both serve ``a`` for 60 before they hear of each other."""
    server = server_of("dlpm", {"dlpm.quantum": 100}, slots=1)
    for rank in (0, 1):
        server.send(rank, "a", 60, 9)
        server.ranks[rank].admit(0.0)
    credits = [rank.scheduler.balances() for rank in server.ranks]
    assert [dict(one) for one in credits] == [{"a": 40}, {"a": 40}]
    server.step()  # each decodes a token, for 2, and then hears the other
    # one quantum, because both granted the same round, less 2 x 62
    assert [dict(one) for one in credits] == [{"a": -24}, {"a": -24}]
    server.send(0, "a", 30, 1)
    server.send(0, "b", 30, 1)
    server.ranks[0].admit(0.0)
    # a refill lifts both clients, but there is no slot
    assert dict(server.ranks[0].scheduler.balances()) == {"a": 76, "b": 100}


def test_the_shared_counters_by_hand():
    """``b`` waits at rank 0. A return to rank 1 does not take what ``b`` is owed."""
    server = server_of("vtc", slots=1)
    server.send(0, "a", 50, 3)
    server.send(1, "a", 70, 3)
    for rank in server.ranks:
        rank.admit(0.0)
    server.send(0, "b", 10, 1)  # lifted to ``a``, who left last: the 50 that rank 0 knows
    server.step()
    a, b = 50 + 70 + 2 * 2, 50
    assert dict(server.ranks[0].scheduler.balances()) == {"a": a, "b": b}
    server.send(1, "a", 5, 1)
    server.send(1, "b", 5, 1)  # it waits at rank 0, so it is not lifted to ``a``
    assert server.ranks[1].scheduler.balances()["b"] == b
    server.send(1, "c", 5, 1)  # lifted to the lowest counter that waits anywhere
    assert server.ranks[1].scheduler.balances()["c"] == b


@pytest.mark.parametrize("local", LOCALS)
def test_an_idle_client_is_forgiven_nothing_and_owed_nothing(local):
    """``light`` sends a request now and then, each time to another rank."""
    server = server_of(local, LOCALS[local], ranks=3)
    for step in range(600):
        if step % 30 == 0:
            server.send(step // 30 % 3, "light", 10, 5)
        flood(server, 1, lights=())
    waiting = sum(rank.waiting("light") for rank in server.ranks)
    assert waiting <= 1
    balances = [rank.scheduler.balances() for rank in server.ranks]
    if local == "dlpm":
        assert all(-3 * QUANTUM < one.get("light", 0) <= QUANTUM for one in balances)


def credits_of(server, client):
    known = [rank.scheduler.credits for rank in server.ranks]
    return [one.balances().get(client, 0) - one.loans.get(client, 0) for one in known]


def finish(server):
    """Serve all requests, and let every rank hear everything."""
    while any(rank.states() for rank in server.ranks):
        server.step()
    for _ in range(4 * (server.every + server.delay)):
        server.step()


@settings(deadline=None, max_examples=15)
@given(
    ranks=st.integers(2, 3),
    every=st.integers(1, 5),
    delay=st.integers(0, 8),
    join=st.sampled_from(["zero", "quantum"]),
    sends=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 9)),
        min_size=50,
        max_size=150,
    ),
)
def test_ranks_that_have_heard_everything_agree_on_credits(ranks, every, delay, join, sends):
    """Clients come and go at all ranks, and each rank notices at another time that one is idle."""
    settings = LOCALS["dlpm"] | {"dlpm.join": join}
    server = server_of("dlpm", settings, ranks=ranks, every=every, delay=delay)
    for rank, client, prompt, output in sends:
        server.send(rank % ranks, client, prompt, output)
        server.step()
    finish(server)
    for client in "abc":
        credits = credits_of(server, client)
        assert credits == pytest.approx([credits[0]] * ranks, abs=1e-6)
        assert max(credits) <= 1e-6
    for rank in server.ranks:
        assert all(credit < 0 for credit in rank.scheduler.balances().values())


def test_the_credits_of_ranks_do_not_drift_apart():
    """In each cycle, rank 0 learns that the client is idle just before it is busy at rank 1."""
    cycle = [(1, 38, 9, 13), (0, 11, 9, 0), (1, 17, 4, 5), (0, 8, 10, 2), (1, 27, 10, 4)]
    server = server_of("dlpm", LOCALS["dlpm"], delay=6)
    for rank, prompt, output, steps in cycle * 50:
        server.send(rank, "a", prompt, output)
        for _ in range(steps):
            server.step()
        assert max(credits_of(server, "a")) <= QUANTUM + server.unheard
    finish(server)
    assert credits_of(server, "a") == pytest.approx([credits_of(server, "a")[0]] * 2, abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    local=st.sampled_from(sorted(LOCALS)),
    ranks=st.integers(2, 3),
    every=st.integers(1, 8),
    delay=st.integers(0, 20),
    slots=st.integers(1, 4),
    lengths=st.tuples(*[st.tuples(st.integers(1, 60), st.integers(1, 30))] * 3),
    heavy_weight=st.sampled_from([1, 2]),
)
def test_clients_that_wait_at_all_ranks_differ_by_at_most_the_bound(
    local, ranks, every, delay, slots, lengths, heavy_weight
):
    """[DLPM] Theorem 5.1, plus twice what was charged at other ranks and not heard."""
    clients = dict(zip(("a", "b", "c"), lengths, strict=True))
    weights = {"a": heavy_weight}
    server = server_of(
        local, LOCALS[local], ranks=ranks, slots=slots, weights=weights, every=every, delay=delay
    )
    most = max(prompt + 2 * output for prompt, output in lengths)
    unit = slots * most  # more than a rank can charge for a client's running requests
    quantum = QUANTUM if local == "dlpm" else 0
    service = []
    for _ in range(150):
        for number, rank in enumerate(server.ranks):
            for client, (prompt, output) in clients.items():
                for _ in range(slots + 2 - rank.waiting(client)):
                    server.send(number, client, prompt, output)
        server.step()
        service.append({one: server.charged(one) / weights.get(one, 1) for one in clients})
    bound = 2 * ranks * (unit + quantum) + 2 * server.unheard
    for one in clients:
        for other in clients:
            leads = [now[one] - now[other] for now in service]
            assert max(leads) - min(leads) <= bound


@pytest.mark.parametrize(
    ("local", "changed"),
    [
        *(("rpm", {}), ("equinox", {}), ("autellix", {}), ("mdrr", {})),
        *(("vtc", {"vtc.tenants": "tree"}), ("dlpm", {"dlpm.tenants": "tree"})),
    ],
)
def test_sums_that_ranks_cannot_share_are_refused(local, changed):
    with pytest.raises(UsageError, match=f"{local} .* cannot share .*; use vtc or dlpm"):
        ranks_of(plugin_config(local, changed).build())


@pytest.mark.parametrize("local", ["fcfs", "lpm", "edf", "priority"])
def test_schedulers_without_accounts_exchange_nothing(local):
    assert ranks_of(plugin_config(local, {}).build()) is None
