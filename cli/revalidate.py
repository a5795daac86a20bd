"""`./mill revalidate`: does what is served still hold? What has expired or fails is revoked."""

from __future__ import annotations

import argparse
import json

from cli.amount import days, positive, whole
from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sample", type=whole, default=4, help="kernels to judge again, the longest unjudged first")
    parser.add_argument(
        "--gone-after-days", type=days, default=30.0, help="without traffic, a kind of hardware counts as gone"
    )
    parser.add_argument("--proof-s", type=positive, default=6.0, help="seconds of measuring per workload and kernel")
    parser.add_argument("--dry-run", action="store_true", help="revoke nothing: only tell what would be")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from cli.watch import Watch
    from flows import steps
    from flows.revalidate import Revalidated, rejudged_rows, revalidate_steps, summary
    from tasks.mlflow_mirror import keep_mirror

    settings, watch = from_environment(), Watch()

    def again(step: steps.Step) -> Revalidated:
        return revalidate_steps(
            settings,
            step,
            sample=arguments.sample,
            gone_after_days=arguments.gone_after_days,
            proof_s=arguments.proof_s,
            demote=not arguments.dry_run,
            tell=lambda text: watch.say("again", text),
        )

    done = steps.run("revalidate", again)
    if arguments.json:
        print(json.dumps(records.encode(done), indent=2))
    else:
        rows = rejudged_rows(done)
        if rows:
            print(compact_table([list(row.values()) for row in rows], list(rows[0])))
        print(summary(done, not arguments.dry_run))
    if done.demotions and not arguments.dry_run:
        keep_mirror(settings)
    return 0
