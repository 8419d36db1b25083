"""A whole run folder, claim by claim: from its files, its pages and its signature, then with its network.

The network, and torch with it, is loaded by `check_network` alone.
"""

__all__ = ["CHECKED", "DEFAULT_EXAMPLES", "check_files", "check_network"]

from pathlib import Path
from typing import TYPE_CHECKING

from securesgd.check.evidence import Evidence
from securesgd.check.manifest import MANIFEST_CLAIMS, SignedFolder, require_public_key
from securesgd.check.outcome import Finding, examine
from securesgd.check.pages import PAGE_CLAIMS
from securesgd.check.records import CLAIMS, check_records
from securesgd.validate import validate_count

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securesgd.config import RunConfig

DEFAULT_EXAMPLES = 50
"""Certificates of each norm that are computed again; a forger of every twentieth is caught in 92 of 100 checks."""
CHECKED = frozenset(name for claim in (*CLAIMS, *PAGE_CLAIMS, *MANIFEST_CLAIMS) for name in claim.files)
"""The files that some claim is about."""


def check_files(folder: Path, public_key: str | Path | None = None) -> list[Finding]:
    """Return the outcome of each claim that needs no network. Only reads, and loads no torch.

    Raises: InvalidInputError if it is not a run folder, or there is no `public_key`.
    """
    key = None if public_key is None else Path(public_key)
    if key is not None:
        require_public_key(key)
    findings = check_records(folder)
    evidence = Evidence(folder)
    findings += [examine(claim, evidence, folder) for claim in PAGE_CLAIMS if any(map(evidence.has, claim.files))]
    return findings + [examine(claim, SignedFolder(folder=folder, public_key=key), folder) for claim in MANIFEST_CLAIMS]


def check_network(
    folder: Path,
    config: "RunConfig",
    model: "nn.Module",
    test_set: "tuple[Tensor, Tensor] | None",
    no_test_set: str = "",
    examples: int | None = DEFAULT_EXAMPLES,
) -> list[Finding]:
    """Return the outcome of each claim that takes the network, for a model in eval mode. Only reads.

    `no_test_set` says why there is no test set; `examples` certificates of each norm are computed again, None: all.
    """
    from securesgd.check.recompute import NETWORK_CLAIMS, Network

    if examples is not None:
        validate_count("examples", examples, at_least=0)
    evidence = Evidence(folder)
    network = Network(
        evidence=evidence, config=config, model=model, test_set=test_set, no_test_set=no_test_set, examples=examples
    )
    return [examine(claim, network, folder) for claim in NETWORK_CLAIMS if any(map(evidence.has, claim.files))]
