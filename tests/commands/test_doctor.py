import pytest

from spa.commands import doctor


def test_it_names_every_dependency_and_what_will_be_used(capsys):
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for name in (
        "torch",
        "transformers",
        "hydra-core",
        "device",
        "precision",
        "attention",
        "engine",
        "threads",
        "memory",
    ):
        assert f"\n  {name} " in out
    assert out.endswith("Everything that spa needs is here.\n")


@pytest.mark.parametrize(
    ("requirement", "state", "hint"),
    [
        ("surely-not-there-9>=1", "missing", "pip install 'surely-not-there-9>=1'"),
        ("numpy<0.1", doctor.metadata.version("numpy"), "pip install 'numpy<0.1'"),
    ],
)
def test_a_missing_or_unfit_dependency_is_marked(monkeypatch, capsys, requirement, state, hint):
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: [requirement, "other>1; extra == 'dev'"])
    (line,) = doctor.required_packages()
    assert (line.state, line.hint, line.ok) == (state, hint, False)
    assert doctor.main([]) == 1
    assert f"Needs attention: {line.name}" in capsys.readouterr().out
