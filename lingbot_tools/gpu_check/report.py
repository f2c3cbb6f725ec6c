"""The check's results as a table, beside what others report."""

from __future__ import annotations

from typing import Any

PUBLISHED = (
    ("TeleFuser, all in line", "4xH100, SageAttention", "whole chunk in line", 1801.0),
    ("TeleFuser, prefetched", "4xH100, SageAttention", "whole chunk in line", 1447.6),
    ("NVIDIA FlashDreams", "1xH100", "latent and commit", 2157.5),
    ("NVIDIA FlashDreams", "1xH100", "control to latent", 1734.8),
    ("NVIDIA FlashDreams", "1xH100", "commit", 444.8),
    ("NVIDIA FlashDreams", "4xH100", "latent and commit", 629.0),
    ("NVIDIA FlashDreams", "8 GPUs", "latent and commit", 393.0),
    ("vLLM-Omni, compiled", "1xH200", "control to latent", 2464.0),
    ("vLLM-Omni", "2xH200", "control to latent", 1562.0),
)
"""System, hardware, what is timed, milliseconds for 12 frames at 480p."""
_GIB = 2**30


def chunk_times(report: dict[str, Any], window: str) -> dict[str, float]:
    """Milliseconds for 12 frames: what a person waits, what is beside that, and all in line."""
    session, vae = report["sessions"][window], report["vae"]["float32"]
    latent, commit = session["latent_ms"], session["commit_ms"]
    frame = vae["decode_frame_ms"]
    times = {
        "control to latent": latent,
        "control to first frames": latent + frame,
        "control to last frame": latent + 3 * frame,
        "commit": commit,
        "latent and commit": latent + commit,
        "whole chunk in line": latent + 3 * frame + commit,
        "condition, prefetched": vae["encode_chunk_ms"],
    }
    return {name: round(ms, 3) for name, ms in times.items()}


def table(report: dict[str, Any]) -> str:
    """All results as text."""
    head = f"{report['device']}, torch {report['torch']}, {report['case']} size, "
    lines = [head + f"{report['width']}x{report['height']} pixels, {report['dtype']}", ""]
    lines += _sessions(report) + _comparison(report) + _variants(report) + _checks(report)
    return "\n".join(lines)


def _sessions(report: dict[str, Any]) -> list[str]:
    lines = ["one chunk, ms" + "".join(f"{window:>16}" for window in report["sessions"])]
    for name in ("control_ms", "step_ms", "commit_ms", "latent_ms"):
        values = [session[name] for session in report["sessions"].values()]
        lines.append(f"{name:<13}" + "".join(f"{value:>16.1f}" for value in values))
    for name in ("step", "commit"):
        shares = [session["peak_share"][name] for session in report["sessions"].values()]
        texts = ["-" if share is None else f"{share:.1%}" for share in shares]
        lines.append(f"{name + ' of peak':<13}" + "".join(f"{text:>16}" for text in texts))
    return [*lines, ""]


def _comparison(report: dict[str, Any]) -> list[str]:
    lines = [f"{'12 frames, ms':<26}{'on':<24}{'timed':<26}{'ms':>9}"]
    for window in report["sessions"]:
        for name, ms in chunk_times(report, window).items():
            lines.append(f"{window:<26}{report['device'][:22]:<24}{name:<26}{ms:>9.1f}")
    for system, hardware, name, ms in PUBLISHED:
        lines.append(f"{system:<26}{hardware:<24}{name:<26}{ms:>9.1f}")
    return [*lines, ""]


def _variants(report: dict[str, Any]) -> list[str]:
    lines = [f"{'computed by':<30}{'step ms':>9}{'commit ms':>11}{'difference':>12}{'first s':>9}"]
    for row in report["variants"]:
        name = row["attention"] + (", compiled" if row["compiled"] else "")
        lines.append(
            f"{name:<30}{row['step_ms']:>9.1f}{row['commit_ms']:>11.1f}"
            f"{row['difference']:>12.2g}{row['first_pass_seconds']:>9.1f}"
        )
    lines.append("")
    for row in report["attention"]:
        result = row.get("problem") or (
            f"{row['ms']:.3f} ms, {row['tflops']:.1f} TFLOP/s, differs by {row['difference']:.2g}"
        )
        lines.append(f"attention to {row['frames']} frames by {row['attention']}: {result}")
    return [*lines, ""]


def _checks(report: dict[str, Any]) -> list[str]:
    memory = report["memory"]
    lines = [
        f"VAE {name}: {vae['encode_chunk_ms']:.1f} ms to encode a chunk, "
        f"{vae['decode_frame_ms']:.1f} ms to decode a latent frame, "
        f"{vae['session_bytes'] / _GIB:.2f} GiB a session"
        for name, vae in report["vae"].items()
    ]
    lines += [
        f"golden {row['kind']} {row['dtype']}: first flow off by {row['flow_relative']:.2g}, "
        f"latents by {row['latents_relative']:.2g} of their norm"
        for row in report["golden"]
    ]
    lines.append(
        f"memory: {memory['weights_bytes'] / _GIB:.2f} GiB of weights, "
        f"{memory['peak_bytes'] / _GIB:.2f} GiB at most, {memory['growth_bytes']} bytes more after "
        f"{memory['chunks']} chunks"
    )
    lines += [f"left out: {what}" for what in report["left_out"]]
    lines += [f"FAILED: {problem}" for problem in report["problems"]]
    lines.append(f"{report['seconds']:.0f} s in all")
    return lines
