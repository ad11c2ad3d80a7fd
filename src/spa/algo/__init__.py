"""The mathematics of training: functions on tensors, without models and random numbers.

Shape letters: B sequences, A = T - 1 predictions, G groups. Training arrays are prediction-aligned
`[B, A]`. `mask` is True where the predicted token contributes to the policy loss: by default for
the sampled tokens, otherwise for the tokens that `actor.loss_mask` selects. Entries outside the
mask are never read, and are 0 in results.
"""
