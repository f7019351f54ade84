"""Simulated fleets: steps cost what they should, and routers do what they are for."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.fleet.__main__ import main
from benchmarks.fleet.devices import FittedDevice, fit
from benchmarks.fleet.replica import SimulatedReplica
from benchmarks.fleet.simulate import ROUTERS, Fleet, figures
from benchmarks.fleet.workload import Plan, User
from blazr.engine.cache.manager import CacheShape
from blazr.engine.config import EngineConfig
from tests.support.seeds import run_seed

DEVICE = FittedDevice((2e-3, 1e-4, 1e-7, 5e-5, 1e-9))
SHAPE = CacheShape(
    grid=64,
    num_superpages=200,
    pages_per_superpage=4,
    states_per_superpage=1,
    max_running=8,
    max_blocks=64,
)
PLAN = Plan(users=10, system=256, kinds=3, question=60, reply=12, turns=4, think_s=1.0)


def run(router: str, count: int = 3) -> Fleet:
    replicas: list[SimulatedReplica] = []
    fleet = Fleet(replicas, ROUTERS[router]())
    for number in range(count):
        config = EngineConfig(max_running=8)
        replicas.append(
            SimulatedReplica(
                number, SHAPE, device=DEVICE, config=config, next_token=fleet.next_token
            )
        )
    for number in range(PLAN.users):
        fleet.add(User(PLAN, number).turns(), 0.1 * number)
    fleet.run(12.0)
    return fleet


def test_a_fit_finds_what_steps_cost_though_some_were_held_up() -> None:
    draw = Random(run_seed(1))
    samples = []
    for number in range(300):
        given = (1.0, *(draw.uniform(0, most) for most in (8, 4000, 500, 1e6)))
        seconds = sum(a * b for a, b in zip(DEVICE.weights, given, strict=True))
        samples.append((given, seconds * (9.0 if number % 20 == 0 else 1.0)))
    assert fit(samples).weights == pytest.approx(DEVICE.weights, rel=0.02)


def test_what_does_not_cost_anything_is_not_negative() -> None:
    samples = [((1.0, float(n), 0.0, 0.0, 0.0), 1.0 - 0.01 * n) for n in range(8)]
    assert min(fit(samples).weights) == 0


@pytest.mark.parametrize("router", ROUTERS)
def test_a_fleet_is_the_same_every_time_and_answers_everybody(router: str) -> None:
    first, second = run(router), run(router)
    assert figures(first.records) == figures(second.records)
    assert len(first.records) > 3 * PLAN.users
    for record in first.records:
        assert record.output_tokens > 0
        assert record.arrival_s < record.token_s[0] <= record.end_s


def test_the_router_that_knows_prefixes_has_less_read_again() -> None:
    again = {router: run(router).num_again for router in ROUTERS}
    # of the last block a part is always read again
    assert again["prefix-aware"] < 0.6 * again["round robin"]


def test_a_time_in_which_no_reply_ends_is_told() -> None:
    options = ("--users", "1", "--warm-up", "0.1", "--seconds", "0.1")
    with pytest.raises(SystemExit, match=r"^no reply ended within the 0\.1 s"):
        main(["routers", "--model", "nano", *options])


def test_a_router_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["routers", "--routers", "prefix-aware,nearest"])
    assert "there is no nearest; there are round robin" in capsys.readouterr().err
