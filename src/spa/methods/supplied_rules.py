"""Methods that train on written derivations, and their controls. The program supplies the rules,
namely which variables of a game are neighbours and that neighbours have different values. No world
model is learned."""

from spa.methods import NO_EXAMPLES, WRITTEN, Method

_RULES = (*WRITTEN, "agent_proxy.response_format=constraint_propagation")


def _method(description: str, *overrides: str) -> Method:
    return Method(description=description, overrides=(*_RULES, *overrides), ppo=(NO_EXAMPLES,))


METHODS = {
    "supplied_rules": _method(
        "SFT on responses that fill the cells of a game one after the other, by rules that the "
        "program supplies, then PPO"
    ),
    "supplied_rules_permuted": _method(
        "control of the method supplied_rules, with the values of each puzzle permuted in the response",
        "generate.search.thoughts=dealt",
    ),
    "supplied_rules_other_puzzle": _method(
        "control of the method supplied_rules, with the derivation of another puzzle but the correct answer",
        "generate.search.thoughts=other_puzzle",
    ),
    "supplied_rules_path": _method(
        "control of the method supplied_rules, with the actions that fill all cells instead of the derivation",
        "generate.search.thoughts=path",
    ),
    "supplied_rules_actions": _method(
        "control of the method supplied_rules, with the same actions but without the derivation",
        "generate.search.thoughts=none",
        "agent_proxy.enable_think=false",
    ),
}
