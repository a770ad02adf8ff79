"""Test drafts, which are an experiment's values with their origins."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.spec import Draft, Origin

LAYER = st.dictionaries(st.sampled_from(["dp", "seed", "gpu", "tag"]), st.integers(0, 9))


@given(LAYER, LAYER, LAYER)
def test_each_value_is_that_of_its_strongest_origin(flags, file, defaults):
    draft = Draft(flags, {})
    draft.fill(file, Origin.FILE)
    draft.fill(defaults, Origin.DEFAULT)
    assert dict(draft) == {**defaults, **file, **flags}
    assert draft.of_flags() == flags
    assert draft.flagged == set(flags)
    for key in draft:
        strongest = Origin.FILE if key in file else Origin.DEFAULT
        assert draft.origin(key) is (Origin.FLAG if key in flags else strongest)
        assert draft.is_said(key) == (key in flags or key in file)


def test_a_value_keeps_its_origin_when_it_is_replaced_or_removed():
    draft = Draft({"gpu": "a100", "routers": 1}, {})
    draft["gpu"] = "a100-80gb/llama-3.1-8b/sxm"
    del draft["routers"]
    draft.fill({"gpu": "h100", "routers": 2}, Origin.FILE)
    assert dict(draft) == {"gpu": "a100-80gb/llama-3.1-8b/sxm"}
    assert draft.flagged == {"gpu", "routers"}


def test_a_scheduler_overrides_the_pair_of_a_weaker_origin_and_a_gateway_its_detector():
    draft = Draft({"scheduler": "vtc", "gateway": "wfq"}, {})
    draft.fill({"router": "d2lpm", "local": "fcfs", "saturation": "none", "dp": 2}, Origin.FILE)
    assert dict(draft) == {"scheduler": "vtc", "gateway": "wfq", "dp": 2}
    draft = Draft({"router": "round-robin"}, {})
    draft.fill({"scheduler": "vtc"}, Origin.FILE)
    assert dict(draft) == {"scheduler": "vtc", "router": "round-robin"}


def test_flags_of_backends_and_settings_count_by_their_current_keys():
    flags = {"backend": {"kind": "emulator", "tp": 2}}
    draft = Draft(flags, {"engine.eviction_delay_s": 1.0, "dlpm.quantum": 5})
    assert draft.flagged == {
        *("backend", "backend.kind", "backend.tp"),
        *("cluster.eviction_delay_s", "dlpm.quantum"),
    }
    assert Draft({"backend": "vllm"}, {}).flagged == {"backend", "backend.kind"}
