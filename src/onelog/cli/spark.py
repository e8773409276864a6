"""`onelog spark serve`: a Spark that stays, for pipelines and SQL."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from onelog.cli import render
from onelog.cli.pipeline import HERE, Master, Where


def build_spark() -> App:
    """The commands of `onelog spark`."""
    app = App(
        name="spark", help="Keep a Spark running, so that pipelines and queries start at once."
    )

    @app.command
    def serve(*, port: int = 15002, master: Master = None, where: Where = HERE) -> None:
        """Run a Spark Connect server in the foreground until SIGTERM or Ctrl-C.

        Parameters
        ----------
        port
            The port to listen on, for this machine only.
        """
        from onelog.pipelines.serve import serve_spark  # noqa: PLC0415 - as in cli.pipeline

        def started(address: str, log: Path) -> None:
            render.OUT.print(
                f"Spark listens at {address}; its log is {log}. Try: onelog sql --master"
                f" {address} 'select …'",
                markup=False,
                soft_wrap=True,
            )

        serve_spark(master or "local[*]", port, where.workspace(), started)

    return app
