"""What `modelreg serve` is made of: what its options and the settings say together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from modelreg.cli.version import __version__

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from modelreg.cli.serve_events import ServeEvents
    from modelreg.config.health_limits import HealthLimits
    from modelreg.config.settings import Settings
    from modelreg.runtime.active_async import AsyncActiveModel
    from modelreg.runtime.batches import Batching
    from modelreg.runtime.host import Host
    from modelreg.runtime.monitoring.monitor import Monitor
    from modelreg.runtime.serve.limits import Limits
    from modelreg.runtime.serve.models import ServedModel
    from modelreg.runtime.trying import ServingOptions


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the command line and the settings say together; an option goes before its setting."""

    settings: Settings
    health: HealthLimits
    options: Mapping[str, Any]
    store_url: str
    events: ServeEvents

    def choose(self, option: str, value: Any) -> Any:
        """Return what an option says, or else this."""
        given = self.options[option]
        return value if given is None else given

    def bind(self, stack: ExitStack) -> socket.socket:
        """Return the socket, closed and removed in the end."""
        from modelreg.runtime.serve.listening import bind_port, bound_path

        if self.options["uds"] is not None:
            if self.options["host"] is not None or self.options["http_port"] is not None:
                raise click.UsageError("--uds excludes --host and --http-port")
            return stack.enter_context(bound_path(self.options["uds"]))
        configured = self.settings.serve
        host = self.choose("host", configured.host)
        return stack.enter_context(bind_port(host, self.choose("http_port", configured.http_port)))

    @property
    def limits(self) -> Limits:
        """Return the limits."""
        from modelreg.runtime.serve.limits import MIB, Limits

        configured = self.settings.serve
        return Limits(
            max_body_bytes=self.choose("max_body_mib", configured.max_body_mib) * MIB,
            memory_bytes=self.options["max_memory_mib"] * MIB,
            concurrency=self.choose("concurrency", configured.concurrency),
            max_queue=self.choose("max_queue", configured.max_queue),
            request_timeout_s=self.choose("request_timeout", configured.request_timeout_s),
            read_timeout_s=self.choose("read_timeout", configured.read_timeout_s),
            max_connections=self.options["max_connections"],
        )

    @property
    def batching(self) -> Batching | None:
        """Return how requests are put together; its queue is that of `--max-queue`."""
        from modelreg.runtime.batches import Batching

        max_batch = self.choose("max_batch", self.settings.serve.max_batch)
        if not max_batch:
            if self.options["max_delay_us"] is not None:
                raise click.UsageError("--max-delay-us belongs to --max-batch")
            return None
        max_queue = self.limits.max_queue
        if not max_queue:
            raise click.UsageError("with --max-batch requests wait for each other: --max-queue is at least 1")
        delay_us = self.choose("max_delay_us", self.settings.serve.max_delay_us)
        return Batching(max_batch=max_batch, max_delay_us=delay_us, max_queue=max_queue)

    @property
    def serving_options(self) -> ServingOptions:
        """Return how engines are brought up, on which devices, and how requests reach them."""
        from modelreg.runtime.devices import read_wanted
        from modelreg.runtime.trying import ServingOptions

        configured = self.settings.serve
        return ServingOptions(
            threads=self.options["threads"],
            isolate=self.options["isolate"],
            preference=self.settings.preference_for,
            devices=read_wanted(self.choose("devices", configured.devices)),
            instances_per_device=self.choose("instances", configured.instances),
            batching=self.batching,
            cuda_graphs=self.options["cuda_graphs"] or configured.cuda_graphs,
        )

    def make_actives(self, names: Sequence[str], bound: socket.socket, host: Host) -> dict[str, AsyncActiveModel]:
        """Return the models that will be opened, by NAME@CHANNEL."""
        from modelreg.runtime.active_async import AsyncActiveModel
        from modelreg.runtime.serve.listening import describe_address

        options, serving = self.options, self.serving_options
        return {
            name: AsyncActiveModel(
                name,
                concurrency=self.limits.concurrency,
                store=self.store_url,
                cache=None if options["cache"] is None else options["cache"] / name,
                options=serving,
                host=host,
                on_alarm=self.events.alarm(name),
                lease=not options["no_lease"],
                instance=f"serve {describe_address(bound)}",
            )
            for name in names
        }

    def make_monitor(self, models: Sequence[ServedModel]) -> Monitor:
        """Return what counts, watches and judges open models."""
        from modelreg.runtime.serve.watching import watch_models

        share = self.options["parity_share"]
        return watch_models(models, limits=self.health, parity_share=share, store_url=self.store_url)

    def serve(self, actives: Mapping[str, AsyncActiveModel], bound: socket.socket) -> None:
        """Serve until told to end."""
        import asyncio

        from modelreg.runtime.serve.server import Serving, serve

        serving = Serving(
            actives=actives,
            told=self.events,
            limits=self.limits,
            observers=[self.events] if self.options["access_log"] else [],
            make_monitor=None if self.options["no_metrics"] else self.make_monitor,
            version=__version__,
            ready_delay_s=self.options["ready_delay"],
            shutdown_timeout_s=self.choose("shutdown_timeout", self.settings.serve.shutdown_timeout_s),
        )
        asyncio.run(serve(serving, bound))
        self.events.stopped()
