"""Security of pages: text of a run must never be executed as a script."""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any


def page_policy(*, styles: Sequence[str], scripts: Sequence[str] = ()) -> str:
    """A Content-Security-Policy tag that allows exactly these inline styles and scripts, and no
    other resources except `data:` images."""
    # Hashes are stricter than 'unsafe-inline': a script in the text of a run has no listed hash and
    # is not executed.
    rules = [
        "default-src 'none'",
        f"style-src {_hashes(styles)}",
        f"script-src {_hashes(scripts)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(rules)}">'


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def script_json(data: Any) -> str:
    """Serialize data as JSON that is safe inside a <script> element, which it can neither close nor
    turn into a comment."""
    text = json.dumps(data, separators=(",", ":"))
    # JSON parsers decode these escapes to the same data, and `</script>` and `<!--` cannot occur
    # without a `<`.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
