"""The public Python API, which `import spa` offers lazily. Commands are thin calls of it."""

import os


def let_waiting_threads_sleep() -> None:
    """Make OpenMP threads that wait sleep instead of spin; values that the user has set are kept.

    On shared cores, spinning threads make training twenty times slower. Torch reads this when it is
    loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")


let_waiting_threads_sleep()
