"""What counts as growth: leaks are found, and warm-up and noise are not taken for one."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lingbot_tools.soak import Phase, Sample, draw

MB = 1024


def played(
    rss: Callable[[int], float] = lambda done: 50 * MB,
    threads: Callable[[int], int] = lambda done: 20,
    latency: Callable[[int], float] = lambda chunk: 0.1,
    phase: Phase | None = None,
) -> Phase:
    """A phase in which one process behaved like that."""
    phase = phase or Phase.endless(1000)
    for done in range(10, phase.count + 1, 10):
        sizes = {"denoise": int(rss(done)), "shared memory": 5 * MB}
        phase.samples.append(Sample(done, sizes, threads(done), files=9))
    phase.latencies = [latency(chunk) for chunk in range(phase.count)]
    return phase


def missed(phase: Phase) -> list[str]:
    return [bar.text for bar in phase.bars() if not bar.met]


def test_what_stays_as_it_is_meets_every_bar() -> None:
    assert missed(played()) == []


def test_a_leak_of_two_kilobytes_a_chunk_is_found() -> None:
    assert missed(played(rss=lambda done: 50 * MB + 2 * done)) == ["one endless session: denoise"]


def test_a_leak_of_half_a_kilobyte_a_chunk_is_below_the_bar() -> None:
    phase = played(rss=lambda done: 50 * MB + 0.5 * done)
    assert missed(phase) == []
    assert phase.slopes()["denoise"] == pytest.approx(0.5, abs=0.01)


def test_short_sessions_have_a_bar_of_their_own() -> None:
    for kilobytes, expected in ((9, []), (11, ["short sessions: denoise"])):
        leaking = played(lambda done, k=kilobytes: 50 * MB + k * done, phase=Phase.short(500))  # type: ignore[misc]
        assert missed(leaking) == expected


def test_growth_during_the_warm_up_does_not_count() -> None:
    assert missed(played(rss=lambda done: 50 * MB + 100 * min(done, 250))) == []
    late = played(rss=lambda done: 50 * MB + 100 * min(done, 500))
    assert missed(late) == ["one endless session: denoise"]


def test_noise_is_no_leak() -> None:
    noise = random.Random(1)
    assert missed(played(rss=lambda done: 50 * MB + noise.gauss(0, 200))) == []


def test_shared_memory_is_watched() -> None:
    phase = played()
    for sample in phase.samples:
        sample.sizes["shared memory"] += 4 * sample.done
    assert missed(phase) == ["one endless session: shared memory"]


def test_one_thread_more_is_found_and_a_passing_one_is_not() -> None:
    growing = played(threads=lambda done: 20 + (done > 600))
    assert (growing.increase("threads"), growing.increase("files")) == (1, 0)
    assert missed(growing) == ["one endless session: more threads"]
    assert missed(played(threads=lambda done: 20 + (done == 500))) == []


def test_getting_slower_is_found_through_noise() -> None:
    noise = random.Random(2)

    def noisy(chunk: int) -> float:
        busy = chunk > 850 and noise.random() < 0.6  # the machine does something else as well
        return 0.1 * (1 + 0.02 * noise.random()) * (1 + busy * noise.expovariate(1))

    assert missed(played(latency=noisy)) == []
    slower = played(latency=lambda chunk: noisy(chunk) * (1 + 0.3 * chunk / 1000))
    assert slower.slowdown() > 1.15
    assert missed(slower) == ["one endless session: slowdown"]


def test_a_slope_is_that_of_the_best_line() -> None:
    samples = [Sample(1000 * x, {"client": 5 + 2000 * x}, 1, 1) for x in range(1, 5)]
    phase = Phase.endless(1000)
    phase.samples = samples
    assert phase.slopes() == {"client": pytest.approx(2)}
    phase.samples = samples[:1]
    assert phase.slopes() == {"client": 0}


def test_the_warm_up_is_a_quarter() -> None:
    assert [sample.done for sample in played().settled()][:2] == [260, 270]


def test_samples_are_due_evenly() -> None:
    assert sum(Phase.endless(2000).due(done) for done in range(1, 2001)) == 200
    assert all(Phase.short(7).due(done) for done in range(1, 8))


GROWING = """
import os
from lingbot_tools.soak import use
before = use(os.getpid())
block = bytearray(b"x" * (64 * 1024 * 1024))
with open(os.devnull):
    after = use(os.getpid())
print([new - old for old, new in zip(before, after)])
"""


def test_usage_is_that_of_the_process() -> None:
    """Of one that does nothing else: here threads and files of other tests may be ending."""
    command = [sys.executable, "-c", GROWING]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    rss_kb, threads, files = ast.literal_eval(run.stdout)
    assert (files, threads) == (1, 0)
    assert 60 * MB < rss_kb < 80 * MB


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "soak.png"
    draw(path, [played(), played(phase=Phase.short(100))])
    assert path.read_bytes().startswith(b"\x89PNG")
