"""The page in a browser, as people use it; and the command as a process of its own. Needs Chromium for the page."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from PIL import Image

from securesgd.run import load_run
from securesgd.serve.answers import ServedRun
from tests.command_line import run_here
from tests.serve.conftest import as_json, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
pytestmark = pytest.mark.slow
SIZES = {"desktop": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 844}}


@contextmanager
def browser_page(address, size="desktop", refusals=0):
    """A page of the server; an error of its script, or a request to elsewhere, fails the test.

    A refusal by the server is an error in the console, too: so many of them are meant.
    """
    from playwright.sync_api import sync_playwright

    problems = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZES[size])
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on(
            "request",
            lambda request: request.url.startswith((address, "data:", "blob:")) or problems.append(request.url),
        )
        page.goto(address + "/")
        yield page
        browser.close()
    assert len([problem for problem in problems if "status of 400" in problem]) == refusals
    assert len(problems) == refusals, problems


def saved_digit(x, path, size=(80, 80)):
    Image.fromarray((x[0] * 255).round().to(torch.uint8).numpy()).resize(size, Image.Resampling.NEAREST).save(path)
    return path


def answered(page):
    page.wait_for_selector("#result:not([hidden])", timeout=30_000)
    return page.text_content("#class"), page.text_content("#words")


@needs_chromium
@pytest.mark.parametrize("size", SIZES)
def test_a_picture_is_chosen_explained_and_attacked(served, sure, tmp_path, size):
    x, label = sure[0]
    with running(served) as server, browser_page(server.address, size) as page:
        page.wait_for_selector("#images:not([hidden])")
        page.set_input_files("#file", saved_digit(x, tmp_path / "digit.png"))
        name, words = answered(page)
        assert name == served.class_names[label]
        assert re.search(r"every pixel may change by less than 0\.\d+", words)
        assert "80×80" in page.text_content("#resized")
        assert page.locator("#bars .bar").count() == 10
        assert page.locator("#extremes canvas").count() == 3
        page.click("#attack")
        page.wait_for_selector("#attacked:not([hidden])", timeout=30_000)
        assert page.locator("#attack-tiles img").count() == 3
        assert "Inside the proven radius the answer did not change" in page.text_content("#attack-words")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out of a phone
        assert served.run.privacy.in_words in page.text_content("#statement")


@needs_chromium
def test_an_attack_that_leaves_no_answer_is_not_called_harmless(served):
    """What the page says about each outcome; "did not change" is only for the same class."""
    same, silent, other = ({"class": "3", "abstained": a, "changed": c, "budget": 0.1, "times_radius": 2, "row": None}
                           for a, c in ((False, False), (True, False), (False, True)))  # fmt: skip
    inside = "Inside the proven radius "
    expected = {
        (0, 2): ("the answer did not change. At 2 times the radius the answer changed.", "good"),
        (1, 2): ("the model gave no answer: its draws there do not settle the class, which the proof allows. At 2 "
                 "times the radius the answer changed.", "good"),
        (0, 1): ("the answer did not change. At 2 times the radius the model gave no answer.", "good"),
        (2, 2): ("the answer changed: this proof is one of the few that may fail, or it is wrong. At 2 times the "
                 "radius the answer changed.", "bad"),
    }  # fmt: skip
    points = (same, silent, other)
    with running(served) as server, browser_page(server.address) as page:
        for (near, far), (words, colour) in expected.items():
            found = {"before": same, "inside": points[near], "outside": points[far]}
            page.evaluate("found => tellAttack(found)", found)
            assert page.text_content("#attack-words") == inside + words
            assert page.get_attribute("#attack-words", "class") == colour


@needs_chromium
def test_a_drawing_is_asked_about_and_a_bad_file_is_explained(served, tmp_path):
    with running(served) as server, browser_page(server.address) as page:
        page.wait_for_selector("#images:not([hidden])")
        box = page.locator("#draw").bounding_box()
        for x, y in ((0.5, 0.1), (0.5, 0.9)):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=10)
            if y < 0.5:
                page.mouse.down()
        page.mouse.up()
        assert all(answered(page))
        middle = page.evaluate(
            "() => { const canvas = document.querySelectorAll('#extremes canvas')[1];"
            " const d = canvas.getContext('2d').getImageData(0, 0, 8, 8).data;"
            " return [d[4 * (4 * 8 + 4)], d[4 * (4 * 8 + 0)]]; }"
        )
        assert middle[0] > 100  # the stroke, as the model saw it
        assert middle[1] == 0
        (tmp_path / "notes.txt").write_text("no picture")
        page.set_input_files("#file", tmp_path / "notes.txt")
        page.wait_for_selector("#error:not([hidden])")
        assert "no PNG or JPEG" in page.text_content("#error")
        page.click("#ask-drawing")
        assert all(answered(page))
        page.goto(server.address + "/docs")
        page.wait_for_selector("text=POST /api/predict")


@needs_chromium
def test_names_of_the_user_are_shown_and_never_run(tmp_path, monkeypatch):
    """Classes, columns and categories that would be markup, in a page of a table."""
    monkeypatch.chdir(tmp_path)
    evil = '<img src=x onerror="document.title=1">'
    cell = '"' + evil.replace('"', '""') + '"'
    lines = [f"{i % 10},{'a' if i % 3 else cell},{'yes' if i % 10 > 4 else cell}" for i in range(200)]
    Path("t.csv").write_text("\n".join([f"{cell},kind,y", *lines]) + "\n")
    quoted = json.dumps(evil)
    Path("t.schema.toml").write_text(
        f'target = "y"\nclasses = ["yes", {quoted}]\n[columns.{quoted}]\nminimum = 0\nmaximum = 10\n'
        f'[columns.kind]\ncategories = ["a", {quoted}]\n'
    )
    trained = run_here("train", "--dataset", "t.csv", "--method", "dp-ibp", "--out", "run", "--set", "accountant=rdp",
                       "--set", "steps=20", "--set", "batch_size=50")  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    with running(ServedRun(load_run("run"))) as server, browser_page(server.address, refusals=1) as page:
        page.wait_for_selector("#table:not([hidden])")
        assert evil in page.text_content("#about")
        assert evil in page.text_content("#fields")
        page.click("#table button")
        name, _ = answered(page)
        assert name in ("yes", evil)
        page.click("#attack")
        page.wait_for_selector("#attacked:not([hidden])", timeout=30_000)
        assert evil in page.text_content("#attack-rows")
        page.fill("#fields input", "wide")
        page.click("#table button")
        page.wait_for_selector("#error:not([hidden])")
        assert "a finite number" in page.text_content("#error")
        assert page.title() == "Try the model"
        assert page.locator("img[src='x']").count() == 0


def test_the_command_serves_and_ends_well_when_told_to(digits_run, sure, tmp_path):
    """A process of its own, from another folder; SIGTERM while questions are under way loses none of them."""
    command = [sys.executable, "-c", "from securesgd.cli import main; main()", "serve", str(digits_run), "--port", "0"]
    command += ["--draws", "20000"]  # so that the first answer comes when all have asked
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    try:
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        while True:  # the socket is bound before the line is printed; answers come when the server has started
            try:
                assert httpx.get(address + "/readyz", timeout=30).json() == {"status": "ready"}
                break
            except httpx.ConnectError:
                continue
        before = sorted(path.name for path in digits_run.iterdir())
        replies = []

        def ask():
            with httpx.Client(timeout=60) as client:
                replies.append(client.post(address + "/api/predict", json=as_json(sure[0][0])).json()["label"])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        while not replies:  # the first has its answer; the others wait together
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(30) == 0
        assert replies == [sure[0][1]] * 8
        assert "stopped" in process.stderr.read()
        assert sorted(path.name for path in digits_run.iterdir()) == before
    finally:
        process.kill()
        process.wait()
