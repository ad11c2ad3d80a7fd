import io
import os
import pty
import subprocess
import sys

from spa.cli import execute


def test_lines_from_a_pipe(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("left\n:hint\n"))
    assert execute(["env", "play", "FrozenLakeNoSlip", "--state-text", "coords"]) == 0
    out = capsys.readouterr().out
    assert "layer (P) is at" in out and "10 actions left> " in out and "9 actions left> " in out


def test_single_keys_on_a_terminal():
    """Arrow up, hint, next puzzle, quit, on a real pseudo-terminal."""
    ours, theirs = pty.openpty()
    code = "import sys; from spa.cli import main; sys.exit(main(['env', 'play', 'SimpleSokoban']))"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    assert child.stdout is not None and child.stdout.readline().startswith(b"The arrow keys")
    os.write(ours, b"\x1b[Ahnq")
    out, _ = child.communicate(timeout=60)
    os.close(ours)
    text = out.decode()
    assert child.returncode == 0 and "Up" in text and "puzzle 1" in text
