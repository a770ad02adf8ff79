"""What holds for every test."""

from hypothesis import settings

# Machines are noisy, so time is never a reason to fail a property.
settings.register_profile("fairbench", deadline=None)
settings.load_profile("fairbench")
