"""The mathematics of training as pure functions on tensors: no configuration objects, no models, no
random numbers.

Shape letters: B sequences, A = T - 1 predictions, G groups. Training arrays are prediction-aligned
`[B, A]`; `mask` is True where the predicted token carries the policy loss: by default the tokens
that the policy sampled, otherwise those that `actor.loss_mask` selects. Entries outside the mask
are never read, and come back as 0.
"""
