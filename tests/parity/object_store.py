#!/usr/bin/env python3
"""Data in an S3 server (moto, behind a proxy with cuts, slow answers, 500s and outages) and on web servers: the bytes equal those of local
files, a run from s3:// has the losses of one from local files whatever the server does, and an outage stalls it, with two ranks beyond the
time limit of their collectives."""
import datetime
import http.server
import importlib.util
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from _program import path_of, source

program = path_of("halftone")
for name in ("moto", "flask", "cryptography"):
    if importlib.util.find_spec(name) is None:
        print(f"skipped: {name} is not installed")
        sys.exit(77)
from _object_server import Google, Proxy, Server

random.seed(7)
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true", "OMP_NUM_THREADS": "1"}
MODEL = '{"dim":32,"n_layers":1,"n_heads":2,"n_kv_heads":2,"ffn_dim":64}'
STEPS = 200
FILES, LINES = 16, 75


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "STORAGE_", "GOOGLE_"))}
    return dict(kept, **KEYS, **more)


def run(*arguments, status=0, **more):
    result = subprocess.run([program, *arguments], cwd=source, capture_output=True, text=True, env=environment(**more))
    assert result.returncode == status, f"{arguments}: status {result.returncode}\n{result.stdout[-3000:]}{result.stderr}"
    return result


def tokenize(path, output, status=0, **more):
    return run("tokenize", "--dataset=jsonl", f"--dataset_path={path}", "--tokenizer=tests/assets/tokenizer", f"--output={output}",
               status=status, **more)


def training(path, folder, endpoint, *more):
    return ["train", "--config", "recipes/llama3_debug.toml", "--model.overrides", MODEL, "--training.device=cpu", "--training.seq_len=64",
            "--training.local_batch_size=2", "--training.global_batch_size=4", f"--training.steps={STEPS}", "--training.dataset=jsonl",
            f"--training.dataset_path={path}", "--training.dataloader.read=streamed", "--training.dataloader.stream_lanes=4",
            "--training.dataloader.shuffle_buffer=4", "--training.dataloader.prefetch_factor=1", "--debug.seed=3", "--debug.deterministic",
            f"--job.dump_folder={folder}", f"--data.endpoint_url={endpoint}", "--data.cache_gib=0", "--data.read_ahead_mib=0",
            "--checkpoint.enable", "--checkpoint.interval=10", "--checkpoint.last_save_model_only=false", *more]


def losses(folder):
    lines = map(json.loads, open(os.path.join(folder, "metrics.jsonl")))
    return {line["step"]: line["loss_metrics/global_avg_loss"] for line in lines if line["kind"] == "train"}


class Process:
    """A run in the background; `wait_for` reads its log."""

    def __init__(self, arguments, **more):
        self.process = subprocess.Popen([program, *arguments], cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=environment(**more))
        self.log = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.log.append(line)

    def text(self):
        return "".join(self.log)

    def wait_for(self, pattern, seconds=40):
        end = time.time() + seconds
        while not re.search(pattern, self.text()):
            assert time.time() < end and self.reader.is_alive(), f"no '{pattern}' in:\n{self.text()}"
            time.sleep(0.02)

    def finish(self, status=0, seconds=60):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            assert False, f"a run did not end:\n{self.text()}"
        self.reader.join()
        assert self.process.returncode == status, f"status {self.process.returncode}:\n{self.text()}"
        return self.text()


class Web(http.server.BaseHTTPRequestHandler):
    """Files of a folder with ranges and ETags; below /whole/ without ranges, /flaky/ fails every eighth time, /to/ redirects."""
    protocol_version = "HTTP/1.1"
    folder, count, etag = "", 0, '"1"'

    def log_message(self, *arguments):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        Web.count += 1
        kind, _, name = self.path.lstrip("/").partition("/")
        if kind == "to":
            return self.answer(302, Location="/files/" + name)
        if kind == "away":
            return self.answer(302, Location="file:///etc/passwd")
        if kind == "flaky" and Web.count % 8 == 1:
            return self.answer(503)
        path = os.path.join(Web.folder, name)
        if not os.path.exists(path):
            return self.answer(404, b"not here")
        data = open(path, "rb").read()
        ranges = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if kind == "whole" or not ranges:
            return self.answer(200, data, ETag=Web.etag)
        first, last = int(ranges[1]), min(int(ranges[2]), len(data) - 1)
        if first >= len(data):
            return self.answer(416, Content_Range=f"bytes */{len(data)}")
        self.answer(206, data[first:last + 1], ETag=Web.etag, Content_Range=f"bytes {first}-{last}/{len(data)}")


def certificate(work):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    import ipaddress
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    begin = datetime.datetime(2020, 1, 1)
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
            .not_valid_before(begin).not_valid_after(begin + datetime.timedelta(days=36500))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.BasicConstraints(True, None), True).sign(key, hashes.SHA256()))
    path = os.path.join(work, "server.pem")
    pem = serialization.Encoding.PEM
    with open(path, "wb") as out:
        out.write(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()) + made.public_bytes(pem))
    return path


def same_bytes(proxy, work, wanted):
    endpoint = f"http://127.0.0.1:{proxy.port}"
    proxy.fault = lambda request: random.choice(["500", "cut", "slow"]) if random.random() < 0.1 else None
    out = os.path.join(work, "remote.bin")
    for path in ("s3://bucket/set", "s3://bucket/set/*.jsonl", "s3://bucket/**/part-*.jsonl"):
        tokenize(path, out, AWS_ENDPOINT_URL=endpoint)
        assert open(out, "rb").read() == wanted, path
    assert proxy.faults > 5, proxy.faults
    proxy.fault = lambda request: None
    said = tokenize("s3://bucket/none", out, status=2, AWS_ENDPOINT_URL_S3=endpoint).stderr
    assert said == "halftone: s3://bucket/none: no such file or folder on the server\n", said
    print(f"s3://: folder and globs equal local files, {proxy.faults} faults of {proxy.requests} requests")


def web(work, wanted):
    Web.folder = os.path.join(work, "set")
    names = sorted(os.listdir(Web.folder))
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    secure = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    pem = certificate(work)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    for server in (plain, secure):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    out = os.path.join(work, "web.bin")
    for scheme, server, kind in (("http", plain, "files"), ("http", plain, "flaky"), ("http", plain, "to"), ("https", secure, "files")):
        root = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        with open(os.path.join(Web.folder, "all.list"), "w") as listed:
            listed.write("# all parts\n" + "".join(f"{root}/{kind}/{n}\n" for n in names))
        tokenize(f"{root}/files/all.list", out, SSL_CERT_FILE=pem)
        assert open(out, "rb").read() == wanted, (scheme, kind)
    root = f"http://127.0.0.1:{plain.server_address[1]}"
    for address, text in ((f"{root}/files/none.jsonl", "no such file on the server"), (f"{root}/away/x.jsonl", "nsupported protocol"),
                          (f"https://127.0.0.1:{secure.server_address[1]}/files/{names[0]}", "SSL")):
        said = tokenize(address, out, status=2).stderr
        assert text in said and len(said.splitlines()) == 1, said
    folder = os.path.join(work, "whole")
    one = os.path.join(Web.folder, names[0])
    run(*training(f"{root}/whole/{names[0]}", folder, "", "--training.steps=3", "--data.cache_gib=1"))
    local = os.path.join(work, "whole-local")
    run(*training(one, local, "", "--training.steps=3"))
    assert losses(folder) == losses(local)
    os.remove(os.path.join(Web.folder, "all.list"))
    print("http:// and https://: ranges, redirects, 503s, lists and a server without ranges equal local files")


def google(work, wanted):
    Google.folder = os.path.join(work, "set")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Google)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    out = os.path.join(work, "google.bin")
    tokenize("gs://bucket/set/part-*.jsonl", out, STORAGE_EMULATOR_HOST=f"http://127.0.0.1:{server.server_address[1]}")
    assert open(out, "rb").read() == wanted
    print("gs://: a glob equals local files")


def outage(proxy, work, wanted):
    """One process: stalls, says so, goes on; a signal during the outage ends it with a checkpoint, from which it goes on."""
    endpoint = f"http://127.0.0.1:{proxy.port}"
    folder = os.path.join(work, "outage")
    arguments = training("s3://bucket/set", folder, endpoint)
    process = Process(arguments)
    process.wait_for(r"step: +3 ")
    proxy.stop()
    process.wait_for("no answer for .*the run waits")
    seen = proxy.requests
    proxy.fault = lambda request: "stop" if request >= seen + 6 else None  # the next outage, two files later
    steps = len(re.findall(r"step: +\d+ ", process.text()))
    time.sleep(2)
    assert len(re.findall(r"step: +\d+ ", process.text())) == steps < STEPS, process.text()
    proxy.start()
    process.wait_for("data is back after")
    process.wait_for("data is back after(.|\n)*no answer for")
    process.process.send_signal(signal.SIGTERM)
    text = process.finish(128 + signal.SIGTERM)
    assert "stopped by signal 15" in text, text
    ended = len(re.findall(r"step: +\d+ ", text))
    assert steps < ended < STEPS, text
    proxy.fault = lambda request: None
    proxy.start()
    run(*arguments)
    assert losses(folder) == wanted, (losses(folder), wanted)
    print(f"outages in steps {steps + 1} and {ended + 1}: the run waited, ended by a signal with a checkpoint, and has the local run's losses")


def ranks(server, work, wanted):
    """Two ranks, whose collectives have a limit of 3 s: rank 1 waits 9 s for its data, and rank 0 for rank 1."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folder = os.path.join(work, "ranks")
    proxies = [Proxy(server.port), Proxy(server.port)]
    processes = [Process(training("s3://bucket/set", folder, "", "--comm.train_timeout_seconds=3"), RANK=str(r), LOCAL_RANK=str(r),
                         WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOG_RANK="0,1",
                         AWS_ENDPOINT_URL=f"http://127.0.0.1:{proxies[r].port}") for r in (0, 1)]
    processes[0].wait_for(r"step: +3 ")
    proxies[1].stop()
    time.sleep(9)
    proxies[1].start()
    texts = [p.finish() for p in processes]
    assert "data is back" in texts[1] and "no answer for" not in texts[0], texts
    found = losses(folder)
    assert found.keys() == wanted.keys() and all(abs(found[s] / wanted[s] - 1) < 1e-4 for s in wanted), (found, wanted)
    print("a rank waited for the other's data three times as long as comm.train_timeout_seconds, with the losses of one process")


with tempfile.TemporaryDirectory() as work:
    os.mkdir(os.path.join(work, "set"))
    words = open(os.path.join(source, "README.md")).read().split()
    server = Server()
    proxy = Proxy(server.port)
    try:
        for i in range(FILES):
            path = os.path.join(work, "set", f"part-{i:03d}.jsonl")
            with open(path, "w") as out:
                for _ in range(LINES):
                    out.write(json.dumps({"text": " ".join(random.choices(words, k=random.randint(5, 20)))}) + "\n")
            server.put(f"set/part-{i:03d}.jsonl", path)
        tokenize(os.path.join(work, "set"), os.path.join(work, "local.bin"))
        tokens = open(os.path.join(work, "local.bin"), "rb").read()
        same_bytes(proxy, work, tokens)
        web(work, tokens)
        google(work, tokens)
        run(*training(os.path.join(work, "set"), os.path.join(work, "local"), ""))
        wanted = losses(os.path.join(work, "local"))
        assert len(wanted) == STEPS
        outage(proxy, work, wanted)
        ranks(server, work, wanted)
        server.fill("many", 10001)
        start = time.time()
        process = Process(training("s3://bucket/many", os.path.join(work, "many"), f"http://127.0.0.1:{proxy.port}",
                                   "--training.dataset=text", "--training.steps=2"))
        process.wait_for(r"step: +1 ")
        seconds = time.time() - start
        process.finish()
        print(f"10,001 objects: first step {seconds:.1f} s after the start of the program")
    finally:
        server.close()
