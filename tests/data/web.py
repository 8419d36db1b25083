"""A web server on 127.0.0.1 that can cut connections, and a tiny data set in MNIST's form."""

import gzip
import hashlib
import http.server
import re
import struct
import threading
from dataclasses import dataclass, field

import numpy as np

from securesgd.data.catalog import DataSet, Origin, StoredFile

IDX_NAMES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


@dataclass
class Web:
    """What the server serves and what it was asked; `cuts` are bytes to send before closing, one per answer."""

    files: dict[str, bytes]
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    overlong: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    before_answer: object = None
    address: str = ""

    def start(self):
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                web.asked.append((self.path, self.headers.get("Range")))
                if web.before_answer:
                    web.before_answer()
                answer(self, web)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{server.server_port}/"
        return server


def answer(request, web):
    content = web.files.get(request.path.lstrip("/"))
    if content is None:
        request.send_error(404)
        return
    start, asked = 0, re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
    if asked and web.ranges:
        start = int(asked[1])
        if start >= len(content):
            request.send_error(416)
            return
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    else:
        request.send_response(200)
    body = content if web.overlong else content[start:]
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[: web.cuts.pop(0)] if web.cuts else body)


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def stored(name, content):
    return StoredFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def tiny_contents():
    random = np.random.default_rng(7)
    arrays = (
        random.integers(0, 256, (40, 28, 28), dtype=np.uint8),
        np.arange(40, dtype=np.uint8) % 10,
        random.integers(0, 256, (20, 28, 28), dtype=np.uint8),
        np.arange(20, dtype=np.uint8) % 10,
    )
    return {name: idx(array) for name, array in zip(IDX_NAMES, arrays, strict=True)}


def tiny_dataset(*addresses, origins=(), archives=tuple(f"{name}.gz" for name in IDX_NAMES)):
    return DataSet(
        name="tiny",
        class_names=tuple("0123456789"),
        input_shape=(1, 28, 28),
        train_size=40,
        test_size=20,
        layout="idx",
        files=tuple(stored(name, content) for name, content in tiny_contents().items()),
        origins=(*(Origin(channel="http", where=where, archives=archives) for where in addresses), *origins),
    )


def tiny_archives():
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in tiny_contents().items()}
