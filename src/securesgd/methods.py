"""The methods of the paper and its comparisons: a table of choices that one training loop reads.

=================  =======  =====================  ==================================================================
method             private  noise in first layer   what it is
=================  =======  =====================  ==================================================================
sgd                no       no                     plain stochastic gradient descent
dpsgd              yes      no                     DP-SGD (Abadi et al. 2016)
ibp                no       no                     interval bounds in the loss (Gowal et al. 2018): l_inf certificates
                                                   by bounds instead of votes
dp-ibp             yes      no                     the same by DP-SGD
adlm               no       no                     Adaptive Laplace Mechanism (Phan et al. 2017) as published; its claim
                                                   of privacy is not endorsed (docs/reference/adlm.md)
secure-sgd         yes      redistributed          Secure-SGD with HGM, here with the exact calibration
secure-sgd-agm     yes      uniform                the paper's comparison: analytic calibration, no redistribution
pixeldp            no       uniform, ε_r <= 1      PixelDP (Lécuyer et al. 2019), classic calibration
hgm-pixeldp        no       redistributed          PixelDP with HGM
=================  =======  =====================  ==================================================================
"""

__all__ = ["METHODS", "Method", "method"]

from dataclasses import dataclass

from securesgd.errors import InvalidInputError, nearest
from securesgd.theory.gaussian import Mechanism


@dataclass(frozen=True, kw_only=True)
class Method:
    """What distinguishes a method from the others."""

    private: bool
    """DP-SGD with a ledger, or plain gradients."""
    noisy: bool
    """Whether the first layer gets noise, and so whether predictions can be certified by votes."""
    mechanism: Mechanism = "analytic"
    """Calibration of the first layer's noise."""
    redistribution: str = "uniform"
    """Default way to obtain r."""
    interval: bool = False
    """Whether the loss has interval bounds in it; configured in `[interval]`."""
    adlm: bool = False
    """Whether input and loss get AdLM's Laplace noise in training; configured in `[adlm]`."""


METHODS = {
    "sgd": Method(private=False, noisy=False),
    "dpsgd": Method(private=True, noisy=False),
    "ibp": Method(private=False, noisy=False, interval=True),
    "dp-ibp": Method(private=True, noisy=False, interval=True),
    "adlm": Method(private=False, noisy=False, adlm=True),
    "secure-sgd": Method(private=True, noisy=True, redistribution="learned"),
    "secure-sgd-agm": Method(private=True, noisy=True),
    "pixeldp": Method(private=False, noisy=True, mechanism="classic"),
    "hgm-pixeldp": Method(private=False, noisy=True, redistribution="learned"),
}


def method(name: str) -> Method:
    """Return a method by name; an unknown one raises with the nearest."""
    if not isinstance(name, str) or name not in METHODS:  # a configuration file may say anything
        raise InvalidInputError(f"unknown method {name!r}: {nearest(str(name), METHODS)}")
    return METHODS[name]
