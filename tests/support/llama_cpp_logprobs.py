"""Log-probabilities of GGUF files by llama.cpp, in a process of the environment with its wheel.

    .venv-llama/bin/python -m tests.support.llama_cpp_logprobs

It reads one line of JSON for each file: [path, vocab size, prompts]. It prints one line of JSON:
the log-probabilities [prompts, vocab] of the next id, or null if llama.cpp fails with the file.
Each file has a process of its own, because a failed assertion of llama.cpp ends the process.
"""
# pyright: basic

import json
import os
import re
import sys
from pathlib import Path

import xllamacpp  # pyright: ignore[reportMissingImports]

CONTEXT_TOKENS = 256
QUIET = -1


def compute_logprobs(path: str, vocab_size: int, prompts: list[list[int]]) -> list[list[float]]:
    """Compute in fp32 with one thread. Raises RuntimeError if llama.cpp refuses the file."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT_TOKENS
    params.n_parallel = params.n_threads_http = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.fit_params = params.warmup = params.use_jinja = False
    params.port, params.verbosity = 0, QUIET
    server = xllamacpp.Server(params)
    found: list[list[float]] = []
    for prompt in prompts:
        request = {"prompt": prompt, "n_predict": 1, "n_probs": vocab_size, "cache_prompt": False}
        reply = server.handle_completions(request)
        if "choices" not in reply:
            raise RuntimeError(reply)
        [token] = reply["choices"][0]["logprobs"]["content"]
        by_id = {each["id"]: each["logprob"] for each in token["top_logprobs"]}
        found.append([by_id[id] for id in range(vocab_size)])
    return found


def list_keys() -> list[str]:
    """Return the metadata keys in the strings of the library, without the architecture."""
    [library] = Path(str(xllamacpp.__file__)).parent.glob("xllamacpp*.so")
    found = re.findall(rb"%s\.([a-z][a-z0-9_.]+)(?=\0)", library.read_bytes())
    return sorted({each.decode() for each in found})


def serve() -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # llama.cpp prints to stdout
    print(json.dumps(list_keys()), file=replies, flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            print(json.dumps(compute_logprobs(*json.loads(line))), file=replies, flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print("null", file=replies, flush=True)


if __name__ == "__main__":
    serve()
