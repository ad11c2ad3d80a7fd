# overrides_of METHOD: prints the settings of a method of `spa compare`, one a line; sourced by the other scripts.
overrides_of() {
  "${PYTHON:-.venv/bin/python}" -c "
from spa_sweeps.methods import method
print('\n'.join(method('$1').overrides))"
}
