"""The command `lingbot-world inspect`; it alone imports torch, the help of `lingbot-world` not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from lingbot_client.controls import parse_area

if TYPE_CHECKING:
    from lingbot_tools.inspect.checkpoint import Inspection


@click.command()
@click.argument("checkpoint", type=click.Path())
@click.option("--companions", default="", help="Folder of the rest, if not in CHECKPOINT.")
@click.option("--gpu-memory", default="0", help="Of the GPU that is to serve it, such as 80GiB.")
@click.option("--size-area", default="832x480", show_default=True, help="As for play.")
@click.option("--window", type=click.IntRange(3), help="Latent frames kept; else 3 a chunk.")
@click.option("--chunks", type=click.IntRange(1), default=7, show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the transformer.")
@click.option("--vae-dtype", default="float32", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, in bytes.")
def inspect(
    gpu_memory: str, size_area: str, window: int | None, chunks: int, as_json: bool, **chosen: Any
) -> None:
    """Say what a folder of weights holds, what it takes, and how many sessions fit a GPU.

    Exit code 1 where a part is missing. This needs the packages of the server.
    """
    try:
        from lingbot_tools.inspect.checkpoint import inspect, parse_bytes
        from lingbot_triton import errors, options, settings
    except ImportError as error:
        raise click.ClickException(f"inspect needs the server's packages: {error}") from None
    try:
        found = inspect(
            settings.Settings(**chosen),
            area=parse_area(size_area),
            options=options.SessionOptions(chunk_count=chunks, kv_window_frames=window),
            gpu_bytes=parse_bytes(gpu_memory),
        )
    except (ValueError, errors.BadRequest) as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(asdict(found), indent=2) if as_json else "\n".join(_lines(found)))
    sys.exit(1 if found.missing else 0)


def _lines(found: Inspection) -> Iterator[str]:
    """The inspection in words."""
    yield from (f"missing: {problem}" for problem in found.missing)
    for part in found.parts:
        sizes = f"{_size(part.stored_bytes)} stored, {_size(part.memory_bytes)} in memory"
        counted = f"\n    {part.parameters:,} parameters, {sizes}" if part.parameters else ""
        yield f"{part.name} ({part.layout}): {part.path}{counted}"
    if found.network is None:
        return
    yield (
        "network: control {control_type}, {num_layers} layers of width {dim}, {num_heads} heads, "
        "{ffn_dim} in the feed-forward\n"
    ).format_map(found.network) + (
        f"all weights in memory, transformer in {found.dtype}: {_size(found.weight_bytes)}\n"
        f"a session of {found.width}x{found.height} pixels:\n"
        f"    {_size(found.kv_bytes_per_frame)} of keys and values a latent frame, "
        f"{found.cache_frames} of which are kept\n"
        f"    {_size(found.session_bytes)} with those of the prompt, "
        f"{_size(found.chunk_bytes)} more while a chunk is in work\n"
        f"    {_size(found.decoder_bytes)} in the decoder, "
        f"{_size(found.encoder_bytes)} in the encoder until conditions are constant"
    )
    gpu = f"sessions that fit a GPU of {_size(found.gpu_bytes)}"
    if found.sessions_alone is not None:
        yield f"{gpu} that only denoises: {found.sessions_alone}"
    if found.sessions_together is not None:
        yield f"{gpu} that does everything: {found.sessions_together}"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.2f} MiB"
