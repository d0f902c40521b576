"""What is compared, by the names that metrics and figures use. No torch in here: the report needs the names alone."""

METHODS = {
    "shared": "one shared score",
    "component": "a score per component, each by one fused product",
    "none": "the same blocks without attention",
    "real": "real-valued network of the same width, four times the weights",
}
TASKS = ("speech", "digits", "text")
NOISY = "noisy"
