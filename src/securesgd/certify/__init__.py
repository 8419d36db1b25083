"""Verified testing: Monte-Carlo votes of a noisy network, and what they prove about each prediction."""

from securesgd.certify.certificates import ALL_RULES, Certificates
from securesgd.certify.certification import CertifyProgress, certify, draws_needed
from securesgd.certify.recheck import smoothed_votes
from securesgd.certify.settings import CertifySettings
from securesgd.certify.verify import CertifiedClassifier, Verified, verify

__all__ = [
    "ALL_RULES",
    "Certificates",
    "CertifiedClassifier",
    "CertifyProgress",
    "CertifySettings",
    "Verified",
    "certify",
    "draws_needed",
    "smoothed_votes",
    "verify",
]
