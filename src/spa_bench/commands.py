"""The commands of this package, registered in pyproject.toml. `spa --help` loads this module, so it
must not import anything heavy."""

from spa.commands.table import Command

diagnose = Command(
    summary="find problems in the rollouts of any training stack",
    target="spa_bench.diagnose.command:diagnose",
    example="spa diagnose runs/demo/ppo/trajectories --model builtin:tiny",
    overrides=True,
    group="Evaluate",
)
paper = Command(
    summary="reproduce the paper's tables",
    target="spa_bench.paper.command:paper",
    example="spa bench paper main --scale tiny --dry-run",
    overrides=True,
    resumes=True,
    group="Bench",
)
methods = Command(
    summary="rank methods on a leaderboard",
    target="spa_bench.leaderboard.command:methods",
    example="spa bench methods spa vanilla --dry-run",
    overrides=True,
    resumes=True,
    group="Bench",
)
estimators = Command(
    summary="compute the exact bias and variance of advantage estimators",
    target="spa_bench.estimator_bias.command:estimators",
    example="spa bench estimators --group-size 4",
    group="Bench",
)
pretrain_tiny = Command(
    summary="pretrain the bundled model from scratch",
    target="spa_bench.tiny_model.command:pretrain_tiny",
    example="spa model pretrain-tiny runs/pretrained-tiny --steps 100",
)
