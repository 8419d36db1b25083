"""Ways to forge a run folder, from clumsy ones to ones that keep every file consistent with the others."""

import csv
import json
import re

import numpy as np

from securesgd.attacks.robust_accuracy import attack_summary
from securesgd.certificates.summary import certified_summary, guarantee_in_words
from securesgd.privacy import epsilon_spent
from securesgd.privacy.events import event_from_json
from securesgd.runtime.hash_chain import seal_line
from securesgd.runtime.tables import read_rows
from securesgd.theory import clopper_pearson_lower
from securesgd.theory.certificates import CERTIFICATE_RULES, radii_by_rule


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=2) + "\n")


def edit_text(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def edit_rows(path, change):
    """`change` gets the rows as text, and returns those to write."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names, changed = list(rows[0]), change(rows)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows if changed is None else changed)


def chained_anew(path, change):
    """Edit the bodies of a ledger's lines and seal them again, as anybody can: the chain has no secret."""
    lines, previous = [], ""
    bodies = [json.loads(line) for line in path.read_text().splitlines()]
    change(bodies)
    for index, body in enumerate(bodies):
        del body["index"], body["digest"]
        line, previous = seal_line(index, body, previous)
        lines.append(line)
    path.write_bytes(b"".join(lines))


def cut_ledger(folder):
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))


def lower_epsilon_in_ledger(folder):
    chained_anew(folder / "ledger.jsonl", lambda bodies: bodies[-1].update(epsilon=bodies[-1]["epsilon"] / 2))


def more_noise_in_ledger(folder):
    """A ledger that is right in itself, and of a training that was not."""

    def change(bodies):
        bodies[1]["event"]["noise_multiplier"] *= 2
        event = event_from_json(bodies[1]["event"])
        bodies[1]["epsilon"] = epsilon_spent([event], bodies[0]["delta"], bodies[0]["accountant"])

    chained_anew(folder / "ledger.jsonl", change)


def lower_epsilon_in_statement(folder):
    edit_json(folder / "model.json", lambda model: model["statement"].update(accounted_epsilon=0.5))


def flip_weight_bit(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def edit_config(folder):
    text = re.sub(r"max_grad_norm = .*", "max_grad_norm = 0.01", (folder / "config.toml").read_text())
    (folder / "config.toml").write_text(text)


def comment_in_config(folder):
    with (folder / "config.toml").open("a") as file:
        file.write("# nothing\n")


def swap_redistribution(folder):
    edit_json(folder / "redistribution.json", lambda r: r["r"].reverse())


def unnormalised_redistribution(folder):
    edit_json(folder / "redistribution.json", lambda r: r.update(r=[2 * share for share in r["r"]]))


# Metrics


def higher_accuracy(folder):
    edit_text(folder / "metrics.jsonl", '"test_accuracy": 0.', '"test_accuracy": 0.9')


def higher_counts(folder):
    """Accuracy and counts by class that agree with each other."""
    from securesgd.theory.class_balance import ClassBalance

    path = folder / "metrics.jsonl"
    line = json.loads(path.read_text())
    classes = line["test_balance"]["classes"]
    examples = tuple(entry["examples"] for entry in classes)
    balance = ClassBalance(examples=examples, right=examples, answers=examples)
    line |= {"test_accuracy": balance.accuracy, "test_balance": balance.json([str(k) for k in range(10)])}
    path.write_text(json.dumps(line) + "\n")


# Certificates


def larger_radius(folder):
    edit_rows(folder / "certificates.csv", lambda rows: rows[2].update(radius_tight="0.3"))


def more_votes(folder):
    edit_rows(folder / "certificates.csv", lambda rows: rows[2].update(p_lower="0.99", q_upper="0.01"))


def written_certificates(folder, change):
    """Edit rows (as numbers) and the record, and make everything else follow from them."""
    record_path, table = folder / "certificates.json", folder / "certificates.csv"
    records, rows = json.loads(record_path.read_text()), read_rows(table)
    record = records["linf"]
    change(rows, record)
    upper, published = record["sensitivity"]["upper"], record["published_sensitivity"]
    p, q, rounding = (np.array([row[name] for row in rows]) for name in ("p_lower", "q_upper", "rounding"))
    radii = radii_by_rule(p, q, upper, published, rounding, CERTIFICATE_RULES)
    for i, row in enumerate(rows):
        row |= {f"radius_{rule}": float(values[i]) for rule, values in radii.items()}
        row["abstained"] = int(row["radius_tight"] == 0)
    record["summary"] = certified_summary(rows)
    record["guarantee"] = guarantee_in_words(record["settings"], record["sensitivity"], record["summary"])
    record_path.write_text(json.dumps(records, indent=2))
    whole = ("index", "label", "prediction", "draws")
    cells = [{name: "" if v is None else int(v) if name in whole else v for name, v in row.items()} for row in rows]
    edit_rows(table, lambda _: cells)


def unanimous_votes(folder):
    """Bounds that 40 of 40 votes would give, with radii, summary and words that follow from them."""

    def change(rows, record):
        p = float(clopper_pearson_lower(40, 40, record["settings"]["failure_prob"]))
        for row in rows:
            row |= {"p_lower": p, "q_upper": 1 - p, "prediction": row["label"]}

    written_certificates(folder, change)


def halved_sensitivity(folder):
    edit_json(
        folder / "certificates.json",
        lambda records: records["linf"]["sensitivity"].update(upper=records["linf"]["sensitivity"]["upper"] / 2),
    )


def halved_sensitivity_everywhere(folder):
    def halve(entry):
        entry.update(upper=entry["upper"] / 2, lower=entry["lower"] / 2)

    edit_json(folder / "sensitivity.json", lambda content: halve(content["norms"]["linf"]))
    written_certificates(folder, lambda rows, record: halve(record["sensitivity"]))


# Attacks


def changed_outcome(folder):
    edit_rows(folder / "attacks.csv", lambda rows: rows[0].update(success=str(1 - int(rows[0]["success"]))))


def deleted_attack_row(folder):
    edit_rows(folder / "attacks.csv", lambda rows: rows[:-1])


def doubled_attack_row(folder):
    edit_rows(folder / "attacks.csv", lambda rows: [*rows, rows[-1]])


def other_attack_summary(folder):
    def change(content):
        next(iter(content["cells"].values()))["summary"]["accuracy"]["share"] = 1.0

    edit_json(folder / "attacks.json", change)


def attack_votes_that_add_up(folder):
    """All examples right before and under attack, with the summary that follows from it."""
    edit_rows(folder / "attacks.csv", _all_right)
    rows = [{k: "" if v is None else v for k, v in row.items()} for row in read_rows(folder / "attacks.csv")]

    def change(content):
        cell = next(iter(content["cells"].values()))
        failure = cell["measured"]["failure_prob"]
        cell["attacked"] = len(rows)
        cell["summary"] = attack_summary(rows, classes=10, failure_prob=failure, certificate_failure_prob=failure)

    edit_json(folder / "attacks.json", change)


def _all_right(rows):
    for row in rows:
        for prefix in ("clean_", ""):
            votes = {"prediction": row["label"], "label_votes": row["draws"], "other_votes": "0"}
            row |= {f"{prefix}{name}": value for name, value in votes.items()}
        row |= {"success": "0", "size": "0.0"}


# Pages


def edit_report(folder):
    path = folder / "report.html"
    text = path.read_text()
    changed = re.sub(r'(<div class="number"><b[^>]*>)[^<]*', r"\g<1>0.999", text, count=1)
    assert changed != text
    path.write_text(changed)


def edit_card(folder):
    path = folder / "MODEL_CARD.md"
    path.write_text(path.read_text().replace("of 297", "of 2970", 1))
