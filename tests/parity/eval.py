"""halftone eval beside transformers, and beside lm-evaluation-harness where that is installed: a small model of every family, a local task
of every kind. transformers answers the questions that --log-samples wrote down, one by one, without packing; the harness reads the same
data by its own tasks. Log-likelihoods and scores agree to four digits, generated texts and greedy flags exactly. Then: results do not depend
on packing and shared prefixes, on several processes or on the serving process; bad input ends in one line.

Needs torch, transformers and safetensors in some Python: HALFTONE_TORCH_PYTHON names one, else the interpreter that runs this script.
"""
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile

from _program import conclude, expect, path_of, source

FAMILIES = ["llama_untied", "llama_yarn", "mistral", "qwen2", "qwen3_moe", "deepseek_v3", "gpt_oss"]
HARNESS_FAMILIES = ["llama_untied", "gpt_oss"]  # the harness takes seconds for each
WORDS = "the cat sat on a mat while two dogs ran past old trees and blue birds sang to kind people near cold rivers".split()
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[]"
SUBJECTS = ["anatomy", "virology"]
TASKS = "hellaswag,arc_easy,piqa,winogrande,mmlu,gsm8k,lambada_openai,wikitext"
OWN = """
[poems]
kind = "perplexity"
file = "poems.jsonl"
text = "{poem}"
"""


def tokenizer_files(folder):
    """Byte-level BPE of single characters with some merges: 96 entries, as many as the golden models have."""
    alphabet = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [chr(c) for c in range(ord("A"), ord("Z") + 1)] + list("0123456789")
    vocabulary = alphabet + ["\u0120", "\u010a"] + list(PUNCTUATION)
    merges = [("\u0120", "t"), ("h", "e"), ("\u0120t", "he"), ("a", "n"), ("\u0120", "a"), ("\u010a", "\u010a")]
    vocabulary += [a + b for a, b in merges]
    vocabulary = {token: i for i, token in enumerate(vocabulary)}
    assert len(vocabulary) <= 94, len(vocabulary)
    special = [{"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
               for i, text in ((94, "<s>"), (95, "</s>"))]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [94], "tokens": ["<s>"]}}}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": merges}
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": bytes_,
            "post_processor": template, "decoder": bytes_, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def sentence(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_data(folder, rng):
    """Rows in the layout in which the data sets are published."""
    def choices(count):
        return [sentence(rng, rng.randint(1, 4)) for _ in range(count)]
    for split in ("train", "validation"):
        write_rows(folder / "hellaswag" / f"{split}.jsonl", [
            {"activity_label": "Having fun", "ctx_a": sentence(rng, 6) + " [title] x", "ctx_b": "then HE", "endings": choices(4),
             "label": str(rng.randrange(4))} for _ in range(6)])
        write_rows(folder / "piqa" / f"{split}.jsonl", [
            {"goal": sentence(rng, 5), "sol1": sentence(rng, 4), "sol2": sentence(rng, 5), "label": rng.randrange(2)} for _ in range(5)])
        write_rows(folder / "winogrande" / f"{split}.jsonl", [
            {"sentence": f"{sentence(rng, 4)} _ {sentence(rng, 3)}.", "option1": "dog", "option2": "tree", "answer": str(rng.randint(1, 2))}
            for _ in range(5)])
    write_rows(folder / "arc_easy" / "test.jsonl", [
        {"question": sentence(rng, 6) + "?", "choices": {"text": choices(3), "label": ["A", "B", "C"]}, "answerKey": rng.choice("ABC")}
        for _ in range(6)])
    for split, count in (("dev", 2), ("test", 4)):
        write_rows(folder / "mmlu" / f"{split}.jsonl", [
            {"question": sentence(rng, 6) + " ", "subject": subject, "choices": choices(4), "answer": rng.randrange(4)}
            for subject in SUBJECTS for _ in range(count)])
    for split in ("train", "test"):
        write_rows(folder / "gsm8k" / f"{split}.jsonl", [
            {"question": sentence(rng, rng.randint(1, 3)) + "?", "answer": f"so {i}\n#### {i}"} for i in range(3)])
    write_rows(folder / "lambada_openai" / "test.jsonl", [{"text": sentence(rng, rng.randint(3, 12))} for _ in range(6)])
    write_rows(folder / "wikitext" / "test.jsonl", [{"page": " = A = \n " + sentence(rng, words) + " , ( b ) . \n"} for words in (3, 30, 90)])
    write_rows(folder / "poems.jsonl", [{"poem": sentence(rng, words)} for words in (2, 40)])
    (folder / "own.toml").write_text(OWN)


# --- in the Python with transformers: answers to the logged questions, without packing


def answer(model_folder, samples_file, longest):
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)  # AutoTokenizer splits a family's texts by its own rules

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=not text.startswith("<s>"))

    def score(context, continuation):
        ids = (context + continuation)[-(longest + 1):]
        with torch.no_grad():
            logits = model(torch.tensor([ids[:-1]])).logits[0, -len(continuation):].double().log_softmax(-1)
        target = torch.tensor(continuation)
        return logits.gather(1, target[:, None]).sum().item(), bool((logits.argmax(-1) == target).all())

    def pair(context, continuation):
        if not context:
            return score([94], tokenizer.encode(continuation, add_special_tokens=False))
        blanks = len(context) - len(context.rstrip())
        given, whole = encode(context[:len(context) - blanks]), encode(context + continuation)
        return score(given, whole[len(given):])

    def rolling(text):
        ids, total, done = encode(text), 0.0, 0
        while done < len(ids):
            end = min(len(ids), done + longest)
            before = [94] if done == 0 else ids[end - longest - 1:done]
            total += score(before, ids[done:end])[0]
            done = end
        return total

    def generated(context, settings):
        ids = encode(context)[-(longest - settings["max_gen_toks"]):]
        made = []
        with torch.no_grad():
            for _ in range(settings["max_gen_toks"]):
                made.append(int(model(torch.tensor([ids + made])).logits[0, -1].argmax()))
                text = tokenizer.decode(made, skip_special_tokens=True)
                if made[-1] == 95 or any(stop in text for stop in settings["until"]):
                    break
        for stop in settings["until"]:
            text = text.split(stop)[0]
        return text

    seen, every = {}, []
    for line in open(samples_file):
        sample, answers = json.loads(line), []
        for arguments in sample["arguments"]:
            key = json.dumps(arguments)
            if key not in seen:
                if len(arguments) == 1:
                    seen[key] = rolling(arguments[0])
                elif isinstance(arguments[1], dict):
                    seen[key] = generated(*arguments)
                else:
                    seen[key] = pair(*arguments)
            answers.append(seen[key])
        every.append(answers)
    print(json.dumps(every), flush=True)


def harness(model_folder, data_folder, folder):
    """simple_evaluate over the harness's own tasks, whose data are the local files; of transformers, and of halftone through its adapter."""
    import halftone_lm_eval  # noqa: F401  registers model "halftone"
    import lm_eval
    import torch
    from lm_eval.tasks import TaskManager
    torch.set_num_threads(2)
    library = pathlib.Path(lm_eval.__file__).parent / "tasks"
    tasks = []

    def add(name, include, files, more=""):
        listed = ", ".join(f"{split}: {json.dumps(str(pathlib.Path(data_folder, path)))}" for split, path in files.items())
        pathlib.Path(folder, f"{name}.yaml").write_text(
            f"include: {library / include}\ntask: local_{name}\ndataset_path: json\ndataset_name: null\n"
            f"dataset_kwargs: {{data_files: {{{listed}}}}}\ntag: null\n{more}")
        tasks.append(f"local_{name}")

    for name, include in (("hellaswag", "hellaswag/hellaswag.yaml"), ("piqa", "piqa/piqa.yaml"), ("winogrande", "winogrande/default.yaml")):
        add(name, include, {split: f"{name}/{split}.jsonl" for split in ("train", "validation")})
    add("arc_easy", "arc/arc_easy.yaml", {"test": "arc_easy/test.jsonl"}, "training_split: null\nvalidation_split: null\n")
    add("gsm8k", "gsm8k/gsm8k.yaml", {split: f"gsm8k/{split}.jsonl" for split in ("train", "test")})
    add("lambada_openai", "lambada/lambada_openai.yaml", {"test": "lambada_openai/test.jsonl"})
    add("wikitext", "wikitext/wikitext.yaml", {"test": "wikitext/test.jsonl"}, "training_split: null\nvalidation_split: null\n")
    for subject in SUBJECTS:
        for split in ("dev", "test"):
            rows = [row for row in map(json.loads, open(pathlib.Path(data_folder, "mmlu", f"{split}.jsonl"))) if row["subject"] == subject]
            write_rows(pathlib.Path(folder, f"{subject}-{split}.jsonl"), rows)
        add(f"mmlu_{subject}", f"mmlu/default/mmlu_{subject}.yaml",
            {split: str(pathlib.Path(folder, f"{subject}-{split}.jsonl")) for split in ("dev", "test")})
    manager = TaskManager(include_path=str(folder))
    results = {}
    longest = int(sys.argv[5])
    models = {"hf": dict(pretrained=str(model_folder), dtype="float32", max_length=longest),
              "halftone": dict(checkpoint=str(model_folder), dtype="float32", max_length=longest, separate=True)}
    for shots, own in ((None, [task for task in tasks if task != "local_gsm8k"]), (2, ["local_hellaswag", "local_piqa", "local_winogrande", "local_mmlu_anatomy", "local_gsm8k"])):
        for model, given in models.items():
            found = lm_eval.simple_evaluate(model=model, model_args=given, tasks=own, task_manager=manager, device="cpu", batch_size=4,
                                            num_fewshot=shots, gen_kwargs="max_gen_toks=10", bootstrap_iters=2000)["results"]
            results[f"{model} {shots}"] = {name.removeprefix("local_"): values for name, values in found.items()}
    print("HARNESS" + json.dumps(results))


# --- in the test


class Case:
    def __init__(self, folder, python):
        self.folder, self.python, self.halftone = pathlib.Path(folder), python, path_of("halftone")
        self.data = self.folder / "data"
        make_data(self.data, random.Random(46))
        gsm = subprocess.run([self.halftone, "eval", "--show", "gsm8k"], capture_output=True, text=True, check=True).stdout
        (self.data / "gsm8k.toml").write_text(gsm.replace("shots = 5", "shots = 1\nmax_new_tokens = 10"))
        (self.data / "long.toml").write_text(gsm.replace("shots = 5", "shots = 0"))

    def model(self, name):
        folder = self.folder / name
        shutil.copytree(pathlib.Path(source, "tests/golden", name), folder)
        tokenizer_files(folder)
        return folder

    def run(self, *arguments, ranks=1, **more):
        command = [self.halftone, *map(str, arguments)]
        if ranks == 1:
            return subprocess.run(command, capture_output=True, text=True, **more)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        processes = [subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(
            os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            OMP_NUM_THREADS="1")) for rank in range(ranks)]
        said = [process.communicate() for process in processes]
        expect(all(not out for out, _ in said[1:]) or "train" in command, "only the first process prints")
        return subprocess.CompletedProcess(command, max(process.returncode for process in processes), said[0][0], said[0][1])

    def eval(self, model, tasks, *more, **options):
        result = self.run("eval", "--checkpoint", model, "--tasks", tasks, "--data", self.data, "--dtype", "float32", "--device", "cpu",
                          "--format", "json", "--quiet", *more, **options)
        expect(result.returncode == 0, f"{model.name}: {result.stderr.strip()[-600:]}")
        return json.loads(result.stdout) if result.returncode == 0 else None

    def gsm8k(self):
        return TASKS.replace("gsm8k", str(self.data / "gsm8k.toml")) + f",{self.data / 'own.toml'}"


def same(a, b, what):
    """Four digits; float noise of sums of many small terms."""
    if isinstance(a, str) or isinstance(b, str):
        return expect(a == b, f"{what}: {a!r} and {b!r}")
    expect(abs(a - b) <= 5e-5 * max(1.0, abs(a), abs(b)), f"{what}: {a} and {b}")


def against_transformers(case, name, answers):
    compared = 0
    for line, own in zip(open(case.folder / f"{name}.jsonl"), answers, strict=True):
        sample = json.loads(line)
        for place, (ours, theirs) in enumerate(zip(sample["resps"], own, strict=True)):
            what = f"{name} {sample['task']} {sample['doc_id']}.{place}"
            if isinstance(ours, list):
                same(ours[0], theirs[0], what)
                expect(ours[1] == theirs[1], f"{what}: greedy {ours[1]} and {theirs[1]}")
            else:
                same(ours, theirs, what)
            compared += 1
    print(f"{name}: {compared} answers as transformers gives them", flush=True)


def against_harness(case, model, longest):
    folder = case.folder / f"{model.name}-tasks"
    folder.mkdir()
    result = subprocess.run([case.python, __file__, "--harness", model, case.data, folder, str(longest)], capture_output=True, text=True,
                            env=dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str(folder / "cache"), DISABLE_MULTIPROC="1",
                                     PYTHONPATH=os.path.join(source, "python"), HALFTONE_PROGRAM=case.halftone))
    lines = [line for line in result.stdout.splitlines() if line.startswith("HARNESS")]
    expect(len(lines) == 1, f"{model.name}: harness: {result.stderr.strip()[-1500:]}")
    if not lines:
        return
    theirs = json.loads(lines[0][len("HARNESS"):])
    ours = {}
    for shots in ("None", "2"):
        options = ["--max-length", longest, "--bootstrap-iters", 2000]
        tasks = case.gsm8k() if shots == "None" else f"hellaswag,piqa,winogrande,mmlu,{case.data / 'gsm8k.toml'}"
        ours[shots] = case.eval(model, tasks, *options, *(["--shots", shots] if shots != "None" else []))["results"]
    compared = 0
    for (model_name, shots), tasks in ((key.split(), tasks) for key, tasks in theirs.items()):
        for task, values in tasks.items():
            for key, value in values.items():
                if "," not in key:
                    continue
                same(ours[shots][task][key], value, f"{model.name} {task} {key} with {shots} examples: halftone and the harness with {model_name}")
                compared += 1
    print(f"{model.name}: {compared} scores as lm-evaluation-harness gives them", flush=True)


def without_packing(case, model, found, longest):
    """One question a pass, each choice with its own context; two processes that share the rows, or the layers."""
    alone = case.eval(model, case.gsm8k(), "--max-length", longest, "--separate", "--batch-tokens", 1)
    ways = {"alone": alone}
    tasks = "hellaswag,mmlu,lambada_openai,wikitext"
    ways["2 processes"] = case.eval(model, tasks, "--max-length", longest, ranks=2)
    odd = {way: case.eval(model, "lambada_openai", "--max-length", 77, *more, ranks=len(more) or 1)
           for way, more in (("alone", ()), ("tensor parallel", ("--parallelism.tensor_parallel_degree", 2)))}
    for key, value in (odd["alone"] or odd)["results"]["lambada_openai"].items():
        same(odd["tensor parallel"]["results"]["lambada_openai"][key], value, f"77 positions of two processes: {key}")
    ways["tensor parallel"] = case.eval(model, tasks, "--max-length", longest, "--parallelism.tensor_parallel_degree", 2, ranks=2)
    for way, other in ways.items():
        for task, values in (other or {"results": {}})["results"].items():
            for key, value in values.items():
                if key not in ("alias", "name"):
                    same(found["results"][task][key], value, f"{way}: {task} {key}")
    print("packing, shared prefixes, two processes: the same scores", flush=True)


def while_training(case, model):
    """validation.tasks gives the scores of halftone eval, on every kind of mesh."""
    common = ["train", "--config", pathlib.Path(source, "recipes/demo.toml"), "--model.hf_assets_path", model, "--training.dataset_path",
              case.data / "words.txt", "--training.minutes", 0, "--training.steps", 1, "--lr_scheduler.warmup_steps", 1, "--model.name",
              "qwen3_moe", "--model.overrides", json.dumps(dict(dim=32, n_layers=2, n_heads=2, n_kv_heads=2, head_dim=16, expert_ffn_dim=32,
                                                                num_experts=4, experts_per_token=2, vocab_size=96, max_seq_len=192)),
              "--training.seq_len", 128, "--training.global_batch_size", 8, "--training.local_batch_size", 4, "--debug.seed", 1,
              "--training.mixed_precision_param", "float32", "--quantize.scheme", "none", "--validation.enable=false",
              "--validation.holdout", 0, "--sample.prompt", "None", "--training.device", "cpu",
              "--validation.tasks", f"hellaswag,mmlu,lambada_openai,{case.data / 'own.toml'}", "--validation.tasks_data", case.data]
    (case.data / "words.txt").write_text(sentence(random.Random(1), 6000))
    scores = {}
    for mesh in ("", "data", "tensor", "context", "pipeline", "expert"):
        folder = case.folder / f"run-{mesh}"
        split = [f"--parallelism.{mesh}_parallel_degree", 2] if mesh not in ("", "data") else []
        result = case.run(*common, "--job.dump_folder", folder, *split, ranks=2 if mesh else 1)
        expect(result.returncode == 0, f"training {mesh}: {result.stdout[-300:]} {result.stderr[-600:]}")
        lines = [json.loads(line) for line in open(folder / "metrics.jsonl")] if result.returncode == 0 else []
        scores[mesh] = {key: value for line in lines if line["kind"] == "eval" for key, value in line.items() if key.startswith("eval/")}
        expect(len(scores[mesh]) == 13, f"training {mesh}: {scores[mesh]}")
        for key, value in scores[mesh].items():
            if "time" not in key:
                same(value, scores[""][key], f"training {mesh}: {key}")
    found = case.eval(case.folder / "run-", "hellaswag,mmlu,lambada_openai", "--max-length", 128)["results"]
    for key, value in scores[""].items():
        task, metric = key.split("/")[1:] if key.count("/") == 2 else ("", "")
        if task in found:
            same(found[task][f"{metric},none"], value, f"halftone eval after training: {key}")
    print("validation.tasks on six meshes: the same scores", flush=True)
    # Short rows on three processes, which share 128 positions in no equal parts.
    result = case.run(*common, "--job.dump_folder", case.folder / "run-three", "--training.seq_len", 192, "--validation.tasks",
                      "lambada_openai", "--validation.tasks_limit", 1, "--parallelism.context_parallel_degree", 3, ranks=3)
    expect(result.returncode == 0, f"training context of three: {result.stderr[-600:]}")
    for tasks, more, part in ((case.data / "long.toml", (), "expected fewer than the 128 tokens"), ("hellaswag", ("--training.seq_len", 8), "training.seq_len")):
        result = case.run(*common, "--job.dump_folder", case.folder / "refused", "--validation.tasks", tasks, *more)
        lines = [line for line in result.stderr.splitlines() if line.startswith("halftone: ")]
        expect(result.returncode == 2 and len(lines) == 1 and part in lines[0], f"training {tasks}: {result.stderr.strip()[-600:]}")
        expect("step: " not in result.stdout + result.stderr, f"training {tasks}: refused before the first step")


def documented(case, model):
    """The commands of docs/evaluation.md, as they are written, in a folder with what they name."""
    work = case.folder / "work"
    (work / "outputs").mkdir(parents=True)
    (work / "outputs/demo").symlink_to(model)
    (work / "benchmarks").symlink_to(case.data)
    (case.data / "story.txt").write_text(sentence(random.Random(2), 20))
    page = pathlib.Path(source, "docs/evaluation.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
    for language, block in blocks:
        if language == "toml" and block.startswith("# mine.toml"):
            (work / "mine.toml").write_text(block)
    count = 0
    for command in re.findall(r"^halftone (.*(?:(?<=\\)\n.*)*)$", "".join(block for language, block in blocks if not language), re.M):
        result = case.run(*shlex.split(command.replace("\\\n", " "), comments=True), cwd=work, input="")
        expect(result.returncode == 0, f"docs/evaluation.md: halftone {command}: {result.stderr.strip()[-400:]}")
        count += 1
    expect(count >= 5, f"docs/evaluation.md has {count} commands")
    print(f"docs/evaluation.md: {count} commands run", flush=True)


def as_parquet(case, model, found, longest):
    """The same scores from Parquet in the layout of a data set's repository."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        print("skipped: Parquet needs pyarrow")
        return
    folder = case.folder / "repositories"
    for task, path, split in (("arc_easy", "ai2_arc/ARC-Easy", "test"), ("winogrande", "winogrande/winogrande_xl", "validation"),
                              ("mmlu", "cais/mmlu/all", "test"), ("wikitext", "wikitext/wikitext-2-raw-v1", "test")):
        rows = [json.loads(line) for line in open(case.data / task / f"{split}.jsonl")]
        (folder / path).mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / path / f"{split}-00000-of-00001.parquet", row_group_size=4)
    other = case.run("eval", "--checkpoint", model, "--tasks", "arc_easy,winogrande,mmlu,wikitext", "--data", folder, "--dtype", "float32",
                     "--device", "cpu", "--format", "json", "--quiet", "--max-length", longest)
    expect(other.returncode == 0, f"Parquet: {other.stderr.strip()}")
    results = json.loads(other.stdout)["results"] if other.returncode == 0 else {}
    for task, values in results.items():
        for key, value in values.items():
            same(found["results"][task][key], value, f"Parquet: {task} {key}")
    expect(len(results) == 8, f"Parquet: {list(results)}")


def served(case, model, longest):
    requests = [{"id": 1, "type": "loglikelihood", "requests": [["the cat", " sat on"], ["", "a mat"]]},
                {"id": 2, "type": "loglikelihood_rolling", "requests": ["the cat sat on a mat"]},
                {"id": 3, "type": "generate_until", "requests": [["the cat", {"until": ["\n"], "max_gen_toks": 5}]]},
                {"id": 4, "type": "guess", "requests": []}]
    result = case.run("eval", "--checkpoint", model, "--serve", "--dtype", "float32", "--device", "cpu", "--max-length", longest, "--quiet",
                      input="\n".join(map(json.dumps, requests)) + "\nnonsense\n")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    expect(len(lines) == 6 and lines[0]["max_length"] == longest, f"serve: {result.stdout} {result.stderr}")
    text = case.folder / "text.txt"
    text.write_text("the cat sat on a mat")
    logprobs = case.run("logprobs", "--checkpoint", model, "--text", text, "--dtype", "float32", "--device", "cpu", "--top-k", 3)
    expect(logprobs.returncode == 0, f"logprobs: {logprobs.stderr}")
    row = json.loads(logprobs.stdout)
    expect(row["prompt_token_ids"][0] == 94 and abs(sum(row["token_logprobs"][1:]) - row["cumulative_logprob"]) < 1e-3, f"logprobs: {row}")
    given, judged = "the cat", " sat on a mat"  # the tokens of the second are the last ones of the whole text
    pair = case.run("eval", "--checkpoint", model, "--serve", "--dtype", "float32", "--device", "cpu", "--max-length", longest, "--quiet",
                    input=json.dumps({"id": 1, "type": "loglikelihood", "requests": [[given, judged]]}) + "\n")
    context = case.run("logprobs", "--checkpoint", model, "--jsonl", given_row(case, given), "--dtype", "float32", "--device", "cpu")
    count = len(json.loads(context.stdout)["prompt_token_ids"])
    same(sum(row["token_logprobs"][count:]), json.loads(pair.stdout.splitlines()[1])["results"][0][0], "logprobs and serve")
    first = row["prompt_logprobs"][1]
    likeliest = sorted((entry["rank"], entry["logprob"]) for entry in first.values())
    expect(row["prompt_logprobs"][0] is None and len(first) in (3, 4) and likeliest[0][0] == 1, f"logprobs: {first}")
    expect(sorted(likeliest, key=lambda e: -e[1]) == likeliest, f"logprobs: ranks {likeliest}")
    expect(first[str(row["prompt_token_ids"][1])]["logprob"] == row["token_logprobs"][1], "logprobs: the label's entry")
    expect("error" in lines[4] and lines[4]["id"] == 4 and "error" in lines[5], f"serve: {lines[4:]}")
    expect(sum(p for p in row["token_logprobs"][1:]) < 0 and not any(math.isnan(p) for p in row["token_logprobs"][1:]), "logprobs: values")


def given_row(case, text):
    path = case.folder / "given.jsonl"
    write_rows(path, [{"text": text}])
    return path


def bad_input(case, model):
    def refused(text, *arguments, **more):
        result = case.run("eval", "--checkpoint", model, "--data", case.data, "--device", "cpu", *arguments, **more)
        line = result.stderr.strip()
        expect(result.returncode == 2 and "\n" not in line and text in line, f"{arguments}: expected one line with {text!r}, found {line!r}")
    refused("unknown task 'hellaswig'", "--tasks", "hellaswig")
    refused("expected its data in", "--tasks", "arc_challenge")
    refused("--tasks is required", "--limit", "1")
    refused("found 1 * 1 * -1 * 1 * 2 and 1 processes", "--tasks", "piqa", "--quiet", "--parallelism.tensor_parallel_degree", 2)
    refused("expected fewer than the 16 tokens", "--tasks", f"piqa,{case.data / 'long.toml'}", "--quiet", "--max-length", 16)
    refused("a continuation of", "--tasks", "piqa", "--quiet", "--max-length", 8)
    refused("missing/scores.json: cannot be written", "--tasks", "piqa", "--quiet", "--out", case.folder / "missing/scores.json")
    folder = case.run("logprobs", "--checkpoint", model, "--text", case.data, "--device", "cpu")
    expect(folder.returncode == 2 and len(folder.stderr.splitlines()) == 1, f"logprobs of a folder: {folder.stderr}")
    refused("gsm8k generates text, which needs one process", "--tasks", case.data / "gsm8k.toml", ranks=2)
    broken = case.data / "broken"
    rows = (case.data / "hellaswag/validation.jsonl").read_text()
    for name, text, expected in (("cut", rows[:len(rows) // 2], "validation.jsonl:4"), ("empty", "", "found none"),
                                 ("missing", rows.replace('"label"', '"lable"'), "validation.jsonl:1: expected the field 'label'"),
                                 ("range", rows.replace('"label": "', '"label": "9'), "validation.jsonl:1: task hellaswag")):
        write_rows(broken / "hellaswag" / "validation.jsonl", [])
        (broken / "hellaswag" / "validation.jsonl").write_text(text)
        out = case.folder / f"{name}.json"
        result = case.run("eval", "--checkpoint", model, "--data", broken, "--tasks", "hellaswag", "--out", out, "--device", "cpu")
        line = result.stderr.strip()
        expect(result.returncode == 2 and "\n" not in line and expected in line and not out.exists(), f"{name}: {line!r}")


def main():
    python = os.environ.get("HALFTONE_TORCH_PYTHON", sys.executable)
    probe = subprocess.run([python, "-c", "import torch, transformers, safetensors"], capture_output=True, text=True)
    has_transformers = probe.returncode == 0
    longest = 160
    with tempfile.TemporaryDirectory() as folder:
        case = Case(folder, python)
        if not has_transformers:
            model = case.model(FAMILIES[0])
            found = case.eval(model, case.gsm8k(), "--max-length", longest)
            without_packing(case, model, found, longest), served(case, model, longest), as_parquet(case, model, found, longest)
            bad_input(case, model)
            while_training(case, model), documented(case, model)
            reason = (probe.stderr.strip().splitlines() or ["it does not start"])[-1]
            print(f"skipped: the comparison needs torch and transformers in Python ({reason}); set HALFTONE_TORCH_PYTHON")
            return conclude()
        has_harness = subprocess.run([python, "-c", "import lm_eval, datasets"], capture_output=True).returncode == 0
        if not has_harness:
            print(f"{python} has no lm_eval with datasets: its scores are not compared")
        models = {name: case.model(name) for name in FAMILIES}
        found = {name: case.eval(model, case.gsm8k(), "--max-length", longest, "--log-samples", case.folder / f"{name}.jsonl")
                 for name, model in models.items()}
        if None in found.values():
            return conclude()
        reference = subprocess.run([python, __file__, "--answer", folder, *FAMILIES, str(longest)], capture_output=True, text=True)
        expect(reference.returncode == 0, f"transformers: {reference.stderr.strip()[-900:]}")
        answers = [json.loads(line) for line in reference.stdout.splitlines()]
        for name, own in zip(FAMILIES, answers, strict=True):
            against_transformers(case, name, own)
        first = FAMILIES[0]
        without_packing(case, models[first], found[first], longest), served(case, models[first], longest), as_parquet(case, models[first], found[first], longest)
        bad_input(case, models[first])
        while_training(case, models[first]), documented(case, models[first])
        for name in HARNESS_FAMILIES if has_harness else []:
            against_harness(case, models[name], longest)
    return conclude()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        for family in sys.argv[3:-1]:
            answer(os.path.join(sys.argv[2], family), os.path.join(sys.argv[2], f"{family}.jsonl"), int(sys.argv[-1]))
    elif sys.argv[1:2] == ["--harness"]:
        harness(sys.argv[2], sys.argv[3], sys.argv[4])
    else:
        main()
