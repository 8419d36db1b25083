"""One hypothesis profile: no per-example deadline (shared machines stall), the same examples on every CI run."""

import os

from hypothesis import settings

settings.register_profile("securesgd", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("securesgd")
