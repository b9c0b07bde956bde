"""The ASGI application: every address of the protocol, on Starlette, which is imported here alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modelreg.registry.errors import MissingDependencyError
from modelreg.registry.words import Json
from modelreg.runtime.requests import AnswerTaker, RequestObserver
from modelreg.runtime.serve.admitting import Gate
from modelreg.runtime.serve.documents import (
    configure_model,
    describe_model,
    describe_server,
    list_repository,
    list_statistics,
)
from modelreg.runtime.serve.inferring import InferEndpoint
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.models import ServedModel, ServedModels
from modelreg.runtime.serve.problems import RequestError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

Found = tuple[int, object]
"""A status, and a document."""

_MODEL = "/v2/models/{name}"
_VERSION = _MODEL + "/versions/{version}"
_MOVED_BY_PROMOTE = "releases move by `modelreg promote` and `rollback`, not over this protocol"
_NO_SHARED_MEMORY = "shared memory is not supported; send tensors as binary data"


def make_app(
    models: Sequence[ServedModel],
    *,
    limits: Limits | None = None,
    gate: Gate | None = None,
    observers: Sequence[RequestObserver] = (),
    takers: Sequence[AnswerTaker] = (),
    routes: Sequence[Route] = (),
    version: str = "",
) -> Starlette:
    """
    Return the application that answers for open models; inside of the event loop that serves it.

    Args:
        models: Of `serve_models`.
        limits: The limits.
        gate: Closes the server.
        observers: Hear of every inference request to one of the models.
        takers: Are offered every answer, for online parity.
        routes: More addresses, which go before our own: `/metrics`, a readiness probe that says more.
        version: What the server says it is.

    Raises:
        MissingDependencyError: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError as error:
        raise MissingDependencyError("starlette", extra="serve") from error

    gate = gate or Gate()
    served = ServedModels(models)
    infer = InferEndpoint(served, limits=limits or Limits(), gate=gate, observers=observers, takers=takers)
    looks = Looks(served, gate=gate, version=version)
    infers = [Route(f"{path}/infer", infer, methods=["POST"]) for path in (_MODEL, _VERSION)]
    gets = [Route(path, _endpoint(look, gate), methods=["GET"]) for path, look in looks.by_path().items()]
    posts = [
        Route("/v2/repository/index", _endpoint(looks.index, gate), methods=["POST"]),
        Route("/v2/repository/models/{name}/{move}", _endpoint(_refuse_to_move, gate), methods=["POST"]),
        Route("/v2/systemsharedmemory/{rest:path}", _endpoint(_refuse_memory, gate), methods=["GET", "POST"]),
        Route("/v2/cudasharedmemory/{rest:path}", _endpoint(_refuse_memory, gate), methods=["GET", "POST"]),
    ]
    app = Starlette(
        routes=[*infers, *routes, *gets, *posts], exception_handlers={HTTPException: _say_error, Exception: _fail}
    )
    app.router.redirect_slashes = False
    return app


class Looks:
    """What is said without an engine: health, metadata, the repository, statistics."""

    def __init__(self, models: ServedModels, *, gate: Gate, version: str) -> None:
        self._models = models
        self._gate = gate
        self._version = version

    def by_path(self) -> dict[str, Callable[[Mapping[str, str]], Found]]:
        """Return what answers a GET at each address; the first that fits counts."""
        return {
            "/v2": self.server,
            "/v2/health/live": self.live,
            "/v2/health/ready": self.ready,
            "/v2/models/stats": self.all_statistics,
            _MODEL: self.metadata,
            _VERSION: self.metadata,
            f"{_MODEL}/ready": self.model_ready,
            f"{_VERSION}/ready": self.model_ready,
            f"{_MODEL}/config": self.configuration,
            f"{_VERSION}/config": self.configuration,
            f"{_MODEL}/stats": self.statistics,
            f"{_VERSION}/stats": self.statistics,
        }

    def server(self, _path: Mapping[str, str]) -> Found:
        """Return the server's metadata."""
        return 200, describe_server(self._version)

    def live(self, _path: Mapping[str, str]) -> Found:
        """Say that the process answers."""
        return 200, {"live": True}

    def ready(self, _path: Mapping[str, str]) -> Found:
        """Say whether requests should come here: every model has an engine, and the server does not end."""
        is_ready = self._gate.is_ready and all(model.served is not None for model in self._models)
        return 200 if is_ready else 503, {"ready": is_ready}

    def model_ready(self, path: Mapping[str, str]) -> Found:
        """Say the same of one model."""
        model = self._models.find(path["name"])
        served = model.require_version(path.get("version"))
        return 200 if self._gate.is_ready else 503, {"name": model.name, "ready": self._gate.is_ready, **_name(served)}

    def metadata(self, path: Mapping[str, str]) -> Found:
        """Return a model's metadata."""
        model = self._models.find(path["name"])
        served = model.require_version(path.get("version"))
        return 200, describe_model(model.name, model.active.signature, served)

    def configuration(self, path: Mapping[str, str]) -> Found:
        """Return a model's configuration."""
        model = self._models.find(path["name"])
        served = model.require_version(path.get("version"))
        return 200, configure_model(model.name, model.active.signature, served)

    def index(self, _path: Mapping[str, str]) -> Found:
        """Return the repository's index."""
        return 200, list_repository(self._models)

    def statistics(self, path: Mapping[str, str]) -> Found:
        """Return a model's statistics."""
        return 200, list_statistics([self._models.find(path["name"])], version=path.get("version"))

    def all_statistics(self, _path: Mapping[str, str]) -> Found:
        """Return every model's statistics."""
        return 200, list_statistics(list(self._models))


def _name(served: Any) -> Json:
    return {"version": str(served.version), "generation": served.generation}


def _refuse_to_move(_path: Mapping[str, str]) -> Found:
    return 403, {"error": _MOVED_BY_PROMOTE}


def _refuse_memory(_path: Mapping[str, str]) -> Found:
    return 400, {"error": _NO_SHARED_MEMORY}


def _endpoint(look: Callable[[Mapping[str, str]], Found], gate: Gate) -> Callable[[Request], Awaitable[Response]]:
    from starlette.responses import JSONResponse

    async def endpoint(request: Request) -> Response:
        headers: dict[str, str] = {}
        try:
            status, document = look(request.path_params)
        except RequestError as error:
            status, document = error.status, {"error": error.text}
            if error.retry_after_s is not None:
                headers["retry-after"] = str(error.retry_after_s)
        if not gate.is_ready:
            headers["connection"] = "close"
        return JSONResponse(document, status, headers)

    return endpoint


async def _say_error(_request: Request, error: Any) -> Response:
    """Answer an address that is none, or a method that is none there, in the protocol's words."""
    from starlette.responses import JSONResponse

    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _fail(_request: Request, _error: Exception) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": "the server failed over this request"}, 500)
