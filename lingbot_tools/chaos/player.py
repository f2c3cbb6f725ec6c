"""One client that lives one life after another, each decided by the seed alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from lingbot_client.errors import WorldError
from lingbot_client.exchange import Exchange
from lingbot_client.triton import TritonTransport

from lingbot_tools.chaos.ledger import DROPPED, FAILURES, LEFT, NO_SEQUENCE, Ledger, Sent, Violation
from lingbot_tools.chaos.mischief import BAD_OPENINGS, OPENING, bad_controls
from lingbot_triton.simulated.marks import fingerprint

Inputs = Mapping[str, Any] | None

KEYS = ("", "w", "a", "sj", "dil", "wl")
ENDS = ("end", "end", "end", "with control", "with control", "late", "cut", "cut", "silent")
RESPONSE_SECONDS = 60.0
"""After so long without its final response a request counts as forgotten."""
WINDOW, IDLE_SECONDS = 2, 3.0
"""`control_window` and `session_idle_seconds` of the server."""
IDLE_MARGIN = 0.5
"""Seconds by which the server may count a silence longer than the client does."""


@dataclass
class World:
    """What all players of one run share: the server, its disturbances, and the tally."""

    url: str
    seed: int
    deadline: float
    shared: TritonTransport
    """A connection that lasts for the whole run."""
    tally: Counter[str]
    disturbed_until: float = 0.0
    """When sessions could last fail since a worker had died; 0 where none did."""


class Life:
    """One session id from its opening to whatever ends it, with what may come in between."""

    def __init__(self, world: World, name: str, previous: Life | None) -> None:
        self.world, self.name = world, name
        self.random = Random(f"{world.seed}/{name}")
        fresh = self.random.getrandbits(50) + 1 if self.chance(0.5) else f"chaos-{name}"
        self.session_id: int | str = fresh if previous is None else previous.session_id
        self.fresh, self.was_cut = previous is None, False
        self.ledger = self._new_ledger()
        if previous is not None and previous.was_cut:
            # Triton drops what is queued behind a request of a client that is gone, and then
            # the sequence, even where another client goes on with it.
            self.ledger.tolerated |= {DROPPED, NO_SEQUENCE, "NO_SESSION"}
        self.opened_at = time.monotonic()
        self._own = TritonTransport(world.url) if self.chance(0.5) else None
        self._exchange = Exchange((self._own or world.shared).open_stream())
        self._readers: dict[Sent, asyncio.Task[None]] = {}

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _new_ledger(self) -> Ledger:
        seed, chunks = self.random.getrandbits(40), self.random.choice((1, 2, 4, 8))
        endless = self.chance(0.3)
        length = {"kv_window_frames": 6} if endless else {"chunk_count": chunks}
        self.options = {**OPENING["options"], "seed": seed, **length}
        return Ledger(fingerprint(seed), None if endless else chunks - 1, WINDOW)

    def _opening(self) -> dict[str, Any]:
        decode_frames = self.random.choice((1, 1, 2, 3))
        return {**OPENING, "options": {**self.options, "decode_frames": decode_frames}}

    async def live(self) -> None:
        """Open, do a number of things, end somehow; raises Violation."""
        try:
            alive = await self.open()
            for _ in range(self.random.choice((0, 1, 3, 8, 20)) if alive else 0):
                (action,) = self.random.choices(list(ACTIONS), list(ACTIONS.values()))
                self.world.tally[action.__name__] += 1
                await action(self)
                if self.ledger.refused:
                    break
            if alive and not self.ledger.refused:
                await self.end()
            await self.check(self.ledger)
        finally:
            await self._leave()

    async def open(self) -> bool:
        """START, good or bad; whether the life goes on."""
        if self.fresh and self.chance(0.1):
            inputs = OPENING | self.random.choice(BAD_OPENINGS)
            self._send("bad opening", inputs=inputs, good=False, start=True)
            return False
        control, end = 0 if self.chance(0.3) else None, self.chance(0.05)
        self._send("opening", control, inputs=self._opening(), start=True, end=end)
        if end or not self.fresh or self.chance(0.7):
            await self.settle()
        return not (end or self.ledger.refused)

    async def control(self) -> None:
        self._send("control", self.ledger.next_index())
        if self.chance(0.5):
            await self.settle()

    async def burst(self) -> None:
        for _ in range(self.random.randint(2, 5)):
            self._send("control", self.ledger.next_index())

    async def duplicate(self) -> None:
        if (following := self.ledger.next_index()) > 0:
            self._send("duplicate", self.random.randrange(following))

    async def skip(self) -> None:
        self._send("skip", self.ledger.next_index() + self.random.randint(1, 3))

    async def malformed(self) -> None:
        inputs = self.random.choice(bad_controls(self.ledger.next_index()))
        self._send("malformed", inputs=inputs, good=False)

    async def settle(self) -> None:
        await self._done(self.ledger)

    async def pause(self) -> None:
        await asyncio.sleep(self.random.random() * 0.2)

    async def foreign(self) -> None:
        """A client without the token tries to steer the session or to take it over."""
        await self.settle()
        if self.chance(0.5):
            self._send("foreign", self.ledger.next_index(), foreign=True)
        else:  # opens nothing, should the id be free
            self._send("foreign", inputs={"prompt": "no picture"}, start=True, foreign=True)
        await self.settle()

    async def foreign_end(self) -> None:
        """Triton forgets a sequence at any client's END; the owner goes on with START."""
        await self.settle()
        self._send("foreign", foreign=True, end=True)
        await self.settle()
        self._send("resumed", self.ledger.next_index(), start=True)
        await self.settle()

    async def reopen(self) -> None:
        """START on the live id: what is under way ends, and a fresh session begins."""
        self.ledger.tolerated.add("SESSION_FAILED")
        old, self.ledger = self.ledger, self._new_ledger()
        self._send("reopening", inputs=self._opening(), start=True)
        await self.settle()
        await self.check(old)

    async def end(self) -> None:
        """END alone, with a control, or twice; or no END at all."""
        kind = self.random.choice(ENDS)
        self.world.tally[kind] += 1
        if kind == "with control":
            ahead = self.random.choice((0, 0, 1))
            self._send("end", self.ledger.next_index() + ahead, end=True)
        elif kind in ("end", "late"):
            self._send("end", end=True)
        if kind in ("late", "silent"):
            await self.settle()
        if kind == "late":
            self._send("late", self.ledger.next_index())
        if kind == "cut":
            await self.burst()
            await self.pause()
            self.was_cut = True
            self.ledger.tolerated.add(LEFT)
            await self._leave()

    async def _leave(self) -> None:
        closing = [self._exchange.close, *([self._own.close] if self._own else [])]
        for close in self.random.sample(closing, len(closing)):
            await close()

    async def check(self, ledger: Ledger) -> None:
        """Wait for every response of an opening; raises Violation for a broken promise."""
        await self._done(ledger)
        if self.world.disturbed_until >= self.opened_at:
            ledger.tolerated |= {*FAILURES, DROPPED}
        if ledger.longest_silence() > IDLE_SECONDS - IDLE_MARGIN:
            ledger.tolerated |= {*FAILURES}
        for sentence in ledger.violations():
            raise Violation(f"in life {self.name}", sentence, *ledger.history())
        for sent in ledger.sent:
            self.world.tally.update(sent.statuses)
        self.world.tally["sessions"] += 1

    def _send(
        self, what: str, index: int | None = None, inputs: Inputs = None, **flags: Any
    ) -> None:
        sent = Sent(what, index, unanswered_before=self.ledger.unanswered(), **flags)
        token = f"token of {'another' if sent.foreign else self.session_id}"
        inputs = {**(inputs or {}), "token": token}
        if index is not None:
            inputs |= {"chunk_index": index, "keys": [self.random.choice(KEYS)]}
        self.ledger.sent.append(sent)
        try:
            start, end = sent.start, sent.end
            call = self._exchange.call(self.session_id, start=start, end=end, inputs=inputs)
        except WorldError as error:
            sent.fail(error)
        else:
            self._readers[sent] = asyncio.create_task(sent.read(call))

    async def _done(self, ledger: Ledger) -> None:
        if readers := [self._readers[sent] for sent in ledger.sent if not sent.done]:
            _, pending = await asyncio.wait(readers, timeout=RESPONSE_SECONDS)
            if pending:
                sentence = f"no final response within {RESPONSE_SECONDS:g} s"
                raise Violation(f"in life {self.name}", sentence, *ledger.history())


ACTIONS = {
    Life.control: 10,
    Life.burst: 4,
    Life.duplicate: 3,
    Life.skip: 3,
    Life.malformed: 3,
    Life.settle: 4,
    Life.pause: 3,
    Life.foreign: 2,
    Life.foreign_end: 1,
    Life.reopen: 1,
}
"""What a life may do between its opening and its end, and how often in proportion."""
