"""The public Python API, which `import spa` loads lazily. The commands are thin wrappers around
it."""

import os


def let_waiting_threads_sleep() -> None:
    """Make waiting OpenMP threads sleep instead of spin; keeps values that the user has set.

    On shared cores, spinning threads make training twenty times slower. Torch reads these variables
    when it is loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")


let_waiting_threads_sleep()
