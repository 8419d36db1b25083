"""A client of `securesgd serve`: start the service, ask it for a class with a proven radius, and stop it.

    pip install "securesgd[serve]"
    python examples/service_client.py runs/a

Without a run in the folder a small one is trained first. The client itself is the standard library's; any language that
speaks HTTP and JSON can do the same.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from sklearn.datasets import load_digits

SECURESGD = [sys.executable, "-m", "securesgd"]
TRAIN = ["train", "--dataset", "digits", "--method", "secure-sgd", "--set", "steps=100", "--set", "copies=2"]


def ask(address: str, question: object = None) -> dict:
    """Return the JSON answer to a GET, or to a POST of a question."""
    body = None if question is None else json.dumps(question).encode()
    with urlopen(Request(address, data=body, headers={"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)


def main(folder: str = "runs/a") -> None:
    if not (Path(folder) / "model.json").exists():
        subprocess.run([*SECURESGD, *TRAIN, "--out", folder], check=True)
    service = subprocess.Popen([*SECURESGD, "serve", folder, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        line = service.stdout.readline()  # "serving at http://127.0.0.1:40123", as soon as it takes questions
        if not line:
            raise SystemExit("the service did not start; it has said why above")
        address = line.split()[-1].rstrip("/")
        about = ask(f"{address}/api/run")
        print(about["statement"]["in_words"])
        for pixels in load_digits().images[:3] / 16:
            answer = ask(f"{address}/api/predict", {"pixels": [pixels.tolist()]})
            if answer["abstained"]:
                print(f"abstained after {answer['draws']} draws")
            else:
                print(f"class {answer['class']}, proven {answer['norm']} radius {answer['radius']:.4f}")
    finally:
        service.send_signal(signal.SIGTERM)  # requests under way are finished
        service.wait(timeout=60)


if __name__ == "__main__":
    main(*sys.argv[1:])
