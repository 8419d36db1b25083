"""The robustness part of a report: certificates by family, norm and rule, and accuracy under attack."""

__all__ = ["attack_rows", "attack_warnings", "certificate_tables", "no_certificates_words", "side_by_side"]

from typing import Any

from securesgd.certificates.column_radii import column_radii_table, middle_radii, table_schema
from securesgd.certificates.rules import INTERVAL, caveat_in, record_key
from securesgd.certificates.summary import certified_summary, record_in_short, record_in_words
from securesgd.report.run_record import RunRecord, is_noisy
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import read_bytes, read_json
from securesgd.theory.rounding import probability_of_success, round_down

_AS_STORED = (
    " This page does not run the network: its radii are those of certificates.csv. The commands at the end prove them "
    "again, as does every call of certify before it adds to them."
)


def certificate_tables(record: RunRecord) -> list[dict[str, Any]]:
    """Return a table per norm, and one by intervals, with a row per rule that the certificates have a radius by."""
    tables = []
    for key in ("linf", "l2", "l1", INTERVAL):
        rows = [row for row in record.certificates if record_key(row) == key]
        if not rows or key not in record.certificate_records:
            continue
        summary, stated = certified_summary(rows), record.certificate_records[key]
        if key == INTERVAL and is_noisy(record):
            stated = stated | {"without_noise": True}  # by the method, whatever the file says
        by_rule = summary["certified_accuracy"]
        tables.append(
            {
                "key": key,
                "norm": rows[0]["norm"],
                "by": _family_words(stated) if key == INTERVAL else "",
                "by_short": _family_words(stated).replace(", of the network", ",") if key == INTERVAL else "",
                "about": _network_words(key, stated),
                "sure": "certain" if key == INTERVAL else probability_of_success(stated["settings"]["failure_prob"]),
                "examples": f"{len(rows):,}",
                "short": record_in_short(stated, summary),
                "words": record_in_words(stated, summary) + (_AS_STORED if key == INTERVAL else ""),
                "checks": _check_lines(record, key),
                "radii": list(by_rule["tight"]),
                "columns": _column_rows(record, rows),
                "rows": [
                    {
                        "rule": rule,
                        "caveat": caveat_in(key, rule),
                        "shares": list(at_radii.values()),
                        "mean": summary["average_certified_radius"][rule],
                    }
                    for rule, at_radii in by_rule.items()
                ],
            }
        )
    return tables


def side_by_side(tables: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the rule tight of smoothing and of intervals at the same radii; None unless both are there in one norm."""
    by_intervals = next((table for table in tables if table["key"] == INTERVAL), None)
    by_votes = next((t for t in tables if by_intervals is not None and t["key"] == by_intervals["norm"]), None)
    if by_intervals is None or by_votes is None:
        return None
    families = (("smoothing", by_votes), ("intervals", by_intervals))
    shares = {name: dict(zip(t["radii"], t["rows"][0]["shares"], strict=True)) for name, t in families}
    radii = [radius for radius in by_votes["radii"] if radius in shares["intervals"]]
    return {
        "norm": by_intervals["norm"],
        "radii": radii,
        "rows": [
            {
                "family": name,
                "about": table["about"],
                "examples": table["examples"],
                "sure": table["sure"],
                "shares": [shares[name][radius] for radius in radii],
                "mean": table["rows"][0]["mean"],
            }
            for name, table in families
        ],
    }


def _column_rows(record: RunRecord, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, of a run on a table, what half of the right predictions are proven for, in the unit of each column."""
    schema = table_schema(record.model or {})
    if schema is None or rows[0]["norm"] == "box":
        return []
    path = record.folder / names.COLUMN_RADII
    stated = read_bytes(path).decode(errors="replace") if path.exists() else ""
    if sorted(stated.splitlines()) != sorted(column_radii_table(record.certificates, schema).splitlines()):
        line = (
            f"{names.COLUMN_RADII} is not that of {names.CERTIFICATES} and the bounds in {names.MODEL}: certify again"
        )
        if line not in record.missing:
            record.missing.append(line)
        return []
    ranges = {column.name: f"{column.minimum:g} to {column.maximum:g}" for column in schema.columns if column.numeric}
    radii = middle_radii(rows, schema)
    return [
        {"name": name, "range": ranges[name], "radius": f"{round_down(radius):.4g}"} for name, radius in radii.items()
    ]


def _network_words(key: str, stated: dict[str, Any]) -> str:
    """Return which network the certificates of a record are about."""
    if key != INTERVAL:
        return "the smoothed network"
    return "the network without its noise" if stated.get("without_noise") is True else "the network"


def _family_words(stated: dict[str, Any]) -> str:
    """Return how the interval certificates of a record were proven, for the heading of its table."""
    return ", by intervals, of the network without its noise" if stated["without_noise"] is True else ", by intervals"


def _check_lines(record: RunRecord, norm: str) -> list[str]:
    """Return the results of attacks on the certificates themselves (`certify --falsify`), in words."""
    path = record.folder / names.FALSIFIED.format(norm=norm)
    if not path.exists():
        return []
    return [f"Rule {rule}: {search['in_words']}" for rule, search in read_json(path)["rules"].items()]


def attack_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Return a row per attack and budget, whatever the attack is called."""
    rows = []
    for name, cell in record.attacks.get("cells", {}).items():
        attack, summary = cell["attack"], cell.get("summary")
        if summary is None:  # interrupted before its first part was measured
            continue
        proven = summary.get("certified_accuracy", {}).get("tight", {})
        rows.append(
            {
                "cell": name,
                **{key: attack[key] for key in ("attack", "protocol", "norm")},
                "budget": f"{attack['budget']:g}",
                "images": f"{summary['examples']:,}",
                "clean": _share(summary["clean_accuracy"]),
                "attacked": _share(summary["accuracy"]),
                "certified_clean": _share(proven["clean"]) if "clean" in proven else None,
                "certified_attacked": _share(proven["attacked"]) if "attacked" in proven else None,
                "sandwich": {
                    "holds": summary["sandwich"]["holds"] is True,
                    "in_words": str(summary["sandwich"]["in_words"]),
                },
            }
        )
    return sorted(rows, key=lambda row: (row["protocol"], row["norm"], float(row["budget"]), row["attack"]))


def _share(stated: dict[str, Any]) -> dict[str, float]:
    """Return a share and its interval as a file states them. Raises: KeyError, TypeError, ValueError if it has none."""
    return {name: float(stated[name]) for name in ("share", "lower", "upper")}


def attack_warnings(record: RunRecord) -> list[str]:
    """Return why the attacks may not be believed: contradictions with certificates, and the sanity checks' warnings."""
    contradictions = [row["sandwich"]["in_words"] for row in attack_rows(record) if not row["sandwich"]["holds"]]
    return [*contradictions, *(warning["words"] for warning in record.attacks.get("suspicions", []))]


def no_certificates_words(record: RunRecord) -> str:
    """Return why the page has no certificates."""
    if record.statement is None:
        return "No prediction is certified: training is not finished, or there is no record of it."
    if is_noisy(record):
        return f"No prediction is certified yet. Run: securesgd certify {record.folder}"
    return (
        "No prediction is certified. This network has no noise, so votes prove nothing; interval bounds may: securesgd "
        f"certify {record.folder}"
    )
