"""CPU time of a decode step with a GGUF file, in Continuo or in llama.cpp, on one thread.

    .venv/bin/python -m continuo.bench.competitors.step_times continuo FILE.gguf
    .venv-peers/bin/python -m continuo.bench.competitors.step_times llama.cpp FILE.gguf

CPU time is a fair measure even where other programs compete for the cores. `continuo bench
throughput` measures whole engines by the wall clock.
"""

import argparse
import statistics
import time
from array import array
from collections.abc import Callable

CONTEXT_IDS = 64
"""Context of each row before the first step that is measured."""
ROOM_IDS = 512
STEPS = 9
Step = Callable[[int], None]
"""Function that computes step n of all rows: one token each."""


def prompt(row: int) -> list[int]:
    return [(7 * n + row) % 3000 + 100 for n in range(CONTEXT_IDS)]


def open_continuo(path: str, rows: int) -> Step:
    # Only one of the two engines is installed in the environment that runs this.
    from continuo.engine.batch import Batch, BatchRow, SampleParams  # noqa: PLC0415
    from continuo.engine.config import EngineConfig  # noqa: PLC0415
    from continuo.engine.device.build import build_runner  # noqa: PLC0415

    config = EngineConfig(
        model=path,
        dtype="bfloat16",
        device="cpu",
        threads=1,
        max_model_len=ROOM_IDS,
        num_gpu_blocks_override=rows * ROOM_IDS // 16,
    )
    runner, _ = build_runner(config, lambda _what, _fraction: None)
    each = ROOM_IDS // 16
    pages = [array("i", range(row * each, (row + 1) * each)) for row in range(rows)]

    def compute(number: int, ids: list[list[int]], start: int) -> None:
        batch = [
            BatchRow(array("i", row_ids), -1, start, pages[row], SampleParams())
            for row, row_ids in enumerate(ids)
        ]
        runner.collect(runner.launch(Batch(number, batch)))

    compute(0, [prompt(row) for row in range(rows)], 0)
    return lambda n: compute(n + 1, [[100 + n + row] for row in range(rows)], CONTEXT_IDS + n)


def open_llama_cpp(path: str, rows: int) -> Step:
    # Only in the environment of the peers.
    import llama_cpp as api  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx, params.n_seq_max = ROOM_IDS * rows, rows
    params.n_batch = params.n_ubatch = ROOM_IDS
    params.n_threads = params.n_threads_batch = 1
    params.kv_unified = False
    context = api.llama_init_from_model(model, params)
    batch = api.llama_batch_init(ROOM_IDS, 0, 1)
    sampler = api.llama_sampler_init_greedy()

    def compute(entries: list[tuple[int, int, int]], sampled: list[int]) -> None:
        """Compute (row, position, id) of each token, and sample after those at `sampled`."""
        for at, (row, position, id) in enumerate(entries):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = id, position, 1
            batch.seq_id[at][0], batch.logits[at] = row, at in sampled
        batch.n_tokens = len(entries)
        assert not api.llama_decode(context, batch)
        for at in sampled:
            api.llama_sampler_sample(sampler, context, at)

    for row in range(rows):
        compute([(row, n, id) for n, id in enumerate(prompt(row))], [CONTEXT_IDS - 1])
    return lambda n: compute(
        [(row, CONTEXT_IDS + n, 100 + n + row) for row in range(rows)], list(range(rows))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=("continuo", "llama.cpp"))
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    for rows in options.rows:
        opener = open_continuo if options.engine == "continuo" else open_llama_cpp
        step, times_ms = opener(options.file, rows), list[float]()
        for number in range(STEPS):
            start_s = time.process_time()
            step(number)
            times_ms.append(1000 * (time.process_time() - start_s))
        print(f"{options.engine}, {rows} rows: {statistics.median(times_ms):.2f} ms")


if __name__ == "__main__":
    main()
