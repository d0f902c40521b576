"""The transforms that are compared, by the names that metrics and figures use. No torch in here: the report needs the names alone."""

# name -> key of its options among the stage's parameters `transforms`
METHODS = {
    "none": "none",
    "NormClip": "norm",
    "ValueClip": "value",
    "AGC": "agc",
    "ZClip": "zclip",
    "Stable-SPAM": "stable_spam",
    "GS": "gs",
}
CLIPS = ("NormClip", "ValueClip", "AGC", "ZClip")
OURS = "GS"
# Measured on the language model and the quadratic alone.
ABLATIONS = ("Stable-SPAM",)
