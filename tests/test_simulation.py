"""The simulated fan-outs of benchmarks/simulation.py: worked by hand where nothing varies, and laws where times do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmark_modules import simulation

Cluster, Layout, Link, Phase, Spread, Work = (
    simulation.Cluster, simulation.Layout, simulation.Link, simulation.Phase, simulation.Spread, simulation.Work,
)  # fmt: skip
EVEN = Spread(np.ones(1), np.ones(1))
SCAN = Phase(segment=0.010, locked=0.0, fixed=0.001, floor=0.0, sent=0.0, received=0.0, pack=0.002, take=0.0001)
LAYOUT = Layout(shards=1, replicas=1, threads=2, segments=4, copies=1)
LINK = Link(speed=1e9, round_trip=0.0004, submit=0.0005, calls=np.array([0.003]))
WORK = Work(once=0.004, phases=(SCAN,), verify=None, candidates=0)


def seconds(work: Work = WORK, layout: Layout = LAYOUT) -> float:
    return float(Cluster(work, layout, LINK, EVEN).run(0, 1)[0])


def test_one_shard_by_hand() -> None:
    # once, packing, submitting, half a round trip, two segments, unpacking, the call, half a round trip, taking the reply
    expected = 0.004 + 0.002 + 0.0005 + 0.0002 + 2 * 0.010 + 0.001 + 0.003 + 0.0002 + 0.0001
    assert Cluster(WORK, LAYOUT, LINK, EVEN).run(0, 5) == pytest.approx([expected] * 5)


@pytest.mark.parametrize("changed", [replace(SCAN, locked=0.010), replace(SCAN, floor=0.040)])
def test_lock_and_memory_are_lower_bounds(changed: Phase) -> None:
    assert Cluster(WORK, LAYOUT, LINK, EVEN).service(changed, 1.0) == pytest.approx([0.041])


def test_phases_follow_each_other_and_candidates_are_verified_last() -> None:
    work = replace(WORK, once=0.0)
    one = seconds(work)
    assert seconds(replace(work, phases=(SCAN, SCAN))) == pytest.approx(2 * one)
    # ten candidates by two threads: five milliseconds instead of the twenty of the scan
    verified = replace(work, verify=replace(SCAN, segment=0.001), candidates=10)
    assert seconds(verified) == pytest.approx(2 * one - 0.015)


def test_bytes_sent_to_many_shards_take_time() -> None:
    large = replace(WORK, phases=(replace(SCAN, sent=1e6),))
    layout = replace(LAYOUT, shards=10, copies=10)
    few = seconds(WORK, layout)
    assert seconds(large, layout) - few == pytest.approx(10 * (0.001 - 0.0005))
    assert seconds(large, replace(layout, copies=1)) == pytest.approx(few)


def test_many_shards_wait_for_the_slowest() -> None:
    uneven, free = Spread(np.array([0.5, 1.0, 1.5]), np.ones(1)), replace(LINK, submit=0.0)
    medians = [np.median(Cluster(WORK, replace(LAYOUT, shards=n), free, uneven).run(0, 200)) for n in (1, 10, 100)]
    assert medians[0] < medians[1] < medians[2]


def test_searches_wait_for_each_other_near_the_capacity() -> None:
    rate = Cluster(WORK, LAYOUT, LINK, EVEN).capacity()["shards"]
    assert rate == pytest.approx(1 / 0.021)
    assert Cluster(WORK, replace(LAYOUT, replicas=2), LINK, EVEN).capacity()["shards"] == pytest.approx(2 / 0.021)
    quiet, busy = (np.median(Cluster(WORK, LAYOUT, LINK, EVEN).run(load * rate, 400)) for load in (0.05, 0.9))
    assert busy > 1.5 * quiet


def test_one_replica_number_for_all_shards_waits_less() -> None:
    layout, rate = replace(LAYOUT, shards=20, replicas=2), 0.4 / 0.021
    apart, together = (np.percentile(Cluster(WORK, layout, LINK, EVEN, same).run(rate, 800), 95) for same in (False, True))
    assert together < apart
