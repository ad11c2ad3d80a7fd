import numpy as np

from spa.envs.frozen_lake import FrozenLake
from spa.envs.reference import policy_success, reference_success, walk
from spa.rollout.loop import puzzle_hash
from spa_bench.reference.hidden_lake import (
    PUSHES,
    CountedLake,
    InferredLake,
    World,
    all_worlds,
    believed_plan,
    count_landings,
    count_neighbours,
    elimination_episode,
    learn_world,
)
from spa_bench.reference.labels import (
    Label,
    centred_network,
    label_all_states,
    make_labels,
    nearest_neighbour,
    network,
    player_success,
    with_symmetries,
)
from spa_bench.reference.rules import count_table, single_candidate, table_success
from spa_bench.reference.sokoban import (
    count_rules,
    counted_plan,
    label_all_rooms,
    look_ahead_around_walls,
    moved,
    one_box_at_a_time,
    pushes_to,
    room_lookup,
    walk_around_walls,
)
from spa_bench.reference.sudoku import solution_lookup, stored_solutions
from spa_games.hidden_dynamics_lake import HiddenDynamicsLake, world_of
from spa_games.sokoban import Sokoban
from spa_games.sudoku import Sudoku


def lake(size=3) -> FrozenLake:
    return FrozenLake(size=size, is_slippery=False)


def test_labels_are_of_new_puzzles_and_right():
    env = lake()
    env.reset(seed=3)
    held_out = {puzzle_hash(env)}
    labels = make_labels(env, 60, cap=6, seed=0, held_out=held_out)
    assert len(labels) == 60
    for label in labels:
        env.reset(seed=0, options={"board": label.grid})
        assert env.expert_actions(1) == label.actions
        assert puzzle_hash(env) not in held_out


def test_symmetries_keep_best_actions_best():
    env = lake()
    for label in with_symmetries(
        [Label("P_O\n__O\nO_G", ("Right",)), Label("_PO\n_OG\n___", ("Left",))]
    ):
        env.reset(seed=0, options={"board": label.grid})
        steps = env.optimal_steps()
        env.step(label.actions[0])
        assert env.optimal_steps() == steps - 1


def test_players_play_what_they_were_shown():
    labels = make_labels(lake(), 300, cap=6, seed=0, held_out=())
    for play in (nearest_neighbour(labels), network(labels, epochs=40, seed=0)):
        assert np.mean([play(label.grid)[0] == label.actions[0] for label in labels]) > 0.95
        env = lake()
        wins = []
        for seed in range(60):
            env.reset(seed=seed)
            wins.append(player_success(env, play, 8))
        assert np.mean(wins) > 0.6


def test_players_without_repeats_try_the_next_action():
    env = lake()
    for repeat, won in ((True, False), (False, True)):
        env.reset(seed=0, options={"board": "G__\n___\nP__"})
        # It bumps into the left border in both rows.
        found = player_success(env, lambda grid: ("Left", "Up"), 4, repeat=repeat)
        assert found == won


def test_labels_of_all_states_have_every_best_action():
    env = lake()
    labels = label_all_states(env, 20, seed=0, held_out=())
    env.reset(seed=0, options={"board": labels[1].grid})
    left = label_all_states(env, 20, seed=0, held_out={puzzle_hash(env)})
    assert labels[1] in labels and labels[1] not in left
    assert max(len(label.actions) for label in labels) > 1
    for label in labels:
        env.reset(seed=0, options={"board": label.grid})
        steps = env.optimal_steps()
        better = []
        for action in env.action_names():
            twin = env.clone()
            twin.step(action)
            better += [action] * (twin.optimal_steps() == steps - 1)
        assert label.actions == tuple(better)


def test_a_centred_network_learns_what_a_hidden_lake_needs():
    env = HiddenDynamicsLake(min_moves=3)
    labels = label_all_states(env, 300, seed=0, held_out=())
    wins = {}
    for hidden in (0, 64):
        play = centred_network(labels, hidden=hidden, seed=0, players="ABCDE")
        wins[hidden] = 0
        for seed in range(40):
            env.reset(seed=seed)
            wins[hidden] += player_success(env, play, 6)
    assert min(wins.values()) > 12  # 2 of 40 at random


def test_a_table_counted_from_random_moves_solves_lakes():
    env = lake()
    table = count_table(env, 400, seed=0)
    env.reset(seed=1)
    assert table["00", "Right"] == "01" and table["00", "Left"] == "00"
    for seed in range(40):
        env.reset(seed=seed)
        steps = env.optimal_steps()
        assert table_success(env, table, 8) == (steps is not None and steps <= 8)


def test_single_candidates_solve_most_sudokus_and_stop_where_there_are_none():
    env = Sudoku(clues=8)
    wins = 0
    for seed in range(30):
        env.reset(seed=seed)
        while (action := single_candidate(env, None)) is not None:
            _, _, solved, _, info = env.step(action)
            assert info["action_is_effective"]
            wins += solved
    assert wins == 30
    assert single_candidate(lake(), None) is None


def test_reference_policies_play_the_rest_of_the_game():
    env = lake()
    env.reset(seed=0, options={"board": "P__\n___\n__G"})
    env.step("Right")
    assert reference_success(env, "walk", 3, seed=0)


def test_factored_counts_learn_the_nine_facts_of_a_hidden_lake():
    for world in (0, 1):
        env = HiddenDynamicsLake(world=world)
        learned = learn_world(env, 160, seed=1)
        assert (learned.turns, learned.pushes) == world_of(world)
        play = believed_plan(InferredLake(env.size, learned))
        for seed in range(20):
            env.reset(seed=seed)
            assert policy_success(env, play, env.optimal_steps(), np.random.default_rng(seed))


def test_believed_plans_know_nothing_but_what_was_counted():
    env = HiddenDynamicsLake(min_moves=3)
    wrong = World((0, 1, 2, 3), (None,) * 5)
    assert wrong.turns != world_of(0)[0]
    wins = 0
    for seed in range(40):
        env.reset(seed=seed)
        play = believed_plan(InferredLake(env.size, wrong))
        wins += policy_success(env, play, 6, np.random.default_rng(seed))
    assert wins < 8
    few = [learn_world(env, 5, seed=seed) for seed in range(10)]
    assert all((one.turns, one.pushes) != world_of(0) for one in few)


def test_counted_moves_of_a_hidden_lake_improve_with_their_number():
    env = HiddenDynamicsLake(min_moves=3)
    for learn, few, many in ((count_landings, 40, 2000), (count_neighbours, 200, 8000)):
        wins = {}
        right = {}
        for moves in (few, many):
            lead = learn(env, moves, seed=1)
            play = believed_plan(CountedLake(env.size, lead))
            wins[moves] = right[moves] = 0
            for seed in range(40):
                env.reset(seed=seed)
                pairs = [
                    (action, cell)
                    for action in range(4)
                    for cell in range(16)
                    if cell not in env.lake.holes and cell != env.lake.goal
                ]
                right[moves] += np.mean(
                    [lead(env, *pair) == env._leads[pair[0]][pair[1]] for pair in pairs]
                )
                wins[moves] += policy_success(env, play, 6, np.random.default_rng(seed))
        assert right[few] < 0.7 * 40 and right[many] > 0.95 * 40, (learn, right)
        assert wins[few] < 20 and wins[many] > 34, (learn, wins)


def test_what_was_never_counted_changes_nothing():
    env = HiddenDynamicsLake()
    env.reset(seed=0)
    for learn in (count_landings, count_neighbours):
        lead = learn(env, 0, seed=0)
        assert all(lead(env, action, cell) == cell for action in range(4) for cell in range(16))


def test_moves_around_walls_are_those_of_sokoban():
    env = Sokoban(num_boxes=[1, 2])
    rng = np.random.default_rng(0)
    for seed in range(30):
        env.reset(seed=seed)
        deltas = dict(zip(env.action_names(), env.room.deltas(), strict=True))
        for _ in range(20):
            now = env.player, frozenset(env.boxes)
            action = env.random_action(rng)
            over = env.step(action)[2]
            assert moved(env.room, now, deltas[action]) == (env.player, frozenset(env.boxes))
            if over:
                break


def test_look_ahead_around_walls_goes_around_walls_and_does_not_return():
    # The walk, which ignores walls, runs into the wall above the player.
    board = "######\n#___O#\n#_##_#\n#_P#_#\n#_#_X#\n#____#\n######"
    env = Sokoban(dim_x=7)
    wins = {}
    for name, policy in {
        "walk": walk,
        "around": look_ahead_around_walls(1, remember=True),
        "deep": look_ahead_around_walls(3, remember=True),
    }.items():
        env.reset(seed=0, options={"board": board})
        wins[name] = policy_success(env, policy, 12, np.random.default_rng(0))
    assert wins == {"walk": False, "around": True, "deep": True}
    env.reset(seed=0, options={"board": board})
    assert pushes_to(env.room, env.room.targets[0])[4 * 7 + 4] == 3
    assert walk_around_walls(lake(), None) is None


def test_labels_of_rooms_are_those_of_all_states():
    env = Sokoban(num_boxes=[1, 2])
    labels = label_all_rooms(env, 6, seed=0, held_out=())
    same = label_all_states(env, 6, seed=0, held_out=())
    assert {(label.grid, label.actions) for label in labels} == {
        (label.grid, label.actions) for label in same
    }
    env.reset(seed=0, options={"board": labels[3].grid})
    left = label_all_rooms(env, 6, seed=0, held_out={puzzle_hash(env)})
    assert labels[3] not in left


def test_counted_rules_are_those_of_sokoban():
    env = Sokoban(num_boxes=2)
    true = {"#": "stay", "_": "step", "O": "step"}
    for box in "X√":
        true |= {box + beyond: "push" if beyond in "_O" else "stay" for beyond in "#_OX√"}
    counted = count_rules(env, 2000, cap=10, seed=0)
    assert counted.items() <= true.items()
    assert len(counted) > 8
    rng = np.random.default_rng(0)
    for seed in range(15):
        env.reset(seed=seed)
        steps = env.optimal_steps()
        assert steps is not None
        assert policy_success(env, counted_plan(true), steps, rng)
        env.reset(seed=seed)
        assert not policy_success(env, counted_plan(true), steps - 1, rng)
    assert counted_plan(true)(lake(), rng) is None
    # Without rules, moves are random.
    env.reset(seed=0)
    assert {counted_plan({})(env, rng) for _ in range(40)} == set(env.action_names())


def test_boxes_go_to_targets_one_at_a_time():
    board = "######\n#P___#\n#_X__#\n#_O__#\n#XO__#\n######"
    env = Sokoban(num_boxes=2)
    rng = np.random.default_rng(0)
    env.reset(seed=0, options={"board": board})
    # The upper box is two moves from its target.
    assert one_box_at_a_time(env, rng) == "Right"
    assert one_box_at_a_time(lake(), rng) is None
    # The first box blocks the way to the second, and must stay.
    env.reset(seed=0, options={"board": "######\n#PX__#\n##___#\n#__X_#\n#O_O_#\n######"})
    assert {one_box_at_a_time(env, rng) for _ in range(40)} == set(env.action_names())


def test_known_rooms_are_found_turned_and_mirrored():
    board = "######\n#P___#\n#_X__#\n#_O__#\n#____#\n######"
    turned = "######\n#___P#\n#_OX_#\n#____#\n#____#\n######"
    mirrored = "######\n#___P#\n#__X_#\n#__O_#\n#____#\n######"
    env = Sokoban()
    # Look-ahead takes another action in these rooms.
    lookup = room_lookup([Label(board, ("Down",))])
    for shown, action in ((board, "Down"), (turned, "Left"), (mirrored, "Down")):
        env.reset(seed=0, options={"board": shown})
        assert lookup(env, np.random.default_rng(0)) == action
        assert room_lookup([])(env, np.random.default_rng(0)) != action
    # Other rooms are played by look-ahead.
    env.reset(seed=1)
    look_ahead = look_ahead_around_walls(1, remember=True)
    assert lookup(env, np.random.default_rng(0)) == look_ahead(env, np.random.default_rng(0))


def test_stored_solutions_solve_sudokus_whose_clues_they_fit():
    env = Sudoku(clues=[6, 7, 8], max_steps=None)
    env.reset(seed=0)
    held_out = {puzzle_hash(env)}
    solutions = stored_solutions(env, 60, seed=0, held_out=held_out)
    assert len(solutions) == 60
    rng = np.random.default_rng(0)
    won, fitting = [], []
    for seed in range(60):
        env.reset(seed=seed)
        best = Sudoku(clues=[6, 7, 8], max_steps=None)
        best.reset(seed=seed)
        for action in best.expert_actions(16):
            best.step(action)
        fitting.append([*best.cells] in solutions)
        won.append(policy_success(env, solution_lookup(solutions), 10, rng))
    assert won == fitting
    assert 0 < sum(won) < 60


def test_elimination_keeps_the_true_world_and_learns_it_in_a_few_episodes():
    turns, pushes = world_of(0)
    env = HiddenDynamicsLake(min_moves=3)
    beliefs = all_worlds()
    won = []
    for seed in range(12):
        env.reset(seed=seed)
        success, beliefs = elimination_episode(env, beliefs, 6, np.random.default_rng(seed))
        won.append(success)
        same = (beliefs.turns == turns).all(axis=1)
        assert (beliefs.pushes[same] == [PUSHES.index(push) for push in pushes]).all(axis=1).any()
    assert len(beliefs.turns) == 1
    assert all(won[-6:])
    renamed = all_worlds(renamed=True)
    assert len(renamed.turns) == 9 * 120
    assert (renamed.turns == turns).all(axis=1).sum() == 120
