"""What the C library and the kernels hold: bounded over new shapes, kept between steps, handed back when asked."""

import subprocess
import sys

import pytest

GROWTH = """
from pathlib import Path
import torch
from spa.models.allocator import limit_kernel_caches, release_memory
limit_kernel_caches()
torch.set_num_threads(1)
layer = torch.nn.Linear(64, 64)
def resident():
    release_memory()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
for rows in range(1, 800):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.zeros(rows, 64)).sum().backward()
    layer.zero_grad()
    if rows == 200:
        before = resident()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the caches are bounded through the C library")
def test_new_shapes_do_not_fill_memory_with_kernels():
    result = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True
    )
    # 3 MB; without bounds 250 MB where the processor has kernels for bfloat16
    assert float(result.stdout) < 20


FAULTS = """
import resource, sys
from pathlib import Path
import torch
from spa.models.allocator import keep_freed_memory, release_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def step():
    parts = [torch.ones(10 * 2**20) for _ in range(4)]  # 40 MiB each: blocks above 32 are always mapped one by one by default
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
for _ in range(3):  # until the heap has its shape
    step()
before = faults()
for _ in range(5):
    step()
made, held = faults() - before, resident()
release_memory()
print(made, (held - resident()) / 2**20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the heap is tuned through the C library")
def test_what_is_freed_is_kept_for_the_next_step_and_handed_back_when_asked():
    def run(how):
        result = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
        )
        return map(float, result.stdout.split())

    (usual, _), (faults, released) = run("leave"), run("keep")
    assert usual > 100  # pages, or huge pages, taken anew in every step
    assert faults < usual / 10 and released > 100
