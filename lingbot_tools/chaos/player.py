"""One client that lives one life after another, each decided by the seed alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from lingbot_client.errors import WorldError
from lingbot_client.exchange import Call, Exchange
from lingbot_client.triton import TritonTransport

from lingbot_tools.chaos.ledger import DROPPED, FAILURES, LEFT, NO_SEQUENCE, Ledger, Sent
from lingbot_tools.chaos.mischief import BAD_CONTROLS, BAD_OPENINGS, OPENING, bad_control
from lingbot_tools.chaos.world import IDLE_SECONDS, RESPONSE_SECONDS, WINDOW, Violation, World
from lingbot_triton.simulated.marks import fingerprint

KEYS = ("", "w", "a", "sj", "dil", "wl")
ENDS = ("end", "end", "end", "with control", "with control", "late", "cut", "cut", "silent")
IDLE_MARGIN = 0.5
"""Seconds by which the server may count a silence longer than the client does."""


class Life:
    """One session id from its opening to whatever ends it, with what may come in between."""

    def __init__(self, world: World, name: str, previous: Life | None) -> None:
        self.world = world
        self.name = name
        self.random = random = Random(f"{world.seed}/{name}")
        fresh = random.getrandbits(50) + 1 if random.random() < 0.5 else f"chaos-{name}"
        self.session_id: int | str = fresh if previous is None else previous.session_id
        self.fresh = previous is None
        self.token = f"token of {self.session_id}"
        self.was_cut = False
        self.ledger = self._new_ledger()
        if previous is not None and previous.was_cut:
            # Triton drops what is queued behind a request of a client that is gone, and then
            # the sequence, even where another client goes on with it.
            self.ledger.tolerated |= {DROPPED, NO_SEQUENCE, "NO_SESSION"}
        self.opened_at = time.monotonic()
        self._own = TritonTransport(world.url) if random.random() < 0.5 else None
        self._exchange = Exchange((self._own or world.shared).open_stream())
        self._readers: dict[Sent, asyncio.Task[None]] = {}

    def _new_ledger(self) -> Ledger:
        self.seed = self.random.getrandbits(40)
        self.chunk_count = self.random.choice((1, 2, 4, 8))
        self.endless = self.random.random() < 0.3
        last = None if self.endless else self.chunk_count - 1
        return Ledger(self.session_id, fingerprint(self.seed), last, WINDOW)

    async def live(self) -> None:
        """Open, do a number of things, end somehow; raises Violation."""
        actions: dict[Callable[[], Awaitable[None]], int] = {
            self.control: 10,
            self.burst: 4,
            self.duplicate: 3,
            self.skip: 3,
            self.malformed: 3,
            self.settle: 4,
            self.pause: 3,
            self.foreign: 2,
            self.foreign_end: 1,
            self.reopen: 1,
        }
        try:
            alive = await self.open()
            for _ in range(self.random.choice((0, 1, 3, 8, 20)) if alive else 0):
                (action,) = self.random.choices(list(actions), list(actions.values()))
                self.world.tally[action.__name__] += 1
                await action()
                alive = not self.ledger.refused
                if not alive:
                    break
            if alive:
                await self.end()
            await self.check()
        finally:
            await self._leave()

    async def open(self) -> bool:
        """START, good or bad; whether the life goes on."""
        random = self.random
        if self.fresh and random.random() < 0.1:
            bad = random.choice(BAD_OPENINGS)
            sent = self._send("bad opening", good=False, start=True, inputs={**OPENING, **bad})
            await self._done(sent)
            return False
        control = 0 if random.random() < 0.3 else None
        sent = self._send(
            "opening",
            control,
            start=True,
            end=random.random() < 0.05,
            inputs={**OPENING, "options": self._options()},
        )
        if sent.end or not self.fresh or random.random() < 0.7:
            await self._done(sent)
            return not self.ledger.refused and not sent.end
        return True

    def _options(self) -> dict[str, Any]:
        options = {"seed": self.seed, "decode_frames": self.random.choice((1, 1, 2, 3))}
        length = {"kv_window_frames": 6} if self.endless else {"chunk_count": self.chunk_count}
        return {**OPENING["options"], **options, **length}

    async def control(self) -> None:
        self._send("control", self.ledger.next_index())
        if self.random.random() < 0.5:
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
        kind, index = self.random.randrange(BAD_CONTROLS), self.ledger.next_index()
        self._send("malformed", good=False, inputs=bad_control(kind, index))

    async def settle(self) -> None:
        for sent in list(self.ledger.sent):
            await self._done(sent)

    async def pause(self) -> None:
        await asyncio.sleep(self.random.random() * 0.2)

    async def foreign(self) -> None:
        """A client without the token tries to steer the session or to take it over."""
        await self.settle()
        if self.random.random() < 0.5:
            await self._done(self._send("foreign", self.ledger.next_index(), foreign=True))
        else:
            opening = {"prompt": "no picture"}  # opens nothing, should the id be free
            await self._done(self._send("foreign", start=True, foreign=True, inputs=opening))

    async def foreign_end(self) -> None:
        """Triton forgets a sequence at any client's END; the owner goes on with START."""
        await self.settle()
        await self._done(self._send("foreign", foreign=True, end=True))
        await self._done(self._send("resumed", self.ledger.next_index(), start=True))

    async def reopen(self) -> None:
        """START on the live id: what is under way ends, and a fresh session begins."""
        self.ledger.tolerated.add("SESSION_FAILED")
        old, self.ledger = self.ledger, self._new_ledger()
        inputs = {**OPENING, "options": self._options()}
        await self._done(self._send("reopening", start=True, inputs=inputs))
        await self.check(old)

    async def end(self) -> None:
        """END alone, with a control, or twice; or no END at all."""
        match self.random.choice(ENDS):
            case "end":
                self._send("end", end=True)
            case "with control":
                ahead = self.random.choice((0, 0, 1))
                self._send("end", self.ledger.next_index() + ahead, end=True)
            case "late":
                self._send("end", end=True)
                await self.settle()
                self._send("late", self.ledger.next_index())
            case "silent":
                self.world.tally["silent"] += 1
                await self.settle()
            case "cut":
                self.world.tally["cut"] += 1
                await self.burst()
                await self.pause()
                self.was_cut = True
                self.ledger.tolerated |= {LEFT}
                await self._leave()

    async def _leave(self) -> None:
        if self._own is not None and self.random.random() < 0.5:
            await self._own.close()
        await self._exchange.close()
        if self._own is not None:
            await self._own.close()

    async def check(self, ledger: Ledger | None = None) -> None:
        """Wait for every response of an opening; raises Violation for a broken promise."""
        ledger = ledger or self.ledger
        for sent in ledger.sent:
            await self._done(sent)
        if self.world.disturbed(self.opened_at):
            ledger.tolerated |= {*FAILURES, DROPPED}
        if ledger.longest_silence() > IDLE_SECONDS - IDLE_MARGIN:
            ledger.tolerated |= {*FAILURES}
        for sentence in ledger.violations():
            raise Violation(sentence, self.name, ledger.history())
        for sent in ledger.sent:
            self.world.tally.update(sent.statuses)
        self.world.tally["sessions"] += 1

    def _send(
        self,
        what: str,
        index: int | None = None,
        *,
        good: bool = True,
        start: bool = False,
        end: bool = False,
        foreign: bool = False,
        inputs: dict[str, Any] | None = None,
    ) -> Sent:
        inputs = dict(inputs or {})
        if index is not None:
            inputs |= {"chunk_index": index, "keys": [self.random.choice(KEYS)]}
        inputs["token"] = "another token" if foreign else self.token
        before = self.ledger.unanswered()
        sent = Sent(what, index, good, start, end, foreign, before)
        self.ledger.sent.append(sent)
        try:
            call = self._exchange.call(self.session_id, start=start, end=end, inputs=inputs)
        except WorldError as error:
            sent.take_error(error)
            sent.done = True
            return sent
        loop = asyncio.get_running_loop()
        self._readers[sent] = loop.create_task(self._read(call, sent))
        return sent

    async def _read(self, call: Call, sent: Sent) -> None:
        try:
            async for response in call:
                sent.take(response)
        except WorldError as error:
            sent.take_error(error)
        sent.done = True

    async def _done(self, sent: Sent) -> None:
        if sent.done:
            return
        await asyncio.wait([self._readers[sent]], timeout=RESPONSE_SECONDS)
        if not sent.done:
            sentence = f"no final response within {RESPONSE_SECONDS:g} s: {sent}"
            raise Violation(sentence, self.name, self.ledger.history())
