import numpy as np
from contract import check_contract

from spa_games.bandit import Bandit


def test_contract():
    check_contract(Bandit)


def test_order_belongs_to_the_puzzle_and_pay_to_the_noise():
    env = Bandit()
    orders, pays = set(), []
    for noise in range(400):
        env.reset(seed=7, options={"noise_seed": noise})
        orders.add(env.action_names())
        action = env.to_action("dragon")
        assert action is not None
        pays.append(env.step(action)[1])
    assert len(orders) == 1
    assert set(pays) == {0.0, 1.0}
    # 400 pulls at 0.25: four standard deviations are 0.087
    assert abs(np.mean(pays) - 0.25) < 0.087
    shown = [env.reset(seed=seed)[0] for seed in range(40)]
    assert set(shown) == {"Arms: Phoenix, Dragon", "Arms: Dragon, Phoenix"}


def test_low_arm_pays_its_score_and_is_no_success():
    env = Bandit(lo_arm_name="Trader", hi_arm_name="Librarian")
    env.reset(seed=0)
    assert env.expert_actions(3) == ("Librarian",) and env.best_success(1) == 1.0
    action = env.to_action("  tRaDeR ")
    assert action is not None
    state, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["success"]) == (0.1, True, False)
    assert state.endswith("You pulled Trader and were paid 0.1.")
    assert env.step(action)[4]["action_is_valid"] is False
    assert env.expert_actions(3) == () and env.best_success(9) is None
