"""Tests of trainings in bfloat16 run where its products keep examples apart; elsewhere it is refused."""

import pytest

from securesgd.clipping.precision import keeps_rows_apart

needs_bfloat16 = pytest.mark.skipif(
    not keeps_rows_apart("cpu"), reason="this processor's products in bfloat16 mix examples: it is refused"
)
