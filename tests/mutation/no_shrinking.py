"""A pytest plugin: Hypothesis stops at the first failing example, since any one will do."""

from hypothesis import Phase, settings

QUICK = (Phase.explicit, Phase.reuse, Phase.generate)


def pytest_collection(session):
    settings.register_profile("mutation", settings.get_profile("fairbench"), phases=QUICK)
    settings.load_profile("mutation")
