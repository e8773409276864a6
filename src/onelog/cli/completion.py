"""`onelog completion`: scripts by which shells complete commands and options.

Rule: the script is printed, and the user decides where it goes; no file of a shell is changed.
"""

from __future__ import annotations

import sys
from typing import Literal

from cyclopts import App

Shell = Literal["bash", "zsh", "fish"]


def add_completion(app: App) -> None:
    """Add the command to the tree that it completes."""

    @app.command
    def completion(shell: Shell, /) -> None:
        """Print the script that completes `onelog` in a shell, as in: source <(onelog completion
        bash).

        Parameters
        ----------
        shell
            Whose script.
        """
        sys.stdout.write(app.generate_completion(prog_name="onelog", shell=shell))
