"""Test that a host calls only the hooks that a scheduler has, and refuses half a pair of hooks."""

from dataclasses import dataclass

import pytest

from fairbench.errors import UsageError
from fairbench.schedulers.base import OPTIONAL_HOOKS, HasOptionalHooks, LocalScheduler
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.edf import EDF
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.local.vtc_predict import PredictiveVTC
from fairbench.schedulers.registry import schedulers_in


def hooks_of(scheduler):
    return {name for name in OPTIONAL_HOOKS if getattr(scheduler, name) is not None}


CHARGING = {"on_steps", "on_read"}
TIME = {"on_prompt_time", "on_gpu_time"}


@pytest.mark.parametrize(
    ("kind", "params", "hooks"),
    [
        (FCFS, {}, set()),
        (VTC, {}, CHARGING),
        (DLPM, {"preempt": "fair"}, CHARGING | {"retraction_order"}),
        (DLPM, {"charge": "gpu-time"}, CHARGING | TIME),
        (PredictiveVTC, {}, CHARGING | {"on_request_tokens"}),
        (EDF, {}, {"on_request_tokens", "retraction_order"}),
        (EDF, {"chunks": True}, {"on_request_tokens", "retraction_order", "step_tokens"}),
    ],
)
def test_a_scheduler_has_the_hooks_of_its_parameters(kind, params, hooks):
    assert hooks_of(kind(kind.Params(**params))) == hooks


def test_every_optional_hook_has_a_default_and_is_described():
    assert set(vars(HasOptionalHooks)["__annotations__"]) == OPTIONAL_HOOKS.keys()
    assert all(method.__doc__ for method in OPTIONAL_HOOKS.values())


def test_a_subclass_that_counts_tokens_itself_is_told_each_client():
    class Doubled(VTC):
        def on_tokens(self, client, tokens):
            super().on_tokens(client, 2 * tokens)

    assert Doubled(VTC.Params()).on_steps is None


def test_a_subclass_keeps_its_own_hook():
    class Watching(DLPM):
        def on_steps(self, steps, running):
            self.charging.steps(steps, running)

    assert Watching(DLPM.Params()).on_steps.__func__ is Watching.on_steps


@pytest.mark.parametrize("method", sorted(TIME))
def test_half_a_pair_of_hooks_is_refused_when_the_class_is_defined(method):
    with pytest.raises(UsageError, match=f"class Half: defines {method}, and must also define on_"):
        type("Half", (FCFS,), {method: lambda *_: None})


@pytest.mark.parametrize(
    ("kind", "hook"),
    [(VTC, "on_finish"), (DLPM, "on_admitted"), (PredictiveVTC, "on_retract"), (DLPM, "prepare")],
)
def test_a_fair_scheduler_that_forgets_to_charge_is_refused_when_it_is_defined(kind, hook):
    with pytest.raises(UsageError, match=rf"class Forgets: {hook} must call super\(\)\.{hook}"):
        type("Forgets", (kind,), {hook: lambda self, *_: None})


# schedulers as users wrote them before optional hooks existed


class Ordered(FCFS):
    orders_retraction = True

    def retraction_order(self, running, now_s):
        return [one.request for one in running]


class Counting(LocalScheduler):
    name = "counting"
    per_request_tokens = True

    @dataclass(frozen=True)
    class Params:
        pass

    def select(self, view, now_s):
        yield from view.queue_order()

    def on_request_tokens(self, request, tokens):
        pass


def test_flags_of_the_earlier_interface_may_stay_beside_their_methods():
    assert hooks_of(Ordered(FCFS.Params())) == {"retraction_order"}
    assert hooks_of(Counting()) == {"on_request_tokens"}
    assert Ordered.orders_retraction
    assert not FCFS.orders_retraction


@pytest.mark.parametrize(
    ("flag", "method"),
    [
        ("orders_retraction", "retraction_order"),
        ("sizes_steps", "step_tokens"),
        ("times_steps", "on_gpu_time"),
    ],
)
def test_a_flag_set_in_a_constructor_is_refused_with_the_line_to_write(flag, method):
    with pytest.raises(
        UsageError, match=f"{flag}: this flag no longer has an effect.*self.{method} = None"
    ):
        setattr(FCFS(FCFS.Params()), flag, False)


def test_a_hook_with_other_parameters_is_refused_in_a_users_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from fairbench.schedulers.local.fcfs import FCFS\n"
        "class Mine(FCFS):\n"
        "    name = 'mine'\n"
        "    def step_tokens(self, running):\n"
        "        return 64\n"
    )
    with pytest.raises(UsageError, match="must be step_tokens\\(self, running, now_s\\)"):
        schedulers_in(path, "FILE", LocalScheduler)
