#!/bin/sh
# Build the wheel, install it into a bare environment, and use it outside the clone. Usage: tests/wheel/check.sh FOLDER
set -eu
folder=${1:-.venv-wheel}
rm -rf build "$folder"  # an old build/ would put files into the wheel that the source no longer has
"${PYTHON:-python3}" -m venv "$folder"
folder=$(cd "$folder" && pwd)
"$folder/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$folder/dist" .
"$folder/bin/python" -m pip install --quiet "$folder"/dist/spa_agent-*.whl --constraint constraints-cpu.txt
rm -rf build
cd "$folder"
unset PYTHONPATH
bin/python -c 'import pathlib, spa; home = pathlib.Path(spa.__file__).parent; assert "site-packages" in str(home) and (home / "py.typed").is_file(), home'
bin/spa --help
bin/spa env list
bin/spa env list --libraries | grep -q textarena  # registered by spa_integrations
bin/spa bench estimators --group-size 2           # registered by spa_bench
bin/spa bench paper all --scale tiny --dry-run    # reads a file of spa_bench
bin/spa run tiny --method vanilla trainer.run_dir=run trainer.total_training_steps=1 trainer.val_before_train=false
test -s run/vanilla/ppo/metrics.jsonl
echo "the wheel works: $(ls dist)"
