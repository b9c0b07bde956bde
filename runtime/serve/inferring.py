"""One inference request from its first byte to its last: read, admitted, run, answered, counted. An ASGI endpoint."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from modelreg.registry.errors import ModelregError
from modelreg.runtime.instance_group import is_refusal
from modelreg.runtime.requests import AnswerTaker, RequestObserver, RequestOutcome, RequestRecord
from modelreg.runtime.serve.admitting import Gate
from modelreg.runtime.serve.bodies import Body, Memory, Receive
from modelreg.runtime.serve.compression import choose_encoding, pack
from modelreg.runtime.serve.decoding import InferRequest, decode_request
from modelreg.runtime.serve.encoding import Encoded, encode_answer, name_headers
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.models import ServedModel, ServedModels, require_served
from modelreg.runtime.serve.problems import (
    EngineFailedError,
    ExpiredError,
    GoneError,
    InvalidRequestError,
    NoEngineError,
    NoRoomError,
    RequestError,
)
from modelreg.runtime.serving import Answer, DeadlineExceededError, NotServingError, QueueFullError

_log = logging.getLogger("modelreg.runtime")
_HEAVY_JSON_BYTES = 1 << 18
"""From here on JSON is read and written in a thread: the event loop has other requests."""

Send = Callable[[Any], Awaitable[None]]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What goes back."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class InferEndpoint:
    """Answers inference requests for all models."""

    def __init__(
        self,
        models: ServedModels,
        *,
        limits: Limits,
        gate: Gate,
        observers: Sequence[RequestObserver],
        takers: Sequence[AnswerTaker],
    ) -> None:
        self._models = models
        self._takers = takers
        self._limits = limits
        self._gate = gate
        self._observers = observers
        self._memory = Memory(limits.memory_bytes)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body = Body(receive, headers, self._limits)
        if not self._gate.is_open:  # what is refused is not under way: the server's end does not wait for it
            await self._finish(_refuse(NoEngineError("this server is shutting down")), body, send)
            return
        with self._gate:
            reply = await self._answer(scope["path_params"], headers, body, receive)
            if reply is not None:
                await self._finish(reply, body, send)

    async def _finish(self, reply: Reply, body: Body, send: Send) -> None:
        if not body.is_complete:
            await body.discard()
        is_read = body.is_complete
        await _send(send, reply, closes=not is_read or not self._gate.is_ready, ends=is_read)
        if not is_read:
            await body.read_rest()
            await send({"type": "http.response.body", "body": b""})  # what ends the answer closes the connection

    async def _answer(
        self, path: Mapping[str, str], headers: Mapping[str, str], body: Body, receive: Receive
    ) -> Reply | None:
        """Return the reply, and tell the observers; None where nobody is there to hear it."""
        began_s = time.monotonic()
        try:
            model = self._models.find(path["name"])
        except RequestError as error:  # of no model that can be counted
            return _refuse(error)
        visit = Visit(model, path.get("version"), limits=self._limits, takers=self._takers, began_s=began_s)
        reply: Reply | None = None
        try:
            with self._memory.holding() as take:
                reply = await visit.answer(headers, body, receive, take)
        except GoneError as error:
            visit.note(outcome=error.outcome)
        except RequestError as error:
            visit.note(outcome=error.outcome)
            reply = _refuse(error)
        except asyncio.CancelledError:
            visit.note(outcome=RequestOutcome.CANCELED)
            raise
        except Exception:
            _log.exception("a request to %s failed", model.name)
            visit.note(outcome=RequestOutcome.FAILED)
            reply = _refuse(EngineFailedError("the server failed over this request"))
        finally:
            visit.note(bytes_in=body.size_bytes, bytes_out=0 if reply is None else len(reply.body))
            self._tell(visit)
        return reply

    def _tell(self, visit: Visit) -> None:
        known = {"outcome": RequestOutcome.OK, **visit.known}
        record = RequestRecord(model=visit.model.name, total_s=time.monotonic() - visit.began_s, **known)
        served = record.served or visit.model.served
        if served is not None:
            visit.model.statistics.add(record, version=served.version)
        for observer in self._observers:
            try:
                observer.observe(record)
            except Exception:  # somebody else's code: serving goes on
                _log.exception("an observer of requests failed")


class Visit:
    """One request to one model, and what is known of it so far."""

    def __init__(
        self,
        model: ServedModel,
        version: str | None,
        *,
        limits: Limits,
        takers: Sequence[AnswerTaker],
        began_s: float,
    ) -> None:
        self.model = model
        self.began_s = began_s
        self.known: dict[str, Any] = {}
        self._version = version
        self._limits = limits
        self._takers = takers

    def note(self, **known: Any) -> None:
        """Add to what the record will say."""
        self.known.update(known)

    async def answer(
        self, headers: Mapping[str, str], body: Body, receive: Receive, take: Callable[[int], None]
    ) -> Reply:
        """
        Return the reply.

        Raises:
            RequestError: There is none.
        """
        model = self.model
        model.require_version(self._version)
        content, start, header_length = await body.read(take)
        signature = model.active.signature
        json_bytes = len(content) if header_length is None else header_length
        request = await _work(
            json_bytes, lambda: decode_request(content, signature, header_length=header_length, start=start)
        )
        self.note(rows=request.rows)
        answer = await self._run(request, receive)
        require_served(self._version, answer.served, name=model.name)
        self._offer(request, answer)
        size_bytes = sum(answer[wanted.name].nbytes for wanted in request.outputs if not wanted.is_binary)
        encoded = await _work(size_bytes, lambda: encode_answer(answer, request, signature, model=model.name))
        return await _reply(encoded, answer, headers.get("accept-encoding", ""))

    def _offer(self, request: InferRequest, answer: Answer) -> None:
        for taker in self._takers:
            try:
                taker.offer(self.model.name, request.inputs, answer)
            except Exception:  # somebody else's code: serving goes on
                _log.exception("what is offered answers failed")

    async def _run(self, request: InferRequest, receive: Receive) -> Answer:
        """Return the engine's answer: this is where a request waits, and where its deadline counts."""
        timeout_s = min(self._limits.request_timeout_s, request.timeout_s or self._limits.request_timeout_s)
        until_s = self.began_s + timeout_s
        admission = self.model.admission
        entered_s = time.monotonic()
        await admission.enter(until_s=until_s, gone=receive)
        running_s = time.monotonic()
        self.note(queue_s=running_s - entered_s)
        left_s = max(0.0, until_s - running_s)
        running = asyncio.ensure_future(self.model.active.infer(request.inputs, timeout_s=left_s))
        running.add_done_callback(lambda _: admission.leave())  # when the engine is free, whoever still waits for it
        is_gone = await _wait(running, timeout_s=left_s, gone=receive if self.model.active.is_batched else None)
        took_s = time.monotonic() - running_s
        self.note(compute_s=took_s)
        if not running.done():
            running.add_done_callback(_forget)
            if self.model.active.is_batched:
                running.cancel()  # it leaves the batcher's queue, if it is still there
            if is_gone:
                raise GoneError("the client went away before its answer was there")
            raise ExpiredError(f"the answer was not there within {timeout_s:g} s")
        try:
            answer = running.result()
        except ModelregError as error:
            raise translate(error) from error
        self._note_turn(answer, entered_s=entered_s, running_s=running_s, took_s=took_s)
        return answer

    def _note_turn(self, answer: Answer, *, entered_s: float, running_s: float, took_s: float) -> None:
        turn = answer.turn
        self.note(
            served=answer.served,
            queue_s=running_s - entered_s + turn.queue_s,
            compute_s=max(0.0, took_s - turn.queue_s),
            batch_rows=turn.batch_rows,
            executions=turn.executions,
        )


def translate(error: ModelregError) -> RequestError:
    """Return what the client hears of an error of `infer`."""
    if isinstance(error, RequestError):
        return error
    if is_refusal(error):
        return InvalidRequestError(f"the engine refuses this: {error}")
    if isinstance(error, NotServingError):
        return NoEngineError(str(error), hint="")
    if isinstance(error, QueueFullError):
        return NoRoomError(str(error), hint="")
    if isinstance(error, DeadlineExceededError):
        return ExpiredError(str(error))
    _log.warning("a request failed: %s", error)
    return EngineFailedError("the engine failed over this request, and is started again")


async def _wait(
    running: asyncio.Future[Answer], *, timeout_s: float, gone: Callable[[], Awaitable[object]] | None
) -> bool:
    """Wait for an answer, for so long, and where `gone` is given until the client went away; return whether it did."""
    if gone is None:
        await asyncio.wait((running,), timeout=timeout_s)
        return False
    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait((running, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return leaving.done()
    finally:
        leaving.cancel()


def _forget(running: asyncio.Future[Answer]) -> None:
    """Look at the error of what nobody waits for, so that asyncio does not complain."""
    if not running.cancelled():
        running.exception()


async def _work(size_bytes: int, work: Callable[[], ResultT]) -> ResultT:
    return await asyncio.to_thread(work) if size_bytes > _HEAVY_JSON_BYTES else work()


async def _reply(encoded: Encoded, answer: Answer, accepted: str) -> Reply:
    headers = dict(name_headers(answer.served))
    headers["content-type"] = "application/json"
    if encoded.header_length is not None:
        headers["content-type"] = "application/octet-stream"
        headers["inference-header-content-length"] = str(encoded.header_length)
    body = encoded.body
    encoding = choose_encoding(accepted, len(body))
    if encoding is not None:
        body = await asyncio.to_thread(pack, body, encoding)
        headers["content-encoding"] = encoding
        headers["vary"] = "accept-encoding"
    return Reply(status=200, body=body, headers=headers)


def _refuse(error: RequestError) -> Reply:
    headers = {"content-type": "application/json"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return Reply(status=error.status, body=json.dumps({"error": error.text}).encode(), headers=headers)


async def _send(send: Send, reply: Reply, *, closes: bool, ends: bool) -> None:
    headers = {**reply.headers, "content-length": str(len(reply.body))}
    if closes:
        headers["connection"] = "close"
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    await send({"type": "http.response.body", "body": reply.body, "more_body": not ends})
