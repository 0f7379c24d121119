"""The simulated fan-outs of benchmarks/simulation.py: worked by hand where nothing varies, and laws where times do."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = str(Path(__file__).parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)
from simulation import Cluster, Layout, Link, Phase, Spread, Work, capacity  # noqa: E402

sys.path.remove(BENCHMARKS)  # its ray.py must not be taken for Ray

EVEN = Spread(np.ones(1), np.ones(1))
SCAN = Phase(segment=0.010, locked=0.0, fixed=0.001, floor=0.0, sent=0.0, received=0.0, pack=0.002, take=0.0001)
LAYOUT = Layout(shards=1, replicas=1, threads=2, segments=4, copies=1)
LINK = Link(speed=1e9, round_trip=0.0004, submit=0.0005, calls=np.array([0.003]))
WORK = Work(once=0.004, phases=(SCAN,), verify=None, candidates=0)


def test_one_shard_by_hand() -> None:
    # once, packing, submitting, half a round trip, two segments in a row, unpacking, the call, the way back, taking it
    wanted = 0.004 + 0.002 + 0.0005 + 0.0002 + 2 * 0.010 + 0.001 + 0.003 + 0.0002 + 0.0001
    assert Cluster(WORK, LAYOUT, LINK, EVEN).run(0, 5) == pytest.approx([wanted] * 5)


def test_the_lock_and_the_memory_are_floors() -> None:
    for changed in (replace(SCAN, locked=0.010), replace(SCAN, floor=0.040)):
        cluster = Cluster(replace(WORK, phases=(changed,)), LAYOUT, LINK, EVEN)
        assert cluster.service(changed, 1.0) == pytest.approx([0.041])


def test_phases_follow_each_other_and_candidates_are_verified_last() -> None:
    one = Cluster(replace(WORK, once=0.0), LAYOUT, LINK, EVEN).run(0, 1)[0]
    both = Cluster(replace(WORK, once=0.0, phases=(SCAN, SCAN)), LAYOUT, LINK, EVEN).run(0, 1)[0]
    assert both == pytest.approx(2 * one)
    verified = replace(WORK, once=0.0, verify=replace(SCAN, segment=0.001), candidates=10)
    # ten candidates by two threads: five milliseconds instead of the twenty of the scan
    assert Cluster(verified, LAYOUT, LINK, EVEN).run(0, 1)[0] == pytest.approx(2 * one - 0.015)


def test_what_is_sent_to_many_shards_takes_its_time() -> None:
    large = replace(WORK, phases=(replace(SCAN, sent=1e6),))
    layout = replace(LAYOUT, shards=10, copies=10)
    few = Cluster(WORK, layout, LINK, EVEN).run(0, 1)[0]
    much = Cluster(large, layout, LINK, EVEN).run(0, 1)[0]
    assert much - few == pytest.approx(10 * (0.001 - 0.0005))
    once = Cluster(large, replace(layout, copies=1), LINK, EVEN).run(0, 1)[0]
    assert once == pytest.approx(few)


def test_many_shards_wait_for_the_slowest() -> None:
    uneven = Spread(np.array([0.5, 1.0, 1.5]), np.ones(1))
    free = replace(LINK, submit=0.0)
    medians = [np.median(Cluster(WORK, replace(LAYOUT, shards=n), free, uneven).run(0, 200)) for n in (1, 10, 100)]
    assert medians[0] < medians[1] < medians[2]


def test_searches_wait_for_each_other_near_the_capacity() -> None:
    cluster = Cluster(WORK, LAYOUT, LINK, EVEN)
    able = capacity(cluster)
    assert able["shards"] == pytest.approx(1 / 0.021)
    quiet = np.median(Cluster(WORK, LAYOUT, LINK, EVEN).run(0.05 * able["shards"], 400))
    busy = np.median(Cluster(WORK, LAYOUT, LINK, EVEN).run(0.9 * able["shards"], 400))
    assert busy > 1.5 * quiet
    assert capacity(Cluster(WORK, replace(LAYOUT, replicas=2), LINK, EVEN))["shards"] == pytest.approx(2 / 0.021)


def test_hedging_takes_the_quicker_answer() -> None:
    layout, slow = replace(LAYOUT, replicas=2), replace(LINK, calls=np.array([0.003] * 19 + [1.0]))
    plain = Cluster(WORK, layout, slow, EVEN)
    hedged = Cluster(WORK, layout, slow, EVEN)
    hedged.patience = 0.1
    assert np.max(plain.run(0, 300)) > 1
    assert np.percentile(hedged.run(0, 300), 97) < 0.2
