"""What the service answers, compared with the run in Python; for images, intervals and tables."""

import base64
import io
import json
import re
import shutil
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from securesgd.certificates.column_radii import table_schema
from securesgd.data.columns import Column
from securesgd.data.schema import Schema
from securesgd.errors import InvalidInputError
from securesgd.run import Prediction, load_run
from securesgd.serve.answers import Question, ServedRun, radius_in_words
from tests.command_line import run_here
from tests.serve.conftest import DRAWS, as_json, running

EXAMPLE = Path(__file__).parents[2] / "examples" / "breast_cancer"


def png(x, size=None):
    file = io.BytesIO()
    picture = Image.fromarray((x[0] * 255).round().to(torch.uint8).numpy())
    (picture if size is None else picture.resize(size)).save(file, "PNG")
    return file.getvalue()


def pixels(uri):
    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)), dtype=np.float64) / 255


def test_the_answer_about_an_image_has_class_radius_and_votes(client, sure, served):
    for x, label in sure[:3]:
        reply = client.post("/api/predict", content=png(x), headers={"Content-Type": "image/png"})
        assert reply.status_code == 200
        answer = reply.json()
        assert answer["class"] == served.class_names[label]
        assert answer["label"] == label
        assert answer["radius"] > 0
        assert (answer["norm"], answer["family"], answer["draws"]) == ("linf", "smoothing", DRAWS)
        assert sum(row["votes"] for row in answer["votes"]) == DRAWS
        assert max(answer["votes"], key=lambda row: row["votes"])["class"] == answer["class"]
        assert "Proven" in answer["in_words"]
        assert answer["picture"] is None


def test_every_answer_draws_its_own_noise(client, sure):
    body = as_json(sure[0][0])
    votes = {json.dumps(client.post("/api/predict", json=body).json()["votes"]) for _ in range(4)}
    assert len(votes) > 1


def test_a_larger_image_is_made_the_size_of_the_inputs_and_the_answer_says_so(client, sure):
    x, label = sure[0]
    headers = {"Content-Type": "image/png"}
    answer = client.post("/api/predict?picture=true", content=png(x, (40, 32)), headers=headers).json()
    assert answer["resized_from"] == [40, 32]
    assert pixels(answer["picture"]).shape == (8, 8)
    same = client.post("/api/predict?picture=true", content=png(x), headers=headers).json()
    assert same["resized_from"] is None
    assert same["label"] == label
    assert np.abs(pixels(same["picture"]) - x[0].numpy()).max() <= 0.5 / 255 + 1e-6
    inverted = client.post("/api/predict?picture=true&invert=true", content=png(x), headers=headers).json()
    assert np.allclose(pixels(inverted["picture"]), 1 - pixels(same["picture"]), atol=1e-6)


def test_an_attack_stays_inside_the_radius_and_wins_outside(client, sure):
    x, label = sure[0]
    found = client.post("/api/attack", json=as_json(x)).json()
    before, inside, outside = (found[name] for name in ("before", "inside", "outside"))
    assert before["label"] == label
    assert not inside["changed"]
    assert inside["budget"] < before["radius"] < outside["budget"]
    assert outside["changed"]
    assert outside["class"] != before["class"]
    for point in (inside, outside):
        change = np.abs(pixels(point["picture"]) - x[0].numpy()).max()
        assert 0.5 * point["budget"] < change <= point["budget"] + 0.5 / 255 + 1e-6  # pictures have whole grey levels


def test_the_description_names_everything_a_client_needs_and_no_place_of_this_machine(client, served, digits_run):
    reply = client.get("/api/run")
    description = reply.json()
    assert description["kind"] == "image"
    assert description["input_shape"] == [1, 8, 8]
    assert description["class_names"] == [str(digit) for digit in range(10)]
    assert description["statement"]["in_words"] == served.run.privacy.in_words
    assert description["statement"]["in_short"] == served.run.privacy.in_short
    assert str(digits_run.parent) not in reply.text
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


def test_the_schema_describes_the_answers(client, sure):
    spec = client.get("/openapi.json").json()

    def keys(path, verb):
        return set(spec["paths"][path][verb]["responses"]["200"]["content"]["application/json"]["schema"]["properties"])

    assert keys("/api/run", "get") == set(client.get("/api/run").json())
    assert keys("/api/predict", "post") == set(client.post("/api/predict", json=as_json(sure[0][0])).json())
    assert keys("/api/attack", "post") == set(client.post("/api/attack", json=as_json(sure[0][0])).json())


def test_nothing_of_the_folder_is_served_and_the_pages_load_nothing_from_elsewhere(client, digits_run):
    for name in (path.name for path in digits_run.iterdir()):
        for place in (name, f"../{name}", f"static/{name}", f"api/{name}", f"%2e%2e/{name}"):
            assert client.get(f"/{place}").status_code == 404
    for path in ("/", "/docs"):
        reply = client.get(path)
        assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//|url\(|@import""", reply.text)
        assert "innerHTML" not in reply.text
        assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_a_server_of_this_machine_answers_to_no_other_name(client):
    for name in ("attacker.example", "localhost.attacker.example:8000", "127.0.0.1.attacker.example", "[::2]:80", ""):
        reply = client.get("/api/run", headers={"Host": name})
        assert reply.status_code == 400, name
        assert "localhost" in reply.json()["error"]
    for name in ("localhost:8000", "LOCALHOST", "[::1]:8000", "127.0.0.1"):
        assert client.get("/api/run", headers={"Host": name}).status_code == 200, name


def test_questions_that_are_wrong_spoil_none_of_their_batch(served, sure):
    good = json.dumps(as_json(sure[0][0])).encode()
    questions = [
        Question(verb="predict", body=body, content_type="application/json") for body in (good, b"{}", b"[1", good)
    ]
    answers = served.answers(questions)
    assert [isinstance(answer, InvalidInputError) for answer in answers] == [False, True, True, False]
    assert answers[0]["label"] == answers[3]["label"] == sure[0][1]


def test_an_unfinished_run_is_not_served(digits_run, tmp_path):
    copy = shutil.copytree(digits_run, tmp_path / "run")
    (copy / "secret.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"secret\.json"):
        ServedRun(load_run(copy))
    refused = run_here("serve", copy)
    assert refused.returncode == 2
    assert "unfinished" in refused.stderr


def test_draws_that_cannot_prove_anything_are_refused_before_the_port_is_opened(digits_run):
    refused = run_here("serve", digits_run, "--draws", "3", "--port", "0")
    assert refused.returncode == 2
    assert "3 draws cannot prove" in refused.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--port", "70000"), ("--workers-queue", "0"), ("--host", "nowhere.invalid")]
)
def test_options_that_cannot_be_used_are_refused_in_one_line(digits_run, option, value):
    refused = run_here("serve", digits_run, "--draws", "100", option, value)
    assert refused.returncode == 2
    assert value in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_a_missing_extra_is_one_line_that_says_what_to_install(digits_run, monkeypatch, missing):
    for name in list(sys.modules):
        if name.split(".")[0] == missing or name.startswith("securesgd.serve"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    refused = run_here("serve", digits_run)
    assert refused.returncode == 2
    assert refused.stderr == f'securesgd: error: {missing} is not installed; run pip install "securesgd[serve]"\n'


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_words_round_the_radius_down_and_say_how_sure_they_are(norm):
    proven = Prediction(label=1, class_name="1", radius=0.012399, abstained=False, draws=100)
    words = radius_in_words(proven, "image", norm, 0.001)
    assert "0.0123" in words
    assert "0.0124" not in words
    assert "0.001" in words
    schema = Schema(target="y", classes=("a", "b"), columns=(Column(name="age", minimum=0, maximum=100),))
    table = radius_in_words(proven, "table", norm, 0.0, schema)
    assert "less than 1.23 % of its range" in table
    assert ("at once" in table) == (norm == "linf")  # in the other norms the columns share the radius
    assert "for certain" in table
    nothing = Prediction(label=1, class_name="1", radius=0.0, abstained=False, draws=0)
    assert "nothing is proven" in radius_in_words(nothing, "image", norm, 0.0)
    unsure = Prediction(label=None, class_name=None, radius=0.0, abstained=True, draws=9)
    assert "does not say" in radius_in_words(unsure, "image", norm, 0.1)


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["make_table.py", "cancer.csv"])
        exec((folder / "make_table.py").read_text(), {"__name__": "__main__"})
        trained = run_here("train", "--dataset", "cancer.csv", "--target", "diagnosis", "--method", "dp-ibp",
                           "--out", "run", "--set", "accountant=rdp", "--set", "steps=30")  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    return folder / "run"


def test_a_table_is_asked_by_rows_and_answers_in_the_units_of_its_columns(table_run):
    run = load_run(table_run)
    schema = table_schema(run.record)
    row = {column.name: column.minimum + 0.2 * (column.maximum - column.minimum) for column in schema.columns}
    expected = run.predict(torch.from_numpy(schema.encode({name: [repr(value)] for name, value in row.items()})[0]))
    with running(ServedRun(run)) as server, httpx.Client(base_url=server.address, timeout=60) as client:
        description = client.get("/api/run").json()
        assert description["kind"] == "table"
        assert description["target"] == "diagnosis"
        assert [column["name"] for column in description["columns"]] == list(row)
        answer = client.post("/api/predict", json={"row": row}).json()
        assert (answer["class"], answer["family"], answer["votes"]) == (expected.class_name, "interval", [])
        assert answer["radius"] == pytest.approx(expected.radius, abs=2e-4)
        assert answer["radius"] > 0
        assert answer["column_radii"] == schema.column_radii(answer["radius"], "linf")
        texts = client.post("/api/predict", json={"row": {name: repr(value) for name, value in row.items()}}).json()
        assert texts == answer
        found = client.post("/api/attack", json={"row": row}).json()
        inside, outside = found["inside"], found["outside"]
        assert not inside["changed"]
        assert outside["changed"]
        for name, radius in answer["column_radii"].items():
            assert abs(inside["row"][name] - row[name]) <= radius * (1 + 1e-3) + 1e-6
        moved = client.post("/api/predict", json={"row": outside["row"]}).json()
        assert moved["class"] == outside["class"]
        for body, words in (
            ({"row": {}}, "lacks the columns"),
            ({"row": row | {"diagnosis": "benign"}}, "without it"),
            ({"row": row | {"mean radius": "wide"}}, "a finite number"),
            ({"row": row | {"mean radius": None}}, "a number or a text"),
            ({"pixels": [1.0] * 30}, '"row"'),
        ):
            reply = client.post("/api/predict", json=body)
            assert reply.status_code == 400
            assert words in reply.json()["error"]


def test_a_run_without_noise_is_served_with_interval_radii(tmp_path, sure):
    trained = run_here("train", "--dataset", "digits", "--method", "dp-ibp", "--out", tmp_path / "run", "--set",
                       "accountant=rdp", "--set", "steps=20", "--set", "copies=1")  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    run = load_run(tmp_path / "run")
    inputs = run.data.test_inputs[:10]
    expected = run.predict(inputs)
    served = ServedRun(run)
    questions = [
        Question(verb="predict", body=json.dumps(as_json(x)).encode(), content_type="application/json") for x in inputs
    ]
    answers = served.answers(questions)
    assert [answer["label"] for answer in answers] == [p.label for p in expected]
    assert [answer["radius"] for answer in answers] == pytest.approx([p.radius for p in expected], abs=2e-4)
    assert served.failure_prob == 0
    assert any(answer["radius"] > 0 for answer in answers)
    (attacked,) = served.answers([Question(verb="attack", body=questions[0].body, content_type="application/json")])
    assert not attacked["inside"]["changed"] if attacked["inside"] else attacked["before"]["radius"] == 0
