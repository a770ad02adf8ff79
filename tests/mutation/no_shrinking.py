"""A pytest plugin that stops Hypothesis at the first failing example, because any one counts."""

from hypothesis import Phase, settings

QUICK = (Phase.explicit, Phase.reuse, Phase.generate)


def pytest_collection(session):
    settings.register_profile("mutation", settings.get_profile("fairbench"), phases=QUICK)
    settings.load_profile("mutation")
