"""Methods and number formats by the names that parameters, metrics and figures use. No torch in here."""

from typing import Literal

Method = Literal["adam", "adam_kahan", "madam", "mplus_adam"]
NAMES: dict[str, str] = {"adam": "Adam-LP", "adam_kahan": "Adam-LP + Kahan", "madam": "Madam", "mplus_adam": "M+Adam"}
FORMAT_NAMES = {"fp32": "FP32", "bf16": "BF16", "e4m3": "FP8 (E4M3)", "e5m2": "FP8 (E5M2)", "e2m1": "FP4 (E2M1)"}
ROUNDING_NAMES = {"rne": "to nearest", "sr": "stochastic"}


def tag(fmt: str, rounding: str) -> str:
    """How a format with a rounding is called in metrics; FP32 rounds nothing."""
    return "fp32" if fmt == "fp32" else f"{fmt} {rounding}"


def readable(name: str) -> str:
    """A tag in words."""
    fmt, _, rounding = name.partition(" ")
    return FORMAT_NAMES[fmt] + (f", {ROUNDING_NAMES[rounding]}" if rounding else "")


def short(name: str) -> str:
    """A tag in few words, for tables."""
    fmt, _, rounding = name.partition(" ")
    return FORMAT_NAMES[fmt].split(" (")[0] + {"": "", "rne": " nearest", "sr": " stochastic"}[rounding]


def runs_method(method: str, fmt: str, rounding: str) -> bool:
    """A compensation buffer is for what rounding to nearest loses; FP32 loses nothing worth keeping."""
    return method != "adam_kahan" or (fmt != "fp32" and rounding == "rne")
