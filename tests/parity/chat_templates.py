"""Chat templates rendered as transformers' apply_chat_template renders them (version 5.24: the environment below is its
render_jinja_template), and its assistant mask for templates with generation blocks, over random conversations.

chat_templates.py [FOLDER [CASES]]: the templates *.jinja of a folder instead of those beside this file."""
import datetime
import glob
import json
import os
import random
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from _program import path_of


class Generation(jinja2.ext.Extension):
    tags = {"generation"}
    blocks = None  # pieces of the output, ranges

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_track"), [], [], body).set_lineno(line)

    def _track(self, caller):
        text = caller()
        if Generation.blocks is not None:
            pieces, ranges = Generation.blocks
            begin = len("".join(pieces))
            ranges.append((begin, begin + len(text)))
        return text


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        for name in dict(*args, **kwargs):
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, dict(*args, **kwargs))

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


NOW = 1_700_000_000
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals.update(raise_exception=raise_exception, namespace=Namespace, dict=lambda *a, **k: dict(*a, **k),
                           strftime_now=lambda form: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form))


def aliased(messages):
    out = []
    for message in messages:
        message = {k: v for k, v in message.items() if v is not None}
        reasoning = next((message[k] for k in ("reasoning_content", "thinking", "reasoning") if k in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        out.append(message)
    return out


def reference(template, case):
    variables = dict(case["variables"], messages=aliased(case["messages"]), tools=case["tools"], documents=None,
                     add_generation_prompt=case["prompt"])
    return template.render(**variables)


def reference_blocks(template, case):
    pieces, ranges = [], []
    Generation.blocks = (pieces, ranges)
    variables = dict(case["variables"], messages=aliased(case["messages"]), tools=case["tools"], documents=None, add_generation_prompt=False)
    for piece in template.generate(**variables):
        pieces.append(piece)
    Generation.blocks = None
    return "".join(pieces), ranges


# --- Random conversations ---
WORDS = ["hello", "Was ist", "naïve café", "日本語テスト", "emoji 👩‍👩‍👧 🎉", "it's \"quoted\"", "back\\slash", "tab\there", "line\nbreak", "{{ x }}", "{% if %}",
         "<think>\nhm\n</think>\n\nso", "<b>&amp;</b>", "  lead", "trail \n", "\u00a0nbsp\u2003", "1.0", "é", "</s>", "[INST] x", "a" * 40, "\x7f\u200b", "<tool_response>x"]
NUMBERS = [0, 1, -7, 2**53, 1.0, 0.1, 1e16, 1.5e-7, 123456.789, True, False, None]


def text(r, empty=0.1):
    return "" if r.random() < empty else r.choice([" ", "\n", ""]).join(r.choice(WORDS) for _ in range(r.randint(1, 4)))


def value(r, depth=0):
    kind = r.random()
    if depth < 3 and kind < 0.15:
        return [value(r, depth + 1) for _ in range(r.randint(0, 3))]
    if depth < 3 and kind < 0.3:
        return {r.choice(["city", "unit", "über", "k'ey", "n"]) + str(i): value(r, depth + 1) for i in range(r.randint(0, 3))}
    return r.choice(NUMBERS) if kind < 0.5 else text(r)


def schema(r, depth=0):
    kind = r.choice(["string", "integer", "number", "boolean", "array", "object"] if depth < 2 else ["string", "integer"])
    out = {"type": kind}
    if r.random() < 0.7:
        out["description"] = text(r, 0)
    if kind == "array" and r.random() < 0.8:
        out["items"] = schema(r, depth + 1)
    if kind == "object":
        out["properties"] = {f"p{i}": schema(r, depth + 1) for i in range(r.randint(0, 3))}
        if out["properties"] and r.random() < 0.6:
            out["required"] = [k for k in out["properties"] if r.random() < 0.5]
    if kind == "string" and r.random() < 0.3:
        out["enum"] = ["a", "b \"c\"", "ü"]
    if r.random() < 0.15:
        out["default"] = r.choice([1, "x", None, True, 0.5])
    if r.random() < 0.1:
        out["nullable"] = True
    return out


def tool(r, i):
    parameters = {"type": "object", "properties": {f"arg{j}": schema(r) for j in range(r.randint(0, 3))}}
    parameters["required"] = [k for k in parameters["properties"] if r.random() < 0.5]
    function = {"name": f"tool_{i}", "description": text(r, 0), "parameters": parameters}
    if r.random() < 0.2:
        function["return"] = schema(r)
    return {"type": "function", "function": function}


def content(r, parts):
    if parts and r.random() < 0.15:
        return [{"type": "text", "text": text(r)} for _ in range(r.randint(1, 3))]
    return text(r)


def conversation(r, wild=True):
    messages = []
    if r.random() < 0.5:
        messages.append({"role": "system", "content": content(r, wild)})
    tools = [tool(r, i) for i in range(r.randint(1, 3))] if r.random() < 0.4 else None
    for _ in range(r.randint(1, 3)):
        messages.append({"role": "user", "content": content(r, wild)})
        while tools and r.random() < 0.4:
            calls = [{"id": f"call{r.randint(10000, 99999)}", "type": "function",
                      "function": {"name": f"tool_{r.randint(0, 2)}", "arguments": {f"arg{j}": value(r) for j in range(r.randint(0, 2))}}}
                     for _ in range(r.randint(1, 2) if r.random() < 0.3 else 1)]
            message = {"role": "assistant", "content": r.choice([None, "", text(r)]), "tool_calls": calls}
            if r.random() < 0.3:
                message["reasoning_content"] = text(r)
            if message["content"] is None and r.random() < 0.5:
                del message["content"]
            messages.append(message)
            for call in calls:
                messages.append({"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"],
                                 "content": text(r) if r.random() < 0.8 else json.dumps(value(r))})
        message = {"role": "assistant", "content": content(r, wild)}
        if r.random() < 0.25:
            message[r.choice(["reasoning_content", "thinking", "reasoning"])] = text(r)
        messages.append(message)
    if wild and r.random() < 0.3:
        messages.append({"role": "user", "content": text(r)})
    if wild and r.random() < 0.1:
        r.choice(messages).update(role=r.choice(["developer", "ipython", "User", "assistant"]))
    if wild and r.random() < 0.05:
        messages.pop(0)
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    if r.random() < 0.2:
        variables["enable_thinking"] = r.random() < 0.5
    return {"variables": variables, "messages": messages or [{"role": "user", "content": "x"}], "tools": tools, "prompt": r.random() < 0.5}


class Renderer:
    def __init__(self):
        self.process = subprocess.Popen([path_of("chat_render")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env=dict(os.environ, SOURCE_DATE_EPOCH=str(NOW)))

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "chat_render ended"
        return json.loads(line)


def compare(name, source, cases, seed, renderer):
    template = environment.from_string(source)
    equal = errors = 0
    for i in range(cases):
        case = conversation(random.Random(f"{seed}{i}"))
        try:
            expected = reference(template, case)
        except Exception as error:  # what a template does to a conversation that it does not take
            expected = error
        got = renderer(template=source, **case)
        if isinstance(expected, str) and got.get("text") == expected:
            equal += 1
        elif not isinstance(expected, str) and "error" in got:
            errors += 1
        else:
            print(f"{name}, case {i}: {json.dumps(case)}\n  expected {expected!r}\n  found    {got}")
            return None
    return equal, errors


def compare_blocks(source, cases, renderer):
    template = environment.from_string(source)
    equal = 0
    for i in range(cases):
        case = dict(conversation(random.Random(f"blocks{i}")), prompt=False)
        try:
            expected, ranges = reference_blocks(template, case)
        except Exception:
            Generation.blocks = None
            continue
        got = renderer(template=source, loss_on="assistant", **case)
        size = lambda end: len(expected[:end].encode())
        wanted = [[size(b), size(e)] for b, e in ranges if b < e]
        assert got.get("text") == expected and got["learned"] == wanted, (case, expected, wanted, got)
        equal += 1
    return equal


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_templates")
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 150
    renderer, failed = Renderer(), []
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        name = os.path.basename(path)[:-6]
        with open(path, encoding="utf-8") as file:
            source = file.read()
        result = compare(name, source, cases, name, renderer)
        if result is None:
            failed.append(name)
            continue
        blocks = f", {compare_blocks(source, cases, renderer)} masks equal" if "{% generation" in source or "{%- generation" in source else ""
        print(f"{name}: {result[0]} texts equal, {result[1]} refused by both{blocks}")
    if failed:
        sys.exit(f"{len(failed)} templates differ: {' '.join(failed)}")


if __name__ == "__main__":
    main()
