"""The critic of PPO: a causal LM's body with one value per token."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from spa.models.lora import save_model
from spa.models.vision import RowImages

VALUE_HEAD = "value_head.safetensors"


class Critic(nn.Module):
    """A value head on the body of a causal LM; the head starts at zero, so that first values are
    zero."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.value_head = nn.Linear(body.config.get_text_config(decoder=True).hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.value_head.to(next(body.parameters()).dtype)

    @property
    def config(self) -> Any:
        """The body's configuration."""
        return self.body.config

    def forward(self, input_ids: torch.Tensor, images: RowImages | None = None) -> torch.Tensor:
        """input_ids int64 [B, T] -> values float32 [B, T]: the value of the state after reading
        each token."""
        seen = {} if images is None else images.inputs(input_ids)
        hidden = self.body(input_ids=input_ids, use_cache=False, **seen).last_hidden_state
        return self.value_head(hidden).squeeze(-1).float()

    def save_pretrained(self, folder: Path) -> None:
        """Save the body as a Hugging Face folder, with the head in it."""
        save_model(self.body, Path(folder))
        save_file(
            {k: v.contiguous() for k, v in self.value_head.state_dict().items()},
            Path(folder) / VALUE_HEAD,
        )

    def load_body(self, folder: Path) -> None:
        """Read the body of a saved critic. Raises RuntimeError if it has other weights."""
        state: dict[str, torch.Tensor] = {}
        for path in folder.glob("*.safetensors"):
            if path.name != VALUE_HEAD:
                state |= load_file(path)
        self.body.load_state_dict(state)

    def load_head(self, folder: Path) -> None:
        """Read the head of a saved critic, if the folder has one."""
        if (folder / VALUE_HEAD).is_file():
            self.value_head.load_state_dict(load_file(folder / VALUE_HEAD))
