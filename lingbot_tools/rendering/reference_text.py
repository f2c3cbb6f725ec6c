"""The words of `docs/protocol.md`; `reference` puts the tables between them."""

from __future__ import annotations

from string import Template

OPTIONS = {
    "seed": "of the session's random streams; the same seed gives the same world",
    "chunk_count": "chunks the session may have, for which its cache is allocated; "
    "without effect where `kv_window_frames` is given",
    "shift": "of the noise schedule",
    "intrinsics": "fx, fy, cx, cy in pixels; else a focal length of the picture's width, centred",
    "intrinsics_size": "width and height of the picture that `intrinsics` are for; "
    "else that of the session's frames",
    "translation_scale": "how far a chunk's longest step reaches",
    "move_step": "way of one step of w a s d, of which there are four to a latent frame",
    "yaw_step_degrees": "turn of one step of j l",
    "pitch_step_degrees": "turn of one step of i k",
    "pitch_limit_degrees": "a step of i k beyond it is left out",
    "kv_window_frames": "latent frames whose keys and values are kept: the session may be endless",
    "kv_sink_frames": "of those, the session's first ones, which stay for good",
    "max_area": "pixels of a frame at most; the picture's aspect ratio is kept, sides are "
    "multiples of 16. The default is the server's",
    "decode_frames": "latent frames decoded and sent at a time",
    "prefetch_depth": "conditions encoded ahead, at most the server's own depth, which is the "
    "default; 0 is for comparison",
    "commit_inline": "decode only after the commit; for comparison",
    "reuse_steady_condition": "encode a condition that repeats only once; false is for comparison",
    "trace": "put the spans of every stage into the closing summary",
}

STATUS = {
    "READY": "the session is open; `info` says what it is like",
    "FRAMES": "a part of a chunk",
    "CLOSED": "the session has ended and everything of it is released; `info` is its summary",
}

CODES = {
    "BAD_REQUEST": "the request is malformed, or asks for what there is not",
    "DUPLICATE": "a control with this chunk index was admitted before",
    "OUT_OF_ORDER": "the chunk index is not the next one",
    "WINDOW_FULL": "too many controls wait for their denoise; send it again after a chunk",
    "LENGTH_LIMIT": "the session has no chunk with this index",
    "SESSION_LIMIT": "there is no room for another session",
    "NO_SESSION": "there is no session with this id and token",
    "SESSION_FAILED": "the session has failed, or was ended by somebody else",
    "STAGE_FAILED": "a stage of the model failed, or its process died",
    "STAGE_TIMEOUT": "a stage of the model took too long",
    "SHUTTING_DOWN": "the server is stopping",
}

READY_INFO = {
    "model": "name of the checkpoint's folder, or of the simulated costs",
    "simulated": "whether stages only take time",
    "preset": "name of the way of sampling: steps, and the defaults of `shift` and the KV window",
    "steps": "denoising steps of a chunk",
    "lossy": "whether the preset gives up quality",
    "control_type": "`cam` or `act`; like `dtype`, `attention` and `device` null where stages only "
    "take time",
    "dtype": "of the transformer's weights and activations",
    "attention": "what computes it: `sdpa`, or `sageattention` and its version",
    "compiled": "whether what lies between matrix products is compiled",
    "device": "what the denoise worker computes on",
    "width": "pixels of a frame",
    "height": "pixels of a frame",
    "frames_per_second": "at which the video is meant to play",
    "chunk_latent_frames": "latent frames of a chunk, and so poses of a control",
    "first_chunk_frames": "video frames of the first chunk",
    "chunk_frames": "video frames of every later chunk",
    "control_window": "controls that may wait for their denoise",
    "prefetch_depth": "conditions encoded ahead",
    "chunk_count": "chunks the session may have; null where it may be endless",
    "options": "all options, with the defaults of those that were not given",
}

FRAMES_INFO = {
    "part": "number of this part of the chunk, from 0",
    "parts": "parts of the chunk; the last one may be followed by CLOSED, or by nothing",
    "keys": "keys that were applied, in the order w a s d i j k l; null where poses steered",
    "ms": "milliseconds, below",
}

MILLISECONDS = {
    "queue": "the control waited for the chunk before it",
    "condition_wait": "it waited for its condition; 0 where that was prefetched",
    "denoise": "the denoising steps, with the way to the worker and back",
    "decode": "decoding of this part",
    "since_acceptance": "from the acceptance of the control to this part's frames",
}

CLOSED_INFO = {
    "reason": "`end`, `failed`, `idle`, `cancelled`, `replaced` or `shutdown`",
    "error": "the sentence of the failure, or null",
    "chunks": "chunks sent whole",
    "frames": "video frames sent",
    "condition_calls": "conditions that were encoded",
    "steady_chunks": "chunks served by a condition that was encoded before",
    "seconds": "for which the session was there",
}

SECTIONS = Template("""\
# Protocol

<!-- Written by scripts/render-docs; edit lingbot_tools/rendering/reference_text.py instead. -->

A client talks to one model, `orchestrator`, over one gRPC stream (`ModelStreamInfer`). A session
is a Triton sequence: its id is a number above 0 or a string of the client's choice, START opens
it, END closes it. HTTP and the other gRPC calls do not serve models that answer a request with
several responses, as this one does.

`lingbot_client` (see the [README](../README.md#a-client-in-python)) does all of this; whoever
writes a client of their own finds the whole of it here.

## Requests

All inputs are optional and none has a batch dimension; strings are BYTES.

$inputs

| request | flags | inputs |
| --- | --- | --- |
| open | START | `image`, `prompt`; `options`, `token`; it may be the first control too |
| control | | `chunk_index` and `keys`, or `chunk_index` and `poses`; `token` |
| close | END | `token`; it may be the last control too |

- A control is for one chunk. Chunks are counted from 0, and a control must carry the next number:
  one that was used before, or skips one, is refused, and the session is left exactly as it was.
- `keys` is any number of strings; all their letters count, each once. `poses` are rigid
  camera-to-world matrices in OpenCV's axes (x right, y down, z ahead), one for each latent frame.
- At most `control_window` controls may wait for their denoise. Sending one while the chunk before
  is made saves the way back and forth; sending earlier only makes it older when it is applied.
- Whoever gives a `token` at START must give it with every later request, and nobody else can use
  the session, or take its id over. Ids are guessable; give a random token.
- START on the id of a live session, with its token, ends that session and opens a new one. START
  without anything to open goes on with the live session: Triton asks for it where somebody else's
  END made it forget the sequence.
- A session that gets no request for a while is ended ([Limits](operations.md#limits)).
- A closed connection ends a session while a request is unanswered, else it is found idle.

## Answers

Every request gets at least one answer, and its last one carries Triton's final flag
(`triton_final_response`; ask for it with the request parameter
`triton_enable_empty_final_response`). Answers of one session come in the order of its chunks.

$outputs

$status

Errors are answers too, with a code in `status` and a sentence in `message`: a Triton error in a
stream does not say which request it belongs to.

$codes

After a code that does not end the session, it goes on as if the request had never been made.
Three things do come as errors from Triton itself, before this service sees the request: a
request without START for a sequence that Triton does not know, an input of the wrong type or
shape, and an id of 0 or "".

### `info` of READY

$ready

### `info` of FRAMES

$frames

`ms` holds, in milliseconds of the server's clock:

$milliseconds

Latency is counted from the acceptance of the control, the moment its request reaches the model,
and never from the prefetch of its condition.

### `info` of CLOSED

$closed

With option `trace` also `spans`: `[name, chunk, begin, end]` of everything that was done, in
seconds since the session was opened; of a long session, the newest.

## Options

`options` is a JSON object. An option that is not known, or has the wrong type, is an error.

$options

## Without `lingbot_client`

A session of one chunk with nothing but `tritonclient`:

```python
import json
import queue

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

answers = queue.Queue()
client = InferenceServerClient("localhost:8001")
client.start_stream(callback=lambda result, error: answers.put((result, error)))


def send(start=False, end=False, **inputs):
    tensors = []
    for name, array in inputs.items():
        kind = "INT32" if array.dtype == np.int32 else "BYTES"
        tensors.append(InferInput(name, list(array.shape), kind))
        tensors[-1].set_data_from_numpy(array)
    client.async_stream_infer(
        "orchestrator",
        tensors,
        sequence_id="my-session",
        sequence_start=start,
        sequence_end=end,
        enable_empty_final_response=True,
    )


def text(data):
    return np.array([data], dtype=object)


with open("picture.png", "rb") as file:
    send(start=True, image=text(file.read()), prompt=text(b"a quiet street"), token=text(b"1a2b"))
send(end=True, chunk_index=np.array([0], np.int32), keys=text(b"w"), token=text(b"1a2b"))

status = ""
while status != "CLOSED":
    result, error = answers.get(timeout=60)
    assert error is None, error
    status = result.as_numpy("status")[0].decode()
    frames = result.as_numpy("frames")
    print(status, frames.shape, json.loads(result.as_numpy("info")[0]))
client.close()
```

## Inside

The other models are called by the orchestrator alone, with the running server's secret as parameter
`secret`, and refuse everybody else. A session has a random correlation id of its own there, a new
one each time it is opened; START comes with `op` = `open`, END with `close`, and in between `step`
and `commit`.

$workers
""")
