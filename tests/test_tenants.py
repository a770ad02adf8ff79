"""Test the tree of tenants in clients' names."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.tenants import (
    ROOT,
    child_of,
    children_of,
    lineage,
    parent_of,
    tenants_of,
    with_tenants,
)

NAMES = st.text("ab/", min_size=1, max_size=8)  # including names that no workload allows


def test_names_spell_a_tree():
    assert lineage("org/team/user") == ("org/", "org/team/", "org/team/user")
    assert lineage("user") == ("user",)
    assert [parent_of(node) for node in lineage("org/team/user")] == [ROOT, "org/", "org/team/"]
    clients = ["org/team/ann", "org/bob", "cid", "org/team/dan", "org2/eve"]
    assert list(children_of(ROOT, clients)) == ["org/", "cid", "org2/"]
    assert list(children_of("org/", clients)) == ["org/team/", "org/bob"]
    assert list(children_of("org/team/", clients)) == ["org/team/ann", "org/team/dan"]
    assert list(tenants_of(clients)) == ["org/", "org/team/", "org2/"]
    assert with_tenants(["b/c", "a"]) == ["b/c", "a", "b/"]
    assert not tenants_of(["a", "client-1"])


@given(NAMES)
def test_each_node_is_below_the_previous_one(client):
    above = ROOT
    for node in lineage(client):
        assert (parent_of(node), child_of(above, client)) == (above, node)
        above = node


@given(st.lists(NAMES, unique=True))
def test_no_client_name_equals_another_or_a_tenant(clients):
    leaves = [lineage(client)[-1] for client in clients]
    assert len({*leaves, *tenants_of(clients)}) == len(clients) + len(tenants_of(clients))
