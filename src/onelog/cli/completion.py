"""`onelog completion`: scripts by which shells complete commands, options and live names.

Rules: the script is printed, and the user decides where it goes; no file of a shell is changed. The
scripts only ask `onelog __complete`, which knows the commands (`completing.py`): a script never
grows old.
"""

from __future__ import annotations

import sys
from typing import Final, Literal

from cyclopts import App

Shell = Literal["bash", "zsh", "fish"]

SCRIPTS: Final = {
    "bash": """\
_onelog() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        COMP_WORDBREAKS="$COMP_WORDBREAKS" "${COMP_WORDS[0]}" __complete bash 2>/dev/null))
    case "${COMPREPLY[0]-}" in */|*=) [ "${#COMPREPLY[@]}" = 1 ] && compopt -o nospace ;; esac
}
complete -F _onelog onelog
""",
    "zsh": """\
#compdef onelog
_onelog() {
    local -a found
    found=("${(@f)$("${words[1]}" __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -- "${found[@]}"
}
if [ "${funcstack[1]}" = _onelog ]; then _onelog "$@"; else compdef _onelog onelog; fi
""",
    "fish": """\
function __onelog
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    $words[1] __complete fish $words[2..] (commandline --current-token --cut-at-cursor) 2>/dev/null
end
complete --command onelog --no-files --arguments '(__onelog)'
""",
}


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
        sys.stdout.write(SCRIPTS[shell])
