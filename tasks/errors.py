"""Errors that a person can mend: the command line prints them as one sentence and exits with code 2."""


class UserError(Exception):
    """Bad parameters, a missing asset, an unknown paper: says what, where, and what would be right."""


class Busy(UserError):
    """Somebody else holds what this run needs; the message says who."""
