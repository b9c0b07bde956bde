"""What trtexec's options mean to `modelreg build`: one table. Those that have a meaning here are translated, with a
note; the others are refused, with what to write instead. Options that `build` has itself are not in it. What they mean
to `bench` is in `old_bench_spellings`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from modelreg.cli.render import print_note
from modelreg.registry.errors import UsageError

_PRECISIONS = ("fp16", "bf16", "int8", "fp8", "best")
_SHAPES = ("minshapes", "optshapes", "maxshapes")

_LEFT_OUT = {
    "explicitbatch": "networks always have an explicit batch",
    "buildonly": "build only builds",
    "skipinference": "build only builds",
    "notf32": "tf32 is a precision of its own, and no other uses TF32",
}

_CAFFE = ("belongs to Caffe or UFF, which TensorRT no longer reads", "Export the model to ONNX and register that.")
_BATCH = (
    "is a batch size of its own, which TensorRT no longer has",
    "It is part of the shapes: --minShapes INPUT:1x... --optShapes INPUT:{value}x... --maxShapes INPUT:{value}x...",
)
_BY_LAYER = (
    "types layers one by one, and here the precision types all of them",
    "Keep nodes in FP32 with --nodes-to-exclude NAME or --op-types-to-exclude OP.",
)
_RUN = ("says how an engine is run, and build only makes it", "Leave it out.")
_REFUSED: Mapping[str, tuple[str, str]] = {
    "workspace": ("is a memory pool now", "Write --memPoolSize workspace:{value}, in MiB as before."),
    "calib": (
        "names a calibration cache, and a cache is no calibration set",
        "Write --calibration FILE with real samples: .npz or .safetensors with input.NAME.",
    ),
    "onnx": (
        "names a file, and build takes a registered version",
        "Write `modelreg register NAME {value}`, then build NAME:VERSION.",
    ),
    "saveengine": (
        "names a file, and the registry keeps the plan",
        "Leave it out; `modelreg which NAME@CHANNEL --path-only` prints where a released plan lies.",
    ),
    "loadengine": (
        "names a plan, and build makes one",
        "Take in a plan built elsewhere with: modelreg register-engine REF {value}",
    ),
    "stronglytyped": (
        "is decided by the precision",
        "Leave it out: --precision makes the types, and says how the network is typed.",
    ),
    **dict.fromkeys(
        ("stripweights", "stripallweights", "weightless"),
        ("leaves the weights out, and nothing here puts them back when a plan is loaded", "Leave it out."),
    ),
    "profilingverbosity": ("is always detailed here: what a plan became is read from it", "Leave it out."),
    "computecapabilities": ("is the target here", "Write --target sm_86, or several joined by commas."),
    **dict.fromkeys(
        ("inputioformats", "outputioformats"),
        ("chooses types of inputs and outputs, and here they stay those of the model", "Leave it out."),
    ),
    **dict.fromkeys(
        ("dynamicplugins", "setpluginstoserialize"),
        ("names a plugin library in a way that build does not have", "Write --plugins LIB.so."),
    ),
    **dict.fromkeys(
        (
            *("excludeleanruntime", "maxauxstreams", "preview", "previewfeatures", "restricted", "safe", "consistency"),
            *("heuristic", "directio", "nobuildercache", "nocompilationcache", "tempdir", "tempfilecontrols"),
            *("allowweightstreaming", "weightstreamingbudget", "markdebug", "maxtactics", "tilingoptimizationlevel"),
            *("l2limitfortiling", "runtimeplatform", "useruntime", "leandllpath", "cpuonly", "nvtxmode", "int4"),
        ),
        ("is a setting that build does not have", "Leave it out."),
    ),
    "sparsity": ("asks for sparse weights, which are not supported", "Leave it out."),
    "device": ("chooses a GPU", "Set CUDA_VISIBLE_DEVICES={value} instead."),
    **dict.fromkeys(("model", "deploy", "uff", "uffinput", "output"), _CAFFE),
    **dict.fromkeys(("maxbatch", "batch"), _BATCH),
    **dict.fromkeys(("layerprecisions", "layeroutputtypes"), _BY_LAYER),
    **dict.fromkeys(
        (
            *("usecudagraph", "usespinwait", "usemanagedmemory", "useprofile", "usesimpleengine", "allocationstrategy"),
            *("iterations", "duration", "warmup", "avgruns", "streams", "infstreams", "sleeptime", "idletime"),
            *("threads", "exposedma", "nodatatransfers", "includedatatransfers", "separateprofilerun", "loadinputs"),
            *("timedeserialize", "timerefit", "persistentcacheratio", "dumpoutput", "dumprawbindingstofile"),
            *("dumpprofile", "dumplayerinfo", "exporttimes", "exportoutput", "exportprofile", "exportlayerinfo"),
        ),
        _RUN,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spellings:
    """
    The table of one command, options in lower case and without dashes.

    Attributes:
        left_out: What changes nothing here, and why.
        refused: What has no meaning here: the fact, and what to write instead.
    """

    left_out: Mapping[str, str]
    refused: Mapping[str, tuple[str, str]]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return every option of the table."""
        return tuple(dict.fromkeys((*_PRECISIONS, "shapes", *self.left_out, *self.refused)))


BUILD = Spellings(left_out=_LEFT_OUT, refused=_REFUSED)
SPELLINGS = BUILD.keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Respelled:
    """A command line in our own spelling, and what was translated, one sentence each."""

    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """An option as it was written; `key` is its name in lower case without dashes and underscores."""

    spelled: str
    key: str
    value: str | None


class TrtexecCommand(click.Command):
    """A command that understands trtexec's options too, as its table says."""

    spellings = BUILD

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate what is trtexec's, say so, and parse."""
        require_values(args, self.params, self.spellings)
        respelled = respell(args, self.spellings)
        for note in respelled.notes:
            print_note(note)
        return super().parse_args(ctx, list(respelled.arguments))


def require_values(arguments: Sequence[str], options: Sequence[click.Parameter], spellings: Spellings = BUILD) -> None:
    """
    Refuse an option without its value: the option after it would be taken for one, and be translated besides.

    Args:
        arguments: The command line as it was written.
        options: The parameters of the command.
        spellings: Its table.

    Raises:
        UsageError: Names the option, and what follows it.
    """
    own = {key: option for option in options for key in _keys(option)}
    before_end = itertools.takewhile(lambda word: word != "--", arguments)
    for option, following in itertools.pairwise(map(_read, before_end)):
        if option is None or following is None or option.value is not None:
            continue
        found = own.get(option.key)
        if isinstance(found, click.Option) and not found.is_flag and following.key in {*own, *spellings.keys}:
            raise UsageError(f"{option.spelled} has no value: {following.spelled} follows")


def _keys(parameter: click.Parameter) -> list[str]:
    return [option.key for option in map(_read, parameter.opts) if option is not None]


def respell(arguments: Sequence[str], spellings: Spellings = BUILD) -> Respelled:
    """
    Return a command line without trtexec's spellings.

    Raises:
        UsageError: One of them has no meaning here, or contradicts another; the hint says what to write instead.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [_read(word) for word in arguments[:end]]
    known = {option.key for option in options if option is not None}
    _require_one_precision(options, known)
    if "notf32" in known and "tf32" in _precisions(options, arguments):
        raise UsageError("--noTF32 contradicts --precision tf32", hint="Leave one of them out.")
    words: list[str] = []
    notes: list[str] = []
    keys = {*spellings.keys}
    taken = -1
    for at, option in enumerate(options):
        if option is None or option.key not in keys:
            if at != taken:
                words.append(arguments[at])
            continue
        following = _following(arguments, at) if option.value is None else ""
        made, note = _translate(option, following, known, spellings)
        taken = at + 1 if following and option.key == "shapes" else -1  # the only one whose value is kept
        words += made
        notes.append(note)
    return Respelled(arguments=(*words, *arguments[end:]), notes=tuple(notes))


def _translate(option: _Option, following: str, known: set[str], spellings: Spellings) -> tuple[list[str], str]:
    """Return an option of the table in our spelling, and what to say about it; refuse it where it has none."""
    if option.value is not None and option.key in (*_PRECISIONS, *spellings.left_out):
        raise UsageError(f"{option.spelled} takes no value", hint=f"Write {option.spelled} alone, or leave it out.")
    if option.key in _PRECISIONS:
        return ["--precision", option.key], f"{option.spelled} means --precision {option.key}"
    if option.key == "shapes" and "shapes" not in spellings.refused:
        said = f"{option.spelled} means the same shapes for --minShapes, --optShapes and --maxShapes"
        return _fix_shapes(option, option.value or following, known), said
    if option.key == "sparsity" and option.value == "disable":
        return [], f"{option.spelled} is left out: weights are dense"
    if option.key in spellings.left_out:
        return [], f"{option.spelled} is left out: {spellings.left_out[option.key]}"
    fact, hint = spellings.refused[option.key]
    raise UsageError(f"{option.spelled} {fact}", hint=hint.format(value=option.value or following or "N"))


def _read(word: str) -> _Option | None:
    if not word.startswith("--"):
        return None
    spelled, has_value, value = word.partition("=")
    key = spelled.replace("-", "").replace("_", "").lower()
    return _Option(spelled=spelled, key=key, value=value if has_value else None)


def _following(arguments: Sequence[str], at: int) -> str:
    """Return the word after an option, if it is one that could be its value."""
    word = arguments[at + 1] if at + 1 < len(arguments) else ""
    return "" if word.startswith("-") else word


def _fix_shapes(option: _Option, value: str, known: set[str]) -> list[str]:
    if known & {*_SHAPES, "profile"}:
        raise UsageError(f"{option.spelled} {_RUN[0]}", hint="Leave it out: the profile has the shapes.")
    if not value:
        raise UsageError(f"{option.spelled} needs shapes", hint=f"Write {option.spelled}=INPUT:1x3x224x224.")
    return [word for name in ("--minShapes", "--optShapes", "--maxShapes") for word in (name, value)]


def _precisions(options: Sequence[_Option | None], arguments: Sequence[str]) -> set[str]:
    """Return what `--precision` names in our own spelling."""
    given = [
        option.value or _following(arguments, at)
        for at, option in enumerate(options)
        if option is not None and option.key == "precision"
    ]
    return {word.strip().lower() for words in given for word in words.split(",")}


def _require_one_precision(options: Sequence[_Option | None], known: set[str]) -> None:
    """Refuse what trtexec mixes in one engine: here each precision is an engine of its own."""
    old = {option.key: option.spelled for option in options if option is not None and option.key in _PRECISIONS}
    if len(old) > 1:
        raise UsageError(
            f"{' and '.join(old.values())} let trtexec mix them in one engine, and here each is an engine of its own",
            hint=_advise_on_mixed([key for key in old if key != "best"], with_best="best" in old),
        )
    if old and "precision" in known:
        (key,) = old
        raise UsageError(f"{old[key]} means --precision {key}, and --precision is there too", hint="Write all in one.")


def _advise_on_mixed(keys: Sequence[str], *, with_best: bool) -> str:
    """Return what to write for several of trtexec's precisions, `keys` without `best`, which few releases have."""
    own = f"--precision {','.join(keys)}" + (f" for {len(keys)} engines" if len(keys) > 1 else "")
    return f"Write {own}, or {'--precision best for TensorRT before 10.12' if with_best else 'name one of them'}."
