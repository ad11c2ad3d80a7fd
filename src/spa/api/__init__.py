"""The public Python API. `import spa` loads it lazily, and the commands are thin wrappers around
it."""

import os


def let_waiting_threads_sleep() -> None:
    """Make waiting OpenMP threads sleep instead of spin. Environment variables that the user has
    set are kept.

    On shared cores, spinning threads make training twenty times slower. Call this function before
    torch is imported, since torch reads the variables then.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")


let_waiting_threads_sleep()
