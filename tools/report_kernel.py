"""Says after an installation which kernel runs: the compiled one, or the slow interpreted one."""

from __future__ import annotations

import sys

from onelog import kernel

if kernel.COMPILED:
    sys.stdout.write("onelog: kernel compiled\n")
else:
    sys.stdout.write("onelog: kernel interpreted: correct, but slow; it was not compiled here\n")
