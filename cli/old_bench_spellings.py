"""What trtexec's options mean to `modelreg bench`, which has some of them itself: those are not in the table."""

from __future__ import annotations

from collections.abc import Mapping

from modelreg.cli.old_spellings import BUILD, Spellings, TrtexecCommand

_OWN = ("usecudagraph", "warmup", "duration", "streams", "infstreams", "threads", "nodatatransfers", "batch")
_BUILDS = (
    "says how an engine is built, and bench times engines that are there",
    "Give it to `modelreg build`, then time what that made.",
)
_FILES = (
    "writes a file of trtexec's",
    "Write --html FILE, or --json; `modelreg bench REF --history` shows earlier runs.",
)
_SHAPES = (
    "gives shapes, and here inputs have the model's own, at each batch size",
    "Write --batch N,...; the shapes that an engine takes are built into it: `modelreg build`.",
)
_MISSING = ("is a setting that bench does not have", "Leave it out.")
_LAYERS = (
    "tells layers, and bench times whole engines",
    "`modelreg validate REF --layers` compares them, layer by layer.",
)

_REFUSED: Mapping[str, tuple[str, str]] = {
    **{key: _BUILDS for key in BUILD.keys if key not in _OWN and not key.startswith(("fp", "bf", "int8", "best"))},
    **dict.fromkeys(
        (
            *("builderoptimizationlevel", "mempoolsize", "versioncompatible", "hardwarecompatibilitylevel", "refit"),
            *("tacticsources", "timingcachefile", "errorontimingcachemiss", "usedlacore", "allowgpufallback"),
            *("plugins", "staticplugins", "precisionconstraints", "calibration", "profile"),
        ),
        _BUILDS,
    ),
    "loadengine": (
        "names a plan, and bench times engines of the registry",
        "Take it in with `modelreg register-engine REF {value}`, then time REF.",
    ),
    "onnx": (
        "names a file, and bench times engines of a registered version",
        "Write `modelreg register NAME {value}` and `modelreg build NAME:VERSION`, then time NAME:VERSION.",
    ),
    "saveengine": BUILD.refused["saveengine"],
    "device": BUILD.refused["device"],
    **dict.fromkeys(("shapes", "minshapes", "optshapes", "maxshapes"), _SHAPES),
    "maxbatch": ("is a batch size", "Write --batch {value}."),
    "iterations": ("counts runs, and bench times as many as fit", "Write --duration SECONDS."),
    "avgruns": ("averages runs, and bench tells median and percentiles of all of them", "Leave it out."),
    "percentile": ("chooses a percentile, and bench tells p90, p95 and p99", "Leave it out."),
    "loadinputs": ("names inputs, and bench makes random ones", "Leave it out."),
    **dict.fromkeys(("exporttimes", "exportoutput", "dumpoutput", "dumprawbindingstofile"), _FILES),
    **dict.fromkeys(("dumpprofile", "exportprofile", "dumplayerinfo", "exportlayerinfo"), _LAYERS),
    **dict.fromkeys(
        (
            *("usespinwait", "usemanagedmemory", "useprofile", "usesimpleengine", "allocationstrategy", "sleeptime"),
            *("idletime", "exposedma", "includedatatransfers", "separateprofilerun", "timedeserialize", "timerefit"),
            *(
                "persistentcacheratio",
                "weightstreamingbudget",
                "nvtxmode",
                "useruntime",
                "leandllpath",
                "skipinference",
            ),
        ),
        _MISSING,
    ),
}

BENCH = Spellings(left_out={}, refused=_REFUSED)


class TrtexecBenchCommand(TrtexecCommand):
    """`bench`, which understands trtexec's options for running an engine."""

    spellings = BENCH
