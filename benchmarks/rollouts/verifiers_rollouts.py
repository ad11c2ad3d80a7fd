"""Rollouts that verifiers really makes, with tokens and masks, for tests of `spa diagnose`.

    PYTHON benchmarks/rollouts/verifiers_rollouts.py MODEL_FOLDER OUT.jsonl [vf-eval options]

PYTHON is an interpreter with spa and verifiers. verifiers' training client asks an engine for tokens by vLLM's route
`/inference/v1/generate`; here it is answered by transformers on this machine.
"""

import json
import shutil
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from verifiers.v1.cli.eval.main import main as vf_eval

EPISODE = ("id", "ok", "task", "traces")
TRACE = ("version", "task", "nodes", "rewards", "metrics", "info", "stop_condition")
NODE = ("parent", "message", "sampled", "token_ids", "mask")


class Engine(BaseHTTPRequestHandler):
    """Samples with the temperature that is asked for."""

    model: torch.nn.Module
    lock = threading.Lock()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send({"object": "list", "data": []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        how = asked["sampling_params"]
        with self.lock, torch.inference_mode():
            out = self.model.generate(  # type: ignore[operator]
                torch.tensor([asked["token_ids"]]),
                do_sample=True,
                temperature=float(how.get("temperature") or 1.0),
                top_k=0,
                max_new_tokens=int(how.get("max_tokens") or 64),
                eos_token_id=how["stop_token_ids"],
                pad_token_id=how["stop_token_ids"][0],
                output_logits=True,
                return_dict_in_generate=True,
            )
        ids = out.sequences[0, len(asked["token_ids"]) :].tolist()
        logprobs = [
            torch.log_softmax(step[0].float(), -1)[i].item()
            for step, i in zip(out.logits, ids, strict=True)
        ]
        content = [
            {"token": f"token_id:{i}", "logprob": value}
            for i, value in zip(ids, logprobs, strict=True)
        ]
        ended = bool(ids) and ids[-1] in how["stop_token_ids"]
        choice = {
            "token_ids": ids,
            "finish_reason": "stop" if ended else "length",
            "logprobs": {"content": content},
        }
        self.send({"request_id": "r", "choices": [choice]})

    def send(self, answer: dict) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def short(row: dict) -> dict:
    """An episode without times, settings, logprobs and what else no reader needs."""
    row = {name: row[name] for name in EPISODE}
    row["task"] = {"key": row["task"]["key"]}
    row["traces"] = [
        {name: trace[name] for name in TRACE if name in trace} for trace in row["traces"]
    ]
    for trace in row["traces"]:
        trace["task"] = row["task"]
        trace["nodes"] = [
            {name: node[name] for name in NODE if name in node} for node in trace["nodes"]
        ]
    return row


def main() -> None:
    folder, out, *options = sys.argv[1:]
    torch.manual_seed(0)
    Engine.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    run = Path(tempfile.mkdtemp())
    where = [
        "-m",
        folder,
        "--client.type",
        "train",
        "--client.base-url",
        address,
        "--client.api-key-var",
        "NO_KEY",
    ]
    told = ["--no-push", "--no-rich", "-c", "1", "-o", str(run), "--run.dir", "run"]
    vf_eval(["spa-verifiers", *where, *told, *options])
    lines = (run / "run" / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    Path(out).write_text(
        "".join(json.dumps(short(json.loads(line))) + "\n" for line in lines), encoding="utf-8"
    )
    shutil.rmtree(run)


if __name__ == "__main__":
    main()
