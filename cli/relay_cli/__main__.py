"""`relay`: the command line for people who work with Relay."""

import sys

import typer
from relay_devstack.errors import DevstackError

from relay_cli import development

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.command("env")(development.env)
app.command("token")(development.token)


@app.callback()
def commands() -> None:
    """The command line for people who work with Relay."""


def main() -> None:
    """Run one command; a fault is one sentence and exit code 1."""
    try:
        app()
    except DevstackError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
