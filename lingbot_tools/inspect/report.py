"""An inspection in words."""

from __future__ import annotations

from lingbot_tools.inspect.checkpoint import GIB, Inspection


def lines(found: Inspection) -> list[str]:
    """The inspection in words."""
    said = [f"missing: {problem}" for problem in found.missing]
    for part in found.parts:
        sizes = f"{part.parameters:,} parameters, {size(part.stored_bytes)} stored"
        held = f"{sizes}, {size(part.memory_bytes)} in memory" if part.parameters else ""
        said.append(f"{part.name} ({part.layout}): {part.path}\n    {held}".rstrip())
    if found.network is None:
        return said
    net = found.network
    said.append(
        f"network: control {net['control_type']}, {net['num_layers']} layers of width "
        f"{net['dim']}, {net['num_heads']} heads, {net['ffn_dim']} in the feed-forward"
    )
    said.append(f"all weights in memory, transformer in {found.dtype}: {size(found.weight_bytes)}")
    said.append(
        f"a session of {found.width}x{found.height} pixels:\n"
        f"    {size(found.kv_bytes_per_frame)} of keys and values a latent frame, "
        f"{found.cache_frames} of which are kept\n"
        f"    {size(found.session_bytes)} with those of the prompt, "
        f"{size(found.chunk_bytes)} more while a chunk is in work\n"
        f"    {size(found.decoder_bytes)} in the decoder, "
        f"{size(found.encoder_bytes)} in the encoder until conditions are constant"
    )
    if found.sessions_alone is not None:
        gpu = f"sessions that fit a GPU of {size(found.gpu_bytes)}"
        said.append(f"{gpu} that only denoises: {found.sessions_alone}")
    if found.sessions_together is not None:
        gpu = f"sessions that fit a GPU of {size(found.gpu_bytes)}"
        said.append(f"{gpu} that does everything: {found.sessions_together}")
    return said


def size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:.2f} MiB"
