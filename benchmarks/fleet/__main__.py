"""What a fleet of replicas does, simulated with the engine's own scheduler, caches and router.

    python -m benchmarks.fleet measure nano --write benchmarks/history/fleet_nano.json
    python -m benchmarks.fleet check benchmarks/history/fleet_nano.json
    python -m benchmarks.fleet sizes
    python -m benchmarks.fleet routers --model granite-4.0-h-1b --replicas 4 --users 500,1000

``measure`` runs a real server and writes down what it did; ``check`` prints that beside the same
run, simulated. The others are on paper: a device of `benchmarks.fleet.models`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks.arguments import positives
from benchmarks.fleet.models import CARD, HYBRIDS, OnPaper, on_paper
from benchmarks.fleet.replica import SimulatedReplica
from benchmarks.fleet.simulate import ROUTERS, Fleet, figures
from benchmarks.fleet.workload import Plan, User
from blazr.engine.config import EngineConfig

LENGTHS = (1_000, 4_000, 16_000, 64_000)
CONFIG = EngineConfig(max_running=256, token_budget=2048, max_waiting=2**20)


@dataclass(frozen=True)
class Trial:
    """Users who ask a fleet.

    Args:
        paper: The model of each replica.
        plan: What users do.
        seconds: Simulated, after the caches have filled for ``warm_up_s``.
        warm_up_s: Which do not count.
    """

    paper: OnPaper
    plan: Plan
    seconds: float
    warm_up_s: float

    def run(self, router: str, count: int) -> dict[str, float]:
        """What users of so many replicas see."""
        replicas: list[SimulatedReplica] = []
        fleet = Fleet(replicas, ROUTERS[router]())
        replicas += [
            SimulatedReplica(
                number,
                self.paper.shape,
                device=self.paper.device,
                config=CONFIG,
                next_token=fleet.next_token,
            )
            for number in range(count)
        ]
        plan = self.plan
        for number in range(plan.users):
            # everybody has asked once when the pause between two questions has passed
            fleet.add(User(plan, number).turns(), plan.think_s * (number + 0.5) / plan.users)
        started_s = perf_counter()
        fleet.run(self.warm_up_s)
        num_before, again, choosing_s = len(fleet.records), fleet.num_again, fleet.choosing_s
        busy_s = sum(each.busy_s for each in replicas)
        fleet.run(self.warm_up_s + self.seconds)
        records = fleet.records[num_before:]
        if not records:
            sys.exit(
                f"no reply ended within the {self.seconds:g} s that count, as users"
                f" ({plan.users}) pause for {plan.think_s:g} s: try more --seconds or --users"
            )
        return figures(records) | {
            "again_share": (fleet.num_again - again) / sum(r.prompt_tokens for r in records),
            "busy": (sum(each.busy_s for each in replicas) - busy_s) / self.seconds / count,
            "choosing_us": 1e6 * (fleet.choosing_s - choosing_s) / len(records),
            "real_s": perf_counter() - started_s,
        }


def print_routers(options: argparse.Namespace) -> None:
    """Each router on the same fleets: of each model, with each number of users."""
    for model in options.model.split(","):
        card = replace(CARD, memory_bytes=1e9 * options.card_gb)
        paper = on_paper(model, CONFIG, state_dtype=options.state_dtype, card=card)
        for users in options.users:
            plan = Plan(
                users=users, think_s=options.think, turns=options.turns, reply=options.reply
            )
            trial = Trial(paper, plan, options.seconds, options.warm_up)
            print(f"{model}, {options.replicas} replicas of {options.card_gb:g} GB, {users} users")
            print(_HEAD)
            for router in options.routers:
                print(_line(router, trial.run(router, options.replicas)), flush=True)


_HEAD = (
    f"{'':18} {'requests':>8} {'tokens/s':>8} {'busy':>5} {'read again':>10} "
    f"{'first p50':>9} {'p90':>7} {'p99':>7} {'gap ms':>7} {'router us':>9} {'took s':>7}"
)


def _line(name: str, found: dict[str, float]) -> str:
    return (
        f"{name:18} {found['requests']:8.0f} {found['output_per_s']:8.0f} {found['busy']:5.2f} "
        f"{found['again_share']:10.4f} {found['ttft_p50_s']:9.3f} {found['ttft_p90_s']:7.3f} "
        f"{found['ttft_p99_s']:7.3f} {1000 * found['gap_mean_s']:7.1f} "
        f"{found['choosing_us']:9.0f} {found['real_s']:7.1f}"
    )


def print_sizes(options: argparse.Namespace) -> None:
    """Bytes of a conversation, of hybrids and of models of attention alone."""
    print(
        f"{'MB of a conversation of':26}"
        + "".join(f"{n:>10,}" for n in LENGTHS)
        + "     page    state"
    )
    for hybrid, other in HYBRIDS.items():
        for name in (hybrid, other):
            paper = on_paper(name, CONFIG, state_dtype=options.state_dtype)
            sizes = "".join(f"{paper.conversation_bytes(n) / 1e6:10.1f}" for n in LENGTHS)
            print(f"{name:26}{sizes}{paper.page_bytes / 1e6:9.2f}{paper.state_bytes / 1e6:9.1f}")


def router_names(text: str) -> list[str]:
    """Names of ROUTERS with commas between them."""
    names = text.split(",")
    if unknown := set(names) - ROUTERS.keys():
        raise argparse.ArgumentTypeError(
            f"there is no {', '.join(sorted(unknown))}; there are {', '.join(ROUTERS)}"
        )
    return names


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("model")
    measuring.add_argument("--vocab")
    measuring.add_argument("--write", type=Path, required=True)
    checking = commands.add_parser("check")
    checking.add_argument("file", type=Path)
    sizes = commands.add_parser("sizes")
    sizes.add_argument("--state-dtype", default="auto", choices=("auto", "bfloat16"))
    routers = commands.add_parser("routers")
    routers.add_argument("--model", default="granite-4.0-h-1b", help="with commas")
    routers.add_argument("--users", type=positives, default="1000", help="with commas")
    routers.add_argument("--replicas", type=int, default=1)
    routers.add_argument("--card-gb", type=float, default=CARD.memory_bytes / 1e9)
    routers.add_argument("--think", type=float, default=45.0, help="seconds between turns")
    routers.add_argument("--turns", type=int, default=6)
    routers.add_argument("--reply", type=int, default=60, help="tokens")
    routers.add_argument("--seconds", type=float, default=30.0)
    routers.add_argument("--warm-up", type=float, default=90.0)
    routers.add_argument("--routers", type=router_names, default=[*ROUTERS], help="with commas")
    routers.add_argument("--state-dtype", default="auto", choices=("auto", "bfloat16"))
    options = parser.parse_args(arguments)
    if options.command == "measure":
        from benchmarks.fleet.measure import compare, measure

        found = measure(options.model, options.vocab)
        options.write.write_bytes(msgspec.json.encode(found) + b"\n")
        print(compare(found))
    elif options.command == "check":
        from benchmarks.fleet.measure import Measured, compare

        print(compare(msgspec.json.decode(options.file.read_bytes(), type=Measured)))
    else:
        {"sizes": print_sizes, "routers": print_routers}[options.command](options)


if __name__ == "__main__":
    main()
