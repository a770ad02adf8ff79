"""Stop Hypothesis at the first failing example: a pytest plugin, since any failure will do."""

from hypothesis import Phase, settings

QUICK = (Phase.explicit, Phase.reuse, Phase.generate)


def pytest_collection(session):
    settings.register_profile("mutation", settings.get_profile("fairbench"), phases=QUICK)
    settings.load_profile("mutation")
