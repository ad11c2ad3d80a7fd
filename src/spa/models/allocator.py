"""Control memory that Python does not manage: freed memory in the C library, and cached kernels."""

import ctypes
import sys

CACHED_KERNELS = 64
# Option numbers of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def limit_kernel_caches() -> None:
    """Limit the number of cached CPU kernels for bfloat16 matrix products. Call this before the
    first matrix product.

    Each new matrix shape adds a kernel. oneDNN and PyTorch's layer above it each keep 1,024 by
    default. Batches of many different lengths fill both caches, and a process that trains the demo
    grows by hundreds of megabytes. A limit that the user has set in the environment is kept.
    """
    if sys.platform == "linux":
        c_library = ctypes.CDLL(None)
        for name in (b"ONEDNN_PRIMITIVE_CACHE_CAPACITY", b"LRU_CACHE_CAPACITY"):
            c_library.setenv(name, str(CACHED_KERNELS).encode(), 0)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for reuse (glibc only; does nothing elsewhere).
    `release_memory` still returns it to the system.

    By default, the C library maps and unmaps large blocks one by one. It also returns the end of
    its heap to the system whenever it can. The tensors of a real model then need new pages each
    time, which costs a quarter of a training step on a CPU.
    """
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            # -1 never shrinks the heap; 0 never allocates a block by mmap.
            set_option(_TRIM_THRESHOLD, -1)
            set_option(_MMAP_MAX, 0)


def release_memory() -> None:
    """Return freed memory to the system (glibc only; does nothing elsewhere).

    Batches of many different shapes fragment the heap. Without this call, a process that trains
    with the configuration `tiny` grows from 1.3 to 2.7 GB.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
