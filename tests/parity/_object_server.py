"""An S3 server (moto) on 127.0.0.1 behind a TCP proxy that injects faults, each in a process or thread of the test."""
import http.server
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

MOTO = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
from moto.s3.models import s3_backends
s3 = s3_backends["123456789012"]["aws"]
for line in sys.stdin:  # "bucket key path": a PUT without HTTP, ten times as fast; "count": that many small objects
    words = line.split()
    if words[0] == "fill":
        for i in range(int(words[3])):
            s3.put_object(words[1], f"{words[2]}/part-{i:05d}.txt", b"document %d of many\\n" % i)
    else:
        s3.put_object(words[0], words[1], open(words[2], "rb").read())
    print("done", flush=True)
"""


class Server:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", MOTO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}/bucket", method="PUT")).read()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def put(self, key, path):
        self.ask(f"bucket {key} {path}")

    def fill(self, folder, count):
        self.ask(f"fill bucket {folder} {count}")

    def close(self):
        self.process.kill()
        self.process.wait()


class Proxy:
    """Forwards connections to a port. `fault` is asked at each request: None, "500", "slow" (0.3 s), "cut" (after some bytes of the
    answer), "stop". stop() closes the port and all connections, start() opens it again."""

    def __init__(self, port, fault=lambda request: None):
        self.target, self.fault = port, fault
        self.requests, self.faults = 0, 0
        self.lock = threading.Lock()
        self.listener, self.port, self.open = None, 0, set()
        self.start()

    def start(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        self.listener.listen(64)
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for s in self.open:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        server = socket.create_connection(("127.0.0.1", self.target))
        with self.lock:
            self.open |= {client, server}
        cut = False
        try:
            while True:
                for s in select.select([client, server], [], [])[0]:
                    data = s.recv(1 << 16)
                    if not data:
                        return
                    if s is client:  # our requests have no body: each read is a request
                        with self.lock:
                            fault = self.fault(self.requests)
                            self.requests += 1
                            self.faults += fault is not None
                        if fault == "500":
                            client.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                            return
                        if fault == "stop":
                            return self.stop()
                        if fault == "slow":
                            time.sleep(0.3)
                        cut = fault == "cut"
                        server.sendall(data)
                    else:
                        client.sendall(data[:100] if cut else data)
                        if cut:
                            return
        except OSError:
            pass
        finally:
            with self.lock:
                self.open -= {client, server}
            client.close()
            server.close()


class Google(http.server.BaseHTTPRequestHandler):
    """The part of Google's storage API (JSON) that readers use: objects of `bucket`, files of `folder` below set/. Fails every 30th time."""
    protocol_version = "HTTP/1.1"
    folder, count = "", 0

    def log_message(self, *arguments):
        pass

    def answer(self, status, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def describe(self, name):
        size = os.path.getsize(os.path.join(self.folder, name))
        return {"kind": "storage#object", "name": "set/" + name, "bucket": "bucket", "size": str(size), "generation": "17",
                "metageneration": "1", "updated": "2026-01-01T00:00:00.123Z", "timeCreated": "2026-01-01T00:00:00.123Z"}

    def do_GET(self):
        Google.count += 1
        if Google.count % 30 == 0:
            return self.answer(503, {"error": {"code": 503, "message": "later"}})
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        one = re.fullmatch("/storage/v1/b/bucket/o/(.+)", url.path)
        if url.path == "/storage/v1/b/bucket/o":
            names = [n for n in sorted(os.listdir(self.folder)) if ("set/" + n).startswith(query.get("prefix", ""))]
            return self.answer(200, {"kind": "storage#objects", "items": [self.describe(n) for n in names]})
        name = urllib.parse.unquote(one[1]) if one else ""
        path = os.path.join(self.folder, name.removeprefix("set/"))
        if not name.startswith("set/") or not os.path.exists(path):
            return self.answer(404, {"error": {"code": 404, "message": "no such object"}})
        if query.get("alt") != "media":
            return self.answer(200, self.describe(name.removeprefix("set/")))
        data = open(path, "rb").read()
        ranges = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not ranges:
            return self.answer(200, data)
        first, last = int(ranges[1]), min(int(ranges[2] or len(data)), len(data) - 1)
        self.answer(206, data[first:last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}")
