"""Model `halftone` of lm-evaluation-harness: `halftone eval --serve` answers its requests, so that every task of the harness runs.

    python -m halftone_lm_eval --model halftone --model_args checkpoint=DIR --device cpu --tasks hellaswag

`import halftone_lm_eval` registers it for lm_eval.simple_evaluate(model="halftone", ...). Model arguments: `checkpoint`; `program`, the
halftone program (default: HALFTONE_PROGRAM, the checkout's build, then the PATH); any option of `halftone eval` by its name, such as
max_length=4096 or dtype=float32.
"""
import json
import os
import pathlib
import shutil
import subprocess

import lm_eval.models  # noqa: F401  the registry loads its own models only while it is empty
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the harness's names, the first one wins
HARNESS_ONLY = ("batch_size", "max_batch_size")  # arguments that it gives to every model


def find_program():
    built = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/halftone"
    found = os.environ.get("HALFTONE_PROGRAM") or (str(built) if built.exists() else shutil.which("halftone"))
    if not found:
        raise FileNotFoundError("expected the halftone program in HALFTONE_PROGRAM, the checkout's build or the PATH, found none")
    return found


@register_model("halftone")
class HalftoneLM(LM):
    def __init__(self, checkpoint, program=None, **options):
        super().__init__()
        command = [program or find_program(), "eval", "--serve", "--quiet", "--checkpoint", str(checkpoint)]
        if options.get("device") == "cuda:0":
            options["device"] = "cuda"
        for name, value in options.items():
            if name not in HARNESS_ONLY and value not in (None, False):
                command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        self.checkpoint = str(checkpoint)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self.asked = 0
        self.max_length = self._read()["max_length"]

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"halftone eval --serve ended with status {self.process.wait()}; its message is on standard error")
        return json.loads(line)

    def _ask(self, kind, requests):
        self.asked += 1
        self.process.stdin.write(json.dumps({"id": self.asked, "type": kind, "requests": requests}) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"halftone: {answer['error']}")
        if answer["id"] != self.asked or len(answer["results"]) != len(requests):
            raise RuntimeError(f"halftone: expected {len(requests)} answers to request {self.asked}, found {len(answer['results'])}")
        return answer["results"]

    def loglikelihood(self, requests, disable_tqdm=False):
        return [tuple(answer) for answer in self._ask("loglikelihood", [list(request.args) for request in requests])]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return self._ask("loglikelihood_rolling", [request.args[0] for request in requests])

    def generate_until(self, requests, disable_tqdm=False):
        return self._ask("generate_until", [[request.args[0], self._settings(request.args[1])] for request in requests])

    @staticmethod
    def _settings(given):
        if given.get("do_sample") and given.get("temperature", 1):
            raise ValueError("halftone generates greedily: set do_sample to false")
        settings = {"until": given.get("until") or []}
        for name in reversed(NEW_TOKENS):
            if given.get(name) is not None:
                settings["max_gen_toks"] = given[name]
        return settings

    def close(self):
        """Ends the program; also at the end of the interpreter."""
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait()

    def __del__(self):
        if hasattr(self, "process"):
            self.close()

    @property
    def tokenizer_name(self):
        return self.checkpoint.replace("/", "__")

    def get_model_info(self):
        return {"model": "halftone", "checkpoint": self.checkpoint, "max_length": self.max_length}
