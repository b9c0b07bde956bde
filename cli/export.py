"""`modelreg export`: what others serve, run, or take in."""

from __future__ import annotations

import click

from modelreg.cli.export_bundle import bundle
from modelreg.cli.export_onnx import onnx
from modelreg.cli.export_triton import triton
from modelreg.cli.options import CONTEXT, add_global_options


@click.group(
    "export",
    short_help="Write a Triton model, an ONNX or a bundle.",
    epilog="\b\nExamples:\n  modelreg export triton resnet50@production --into /srv/models\n"
    "  modelreg export onnx resnet50:7 --into ./resnet50\n"
    "  modelreg export bundle resnet50@production --into resnet50.tar.gz",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """Write what the registry holds for others: a Triton model repository, an ONNX model, or a bundle.

    Every byte is verified on the way, and what is written is there whole or not at all.
    """


add_global_options(command)
command.add_command(triton)
command.add_command(onnx)
command.add_command(bundle)
