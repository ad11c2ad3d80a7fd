"""Texts of the pages, made from the data in benchmarks/results, with their figures marked.

`claims.py` looks for them on the pages.
"""

from claim_texts.demo import demo
from claim_texts.derivations import best_first_sokoban, written_derivation
from claim_texts.figures import Claim
from claim_texts.hidden_lake import hidden_lake, knowledge, opened_hidden_lake
from claim_texts.methods import act_obs, leaderboard, perplexity, results
from claim_texts.reference import q_learning, reference, sokoban_reference
from claim_texts.search_ppo import two_plans
from claim_texts.smollm2 import smollm2, smollm2_page
from claim_texts.written_search import search, sokoban


def every_claim() -> list[Claim]:
    """Texts that the pages must contain."""
    return [
        *demo(),
        *smollm2(),
        *search(),
        *sokoban(),
        *sokoban_reference(),
        *q_learning(),
        *two_plans(),
        *act_obs(),
        *leaderboard(),
        *results(),
        *perplexity(),
        *smollm2_page(),
        *reference(),
        *hidden_lake(),
        *opened_hidden_lake(),
        *best_first_sokoban(),
        *knowledge(),
        *written_derivation(),
    ]
