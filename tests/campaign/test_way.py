"""The way to an S3 server fails while a version is promoted; `make faults` has every request, once and three times."""

from __future__ import annotations

import pytest

from modelreg_testing.campaign.commands import command_named
from modelreg_testing.campaign.homes import Template
from modelreg_testing.campaign.trials import prepared
from modelreg_testing.campaign.way import Ways, fail_the_way
from modelreg_testing.s3_proxy import Fault

pytestmark = pytest.mark.slow

FAULTS = (Fault.LATE, Fault.ERROR_AS_200)


def test_a_promotion_comes_to_the_right_end_over_a_bad_way(remote: Template) -> None:
    """The last two requests reserve the generation and move the pointer."""
    with prepared(command_named("promote"), remote, traced=False) as ready:
        for tally in fail_the_way(ready, Ways(faults=FAULTS, last_requests=2, times=(1,))):
            tally.require_clean()
            assert tally.trials == 2
