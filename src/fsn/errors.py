"""The one exception a user is meant to read."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user can mend: one sentence that says what is wrong and what to do.

    The command line prints the sentence alone and exits with code 2; from Python it is an ordinary
    ``ValueError``.
    """
