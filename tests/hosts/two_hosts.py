"""Training across two hosts for real: torchrun with a rendezvous between them, and a Ray cluster that loses one.

Not collected by `make test`: `make test-extra NAME=hosts` makes the hosts (network namespaces of this machine, by root) and an
environment with Ray, and runs it.
"""

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: make test-extra NAME=hosts")

from helpers.runs import SMALL, make_base
from helpers.stages import assert_close

from spa.cli import main as spa

HOSTS = ("first", "second")
STEPS = 3
PRESET = (
    *SMALL,
    "trainer.rank_timeout_s=120",
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=false",
    "trainer.save_freq=1",
    "actor_rollout_ref.actor.strategy=ddp",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "critic.optim.lr=1e-4",
    "sft.optim.name=adamw",
    "sft.optim.lr=1e-4",
    f"sft.trainer.total_training_steps={STEPS}",
    "sft.trainer.save_freq=1",
    "micro_batch_size_per_gpu=2",
    "es_manager.train.env_groups=5",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
)
PATIENCE_S = 600
RAY_LOGIN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""What the machines of a Ray cluster must agree on."""
TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun gives ranks that it starts again the addresses of those that died (PyTorch 2.13)."""


def start(host: str, words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """A command on a host, which has a name and Ray's temporary folder of its own. Its output goes to `folder`."""
    own = folder / f"{host}-ray"
    own.mkdir(exist_ok=True)
    Path("/tmp/ray").mkdir(exist_ok=True)
    enter = (
        f'echo {host}-host >/proc/sys/kernel/hostname && mount --bind "$0" /tmp/ray && exec "$@"'
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"
    }
    with (folder / f"{host}.txt").open("ab") as output:
        return subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                f"spa-{host}",
                "unshare",
                "--uts",
                "sh",
                "-c",
                enter,
                str(own),
                *words,
            ],
            cwd=folder,
            env=environment | RAY_LOGIN | TORCHRUN | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def done(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a command that must succeed."""
    status = process.wait(PATIENCE_S)
    told = "\n".join(
        f"{path.name}:\n{path.read_text()[-4000:]}" for path in sorted(folder.glob("*.txt"))
    )
    assert status == 0, f"{shlex.join(map(str, process.args))}\nstatus {status}\n{told}"


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until `what` is so, while a command runs."""
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert process.poll() is None, f"ended with status {process.returncode}"
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)


def processes(host: str) -> dict[int, str]:
    """Process id -> command line of all that runs on a host."""
    listed = subprocess.run(
        ["ip", "netns", "pids", f"spa-{host}"], capture_output=True, text=True, check=True
    )
    found = {}
    for pid in map(int, listed.stdout.split()):
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:  # it has just ended
            continue
    return found


def workers(host: str) -> list[int]:
    """Ids of the ranks on a host."""
    return [pid for pid, words in processes(host).items() if "TrainWorker" in words]


def kill(victims: Iterable[int]) -> None:
    """SIGKILL to each."""
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages in one process: a folder with `base`, the model, and `run`."""
    folder = tmp_path_factory.mktemp("alone")
    base = make_base(folder / "base")
    assert (
        spa(["run", "base", *PRESET, f"model_path={base}", f"trainer.run_dir={folder / 'run'}"])
        == 0
    )
    return folder


def test_torchrun_on_two_hosts_trains_as_one_process_does_and_survives_a_lost_rank(alone, tmp_path):
    run = tmp_path / "run"
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
    ]
    torchrun += [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "first-host:29500",
        "--max-restarts",
        "3",
    ]
    command = [
        "-m",
        "spa",
        "run",
        "base",
        *PRESET,
        f"model_path={alone / 'base'}",
        f"trainer.run_dir={run}",
    ]
    started = [start(host, [*torchrun, *command], tmp_path) for host in HOSTS]
    wait_for((run / "ppo" / "global_step_1").exists, started[0])
    ranks = [
        [pid for pid, words in processes(host).items() if "python -u -m spa run " in words]
        for host in HOSTS
    ]
    assert [len(pids) for pids in ranks] == [2, 2]
    kill([max(ranks[1])])
    for process in started:
        done(process, tmp_path)
    for stage in ("sft", "ppo"):
        assert_close(run / stage, alone / "run" / stage, last=STEPS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Starts Ray on a host, with one CPU, so that two ranks need both hosts."""
    ray = str(Path(sys.executable).with_name("ray"))
    limits = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats"]

    def join(host: str) -> None:
        words = ["--head", "--port=6379"] if host == "first" else ["--address=first-host:6379"]
        done(start(host, [ray, "start", *words, *limits], tmp_path), tmp_path)

    yield join
    for host in HOSTS:
        kill(processes(host))


def test_ray_on_two_hosts_survives_a_lost_worker_and_a_lost_host(alone, cluster, tmp_path):
    for host in HOSTS:
        cluster(host)
    shutil.copytree(alone / "run" / "sft", tmp_path / "run" / "sft")
    ppo = tmp_path / "run" / "ppo"
    places = [
        "launcher=ray",
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=1",
        "ray_init.address=first-host:6379",
    ]
    model = f"model_path={alone / 'run' / 'sft' / f'global_step_{STEPS}'}"
    command = [
        "-m",
        "spa",
        "run",
        "base",
        "--stages",
        "ppo",
        *PRESET,
        *places,
        model,
        f"trainer.run_dir={tmp_path / 'run'}",
    ]
    driver = start("first", [sys.executable, *command], tmp_path)

    wait_for((ppo / "global_step_1").exists, driver)
    assert [len(workers(host)) for host in HOSTS] == [1, 1]
    (lost,) = workers("second")
    kill([lost])
    wait_for((ppo / "global_step_2").exists, driver)
    assert lost not in workers("second")

    kill(processes("second"))
    wait_for(lambda: not processes("second"), driver)
    cluster("second")
    done(driver, tmp_path)
    assert_close(ppo, alone / "run" / "ppo", last=STEPS)
    assert json.loads((ppo / f"global_step_{STEPS}" / "complete.json").read_text())["sha256"]
