"""The processor time that a benchmark reads of itself and of others."""

import subprocess
import sys

from continuo.bench.host import CLOCK_TICKS_PER_S, CpuMeter


def test_reading_shorter_than_a_clock_tick_has_processor_time() -> None:
    meter = CpuMeter()
    for _ in range(20):
        with meter.reading("short"):
            sum(range(1000))
    assert all(reading.own_cores > 0 for reading in meter.readings)


def test_child_that_has_ended_is_part_of_the_reading() -> None:
    meter = CpuMeter()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    with meter.reading("child"):
        subprocess.run([sys.executable, "-c", burn], check=True)
    (reading,) = meter.readings
    assert reading.own_cores * reading.wall_s > 0.3 - 2 / CLOCK_TICKS_PER_S
