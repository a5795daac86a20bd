"""`./mill serve`: the reference engine serves a replayed trace and follows a channel, until Ctrl-C."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

from cli.amount import count
from cli.watch import Watch
from gristmill.cohort import FOLLOWING
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace", type=Path, help="Azure CSV or Mooncake JSONL to replay (default: the Azure code trace)"
    )
    parser.add_argument("--requests", type=count, default=40, help="requests per round of the replay")
    parser.add_argument("--concurrency", type=count, default=4, help="requests served at a time")
    parser.add_argument("--rounds", type=count, help="rounds to serve; until Ctrl-C if not given")
    parser.add_argument(
        "--channel", choices=FOLLOWING, default="canary", help="what to follow; auto: as the host's cohort says"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    parser.add_argument("--json", action="store_true", help="print one JSON object per round")


def run(arguments: argparse.Namespace) -> int:
    from flows.demo import DemoSettings, read_requests, serving_flags
    from registry.doctor import require_conditional_puts
    from registry.repository import Repository
    from tasks import object_store, promotion
    from tasks.serving_client import ServingProcess

    settings, watch = from_environment(), Watch()
    demo = DemoSettings(
        trace=arguments.trace, requests=arguments.requests, dtype=arguments.dtype, channel=arguments.channel
    )
    name, requests = read_requests(demo, seed=0)
    with object_store.opened(settings) as opened:
        require_conditional_puts(opened.store)
        Repository(opened.store, promotion.keyring_of(settings)).initialise()
        log = settings.home / "logs" / "serve.log"

        def tell(event: dict[str, object]) -> None:
            if event["event"] in ("swap", "rollback", "refusal", "poll_failed"):
                facts = {key: value for key, value in event.items() if key != "event"}
                watch.say(str(event["event"]), json.dumps(facts))

        with ServingProcess(serving_flags(settings, demo, opened), opened.environ, log, tell) as process:
            process.wait_ready()
            watch.say("serve", f"follows {arguments.channel}; replays {len(requests)} requests, {name}; Ctrl-C ends it")
            rounds = itertools.count() if arguments.rounds is None else range(arguments.rounds)
            for number in rounds:
                summary = process.replay(requests, arguments.concurrency, seed=number)
                hits = sum(summary["hits"].values())
                if arguments.json:
                    facts = {name: summary[name] for name in ("finished", "tokens_per_s", "generation")}
                    print(json.dumps({"round": number, **facts, "hits": hits}), flush=True)
                else:
                    watch.say(
                        "serve",
                        f"round {number}: {summary['tokens_per_s']:.1f} decode tokens/s at generation "
                        f"{summary['generation']}, {hits} kernel hits",
                    )
    return 0
