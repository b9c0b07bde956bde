"""What `promote` and `rollback` say when a channel has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.cli.engine_traits import say_traits, traits_document
from modelreg.cli.render import print_document, print_line, print_note, print_warning, short
from modelreg.registry.clock import iso
from modelreg.registry.errors import ModelregError
from modelreg.registry.target_order import in_order

if TYPE_CHECKING:
    from modelreg.registry.manifest import Manifest
    from modelreg.registry.pointers import Pointer
    from modelreg.registry.promotion import PromotionPlan
    from modelreg.registry.releasing import Activation
    from modelreg.registry.storage.interface import Storage
    from modelreg.registry.words import Json


def print_activation(activation: Activation, *, storage: Storage, as_json: bool) -> None:
    """Print what is active now, and what was before; `storage` is asked for what the two releases consist of."""
    if not activation.recorded and activation.changed:
        print_warning(
            "the channel moved, but the database could not be told; the next promote or rollback of it records it,"
            " or `modelreg doctor --fix`"
        )
    if activation.plan is not None:
        warn_of_doubts(activation.plan)
    if as_json:
        print_document(_document(activation))
        return
    pointer, previous = activation.pointer, activation.previous
    name = f"{pointer.model}@{pointer.channel}"
    if not activation.changed:
        print_line(f"{name} serves version {pointer.version} already, generation {pointer.generation}")
    else:
        if previous is None:
            print_note(f"new channel {pointer.channel}")
        print_line(f"{name}: {_say_move(activation, storage)}, generation {pointer.generation} ({pointer.kind})")
    if activation.plan is None and (manifest := read_released(storage, pointer)) is not None:
        print_released_engines(manifest)
    if activation.plan is not None:
        _print_engines(activation.plan)
    for choice in activation.plan.choices if activation.plan else ():
        for over in choice.passed_over:
            cell = f"{choice.target} {over.engine.precision}"
            print_line(f"  passed over: {cell}: {over.reason} (engine {over.engine.id})")
    for overridden in pointer.overridden:
        print_line(f"  gates overridden: {overridden}")


def warn_of_doubts(plan: PromotionPlan) -> None:
    """Say what speaks against a promotion though the gates of its engines pass."""
    for doubt in plan.doubts:
        print_warning(doubt)


def _print_engines(plan: PromotionPlan) -> None:
    for target, engine in plan.engines.items():
        traits = say_traits(engine, plan.version.source.signature)
        print_line(
            f"  {target:<8} {engine.precision!s:<5} {engine.toolchain.backend} {engine.toolchain.version},"
            f" engine {engine.id}, plan {short(engine.plan_digest)}" + (f", {traits}" if traits else "")
        )


def _say_move(activation: Activation, storage: Storage) -> str:
    """Return which version follows which; where both are one, what of its engines is another."""
    pointer, previous = activation.pointer, activation.previous
    if previous is None or previous.version != pointer.version:
        before = f"version {previous.version} -> " if previous else ""
        return f"{before}version {pointer.version}"
    released = [read_released(storage, each) for each in (previous, pointer)]
    changes = "" if released[0] is None or released[1] is None else say_engine_changes(released[0], released[1])
    return f"version {pointer.version}" + (f", {changes}" if changes else " again")


def say_engine_changes(before: Manifest, after: Manifest) -> str:
    """Return how the engines of two releases differ: `cpu fp32 -> int8, sm_90 none -> fp16`; an empty string if not."""
    old, new = ({engine.target: engine for engine in each.engines} for each in (before, after))
    changes = []
    for target in in_order((*old, *new)):
        was, now = old.get(target), new.get(target)
        if was is not None and now is not None and was.precision == now.precision:
            if was.plan.digest != now.plan.digest:
                changes.append(f"{target} {now.precision} plan {short(was.plan.digest)} -> {short(now.plan.digest)}")
            continue
        precisions = [str(each.precision) if each is not None else "none" for each in (was, now)]
        changes.append(f"{target} {' -> '.join(precisions)}")
    return ", ".join(changes)


def read_released(storage: Storage, pointer: Pointer) -> Manifest | None:
    """Return what a release consists of, or None where that cannot be read: what was done stays done."""
    from modelreg.registry.manifest import parse_manifest

    try:
        return parse_manifest(storage.read_manifest(pointer.release), where=short(pointer.release))
    except ModelregError:
        return None


def print_released_engines(manifest: Manifest) -> None:
    """Print the engines of a release, one line each: two releases of one version differ in nothing else."""
    for engine in manifest.listed:
        print_line(
            f"  {engine.target:<8} {engine.precision!s:<5} {engine.backend} {engine.backend_version},"
            f" plan {short(engine.plan.digest)}"
        )


def warn_of_drift(model: str, channel: str, *, served: int, known: int) -> None:
    """Warn where the store serves another generation than the database knows; 0 is none."""
    if served != known:
        print_warning(
            f"{model}@{channel}: the store serves generation {served}, the database knows {known};"
            " run `modelreg doctor`"
        )


def _document(activation: Activation) -> Json:
    engines = activation.plan.engines if activation.plan else {}
    return {
        **pointer_document(activation.pointer),
        "previous": None if activation.previous is None else pointer_document(activation.previous),
        "changed": activation.changed,
        "recorded": activation.recorded,
        "passed_over": list(activation.plan.passed_over) if activation.plan else [],
        "warnings": list(activation.plan.doubts) if activation.plan else [],
        "engines": {
            target: {
                "id": engine.id,
                "precision": str(engine.precision),
                "plan": engine.plan_digest,
                **traits_document(engine),
            }
            for target, engine in engines.items()
        },
    }


def pointer_document(pointer: Pointer) -> Json:
    """Return one generation of a channel as JSON."""
    return {
        "model": pointer.model,
        "channel": pointer.channel,
        "generation": pointer.generation,
        "version": pointer.version,
        "release": pointer.release,
        "kind": str(pointer.kind),
        "rolls_back_to": pointer.rolls_back_to,
        "txn": pointer.txn,
        "actor": pointer.actor,
        "at": iso(pointer.at),
        "message": pointer.message,
        "overridden": list(pointer.overridden),
    }
