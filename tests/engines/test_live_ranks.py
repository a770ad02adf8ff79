"""Test the link between a server's data-parallel ranks, which are files that each rank maps."""

import os
from pathlib import Path

import pytest

from fairbench.errors import UsageError
from fairbench_engines import rank_board, ranks
from fairbench_engines.ranks import EVERY_S, FORGET_S, RankLink
from fairbench_load.client_metrics import Exporter
from tests.load.live_scrapes import OwnRegistry, asked, home
from tests.schedulers.rank_engines import Rank

DLPM = {"dlpm.quantum": 100}


class Linked(Rank):
    """A rank of a server that exchanges charges through a folder. ``lcf`` lifts no client."""

    def __init__(self, folder, number, local="lcf", settings=None, weights=None):
        super().__init__(local, settings or {}, weights or {}, 2)
        self.link = RankLink(folder, number, self.link)

    def tell(self, now_s):
        waiting = self.view.clients()
        self.link.tell(now_s, waiting, idle=not self.running and not waiting)

    def serve(self, client, prompt, output=1):
        """Charge a client for a whole request."""
        scheduler = self.scheduler
        with self.link.arriving(client):
            scheduler.on_arrival(self.asked(client, prompt, output), self.view, 0.0)
        scheduler.on_admitted(self.asked(client, prompt, output), prompt, False)
        scheduler.on_tokens(client, output)

    @staticmethod
    def asked(client, prompt, output):
        return asked(client, 0, prompt, output)

    @property
    def balances(self):
        return dict(self.scheduler.balances())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder in which each link acts like one of a separate process."""
    pids = iter(range(1, 100))
    monkeypatch.setattr(ranks.os, "getpid", lambda: next(pids))
    return tmp_path


@pytest.mark.parametrize("number", [2, 3])
def test_each_rank_counts_what_the_others_charge(folder, number):
    every = [Linked(folder, rank) for rank in range(number)]
    for rank, one in enumerate(every):
        one.serve(f"client-{rank}", 10)
        one.serve("all", 100 * (rank + 1))
        one.tell(1.0)
    for one in every:
        one.link.look(1.0)
    wanted = {f"client-{rank}": 12 for rank in range(number)}
    wanted["all"] = 100 * number * (number + 1) // 2 + 2 * number
    assert [one.balances for one in every] == [wanted] * number
    sent = [one.link.sent for one in every]
    assert sent == [114 + 100 * rank for rank in range(number)]
    assert [one.link.received for one in every] == [sum(sent) - own for own in sent]


def test_only_what_has_changed_is_counted_again(folder):
    one, other = Linked(folder, 0), Linked(folder, 1)
    for turn in range(4):
        one.serve("a", 10)
        one.tell(float(turn))
        other.link.look(float(turn))
        other.link.look(turn + EVERY_S)
        assert other.balances == {"a": 12 * (turn + 1)}
    assert other.link.lag_s == 0


def test_the_lag_is_the_age_of_what_was_read(folder):
    one, other = Linked(folder, 0), Linked(folder, 1)
    one.serve("a", 10)
    one.tell(5.0)
    other.link.look(5.25)
    assert other.link.lag_s == 0.25


def test_an_idle_rank_tells_its_last_charges_at_once(folder):
    one, other = Linked(folder, 0), Linked(folder, 1)
    one.tell(1.0)
    one.serve("a", 10)
    one.link.tell(1.01, (), idle=False)
    other.link.look(1.01)
    assert other.balances == {}
    one.link.tell(1.02, (), idle=True)
    other.link.look(1.07)
    assert other.balances == {"a": 12}


@pytest.mark.parametrize("name", ["x" * 3000, "größe 客户 \U0001f600", "", "\udc80", "a/b\n"])
def test_any_name_of_a_client_crosses(folder, name):
    one, other = Linked(folder, 0), Linked(folder, 1)
    one.serve("first", 1)
    one.serve(name, 10)
    one.tell(1.0)
    other.link.look(1.0)
    assert other.balances == {"first": 3, name: 12}


def test_clients_beyond_the_board_are_charged_here_alone(folder, monkeypatch):
    monkeypatch.setattr(rank_board, "SLOTS", 2)
    one, other = Linked(folder, 0), Linked(folder, 1)
    for client in "abc":
        one.serve(client, 10)
    one.tell(1.0)
    other.link.look(1.0)
    assert other.balances == {"a": 12, "b": 12}


def test_a_dead_rank_keeps_its_charges_but_its_clients_do_not_wait(folder):
    one, other = Linked(folder, 0), Linked(folder, 1)
    one.serve("a", 50)
    one.view.enter(one.asked("a", 5, 1))
    one.tell(1.0)
    other.link.look(1.0)
    assert list(other.link.waiting) == ["a"]
    other.link.look(1.0 + FORGET_S)
    assert list(other.link.waiting) == []
    assert other.balances == {"a": 52}


@pytest.mark.parametrize(("local", "settings"), [("vtc", {}), ("dlpm", DLPM)])
def test_a_rank_that_is_started_again_counts_all_earlier_charges(folder, local, settings):
    one, old = (Linked(folder, rank, local, settings) for rank in range(2))
    one.serve("a", 70)
    old.serve("a", 90)
    for rank in (one, old):
        rank.tell(1.0)
    one.link.look(1.0)
    again = Linked(folder, 1, local, settings)
    again.link.look(2.0)
    assert again.balances == one.balances
    again.serve("b", 40)
    again.tell(3.0)
    one.link.look(3.0)
    assert one.balances == again.balances


def test_a_scheduler_without_accounts_still_has_shares_of_the_whole_server(folder):
    one, other = (Linked(folder, rank, "fcfs") for rank in range(2))
    other.link.served({"a": 30.0, "b": 5.0})
    other.view.enter(other.asked("b", 5, 1))
    other.tell(1.0)
    one.link.look(1.0)
    assert one.link.served({"a": 10.0}) == {"a": 40.0, "b": 5.0}
    assert list(one.link.waiting) == ["b"]


def test_the_metrics_show_the_exchange_of_each_rank(folder):
    one, other = Linked(folder, 0), Linked(folder, 3)
    other.serve("a", 100)
    other.tell(1.0)
    one.link.look(1.5)
    one.serve("a", 10)
    one.tell(1.5)
    with OwnRegistry() as registry:
        exporter = Exporter(())
        for rank in (one, other):
            host = home()
            host.ranks = rank.link
            exporter._balances_at_s = 0.0
            exporter.update_gauges(host)
        page = registry.page()
    for line in (
        'fairbench_rank_charges_sent{rank="0"} 12.0',
        'fairbench_rank_charges_received{rank="0"} 102.0',
        'fairbench_rank_lag_seconds{rank="0"} 0.5',
        'fairbench_rank_charges_sent{rank="3"} 102.0',
    ):
        assert line in page


def test_weights_are_those_of_each_rank(folder):
    every = [Linked(folder, rank, "dlpm", DLPM, {"gold": 3}) for rank in range(2)]
    every[0].serve("gold", 250)
    every[0].tell(1.0)
    every[1].link.look(1.0)
    # served without a refill, because no pass was made
    assert every[1].balances == every[0].balances == {"gold": -252}


def test_a_folder_that_cannot_be_written_is_refused_with_a_line(tmp_path):
    with pytest.raises(
        UsageError, match=r"FAIRBENCH_RANKS = .*: must be a folder to which all ranks"
    ):
        RankLink(tmp_path / "absent", 0, None)


def test_the_folder_of_the_first_process_is_the_folder_of_all(monkeypatch):
    monkeypatch.setenv(ranks.FOLDER, "")  # restores the variable after the test
    monkeypatch.delenv(ranks.FOLDER)
    ends = []
    monkeypatch.setattr(ranks.atexit, "register", lambda *call: ends.append(call))
    ranks.open_folder()
    folder = Path(os.environ[ranks.FOLDER])
    ranks.open_folder()
    assert os.environ[ranks.FOLDER] == str(folder)
    assert folder.is_dir()
    ((remove, *given),) = ends
    remove(str(folder), -1)  # a child process leaves the folder alone
    assert folder.is_dir()
    remove(*given)
    assert not folder.is_dir()
