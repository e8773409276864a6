"""Says after an installation which kernel runs: the compiled one, or the slow interpreted one."""

from __future__ import annotations

import sys

from onelog.kernel.condition import kernel_warning

sys.stdout.write(f"onelog: {kernel_warning() or 'kernel compiled'}\n")
