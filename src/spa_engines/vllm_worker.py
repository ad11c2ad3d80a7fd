"""Extend vLLM's workers. vLLM imports this module by name in its worker processes."""

from typing import Any


class Worker:
    """Mixin for the worker class of vLLM (`worker_extension_cls`)."""

    model_runner: Any

    def refresh_head(self) -> None:
        """On a CPU, repack the output layer after a weight sync. vLLM keeps a packed copy of a
        layer that is tied to the embeddings, and the sync does not update this copy."""
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if head is None or head.weight.device.type != "cpu":
            return
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
