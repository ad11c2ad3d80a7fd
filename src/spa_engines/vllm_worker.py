"""Extensions of vLLM's workers, imported inside them by name."""

from typing import Any


class Worker:
    """Mixin for the worker class of vLLM (`worker_extension_cls`)."""

    model_runner: Any

    def refresh_head(self) -> None:
        """Pack the output layer again. On a CPU, its packed copy would keep the old weights if it
        is tied to the embeddings."""
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if head is None or head.weight.device.type != "cpu":
            return
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
