"""Part 8: other servers. A Ceph RADOS gateway that is running, and localbucket as the negative control."""

from __future__ import annotations

import os
from pathlib import Path

from modelreg_testing.campaign.jobs import Job, Sizes, jobs_of, run_jobs
from modelreg_testing.campaign.results import Tally
from modelreg_testing.cli import run_cli
from modelreg_testing.s3_server import BUCKET, S3Server, localbucket


def run_servers(folder: Path, sizes: Sizes) -> list[Tally]:
    """Check the control, and run the S3 half of the campaign on the gateway named by MODELREG_TEST_RGW, if any."""
    rows = [refuse_the_liar(folder)]
    endpoint = os.environ.get("MODELREG_TEST_RGW")
    if not endpoint:
        rows.append(
            Tally(
                "servers", "Ceph RGW: not run, MODELREG_TEST_RGW names none (tests/campaign/ceph.sh starts one)", "s3"
            )
        )
        return rows
    server = S3Server(endpoint, bare_etags=True)
    server.boto.create_bucket(Bucket=BUCKET)  # there already is as good
    rows.append(_check(server))
    chosen: list[Job] = [job for part in ("kills", "crowd", "way") for job in jobs_of(part, sizes) if job.store == "s3"]
    found = run_jobs(chosen, folder / "rgw", server, at_once=2)
    for row in found:
        row.what, row.store = f"Ceph RGW: {row.what}", "rgw"
    return [*rows, *found]


def refuse_the_liar(folder: Path) -> Tally:
    """Let `init` meet a server that answers 200 to every conditional write."""
    tally = Tally("servers", "localbucket: `init` and `store check` refuse it", "s3")
    data = folder / "liar"
    data.mkdir(parents=True)
    with localbucket(data) as server:
        url = str(server.location())
        for words in (("store", "check", url), ("init", "--store", url)):
            told = run_cli(*words, home=folder / "refused")
            is_refused = told.code == 1 and "If-Match was ignored" in told.out + told.err
            tally.count("refused, with the reason" if is_refused else "VIOLATION")
            if not is_refused:
                tally.violations.append(f"{words}: exit {told.code}: {told.err[-300:]}")
    return tally


def _check(server: S3Server) -> Tally:
    tally = Tally("servers", "Ceph RGW: `store check`", "rgw")
    told = run_cli("store", "check", str(server.location()))
    tally.count(f"exit {told.code}")
    tally.notes += [" ".join(line.split()) for line in told.out.splitlines() if "noted" in line or "failed" in line]
    if told.code != 0:
        tally.violations.append(told.err[-400:])
    return tally
