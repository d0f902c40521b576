"""What is compared, by the names that metrics and figures use. No torch in here: the report needs the names alone."""

METHODS = {
    "shared": "one shared score",
    "component": "a score per component, each by one fused product",
    "none": "the same blocks without attention",
    "real": "real-valued network of the same width, four times the weights",
    "shared, 4 times the heads": "one shared score in four times as many heads: as many maps as a score per component has",
    "component, conjugated": "a score per component of q conj(k), whose interactions are those of the shared score",
}
TASKS = ("speech", "digits", "text")
NOISY = "noisy"
