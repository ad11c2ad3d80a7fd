"""One `Library` record for each supported game library, registered in pyproject.toml. Imports none
of the libraries."""

from spa.envs.registry import Library

gem = Library(
    path="spa_integrations.games.gem:Gem",
    package="gem",
    extra="gem",
    summary="language games with a board or a hidden word",
)
gymnasium = Library(
    path="spa_integrations.games.gymnasium:GymnasiumGame",
    package="gymnasium",
    extra=None,
    summary="Gymnasium environments with text or small discrete observations",
)
pettingzoo = Library(
    path="spa_integrations.games.pettingzoo:PettingZooGame",
    package="pettingzoo",
    extra="pettingzoo",
    summary="board games of two players",
)
reasoning_gym = Library(
    path="spa_integrations.games.reasoning_gym:ReasoningGym",
    package="reasoning_gym",
    extra="reasoning-gym",
    summary="reasoning questions with a scored answer",
)
textarena = Library(
    path="spa_integrations.games.textarena:TextArena",
    package="textarena",
    extra="textarena",
    summary="games of one or two players",
)
textworld = Library(
    path="spa_integrations.games.textworld:TextWorldGame",
    package="textworld",
    extra="textworld",
    summary="text adventures whose state is a set of facts",
)
